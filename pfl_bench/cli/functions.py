"""Commands as functions: what ``pfl_bench`` offers beside rows and runs.

Each reads, checks and writes what its command does, and prints nothing.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli.arguments import check_empty
from pfl_bench.cli.check_plugin import Checked, check_folder
from pfl_bench.cli.list import rows_listed
from pfl_bench.cli.main import EXIT_DONE
from pfl_bench.cli.parsers import build_parser
from pfl_bench.cli.python_calls import exclusively, in_python, override_texts, task_texts
from pfl_bench.cli.run_result import SweepResult
from pfl_bench.cli.show import look
from pfl_bench.config.row_files import locate, locate_row
from pfl_bench.config.sweeps import load_sweep
from pfl_bench.files import given_path
from pfl_bench.types import RunFolderError, UserInputError

if TYPE_CHECKING:
    from pfl_bench.data.held_task import HeldTask


@in_python()
def list_rows(below: str | Path | None = None) -> list[dict[str, Any]]:
    """List rows, as ``pfl-bench list rows`` does.

    Args:
        below: A folder of rows, or of bundled ones such as "flair"; None for all that are bundled.

    Returns:
        Of each row "name", "task", "text", and "published": a list of "metric", "value", "source".

    Raises:
        ConfigError: There is no such folder.
    """
    return list(rows_listed(None if below is None else str(given_path(below, "below"))))


@in_python()
def show(
    row: str | Path,
    *,
    estimate: bool = True,
    task: HeldTask | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Show a row before it is run, as ``pfl-bench show --json`` does.

    Args:
        row: A file, or a bundled row.
        estimate: Measure on a few clients how long it will take.
        task: As ``load_row`` takes it.
        **overrides: As ``load_row`` takes them.

    Returns:
        "name", "setting", "config", "privacy", "cost" and others; without the data,
        "data_not_prepared" says why some of them are None.

    Raises:
        ConfigError: There is no such row, or it is wrong.
    """
    with exclusively(False):
        name = str(given_path(row, "row"))
        texts = [*task_texts(task, locate_row(name)), *override_texts(overrides)]
        return look(name, texts, estimate).to_json_dict()


@in_python()
def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    figures: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write one page on run folders, as ``pfl-bench report`` does.

    Args:
        runs: A run folder, a folder of such, or several; seeds of one row have the same name.
        out: The page; an existing one is replaced by ``force``, and a run's own report.html always.
        figures: Folder for each picture as SVG and PDF; None for none.
        force: See ``out``.

    Returns:
        ``out``.

    Raises:
        UserInputError: A folder holds no run, or ``out`` exists.
    """
    from pfl_bench.cli.report import check_page
    from pfl_bench.report import page as pages
    from pfl_bench.report.run_folder import named_runs

    page, folders = given_path(out, "out"), named_runs(_folders(runs))
    check_page(page, folders, force)
    pictures = None if figures is None else given_path(figures, "figures")
    if pictures is not None:
        check_empty(pictures, force)
    return pages.write_report(folders, page, pictures)


@in_python()
def leaderboard(
    folders: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    force: bool = False,
) -> list[dict[str, Any]]:
    """Rank the rows of run folders where they can be compared, as ``pfl-bench leaderboard`` does.

    Args:
        folders: A folder or several, below which run folders lie.
        out: The page to write, with its JSON beside it; None for none.
        force: Replace both where they exist.

    Returns:
        The tables of the JSON: "data", "metric", "lower_is_better", "attack" and "rows", of which
        each has "row", "utility", "rank", "front", "protects", "privacy" and others.

    Raises:
        UserInputError: No run lies there, a file of one is damaged, or ``out`` exists.
    """
    from pfl_bench.cli.leaderboard import check_page
    from pfl_bench.report.leaderboard import standings, write_leaderboard
    from pfl_bench.report.run_folder import each_once, read_run, runs_below

    page = None if out is None else given_path(out, "out")
    if page is not None:
        check_page(page, force)
    found = each_once(path for name in _folders(folders) for path in runs_below(name))
    if not found:
        raise UserInputError("folders: there is none; give a folder below which run folders lie")
    runs = [read_run(path) for path in found]
    tables = standings(runs)
    if page is not None:
        write_leaderboard(runs, tables, page)
    return [asdict(table) for table in tables]


@in_python()
def sweep(
    file: str | Path,
    out: str | Path,
    *,
    show_progress: bool = False,
    task: HeldTask | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> SweepResult:
    """Run a sweep, as ``pfl-bench sweep`` does; what is finished is not run again.

    Args:
        file: Row, metric and grid of values.
        out: Folder of the runs, and of the sweep's table and price.
        show_progress: Write progress to standard error.
        task: As ``load_row`` takes it, for every run.
        **overrides: As ``load_row`` takes them, for every run.

    Returns:
        A list with ``frame``, of a dict for each run, the best first: "number", the values of the
        grid by their keys, "value" of the sweep's metric, "index" of the round or epoch that had
        it, "folder", "epsilon_simulated" and "epsilon_actual" (of this run alone; None without
        privacy). Its ``words`` name the best, and the price in privacy of all runs, or of the
        selection, whose trials these are.

    Raises:
        UserInputError: The sweep is wrong, or a run was refused.
    """
    from pfl_bench.cli.sweep import run_sweep

    path, home = locate(str(given_path(file, "file")), folder=False), given_path(out, "out")
    of_row = functools.partial(task_texts, task)
    loaded = load_sweep(path, override_texts(overrides), of_row)
    arguments = build_parser().parse_args(["sweep", str(path), "--out", str(home)])
    told = io.StringIO()
    quiet = contextlib.nullcontext() if show_progress else contextlib.redirect_stderr(told)
    with contextlib.redirect_stdout(io.StringIO()), quiet:
        ran = run_sweep(loaded, arguments, home)
    if ran.code != EXIT_DONE:
        said = told.getvalue().strip().splitlines()
        raise RunFolderError("\n".join(["sweep: a run failed", *said[-4:]]))
    found = SweepResult(
        {
            "number": result.combination.number,
            **result.combination.values,
            "value": result.value,
            "index": result.index,
            "epsilon_simulated": result.epsilons[0],
            "epsilon_actual": result.epsilons[1],
            "folder": str(home / result.combination.slug),
        }
        for result in ran.results
    )
    found.words = "\n\n".join(ran.words)
    return found


@in_python()
def check_plugin(folder: str | Path) -> list[Checked]:
    """Check one's own plug-ins, as ``pfl-bench check-plugin`` does: run, killed, resumed, audited.

    Args:
        folder: Of the plug-ins and their rows.

    Returns:
        Checks with "subject", "check", "outcome" ("passed", "failed", "skipped") and "evidence".

    Raises:
        PluginError: The folder holds no plug-in.
    """
    with exclusively(False):
        return list(check_folder(given_path(folder, "folder")))


def _folders(given: str | Path | Sequence[str | Path]) -> list[Path]:
    several: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    return [given_path(one, "folders") for one in several]
