"""A view's figures of curves: scalars over rounds, or over the time of simulated devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pfl_bench.config.views import Figure
from pfl_bench.metrics import lower_is_better
from pfl_bench.report import curves, panels
from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.systems import read_devices
from pfl_bench.report.table import Table
from pfl_bench.simulation.devices.trace_file import DEVICES

HOUR_S = 3600.0
_CLOCK = "systems/total_simulated_seconds"
# A loss that diverges would press all others onto the axis of a linear scale.
_LOG_FROM = 50.0


def draw_curves(identifier: str, figure: Figure, rows: panels.Rows) -> panels.DrawnFigure:
    """Draw scalars of the rounds, a line a row: over rounds, or over the simulated time.

    Args:
        identifier: See ``canvas.render``.
        figure: Of the kind "curves".
        rows: Runs by what their row is called.
    """
    timed = figure.x == "simulated_time"
    unit = next((panels.step_unit(run) for runs in rows.values() for run in runs), "round")
    unit = "simulated hours" if timed else unit
    made_up = timed and any(_made_up_devices(run) for runs in rows.values() for run in runs)
    headings = ["row"]
    for metric in figure.metrics:
        headings += [f"{metric}, last", f"{metric}, {_second_column(metric)}"]
    drawn: list[panels.Panel] = []
    notes: list[str] = []
    cells: dict[str, list[str]] = {label: [] for label in rows}
    for place, metric in enumerate(figure.metrics):
        lines: list[curves.Line] = []
        for style, (label, runs) in enumerate(rows.items()):
            series = [pair for run in runs if (pair := run.series(metric))[0]]
            lines += _lines(runs, metric, style, timed)
            _, y = curves.mean_curve(series)
            summary = runs[0].summary if runs else None
            found = _last_and_second(metric, series, y, summary)
            cells[label] += [format_value(value) for value in found]
            bad = sum(not math.isfinite(value) for _, values in series for value in values)
            if bad:
                count = sum(len(values) for _, values in series)
                notes.append(f"{label}: {metric} is not finite at {bad} of {count} points")
            if runs and not series and any(run.rounds for run in runs):
                notes.append(f"{label}: {metric} was never logged")
        if not lines:
            continue
        finite = [value for line in lines for value in line.y if math.isfinite(value)]
        log = bool(finite) and min(finite) > 0 and max(finite) > _LOG_FROM * min(finite)
        title = f"{metric} (logarithmic)" if log else metric
        title += " (generated devices)" if made_up else ""
        ends = "; ".join(
            f"{label} ends at {values[2 * place]}" for label, values in cells.items() if values
        )
        text = f"{title} by {unit}: {ends}"
        svg = curves.draw(f"{identifier}{place}", text, unit, lines, log=log, counts=not timed)
        drawn.append(panels.Panel(title, svg))
    if timed:
        headings.append(unit)
        for label, runs in rows.items():
            seconds = curves.mean_curve([run.series(_CLOCK) for run in runs])[1]
            cells[label].append(format_value(seconds[-1] / HOUR_S if seconds else None))
            if runs and not seconds:
                notes.append(f"{label}: has no simulated time")
    lines_of_table = [(label, *values) for label, values in cells.items() if rows[label]]
    return panels.DrawnFigure(
        figure.title,
        f"A line a row, by {unit}; several seeds are thin, their mean is bold.",
        tuple(drawn),
        Table.of(headings, lines_of_table),
        tuple(notes),
    )


def _lines(runs: Sequence[RunRecord], metric: str, style: int, timed: bool) -> list[curves.Line]:
    """A row's lines: its one run, or several thin ones and their mean; over hours if ``timed``."""
    logged = [run for run in runs if run.series(metric)[0]]
    series: list[tuple[Sequence[float], Sequence[float]]] = []
    series += [run.series(metric) for run in logged]
    clocks = [run.series(_CLOCK) for run in logged]
    if len(logged) > 1:
        # A mean over time is one by round: of the values there, at the mean of the times.
        series.append(curves.mean_curve([run.series(metric) for run in logged]))
        clocks.append(curves.mean_curve(clocks))
    lines = []
    for place, ((x, y), clock) in enumerate(zip(series, clocks, strict=True)):
        if timed:
            hours: dict[float, float] = {
                step: seconds / HOUR_S for step, seconds in zip(*clock, strict=True)
            }
            points = [(hours[a], b) for a, b in zip(x, y, strict=True) if a in hours]
            x, y = [a for a, _ in points], [b for _, b in points]
        if x:
            lines.append(curves.Line(x, y, style, thin=place < len(logged) and len(logged) > 1))
    return lines


def _second_column(metric: str) -> str:
    # Nothing is the best of seconds, bytes and epsilons.
    return "median" if metric.partition("/")[0] in {"time", "systems", "privacy"} else "best"


def _last_and_second(
    metric: str,
    series: Sequence[tuple[Sequence[int], Sequence[float]]],
    mean: Sequence[float],
    summary: Mapping[str, Any] | None,
) -> tuple[float | None, float | None]:
    """What the table says of a row's curves and of their mean; None of a row without any."""
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
