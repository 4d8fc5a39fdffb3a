"""A view's figures: drawn from finished runs, with what is missing said below each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pfl_bench.config.views import Figure, LoadedView
from pfl_bench.report import panels
from pfl_bench.report.boxes import box_keys, box_of, draw_boxes
from pfl_bench.report.costs import bytes_text, flops_text, price_of
from pfl_bench.report.curve_figures import HOUR_S, Parts, draw_curves
from pfl_bench.report.points import Point, draw_points
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import format_value


@dataclass(frozen=True)
class DrawnFigure:
    """One figure of the page.

    Attributes:
        title: What stands above it.
        reading: How to read it.
        wide: Whether its one picture takes the page's width.
        legend: How rows are drawn; empty where the pictures say it themselves.
        panels: The pictures; empty if nothing could be drawn.
        header: Header of the table of what is drawn.
        lines: Its lines.
        notes: What is missing, and other things that a reader must know.
    """

    title: str
    reading: str
    wide: bool
    legend: tuple[panels.LegendEntry, ...]
    panels: tuple[panels.Panel, ...]
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def draw_figures(
    view: LoadedView, runs: Mapping[str, Sequence[RunRecord]], only: Sequence[str] | None = None
) -> list[DrawnFigure]:
    """Draw a view's figures.

    Args:
        view: The view.
        runs: Runs by the name of their row in the viewed folder, finished or not; rows that are
            not there, or have no run, are named below the figures that want them.
        only: Rows that were asked for: figures show no others, and figures of none of them are
            left out. None for all.
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


def _draw(identifier: str, figure: Figure, rows: Mapping[str, Sequence[RunRecord]]) -> DrawnFigure:
    parts = {"curves": draw_curves, "boxes": _boxes, "budgets": _budgets}[figure.kind](
        identifier, figure, rows
    )
    missing = [f"{label}: no run of this row is there" for label, runs in rows.items() if not runs]
    unfinished = [
        f"{label}: seed {run.seed} is unfinished, after {panels.step_unit(run)} {run.last_round}"
        for label, runs in rows.items()
        for run in runs
        if run.summary is None
    ]
    notes = [*missing, *unfinished, *parts.notes]
    if not parts.panels:
        notes.insert(0, "Nothing could be drawn.")
    return DrawnFigure(
        title=figure.title,
        reading=parts.reading,
        wide=figure.kind != "curves",
        legend=tuple(_legend(rows)) if figure.kind == "curves" and parts.panels else (),
        panels=tuple(parts.panels),
        header=parts.header,
        lines=tuple(parts.lines),
        notes=tuple(notes),
    )


def _legend(rows: Mapping[str, Sequence[RunRecord]]) -> list[panels.LegendEntry]:
    return [
        entry
        for entry, runs in zip(panels.legend(rows), rows.values(), strict=True)
        if any(run.rounds for run in runs)
    ]


def _boxes(identifier: str, figure: Figure, rows: Mapping[str, Sequence[RunRecord]]) -> Parts:
    (metric,) = figure.metrics
    parts = Parts(
        f"{metric} over clients, each weighing the same. Box: 25th to 75th percentile; whiskers: "
        "10th to 90th; line: median; triangle: mean.",
        ("row", "clients", "p10", "p25", "median", "p75", "p90", "mean"),
        [],
        [],
        [],
    )
    boxes = []
    for label, runs in rows.items():
        box = box_of(label, runs, metric)
        finished = [run for run in runs if run.summary is not None]
        if box is None:
            if finished:
                measured = finished[0].summary or {}
                lacking = [k for k in box_keys(metric) if k not in measured.get("metrics", {})]
                parts.notes.append(
                    f"{label}: the summary lacks {', '.join(lacking) or 'finite values'}; run "
                    f"the row again with this release, in a new folder ({finished[0].path})"
                )
            continue
        boxes.append(box)
        clients = {_clients(run, metric) for run in finished}
        parts.lines.append(
            (
                label,
                " / ".join(sorted(clients)),
                *(format_value(value) for value in box.percentiles),
                format_value(box.mean),
            )
        )
        if box.num_runs > 1:
            parts.notes.append(f"{label}: averaged over {box.num_runs} seeds, number by number")
    if boxes:
        parts.panels.append(panels.Panel(metric, draw_boxes(identifier, metric, boxes)))
    return parts


def _clients(run: RunRecord, metric: str) -> str:
    split = metric.partition("/")[0]
    count = (run.summary or {}).get("metrics", {}).get(f"{split}/num_clients")
    return f"{int(count):,}" if isinstance(count, int | float) else "-"


def _budgets(identifier: str, figure: Figure, rows: Mapping[str, Sequence[RunRecord]]) -> Parts:
    (metric,) = figure.metrics
    target = figure.target if figure.target is not None else math.nan
    parts = Parts(
        f"What all clients together computed and sent until {metric} was {target:g}, as seen at "
        "the evaluations. A hollow mark did not reach it, and stands for all that its run used.",
        ("row", "reached", "round", "computed", "sent by clients", "received by clients"),
        [],
        [],
        [],
    )
    points = []
    hours: list[str] = []
    for style, (label, runs) in enumerate(rows.items()):
        price = price_of(runs, metric, target)
        if price is None:
            if any(run.summary is not None for run in runs):
                parts.notes.append(
                    f"{label}: the summary has no budget for {metric} {target:g}; give it in "
                    "evaluation.budgets and run the row again"
                )
            continue
        if math.isfinite(price.flops) and math.isfinite(price.bytes_up):
            points.append(Point(label, price, style))
        else:
            parts.notes.append(f"{label}: the summary does not say what the run used")
        reached = f"{price.num_reached} of {price.num_runs}" if price.num_runs > 1 else "yes"
        steps = f"{price.steps:,.0f}" if math.isfinite(price.steps) else "-"
        if price.num_reached < price.num_runs:
            best = "" if price.best is None else f"; the best was {format_value(price.best)}"
            parts.notes.append(
                f"{label}: {metric} {target:g} was not reached"
                + (f" in {steps} rounds{best}" if not price.num_reached else "")
                + (
                    f" by {price.num_runs - price.num_reached} of {price.num_runs} seeds, which "
                    "are left out of the means"
                    if price.num_reached
                    else ""
                )
            )
        if not price.num_reached:
            reached = "no"
        amounts = (
            flops_text(price.flops),
            bytes_text(price.bytes_up),
            bytes_text(price.bytes_down),
        )
        hours.append("-" if price.seconds is None else format_value(price.seconds / HOUR_S))
        parts.lines.append((label, reached, steps, *amounts))
    if set(hours) - {"-"}:
        parts.header += ("simulated hours",)
        parts.lines = [(*line, spent) for line, spent in zip(parts.lines, hours, strict=True)]
    if points:
        parts.panels.append(panels.Panel(f"{metric} {target:g}", draw_points(identifier, points)))
    return parts
