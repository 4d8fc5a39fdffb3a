"""``pfl-bench leaderboard``: all rows of run folders by data set, ranked where comparable."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from pfl_bench.cli.arguments import check_new
from pfl_bench.cli.main import attempt
from pfl_bench.cli.speech import answer_json, print_table, say, write
from pfl_bench.files import read_json
from pfl_bench.report.leaderboard import left_out, standings, write_leaderboard
from pfl_bench.report.run_folder import RunRecord, each_once, read_runs, runs_below
from pfl_bench.types import UserInputError


def main(arguments: argparse.Namespace) -> int:
    """Write the page and its JSON, and print the tables."""
    out = Path(arguments.out)
    found = each_once(path for name in arguments.folders for path in runs_below(Path(name)))
    check_page(out, arguments.force)
    data_out = out.with_suffix(".json")
    runs = read_runs(found, say)
    if arguments.audit:
        runs = [run if _is_audited(run) else replace(run, is_audit_believed=False) for run in runs]
    shown = write_leaderboard(runs, standings(runs), out)
    if arguments.json:
        answer_json(read_json(data_out))
    for board in () if arguments.json else shown:
        write(f"\n{board.title} ({board.about})\n")
        print_table(board.table)
    for path, why in left_out(runs).items():
        say(f"left out: {path}: {why}")
    say(f"\nleaderboard: {out.resolve()}\ndata: {data_out.resolve()}")
    return 0 if len(runs) == len(found) else 1


def check_page(out: Path, force: bool) -> None:
    """Check that a page, and its JSON beside it, can be written."""
    if out.suffix != ".html" or out.is_dir():
        raise UserInputError(f"--out {out}: give the name of a page, such as leaderboard.html")
    for path in (out, out.with_suffix(".json")):
        check_new(path, force)


def _is_audited(run: RunRecord) -> bool:
    """Audit a finished private run; False if that cannot be done.

    Whoever wrote the run's folder could write an audit into it, too: none that is there is kept.
    """
    from pfl_bench.runs.audit import audit_run

    if not run.is_finished or not run.is_private:
        return True
    say(f"auditing {run.path}")
    # One run without its data must not keep the others from the page.
    done = attempt(partial(audit_run, run.path, recompute="sample"))
    wrong = f"not audited: {done}" if isinstance(done, str) else done.not_kept
    if wrong:
        say(f"pfl-bench: {wrong}")
    return not wrong
