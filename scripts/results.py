"""docs/results.md and docs/leaderboard.md, from records of runs: no number is typed by a hand.

    python scripts/results.py collect RUNS... --into docs/results/X.json [--merge]
    python scripts/results.py write
    python scripts/results.py check

``collect`` gathers what finished, committed runs have measured. ``write`` makes the pages from the
files of docs/results, and ``check`` says whether they are what these give.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from documentation.record_files import collect
from documentation.results import BOARD, PAGE, check_page, write_pages

from pfl_bench.cli.main import explain

CHECKOUT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None, checkout: Path = CHECKOUT) -> int:
    """Run an action; the exit code is 2 where the input is wrong, or the page is another.

    Args:
        arguments: Those of the command line; None for the process's own.
        checkout: The root of the checkout.
    """
    parser = argparse.ArgumentParser(description="The page docs/results.md, from records of runs.")
    actions = parser.add_subparsers(dest="action", required=True)
    gather = actions.add_parser("collect", help="write the records of finished runs")
    gather.add_argument("runs", nargs="+", metavar="RUNS", type=Path)
    gather.add_argument("--into", required=True, metavar="FILE.json", type=Path)
    gather.add_argument("--merge", action="store_true", help="keep records of other rows there")
    actions.add_parser("write", help="write docs/results.md and docs/leaderboard.md")
    actions.add_parser("check", help="say whether they are what the records give")
    given = parser.parse_args(arguments)
    try:
        if given.action == "collect":
            number = collect(given.runs, given.into, given.merge)
            print(f"{given.into}: {number} record{'s' * (number != 1)}")
        elif given.action == "write":
            write_pages(checkout)
            print(checkout / PAGE, checkout / BOARD)
        else:
            check_page(checkout)
    except Exception as error:
        message = explain(error, can_go_on=False)
        if message is None:
            raise
        print(f"results: {message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
