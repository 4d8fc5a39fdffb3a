"""Choice of the curves that a report shows, and the captions of its pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pfl_bench.report import canvas, curves
from pfl_bench.report.curves import Panel
from pfl_bench.report.pictures import Box, box_of, draw_boxes
from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.series import STEP, Chart, Rows, curve_of, is_evaluation, speaking
from pfl_bench.report.table import Table

_MAX_HEADLINES = 4
# More cannot be told apart; others are drawn in further panels with the same axis.
MAX_CURVES = 8
# An epsilon beyond says nothing of privacy, and would press all others onto the axis.
_MAX_EPSILON = 100.0
_PERCENTILE = re.compile(r"^(?P<stem>[^/]+/client_.+)_p50$")
_PRIVACY_CURVES = {
    "privacy/clip_norm": "clip norm",
    "privacy/epsilon_simulated": "epsilon (simulated)",
    "privacy/epsilon_actual": "epsilon (actual)",
}


@dataclass(frozen=True)
class DrawnFigure:
    """One figure of a view, its numbers, and a legend where the pictures do not say it."""

    title: str
    reading: str
    panels: tuple[Panel, ...]
    table: Table
    notes: tuple[str, ...]
    legend: list[dict[str, Any]]


@dataclass(frozen=True)
class Learning:
    """Curves of training in one unit of steps, and a table of scalars that never change."""

    panels: list[Panel]
    constants: Table | None


def legend(rows: Rows) -> list[dict[str, Any]]:
    """Say how each row is drawn, in all pictures alike: its CSS colour and SVG dashes.

    "runs" is its name in the page's numbers.
    """
    return [
        {
            "name": name,
            "color": f"var(--s{style % len(canvas.PALETTE)})",  # as the page calls it
            "dasharray": " ".join(f"{length:g}" for length in canvas.dashes(style)) or "none",
            "num_runs": len(speaking(runs)),
            "runs": runs[0].name if runs else name,
        }
        for style, (name, runs) in enumerate(rows.items())
    ]


def learning_panels(rows: Rows) -> dict[str, Learning]:
    """Draw evaluation, loss, clip norm and epsilons: central rows by "epoch", others by "round"."""
    learning: dict[str, Learning] = {}
    for unit in ("round", "epoch"):
        # Rows of the other unit keep their places, which are their looks.
        chosen = {name: runs if runs[0].step_unit == unit else [] for name, runs in rows.items()}
        headlines = dict.fromkeys(key for runs in chosen.values() for key in headline_keys(runs))
        titles = {key: key for key in [*headlines][:_MAX_HEADLINES]}
        titles |= {"train/loss": "train/loss", **_PRIVACY_CURVES}
        if _epsilons_agree(chosen):
            del titles["privacy/epsilon_actual"]
            titles["privacy/epsilon_simulated"] = "epsilon (simulated, and actual: they are equal)"
        drawn: list[Panel] = []
        constants: list[tuple[str, str, str]] = []
        for index, (key, title) in enumerate(titles.items()):
            found = curves.lines_of(chosen, key)
            if all(one.curve.is_constant for one in found):
                constants += _constants(title, found)
            else:
                drawn += _panels(f"{unit}{index}-", key, title, found, chosen)
        if drawn or constants:
            headings = ("does not change", "row", "value")
            table = Table.of(headings, constants, to_left=(0, 1)) if constants else None
            learning[unit] = Learning(widen(drawn), table)
    return learning


def widen(panels: Sequence[Panel]) -> list[Panel]:
    """Draw a picture that stands alone over the page's width."""
    if len(panels) != 1:
        return list(panels)
    (panel,) = panels
    return [replace(panel, picture=replace(panel.picture, size=curves.WIDE))]


def client_panels(rows: Rows) -> list[Panel]:
    """Draw, a picture a row, how a metric is spread over clients: p10 to p90 around p50."""
    drawn: list[tuple[str, str, curves.Line]] = []
    shared: dict[str, list[float]] = {}
    for style, (name, runs) in enumerate(rows.items()):
        stem = _client_stem(runs)
        if stem is None:
            continue
        found = [curve_of(runs, f"{stem}_p{percent}") for percent in (10, 50, 90)]
        kept = [one for one in found if one is not None]
        # A single evaluation is no curve; its distribution has a box.
        if len(kept) < 3 or len(kept[1].x) < 2 or not kept[0].x == kept[1].x == kept[2].x:
            continue
        curve = replace(kept[1], low=kept[0].y, high=kept[2].y)
        drawn.append((stem, runs[0].step_unit, curves.Line(name, runs[0].name, style, curve)))
        shared.setdefault(stem, []).extend([*curve.low, *curve.high])
    panels = []
    for index, (stem, unit, line) in enumerate(drawn):
        text = (
            f"{line.name}: median of {stem} over clients by {unit}, last {line.curve.y[-1]:.4g}, "
            f"with the range from the 10th percentile ({line.curve.low[-1]:.4g}) to the 90th "
            f"({line.curve.high[-1]:.4g})"
        )
        band, limits = (f"{stem}_p10", f"{stem}_p90"), curves.limits(shared[stem])
        chart = Chart(STEP, unit, f"{stem}_p50", band=band, limits=limits)
        title = f"{line.name}: {stem.replace('/client_', '/')} over clients"
        points = curves.points_for(len(drawn))
        panels.append(curves.live_panel(f"d{index}", title, text, chart, [line], points))
    return widen(panels)


def box_panels(rows: Rows) -> list[Panel]:
    """Draw how final metrics are spread over clients: a picture a metric, a box a row."""
    by_metric: dict[str, list[Box]] = {}
    for name, runs in rows.items():
        for metric in _final_headlines(runs):
            box = box_of(name, runs, metric)
            if box is not None:
                by_metric.setdefault(metric, []).append(box)
    return [
        Panel(f"{metric} over clients, after training", draw_boxes(f"b{index}", metric, boxes))
        for index, (metric, boxes) in enumerate(by_metric.items())
    ]


def _final_headlines(runs: Sequence[RunRecord]) -> list[str]:
    """The final metrics that speak for a row: what is expected of it, else its headline."""
    wanted = [entry.metric for run in runs for entry in run.summary.expected]
    for run in runs:
        wanted = wanted or run.headlines
    return list(dict.fromkeys(wanted))


def headline_keys(runs: Sequence[RunRecord]) -> list[str]:
    """The row's expected metrics on the split that is evaluated during training, "val" first.

    Without any, one accuracy, or else one evaluation metric.
    """
    logged = {key for run in runs for row in run.rounds for key in row if "/" in key}
    evaluated = sorted(filter(is_evaluation, logged))
    keys: list[str] = []
    for metric in _final_headlines(runs) or ["test/accuracy"]:
        base = metric.split("/", 1)[-1]
        same = [key for key in evaluated if key.split("/", 1)[1] == base]
        keys += [key for key in same if key.startswith("val/")][:1] or same[:1]
    plain = [key for key in evaluated if "/num_" not in key and "client" not in key]
    return list(dict.fromkeys(keys)) or plain[:1]


def _epsilons_agree(rows: Rows) -> bool:
    """Whether no run's actual epsilon ever departs from the simulated one."""
    simulated, actual = "privacy/epsilon_simulated", "privacy/epsilon_actual"
    return all(
        run.series(simulated) == run.series(actual) for runs in rows.values() for run in runs
    )


def _client_stem(runs: Sequence[RunRecord]) -> str | None:
    """The metric whose spread over clients is shown: the headline's, else the first."""
    logged = {key for run in runs for row in run.rounds for key in row}
    stems = sorted(match["stem"] for key in logged if (match := _PERCENTILE.match(key)))
    for key in headline_keys(runs):
        split, base = key.split("/", 1)
        if f"{split}/client_{base}" in stems:
            return f"{split}/client_{base}"
    return stems[0] if stems else None


def small_multiples(
    identifier: str,
    title: str,
    chart: Chart,
    lines: Sequence[curves.Line],
    words: Callable[[Sequence[curves.Line]], tuple[str, str]],
    points: int = curves.MAX_POINTS,
) -> Iterator[Panel]:
    """Draw one scalar of all rows: so many rows a picture, all with the same axis.

    It is logarithmic where the values want that and the chart has no limits. Of a picture's lines
    ``words`` gives what follows in its title, and then in its description.
    """
    log = chart.limits is None and curves.wants_log([one.curve for one in lines])
    chart, title = replace(chart, log=log), f"{title} (logarithmic)" if log else title
    is_crowded = len(lines) > MAX_CURVES
    if is_crowded and chart.limits is None and not log:
        ends = [value for one in lines for value in (*one.curve.low, *one.curve.high)]
        chart = replace(chart, limits=curves.limits(ends))
    for start in range(0, len(lines), MAX_CURVES):
        part = lines[start : start + MAX_CURVES]
        rows = f", rows {start + 1} to {start + len(part)} of {len(lines)}" if is_crowded else ""
        more, last = words(part)
        whole = f"{title}{rows}{more}"
        text = f"{whole} by {chart.x_label}{last}"
        yield curves.live_panel(f"{identifier}{start}", whole, text, chart, part, points)


def _panels(
    identifier: str, key: str, title: str, lines: Sequence[curves.Line], rows: Rows
) -> Iterator[Panel]:
    unit = rows[lines[0].name][0].step_unit
    top = _top(lines) if key.startswith("privacy/epsilon") else None
    chart = Chart(STEP, unit, key, limits=None if top is None else (0.0, top))

    def words(part: Sequence[curves.Line]) -> tuple[str, str]:
        ends = (f"{one.name} {one.curve.y[-1]:.4g} at {unit} {one.curve.x[-1]:g}" for one in part)
        return _out_of_view(part, top, rows, key), f"; last values: {', '.join(ends)}"

    points = curves.points_for(len(lines))
    return small_multiples(identifier, title, chart, lines, words, points)


def _top(drawn: Sequence[curves.Line]) -> float | None:
    """Upper end of an axis of epsilons that not all curves fit on; None where all do."""
    highest = [max(one.curve.high) for one in drawn]
    within = [value for value in highest if value <= _MAX_EPSILON]
    return 1.08 * max(within) if 0 < len(within) < len(highest) else None


def _out_of_view(drawn: Sequence[curves.Line], top: float | None, rows: Rows, key: str) -> str:
    values = {one.name: [run.series(key)[1] for run in speaking(rows[one.name])] for one in drawn}
    infinite = [name for name, found in values.items() if any(map(math.isinf, chain(*found)))]
    above = [one for one in drawn if top is not None and max(one.curve.high) > top]
    parts = []
    if infinite:
        parts.append(f"{_named(infinite)} infinite at times")
    if above:
        highest = max(max(one.curve.high) for one in above)
        parts.append(f"{_named([one.name for one in above])} up to {highest:.3g}")
    return f"; out of view: {', '.join(parts)}" if parts else ""


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{len(names)} rows"


def _constants(title: str, found: Sequence[curves.Line]) -> list[tuple[str, str, str]]:
    """A line a row, or one where all rows have the same value."""
    lines = [(title, one.name, format_value(one.curve.y[-1])) for one in found]
    if len({value for _, _, value in lines}) == 1 < len(lines):
        return [(title, f"all {len(lines)} rows that have it", lines[0][2])]
    return lines
