"""``pfl-bench table``: every row of a folder, or of a view, published beside measured.

A view shows other cells, and figures, of the runs of a folder's rows.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import run_many
from pfl_bench.cli.main import EXIT_DONE, EXIT_FAILED
from pfl_bench.cli.speech import answer_json, say
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.row_files import kind_of, locate, rows_below
from pfl_bench.config.sweep_file import MOST_RUNS
from pfl_bench.config.views import LoadedView, ViewRow, check_measured, load_view, view_in
from pfl_bench.types import ConfigError, RunSummary, UserInputError

if TYPE_CHECKING:
    from pfl_bench.report.run_folder import RunRecord


@dataclass(frozen=True)
class _Plan:
    """One run, and the row of the view that shows it; None without a view."""

    row: ViewRow | None
    folder: Path
    resolved: ResolvedConfig


def main(arguments: argparse.Namespace) -> int:
    """Run the rows that are not done and print the table of all.

    A view's are the viewed folder's own runs, of which ``--out`` is the folder.
    """
    folder = locate(arguments.folder, folder=True)
    if not 1 <= arguments.seeds <= MOST_RUNS:
        raise ConfigError(f"--seeds {arguments.seeds}: give 1 to {MOST_RUNS}")
    path = view_in(folder)
    view = None if path is None else load_view(path)
    shown = folder if view is None else view.folder
    runs = Path(arguments.out) if arguments.out else Path("runs") / run_many.short_name(shown)
    out = runs
    if view is not None:
        out = Path("runs") / run_many.short_name(folder)
        if arguments.out:
            out = runs / f"view-{folder.resolve().name}"
    # Every row is checked before the first one runs: a typo in the last costs no hours.
    plans = _plans(folder, view, runs, arguments)
    batch = run_many.run_all([(plan.folder, plan.resolved) for plan in plans], arguments, runs)
    done = [
        (plan, _with_the_views_cells(plan, summary))
        for plan, summary in zip(plans, batch.summaries, strict=True)
        if summary is not None
    ]
    has_failed = bool(done) and _print(view, plans, done, arguments, out)
    if arguments.json and not done:
        answer_json({"rows": []})
    return batch.exit_code() or (EXIT_FAILED if has_failed else EXIT_DONE)


def _plans(
    folder: Path, view: LoadedView | None, runs: Path, arguments: argparse.Namespace
) -> list[_Plan]:
    """The runs of a folder's rows, or of those that its view shows, which were checked."""
    from pfl_bench.report.results import results_table

    only, shown = arguments.only, {} if view is None else {row.row: row for row, _ in view.rows}
    if view is None:
        rows = _rows_of(folder)
    else:
        rows = {row.row: file for row, file in view.rows}
        only = {row.label: name for name, row in shown.items() if row.label}.get(only, only)
    if only is not None:
        rows = dict([run_many.choose(rows, only, folder)])
    configurations = run_many.with_seeds(rows.values(), arguments.overrides, arguments.seeds)
    plans = [
        _Plan(shown.get(name), runs / name / f"seed-{resolved.config.seed}", resolved)
        for name, file in rows.items()
        for resolved in configurations[file]
    ]
    if view is None:
        # A heading that there is not is told before anything runs.
        results_table([]).with_columns(arguments.columns, arguments.format)
    for plan in plans:
        if view is not None and plan.row is not None:
            check_measured(view, plan.row, plan.resolved.config)
    run_many.check_names(plan.resolved for plan in plans)
    # Of the seeds of a row one is enough.
    for plan in {plan.resolved.source: plan for plan in plans}.values():
        if view is not None and plan.row is not None:
            _check_cells(view, plan.row, plan)
    return plans


def _rows_of(folder: Path) -> dict[str, Path]:
    rows = rows_below(folder)
    if not rows:
        files = sorted(folder.glob("*.yaml"))
        sweeps = ", ".join(str(path) for path in files if kind_of(path) == "sweep")
        copied = shlex.quote(str(folder / "mine.yaml"))
        hint = f"make one: pfl-bench copy demo/federated.yaml {copied}"
        hint = f"run a sweep with pfl-bench sweep: {sweeps}" if sweeps else hint
        raise ConfigError(f"{folder}: holds no row (*.yaml); {hint}")
    return rows


def _check_cells(view: LoadedView, row: ViewRow, plan: _Plan) -> None:
    """Check, before anything runs, that a row's data and model give each cell shown of it."""
    from pfl_bench.evaluation.evaluator import Evaluator
    from pfl_bench.federated.parts import build_run

    if not row.expected or (plan.folder / "summary.json").exists():
        return
    config = plan.resolved.config
    try:
        parts = build_run(plan.resolved)
    except UserInputError:
        return  # Such as data that are not there: the run says it, and the other rows go on.
    if not {*config.evaluation.final_splits} <= {*parts.task.split_names}:
        return
    evaluation = config.evaluation.model_copy(update={"select_best": None, "budgets": []})
    # One that clients' own models have beside those of a model of all.
    own = "/num_clients_without_examples"
    cells = [entry for entry in row.expected if not entry.metric.endswith(own)]
    asked = config.model_copy(update={"evaluation": evaluation, "expected": cells})
    try:
        Evaluator(asked, parts.task, parts.model, parts.forward, None)
    except ConfigError as error:
        raise ConfigError(f"{view.path}: row '{row.row}': {error}") from None


def _with_the_views_cells(plan: _Plan, summary: dict[str, Any]) -> dict[str, Any]:
    from pfl_bench.runs.published import with_comparison

    if plan.row is None or not plan.row.expected:
        return summary
    return with_comparison(summary, plan.resolved, plan.row.expected)


def _print(
    view: LoadedView | None,
    plans: list[_Plan],
    done: list[tuple[_Plan, dict[str, Any]]],
    arguments: argparse.Namespace,
    out: Path,
) -> bool:
    """Print and save the table and the page; tell whether a row fails."""
    from pfl_bench.report.figures import draw_figures
    from pfl_bench.report.grid import make_grid
    from pfl_bench.report.page import write_page
    from pfl_bench.report.results import results_table
    from pfl_bench.report.run_folder import read_run
    from pfl_bench.runs.rows import rows_from_summaries

    rows = rows_from_summaries([summary for _, summary in done])
    shown = [(plan.row, summary, read_run(plan.folder)) for plan, summary in done]
    labels = None
    # A grid is for the cells of a wide table; a view of figures alone has few numbers a row. And
    # raw numbers are for programs, which take a line a cell.
    if any(plan.row is not None and plan.row.expected for plan in plans):
        labels = {summary["name"]: row.shown_as for row, summary, _ in shown if row is not None}
    table = (
        results_table(rows)
        if labels is None or arguments.format == "csv"
        else make_grid(rows, labels)
    )
    run_many.save_table(out, table, arguments, str(arguments.folder))
    records, figures = [], []
    runs: dict[str, list[RunRecord]] = {}
    for row, summary, record in shown:
        records.append(record if row is None else replace(record, summary=RunSummary.of(summary)))
        if row is not None:
            runs.setdefault(row.row, []).append(records[-1])
    if view is not None:
        figures = draw_figures(view, runs, [plan.row.row for plan in plans if plan.row is not None])
    page = write_page(records, out / "report.html", labels, figures)
    for figure in figures:
        for note in figure.notes:
            say(f"{figure.title}: {note}")
    say(f"report: {page.resolve()}")
    return any(row.is_failure for row in rows)
