"""``pfl-bench report``: one self-contained page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pfl_bench.report.page import write_report


def main(arguments: argparse.Namespace) -> int:
    """Write the page of one or more run folders."""
    page = write_report([Path(run) for run in arguments.runs], Path(arguments.out))
    print(f"report: {page}", file=sys.stderr)
    return 0
