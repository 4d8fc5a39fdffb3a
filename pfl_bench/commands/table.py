"""``pfl-bench table``: every row of a folder, published beside measured."""

from __future__ import annotations

import argparse
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, explain
from pfl_bench.commands._locate import locate
from pfl_bench.config_file import ResolvedConfig, load_config
from pfl_bench.types import ConfigError

if TYPE_CHECKING:
    from pfl_bench.report.table import TableFormat


def main(arguments: argparse.Namespace) -> int:
    """Run the rows that are not done and print the table of all."""
    folder = locate(arguments.folder, folder=True)
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds {arguments.seeds}: give 1 or more")
    rows = _rows(folder, arguments.only)
    out = Path(arguments.out) if arguments.out else Path("runs") / _short_name(folder)
    # Every row is checked before the first one runs: a typo in the last costs no hours.
    plans = [
        (out / row.relative_to(folder).with_suffix("") / f"seed-{resolved.config.seed}", resolved)
        for row in rows
        for resolved in _seeds(row, arguments)
    ]
    done, failed = [], []
    for run_folder, resolved in plans:
        summary = _run_one(run_folder, resolved)
        if summary is None:
            failed.append(run_folder)
        else:
            done.append((run_folder, summary))
    # Rows fail by the user's input alone; other errors are ours and are raised.
    status = EXIT_FAILED if failed else EXIT_DONE
    if failed and not done:
        status = EXIT_INPUT
    if done and _print_table(done, arguments.format, out):
        status = EXIT_FAILED
    for run_folder in failed:
        print(f"failed: {run_folder} (see above)", file=sys.stderr)
    return status


def _rows(folder: Path, only: str | None) -> list[Path]:
    rows = sorted(folder.rglob("*.yaml"))
    if not rows:
        raise ConfigError(f"{folder}: holds no row (*.yaml)")
    if only is None:
        return rows
    names = {str(row.relative_to(folder).with_suffix("")): row for row in rows}
    wanted = only.removesuffix(".yaml")
    chosen = [row for name, row in names.items() if wanted in (name, row.stem)]
    if len(chosen) != 1:
        near = get_close_matches(wanted, names, n=1, cutoff=0.4)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        problem = "is several rows" if chosen else "is no row"
        raise ConfigError(f"--only {only}: {problem} of {folder}{hint} Rows: {', '.join(names)}")
    return chosen


def _short_name(folder: Path) -> Path:
    parts = folder.resolve().parts
    for marker in ("configs", "bundled_configs"):
        if marker in parts and parts[-1] != marker:
            return Path(*parts[parts.index(marker) + 1 :])
    return Path(folder.resolve().name)


def _seeds(row: Path, arguments: argparse.Namespace) -> list[ResolvedConfig]:
    first = load_config(row, arguments.overrides)
    more = range(first.config.seed + 1, first.config.seed + arguments.seeds)
    return [first, *(load_config(row, [*arguments.overrides, f"seed={s}"]) for s in more)]


def _run_one(run_folder: Path, resolved: ResolvedConfig) -> dict[str, Any] | None:
    from pfl_bench.files import read_json
    from pfl_bench.report.page import write_report
    from pfl_bench.runner import run

    try:
        finished = read_json(run_folder / "summary.json") is not None
        summary = run(resolved, run_folder, resume=True)
        if finished:
            print(f"{run_folder}: finished before; not run again", file=sys.stderr)
        else:
            write_report([run_folder], run_folder / "report.html")
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        place = "" if message.startswith(str(run_folder)) else f"{run_folder}: "
        print(f"pfl-bench: {place}{message}", file=sys.stderr)
        return None
    return summary


def _print_table(done: list[tuple[Path, dict[str, Any]]], fmt: TableFormat, out: Path) -> bool:
    """Print and save the table and the page; tell whether a verdict is "differs"."""
    from pfl_bench.files import write_atomically
    from pfl_bench.report.page import write_report
    from pfl_bench.report.rows import rows_from_summaries
    from pfl_bench.report.table import format_table

    rows = rows_from_summaries([summary for _, summary in done])
    text = format_table(rows, fmt)
    print(text, end="")
    suffix = "tex" if fmt == "latex" else fmt
    write_atomically(out / f"table.{suffix}", text)
    page = write_report([run_folder for run_folder, _ in done], out / "report.html")
    print(f"report: {page.resolve()}", file=sys.stderr)
    return any(row.verdict == "differs" for row in rows)
