"""A view's figures: drawn from finished runs, with what is missing said below each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from pfl_bench.config.views import Figure, LoadedView
from pfl_bench.report import curves, panels
from pfl_bench.report.costs import Price, amount_texts, price_of
from pfl_bench.report.panels import DrawnFigure
from pfl_bench.report.pictures import Point, box_keys, box_of, draw_boxes, draw_points
from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.series import CLOCK, HOUR_S, STEP, Chart, Rows, curve_of
from pfl_bench.report.systems import read_devices
from pfl_bench.report.table import Table
from pfl_bench.simulation.devices.trace_file import DEVICES

# What is read off the pictures, the pictures, their numbers, and notes.
_Drawn = tuple[str, list[curves.Panel], Table, list[str]]


def draw_figures(
    view: LoadedView, runs: Mapping[str, Sequence[RunRecord]], only: Sequence[str] | None = None
) -> list[DrawnFigure]:
    """Draw a view's figures from runs by the name of their row, finished or not.

    Figures show the rows that were asked for alone; figures of none of them are left out.
    """
    labels = {row.row: row.shown_as for row, _ in view.rows}
    drawn = []
    for index, figure in enumerate(view.figures):
        names = [
            name
            for name in labels
            if (not figure.rows or name in figure.rows) and (only is None or name in only)
        ]
        if not names:
            continue
        rows = {labels[name]: list(runs.get(name, ())) for name in names}
        drawn.append(_draw(f"f{index}", figure, rows))
    return drawn


def _draw(identifier: str, figure: Figure, rows: Rows) -> DrawnFigure:
    draw = {"curves": _curves, "boxes": _boxes, "budgets": _budgets}[figure.kind]
    reading, drawn, table, own = draw(identifier, figure, rows)
    notes = [] if drawn else ["Nothing could be drawn."]
    notes += [f"{label}: no run of this row is there" for label, runs in rows.items() if not runs]
    notes += [
        f"{label}: seed {run.seed} is unfinished, after {run.step_unit} {run.last_round}"
        for label, runs in rows.items()
        for run in runs
        if not run.is_finished
    ]
    legend = []
    if figure.kind == "curves" and drawn:
        pairs = zip(panels.legend(rows), rows.values(), strict=True)
        legend = [entry for entry, runs in pairs if any(run.rounds for run in runs)]
    return DrawnFigure(figure.title, reading, tuple(drawn), table, (*notes, *own), legend)


def _boxes(identifier: str, figure: Figure, rows: Rows) -> _Drawn:
    (metric,) = figure.metrics
    boxes, lines, notes = [], [], []
    for label, runs in rows.items():
        box = box_of(label, runs, metric)
        finished = [run for run in runs if run.is_finished]
        if box is None:
            if finished:
                lacking = [
                    key for key in box_keys(metric) if key not in finished[0].summary.metrics
                ]
                notes.append(
                    f"{label}: the summary lacks {', '.join(lacking) or 'finite values'}; run "
                    f"the row again with this release, in a new folder ({finished[0].path})"
                )
            continue
        boxes.append(box)
        counts = {
            run.summary.metrics.get(f"{metric.partition('/')[0]}/num_clients") for run in finished
        }
        clients = " / ".join(sorted("-" if one is None else f"{int(one):,}" for one in counts))
        lines.append((label, clients, *map(format_value, (*box.percentiles, box.mean))))
        if box.num_runs > 1:
            notes.append(f"{label}: averaged over {box.num_runs} runs, number by number")
    drawn = [curves.Panel(metric, draw_boxes(identifier, metric, boxes))] if boxes else []
    reading = (
        f"{metric} over clients, each weighing the same. Box: 25th to 75th percentile; whiskers: "
        "10th to 90th; line: median; triangle: mean."
    )
    headings = ("row", "clients", "p10", "p25", "median", "p75", "p90", "mean")
    return reading, drawn, Table.of(headings, lines), notes


def _budgets(identifier: str, figure: Figure, rows: Rows) -> _Drawn:
    (metric,) = figure.metrics
    target = figure.target if figure.target is not None else math.nan
    points, lines, notes, hours = [], [], [], []
    for style, (label, runs) in enumerate(rows.items()):
        price = price_of(runs, metric, target)
        if price is None:
            if any(run.is_finished for run in runs):
                notes.append(
                    f"{label}: the summary has no budget for {metric} {target:g}; give it in "
                    "evaluation.budgets and run the row again"
                )
            continue
        if math.isfinite(price.flops) and math.isfinite(price.bytes_up):
            points.append(Point(label, price, style))
        else:
            notes.append(f"{label}: the summary does not say what the run used")
        reached = f"{price.num_reached} of {price.num_runs}" if price.num_runs > 1 else "yes"
        reached = reached if price.num_reached else "no"
        steps = f"{price.steps:,.0f}" if math.isfinite(price.steps) else "-"
        if price.num_reached < price.num_runs:
            missed = _misses(price, f"{steps} {runs[0].step_unit}s")
            notes.append(f"{label}: {metric} {target:g} was not reached{missed}")
        hours.append("-" if price.seconds is None else format_value(price.seconds / HOUR_S))
        amounts = amount_texts(price.flops, price.bytes_up, price.bytes_down)
        lines.append((label, reached, steps, *amounts))
    units = dict.fromkeys(run.step_unit for runs in rows.values() for run in runs)
    step = " or ".join(units) or "round"
    headings = ["row", "reached", step, "computed", "sent by clients", "received by clients"]
    if set(hours) - {"-"}:
        headings.append("simulated hours")
        lines = [(*line, spent) for line, spent in zip(lines, hours, strict=True)]
    title = f"{metric} {target:g}"
    drawn = [curves.Panel(title, draw_points(identifier, points))] if points else []
    reading = (
        f"What all clients together computed and sent until {metric} was {target:g}, as seen at "
        "the evaluations. A hollow mark did not reach it, and stands for all that its run used."
    )
    return reading, drawn, Table.of(headings, lines), notes


def _misses(price: Price, steps: str) -> str:
    if price.num_reached:
        missed = price.num_runs - price.num_reached
        return f" by {missed} of {price.num_runs} runs, which are left out of the means"
    best = "" if price.best is None else f"; the best was {format_value(price.best)}"
    return f" in {steps}{best}"


def _curves(identifier: str, figure: Figure, rows: Rows) -> _Drawn:
    """Draw scalars of the rounds, a line a row: over rounds, or over the simulated time."""
    timed = figure.x == "simulated_time"
    unit = next((run.step_unit for runs in rows.values() for run in runs), "round")
    x, unit, scale = (CLOCK, "simulated hours", 1 / HOUR_S) if timed else (STEP, unit, 1.0)
    kept = [run.path for runs in rows.values() for run in runs if (run.path / DEVICES).exists()]
    made_up = timed and any(read_devices(path).is_generated for path in kept)
    headings = ["row"]
    for metric in figure.metrics:
        headings += [f"{metric}, last", f"{metric}, {_second_column(metric)}"]
    drawn: list[curves.Panel] = []
    notes: list[str] = []
    cells: dict[str, list[str]] = {label: [] for label in rows}
    for place, metric in enumerate(figure.metrics):
        for label, runs in rows.items():
            values, found = _row_numbers(label, runs, metric)
            cells[label] += values
            notes += found
        ends = "; ".join(
            f"{label} ends at {values[2 * place]}" for label, values in cells.items() if values
        )
        said = (" (generated devices)" if made_up else "", f": {ends}")
        lines = curves.lines_of(rows, metric, x, scale)
        chart, words = Chart(x, unit, metric), lambda _, said=said: said
        drawn += panels.small_multiples(f"{identifier}{place}-", metric, chart, lines, words)
    if timed:
        headings.append(unit)
        for label, runs in rows.items():
            clock = curve_of(runs, CLOCK)
            cells[label].append(format_value(None if clock is None else clock.y[-1] / HOUR_S))
            if runs and clock is None:
                notes.append(f"{label}: has no simulated time")
    lines_of_table = [(label, *values) for label, values in cells.items() if rows[label]]
    reading = f"A line a row, by {unit}; of several seeds their mean, in the range of the seeds."
    return reading, panels.widen(drawn), Table.of(headings, lines_of_table), notes


def _row_numbers(label: str, runs: Sequence[RunRecord], metric: str) -> tuple[list[str], list[str]]:
    """A row's cells of one scalar, the last and the second column's, and what to know of them."""
    series = [values for run in runs if (values := run.series(metric)[1])]
    curve = curve_of(runs, metric)
    mean = [] if curve is None else curve.y
    last, second = (mean[-1] if mean else None), None
    # An epsilon that is infinite at the end must not be shown as the last that was not.
    if any(math.isinf(values[-1]) for values in series):
        last = math.inf
    if mean and _second_column(metric) == "median":
        second = median(mean)
    elif mean:
        second = (min if runs[0].directions.lower_is_better(metric) else max)(mean)
    notes = []
    bad = sum(not math.isfinite(value) for values in series for value in values)
    if bad:
        notes.append(f"{label}: {metric} is not finite at {bad} of {sum(map(len, series))} points")
    if runs and not series and any(run.rounds for run in runs):
        notes.append(f"{label}: {metric} was never logged")
    return [format_value(last), format_value(second)], notes


def _second_column(metric: str) -> str:
    # Nothing is the best of seconds, bytes and epsilons.
    return "median" if metric.partition("/")[0] in {"time", "systems", "privacy"} else "best"
