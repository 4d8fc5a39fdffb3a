"""``pfl-bench table``: every row of a folder, or of a view, published beside measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pfl_bench.cli import run_many
from pfl_bench.cli.main import EXIT_FAILED
from pfl_bench.config.bundled_rows import locate
from pfl_bench.config.row_files import rows_below
from pfl_bench.config.views import view_in
from pfl_bench.types import ConfigError


def main(arguments: argparse.Namespace) -> int:
    """Run the rows that are not done and print the table of all."""
    folder = locate(arguments.folder, folder=True)
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds {arguments.seeds}: give 1 or more")
    view = view_in(folder)
    if view is not None:
        from pfl_bench.cli.table_view import run_view

        return run_view(view, arguments)
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
    run_many.answer_nothing(arguments, done)
    return batch.exit_code() or (EXIT_FAILED if has_failed else 0)


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
