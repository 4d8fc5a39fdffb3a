"""A view's figures of curves: scalars over rounds, or over the time of simulated devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from pfl_bench.config.views import Figure
from pfl_bench.metrics import lower_is_better
from pfl_bench.report import curves, panels
from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.series import CLOCK, HOUR_S, STEP, Chart, Rows, curve_of
from pfl_bench.report.systems import read_devices
from pfl_bench.report.table import Table
from pfl_bench.simulation.devices.trace_file import DEVICES


def draw_curves(identifier: str, figure: Figure, rows: Rows) -> panels.DrawnFigure:
    """Draw scalars of the rounds, a line a row: over rounds, or over the simulated time."""
    timed = figure.x == "simulated_time"
    unit = next((run.step_unit for runs in rows.values() for run in runs), "round")
    unit = "simulated hours" if timed else unit
    made_up = timed and any(_made_up_devices(run) for runs in rows.values() for run in runs)
    headings = ["row"]
    for metric in figure.metrics:
        headings += [f"{metric}, last", f"{metric}, {_second_column(metric)}"]
    drawn: list[panels.Panel] = []
    notes: list[str] = []
    cells: dict[str, list[str]] = {label: [] for label in rows}
    for place, metric in enumerate(figure.metrics):
        for label, runs in rows.items():
            values, found = _numbers(label, runs, metric)
            cells[label] += values
            notes += found
        ends = "; ".join(
            f"{label} ends at {values[2 * place]}" for label, values in cells.items() if values
        )
        drawn += _panels(f"{identifier}{place}", metric, rows, (unit, ends), made_up)
    if timed:
        headings.append(unit)
        for label, runs in rows.items():
            seconds = curves.mean_curve([run.series(CLOCK) for run in runs])[1]
            cells[label].append(format_value(seconds[-1] / HOUR_S if seconds else None))
            if runs and not seconds:
                notes.append(f"{label}: has no simulated time")
    lines_of_table = [(label, *values) for label, values in cells.items() if rows[label]]
    return panels.DrawnFigure(
        figure.title,
        f"A line a row, by {unit}; of several seeds their mean, in the range of the seeds.",
        tuple(panels.widen(drawn)),
        Table.of(headings, lines_of_table),
        tuple(notes),
    )


def _numbers(label: str, runs: Sequence[RunRecord], metric: str) -> tuple[list[str], list[str]]:
    """A row's cells of one scalar, and what a reader must know of them."""
    series = [pair for run in runs if (pair := run.series(metric))[0]]
    _, mean = curves.mean_curve(series)
    found = _last_and_second(metric, series, mean, runs[0].summary if runs else None)
    notes = []
    bad = sum(not math.isfinite(value) for _, values in series for value in values)
    if bad:
        count = sum(len(values) for _, values in series)
        notes.append(f"{label}: {metric} is not finite at {bad} of {count} points")
    if runs and not series and any(run.rounds for run in runs):
        notes.append(f"{label}: {metric} was never logged")
    return [format_value(value) for value in found], notes


def _panels(
    identifier: str, metric: str, rows: Rows, words: tuple[str, str], made_up: bool
) -> Iterator[panels.Panel]:
    """Draw one scalar of all rows, so many a picture. ``words``: the axis, and the ends."""
    unit, ends = words
    x, scale = (CLOCK, 1 / HOUR_S) if unit == "simulated hours" else (STEP, 1.0)
    found = [
        (curve, (runs[0].name, label, style))
        for style, (label, runs) in enumerate(rows.items())
        if (curve := curve_of(runs, metric, x, scale)) is not None
    ]
    log = curves.wants_log([curve for curve, _ in found])
    whole = f"{metric} (logarithmic)" if log else metric
    whole += " (generated devices)" if made_up else ""
    limits = None
    if len(found) > panels.MAX_CURVES and not log:
        limits = curves.limits([y for curve, _ in found for y in (*curve.low, *curve.high)])
    for start in range(0, len(found), panels.MAX_CURVES):
        part = found[start : start + panels.MAX_CURVES]
        title = whole
        if len(part) < len(found):
            title += f", rows {start + 1} to {start + len(part)} of {len(found)}"
        drawn = [(curve, style, label) for curve, (_, label, style) in part]
        lines, bands = curves.lines_and_bands(drawn)
        plot = curves.Plot(unit, lines, bands, limits, log, counts=x == STEP)
        picture = curves.draw(f"{identifier}-{start}", f"{title} by {unit}: {ends}", plot)
        chart = Chart(x, unit, metric, tuple(line for _, line in part), None, log, limits)
        yield panels.Panel(title, picture, chart)


def _second_column(metric: str) -> str:
    # Nothing is the best of seconds, bytes and epsilons.
    return "median" if metric.partition("/")[0] in {"time", "systems", "privacy"} else "best"


def _last_and_second(
    metric: str,
    series: Sequence[tuple[Sequence[int], Sequence[float]]],
    mean: Sequence[float],
    summary: Mapping[str, Any] | None,
) -> tuple[float | None, float | None]:
    """The table's two numbers of a row's curves and of their mean; None of a row without any."""
    # An epsilon that is infinite at the end must not be shown as the last that was not.
    infinite = any(math.isinf(values[-1]) for _, values in series)
    if not mean:
        return (math.inf if infinite else None), None
    last = math.inf if infinite else mean[-1]
    if _second_column(metric) == "median":
        return last, median(mean)
    return last, (min if lower_is_better(metric, summary) else max)(mean)


def _made_up_devices(run: RunRecord) -> bool:
    return (run.path / DEVICES).exists() and read_devices(run.path).is_generated
