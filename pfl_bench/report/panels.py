"""Which curves a report shows, and what each picture says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pfl_bench.report import canvas, curves
from pfl_bench.report.boxes import Box, box_of, draw_boxes
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Table
from pfl_bench.runs.rows import headline_metrics

_MAX_HEADLINES = 4
_PERCENTILE = re.compile(r"^(?P<stem>[^/]+/client_.+)_p50$")
_NOT_EVALUATION = frozenset({"train", "privacy", "time", "systems", "local", "multitask"})
_PRIVACY_CURVES = {
    "privacy/clip_norm": "clip norm",
    "privacy/epsilon_simulated": "epsilon (simulated)",
    "privacy/epsilon_actual": "epsilon (actual)",
}


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: What is drawn.
        svg: The picture.
    """

    title: str
    svg: str


@dataclass(frozen=True)
class LegendEntry:
    """How a row is drawn.

    Attributes:
        name: Name of the row.
        color: CSS colour.
        dasharray: SVG dashes, "none" for a solid line.
        num_runs: Runs of the row.
    """

    name: str
    color: str
    dasharray: str
    num_runs: int


@dataclass(frozen=True)
class DrawnFigure:
    """One figure of a view.

    Attributes:
        title: What stands above it.
        reading: How to read it.
        panels: The pictures; empty if nothing could be drawn.
        table: What is drawn, as numbers.
        notes: What is missing, and other things that a reader must know.
        legend: How rows are drawn; empty where the pictures say it themselves.
        wide: Whether its one picture takes the page's width.
    """

    title: str
    reading: str
    panels: tuple[Panel, ...]
    table: Table
    notes: tuple[str, ...]
    legend: tuple[LegendEntry, ...] = ()
    wide: bool = False


Rows = Mapping[str, Sequence[RunRecord]]


def legend(rows: Rows) -> list[LegendEntry]:
    """Say how each row is drawn, in all pictures alike."""
    entries = []
    for style, (name, runs) in enumerate(rows.items()):
        dashes = " ".join(f"{length:g}" for length in canvas.dashes(style)) or "none"
        entries.append(LegendEntry(name, canvas.color_name(style), dashes, len(runs)))
    return entries


def learning_panels(rows: Rows) -> dict[str, list[Panel]]:
    """Draw evaluation, training loss, clip norm and epsilons.

    Args:
        rows: Runs by the name of their row.

    Returns:
        The pictures that have something to show: under "epoch" those of central rows, under
        "round" those of all others, whose horizontal axes cannot be compared.
    """
    styles = {name: style for style, name in enumerate(rows)}
    panels: dict[str, list[Panel]] = {}
    for unit in ("round", "epoch"):
        chosen = {name: runs for name, runs in rows.items() if step_unit(runs[0]) == unit}
        headlines = dict.fromkeys(key for runs in chosen.values() for key in headline_keys(runs))
        titles = {key: key for key in [*headlines][:_MAX_HEADLINES]}
        titles |= {"train/loss": "train/loss", **_PRIVACY_CURVES}
        if _epsilons_agree(chosen):
            del titles["privacy/epsilon_actual"]
            titles["privacy/epsilon_simulated"] = "epsilon (simulated, and actual: they are equal)"
        drawn = [
            _panel(f"{unit}{index}", key, title, unit, chosen, styles)
            for index, (key, title) in enumerate(titles.items())
        ]
        if any(drawn):
            panels[unit] = [panel for panel in drawn if panel is not None]
    return panels


def client_panels(rows: Rows) -> list[Panel]:
    """Draw, a picture a row, how a metric is spread over clients: p10 to p90 around p50.

    Args:
        rows: Runs by the name of their row.

    Returns:
        The pictures, all with the same vertical axis; several seeds are averaged.
    """
    drawn: list[tuple[str, str, str, curves.Line, curves.Band]] = []
    for style, (name, runs) in enumerate(rows.items()):
        stem = _client_stem(runs)
        if stem is None:
            continue
        low, middle, high = (
            curves.mean_curve([run.series(f"{stem}_p{percent}") for run in runs])
            for percent in (10, 50, 90)
        )
        if not middle[0] or not low[0] == middle[0] == high[0]:
            continue
        line = curves.Line(middle[0], middle[1], style)
        band = curves.Band(middle[0], low[1], high[1], style)
        drawn.append((name, stem, step_unit(runs[0]), line, band))
    shared: dict[str, list[float]] = {}
    for _, stem, _, _, band in drawn:
        shared.setdefault(stem, []).extend([*band.low, *band.high])
    return [
        Panel(
            f"{name}: {stem.replace('/client_', '/')} over clients",
            curves.draw(
                f"d{index}",
                f"{name}: median of {stem} over clients by {unit}, last {line.y[-1]:.4g}, with the "
                f"range from the 10th percentile ({band.low[-1]:.4g}) to the 90th "
                f"({band.high[-1]:.4g})",
                unit,
                [line],
                [band],
                curves.limits(shared[stem]),
            ),
        )
        for index, (name, stem, unit, line, band) in enumerate(drawn)
    ]


def box_panels(rows: Rows) -> list[Panel]:
    """Draw how final metrics are spread over clients: a picture a metric, a box a row.

    Args:
        rows: Runs by the name of their row.

    Returns:
        The pictures; none if no run has kept the percentiles.
    """
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
    wanted = [str(entry["metric"]) for run in runs for entry in run.expected]
    for run in runs:
        wanted = wanted or headline_metrics(run.summary or {})
    return list(dict.fromkeys(wanted))


def step_unit(run: RunRecord) -> str:
    """What a line of the run's metrics is: an epoch of central training, else a round.

    A round of local models is the training of the next clients, each to its end.
    """
    return "epoch" if run.setting in {"central", "central_dp"} else "round"


def headline_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Scalars of the rounds that show how well a row does.

    Args:
        runs: Runs of one row.

    Returns:
        The row's expected metrics on the split that was evaluated during training, "val" before
        others; without any, one accuracy, or else one evaluation metric.
    """
    logged = {key for run in runs for row in run.rounds for key in row if "/" in key}
    evaluated = sorted(key for key in logged if key.split("/")[0] not in _NOT_EVALUATION)
    wanted = [str(entry["metric"]) for run in runs for entry in run.expected]
    if not wanted:
        wanted = [name for run in runs for name in headline_metrics(run.summary or {})]
    keys: list[str] = []
    for metric in dict.fromkeys(wanted or ["test/accuracy"]):
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
    stems = sorted(
        {
            match["stem"]
            for run in runs
            for row in run.rounds
            for key in row
            if (match := _PERCENTILE.match(key))
        }
    )
    for key in headline_keys(runs):
        split, base = key.split("/", 1)
        if f"{split}/client_{base}" in stems:
            return f"{split}/client_{base}"
    return stems[0] if stems else None


def _panel(
    identifier: str,
    key: str,
    title: str,
    unit: str,
    rows: Rows,
    styles: Mapping[str, int],
) -> Panel | None:
    """Draw one scalar of all rows; None if none of them has it."""
    lines: list[curves.Line] = []
    ends: list[str] = []
    for name, runs in rows.items():
        series = [pair for run in runs if (pair := run.series(key))[0]]
        several = len(series) > 1
        lines += [curves.Line(x, y, styles[name], thin=several) for x, y in series]
        x, y = curves.mean_curve(series)
        if several and x:
            lines.append(curves.Line(x, y, styles[name]))
        if x:
            ends.append(f"{name} {y[-1]:.4g} at {unit} {x[-1]}")
    if not ends:
        return None
    description = f"{title} by {unit}; last values: {', '.join(ends)}"
    return Panel(title, curves.draw(identifier, description, unit, lines))
