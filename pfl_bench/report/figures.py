"""A view's figures: drawn from finished runs, with what is missing said below each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pfl_bench.config.views import Figure, LoadedView
from pfl_bench.report import panels
from pfl_bench.report.boxes import box_keys, box_of, draw_boxes
from pfl_bench.report.costs import Price, amount_texts, price_of
from pfl_bench.report.curve_figures import draw_curves
from pfl_bench.report.panels import DrawnFigure
from pfl_bench.report.points import Point, draw_points
from pfl_bench.report.results import format_value
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.series import HOUR_S, Rows
from pfl_bench.report.table import Table


def draw_figures(
    view: LoadedView, runs: Mapping[str, Sequence[RunRecord]], only: Sequence[str] | None = None
) -> list[DrawnFigure]:
    """Draw a view's figures from runs by the name of their row, finished or not.

    Rows that have no run are named below the figures that want them. If only some rows were asked
    for, figures show no others, and figures of none of them are left out.
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
    draw = {"curves": draw_curves, "boxes": _boxes, "budgets": _budgets}[figure.kind]
    drawn = draw(identifier, figure, rows)
    notes = [] if drawn.panels else ["Nothing could be drawn."]
    notes += [f"{label}: no run of this row is there" for label, runs in rows.items() if not runs]
    notes += [
        f"{label}: seed {run.seed} is unfinished, after {run.step_unit} {run.last_round}"
        for label, runs in rows.items()
        for run in runs
        if run.summary is None
    ]
    legend = []
    if figure.kind == "curves" and drawn.panels:
        pairs = zip(panels.legend(rows), rows.values(), strict=True)
        legend = [entry for entry, runs in pairs if any(run.rounds for run in runs)]
    return replace(
        drawn,
        legend=tuple(legend),
        wide=figure.kind != "curves",
        notes=(*notes, *drawn.notes),
    )


def _boxes(identifier: str, figure: Figure, rows: Rows) -> DrawnFigure:
    (metric,) = figure.metrics
    boxes, lines, notes = [], [], []
    for label, runs in rows.items():
        box = box_of(label, runs, metric)
        finished = [run for run in runs if run.summary is not None]
        if box is None:
            if finished:
                measured = finished[0].summary or {}
                lacking = [k for k in box_keys(metric) if k not in measured.get("metrics", {})]
                notes.append(
                    f"{label}: the summary lacks {', '.join(lacking) or 'finite values'}; run "
                    f"the row again with this release, in a new folder ({finished[0].path})"
                )
            continue
        boxes.append(box)
        clients = " / ".join(sorted({_clients(run, metric) for run in finished}))
        lines.append((label, clients, *map(format_value, (*box.percentiles, box.mean))))
        if box.num_runs > 1:
            notes.append(f"{label}: averaged over {box.num_runs} seeds, number by number")
    drawn = [panels.Panel(metric, draw_boxes(identifier, metric, boxes))] if boxes else []
    return DrawnFigure(
        figure.title,
        f"{metric} over clients, each weighing the same. Box: 25th to 75th percentile; whiskers: "
        "10th to 90th; line: median; triangle: mean.",
        tuple(drawn),
        Table.of(("row", "clients", "p10", "p25", "median", "p75", "p90", "mean"), lines),
        tuple(notes),
    )


def _clients(run: RunRecord, metric: str) -> str:
    split = metric.partition("/")[0]
    count = (run.summary or {}).get("metrics", {}).get(f"{split}/num_clients")
    return f"{int(count):,}" if isinstance(count, int | float) else "-"


def _budgets(identifier: str, figure: Figure, rows: Rows) -> DrawnFigure:
    (metric,) = figure.metrics
    target = figure.target if figure.target is not None else math.nan
    points, lines, notes, hours = [], [], [], []
    for style, (label, runs) in enumerate(rows.items()):
        price = price_of(runs, metric, target)
        if price is None:
            if any(run.summary is not None for run in runs):
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
            notes.append(f"{label}: {metric} {target:g} was not reached{_misses(price, steps)}")
        hours.append("-" if price.seconds is None else format_value(price.seconds / HOUR_S))
        amounts = amount_texts(price.flops, price.bytes_up, price.bytes_down)
        lines.append((label, reached, steps, *amounts))
    headings = ["row", "reached", "round", "computed", "sent by clients", "received by clients"]
    if set(hours) - {"-"}:
        headings.append("simulated hours")
        lines = [(*line, spent) for line, spent in zip(lines, hours, strict=True)]
    title = f"{metric} {target:g}"
    drawn = [panels.Panel(title, draw_points(identifier, points))] if points else []
    return DrawnFigure(
        figure.title,
        f"What all clients together computed and sent until {metric} was {target:g}, as seen at "
        "the evaluations. A hollow mark did not reach it, and stands for all that its run used.",
        tuple(drawn),
        Table.of(headings, lines),
        tuple(notes),
    )


def _misses(price: Price, steps: str) -> str:
    """Runs that did not reach the value, and how near they came, in words."""
    if price.num_reached:
        missed = price.num_runs - price.num_reached
        return f" by {missed} of {price.num_runs} seeds, which are left out of the means"
    best = "" if price.best is None else f"; the best was {format_value(price.best)}"
    return f" in {steps} rounds{best}"
