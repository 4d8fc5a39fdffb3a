"""``pfl-bench table``: every row of a folder, or of a view, published beside measured.

A view shows other cells, and figures, of the runs of a folder's rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import run_many
from pfl_bench.cli.main import EXIT_DONE, EXIT_FAILED
from pfl_bench.cli.speech import answer
from pfl_bench.config.bundled_rows import locate
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.row_files import rows_below
from pfl_bench.config.views import LoadedView, ViewRow, check_measured, load_view, view_in
from pfl_bench.types import ConfigError, UserInputError

if TYPE_CHECKING:
    from pfl_bench.report.run_folder import RunRecord


def main(arguments: argparse.Namespace) -> int:
    """Run the rows that are not done and print the table of all."""
    folder = locate(arguments.folder, folder=True)
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds {arguments.seeds}: give 1 or more")
    view = view_in(folder)
    if view is not None:
        return _run_view(view, arguments)
    rows = _rows(folder, arguments.only)
    out = Path(arguments.out) if arguments.out else Path("runs") / run_many.short_name(folder)
    # Every row is checked before the first one runs: a typo in the last costs no hours.
    configurations = run_many.with_seeds(rows.values(), arguments)
    plans = [
        (out / name / f"seed-{resolved.config.seed}", resolved)
        for name, row in rows.items()
        for resolved in configurations[row]
    ]
    run_many.check_names(resolved for _, resolved in plans)
    from pfl_bench.report.results import results_table

    # A heading that there is not is told before anything runs.
    results_table([]).with_columns(arguments.columns, arguments.format)
    batch = run_many.run_all(plans, arguments, out)
    pairs = zip(plans, batch.summaries, strict=True)
    done = [(run_folder, summary) for (run_folder, _), summary in pairs if summary is not None]
    has_failed = bool(done) and _print_table(done, arguments, out)
    return _exit_code(batch, arguments, len(done), has_failed)


def _exit_code(
    batch: run_many.Batch, arguments: argparse.Namespace, done: int, has_failed: bool
) -> int:
    """The status; of a table of which no run is done, ``--json`` is answered first."""
    if arguments.json and not done:
        answer(json.dumps({"rows": []}))
    return batch.exit_code() or (EXIT_FAILED if has_failed else EXIT_DONE)


def _rows(folder: Path, only: str | None) -> dict[str, Path]:
    rows = rows_below(folder)
    if not rows:
        sweeps = ", ".join(str(path) for path in sorted(folder.glob("*.yaml")))
        hint = f"; run a sweep with pfl-bench sweep: {sweeps}" if sweeps else ""
        raise ConfigError(f"{folder}: holds no row (*.yaml){hint}")
    if only is None:
        return rows
    name, row = run_many.choose(rows, only, folder)
    return {name: row}


def _print_table(
    done: list[tuple[Path, dict[str, Any]]], arguments: argparse.Namespace, out: Path
) -> bool:
    """Print and save the table and the page; tell whether a row fails."""
    from pfl_bench.report.page import write_report
    from pfl_bench.report.results import results_table
    from pfl_bench.runs.rows import rows_from_summaries

    rows = rows_from_summaries([summary for _, summary in done])
    run_many.save_table(out, results_table(rows), arguments, str(arguments.folder))
    page = write_report([run_folder for run_folder, _ in done], out / "report.html")
    print(f"report: {page.resolve()}", file=sys.stderr)
    return any(row.is_failure for row in rows)


@dataclass(frozen=True)
class _Plan:
    """One run that a view shows."""

    row: ViewRow
    folder: Path
    resolved: ResolvedConfig


def _run_view(path: Path, arguments: argparse.Namespace) -> int:
    """Run what is not done of a view's rows, in the viewed folder's own runs, and show them.

    ``--out`` is the folder of the viewed rows' runs.
    """
    view = load_view(path)
    runs = Path(arguments.out) if arguments.out else Path("runs") / run_many.short_name(view.folder)
    plans = _plans(view, runs, arguments)
    here = path.parent
    out = Path("runs") / run_many.short_name(here)
    if arguments.out:
        out = Path(arguments.out) / f"view-{here.resolve().name}"
    batch = run_many.run_all([(p.folder, p.resolved) for p in plans], arguments, runs)
    done = [
        (plan, _with_the_views_cells(plan, summary))
        for plan, summary in zip(plans, batch.summaries, strict=True)
        if summary is not None
    ]
    has_failed = bool(done) and _print_view(view, plans, done, arguments, out)
    return _exit_code(batch, arguments, len(done), has_failed)


def _plans(view: LoadedView, runs: Path, arguments: argparse.Namespace) -> list[_Plan]:
    rows = view.rows
    if arguments.only is not None:
        names = {row.row: file for row, file in rows}
        wanted = next((row.row for row, _ in rows if row.label == arguments.only), arguments.only)
        name, _ = run_many.choose(names, wanted, view.path.parent)
        rows = tuple((row, file) for row, file in rows if row.row == name)
    plans = []
    configurations = run_many.with_seeds([file for _, file in rows], arguments)
    for row, file in rows:
        for resolved in configurations[file]:
            check_measured(view, row, resolved.config)
            plans.append(_Plan(row, runs / row.row / f"seed-{resolved.config.seed}", resolved))
    run_many.check_names(plan.resolved for plan in plans)
    for plan in {plan.row.row: plan for plan in plans}.values():
        _check_cells(view, plan)
    return plans


def _check_cells(view: LoadedView, plan: _Plan) -> None:
    """Check, before anything runs, that a row's data and model give each cell shown of it."""
    from pfl_bench.evaluation.evaluator import Evaluator
    from pfl_bench.federated.parts import build_run

    if not plan.row.expected or (plan.folder / "summary.json").exists():
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
    cells = [entry for entry in plan.row.expected if not entry.metric.endswith(own)]
    asked = config.model_copy(update={"evaluation": evaluation, "expected": cells})
    try:
        Evaluator(asked, parts.task, parts.model, parts.forward, None)
    except ConfigError as error:
        raise ConfigError(f"{view.path}: row '{plan.row.row}': {error}") from None


def _with_the_views_cells(plan: _Plan, summary: dict[str, Any]) -> dict[str, Any]:
    from pfl_bench.runs.published import compare_finished

    if not plan.row.expected:
        return summary
    expected = compare_finished(plan.resolved, summary, plan.row.expected)
    return {**summary, "expected": expected}


def _print_view(
    view: LoadedView,
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
    labels = None
    # A grid is for the cells of a wide table; a view of figures alone has few numbers a row. And
    # raw numbers are for programs, which take a line a cell.
    if any(plan.row.expected for plan in plans):
        labels = {summary["name"]: plan.row.shown_as for plan, summary in done}
    table = (
        results_table(rows)
        if labels is None or arguments.format == "csv"
        else make_grid(rows, labels)
    )
    run_many.save_table(out, table, arguments, str(arguments.folder))
    records = [replace(read_run(plan.folder), summary=summary) for plan, summary in done]
    runs: dict[str, list[RunRecord]] = {}
    for (plan, _), record in zip(done, records, strict=True):
        runs.setdefault(plan.row.row, []).append(record)
    figures = draw_figures(view, runs, [plan.row.row for plan in plans])
    page = write_page(records, out / "report.html", labels, figures)
    for figure in figures:
        for note in figure.notes:
            print(f"{figure.title}: {note}", file=sys.stderr)
    print(f"report: {page.resolve()}", file=sys.stderr)
    return any(row.is_failure for row in rows)
