"""``pfl-bench report``: one self-contained page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pfl_bench.cli.arguments import check_empty, check_new
from pfl_bench.cli.speech import say
from pfl_bench.report.page import write_page
from pfl_bench.report.run_folder import named_runs, read_runs


def main(arguments: argparse.Namespace) -> int:
    """Write the page of one or more run folders."""
    out, folders = Path(arguments.out), named_runs(map(Path, arguments.runs))
    runs = read_runs(folders, say)
    check_page(out, folders, arguments.force)
    figures = None if arguments.figures is None else Path(arguments.figures)
    if figures is not None:
        check_empty(figures, arguments.force)
    page = write_page(runs, out, save_to=figures)
    if figures is not None:
        say(f"figures: {figures}")
    say(f"report: {page}")
    return 0 if len(runs) == len(folders) else 1


def check_page(out: Path, folders: Sequence[Path], force: bool) -> None:
    """Check that the page of run folders can be written."""
    # A run's own page is made of its folder alone, and can be made anew at any time.
    is_own = out.name == "report.html" and [out.parent.resolve()] == [p.resolve() for p in folders]
    if not is_own:
        check_new(out, force)
