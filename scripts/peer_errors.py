#!/usr/bin/env python
"""Privacy errors seen in public code, and what each costs, computed by this project's accountants.

    python scripts/peer_errors.py             # the tables of docs/privacy.md, in Markdown
    python scripts/peer_errors.py --json      # the same, with the refusals of this project in full

Guarantee of the numbers: an epsilon under "true" is an upper bound by an accountant, or, where two
numbers are given, a lower and an upper bound. A lower bound is the epsilon of one pair of
neighbouring data sets after the outputs were put into bins, composed with optimistic rounding: both
can only lower it. What a peer does was read in the named file of the named release or commit, and
is described, not copied. Every row also runs what excludes the error here, and fails if it does
not.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from peers import accounting, mechanisms
from peers.common import Row

ERRORS: tuple[Callable[[], Row], ...] = (
    accounting.rounds_as_epochs,
    accounting.fixed_as_poisson,
    accounting.shuffled_as_poisson,
    accounting.drawn_twice,
    accounting.ten_million,
    accounting.banded_rate,
    mechanisms.raised_noise,
    mechanisms.uncentred_bit,
    mechanisms.wrong_sign,
    mechanisms.next_bound,
    mechanisms.weighted_mean,
    mechanisms.lifted,
    mechanisms.local_epsilon,
    mechanisms.two_truths,
)


def compute() -> list[Row]:
    """All rows, in order."""
    return [error() for error in ERRORS]


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def interval(true: tuple[float, float]) -> str:
    """An interval of true epsilons, in words."""
    low, high = true
    if high == low:
        return number(low)
    return f"at least {number(low)}" if high == math.inf else f"{number(low)} to {number(high)}"


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """The two tables of docs/privacy.md, a line each."""
    yield "| | peer | what it does | at | quantity | claimed | true |"
    yield "|---:|---|---|---|---|---:|---:|"
    for index, row in enumerate(rows, start=1):
        yield (
            f"| {index} | {row.peer} | {row.error} | {row.setting} | {row.quantity} | "
            f"{number(row.claimed)} | {interval(row.true)} |"
        )
    yield ""
    yield "| | read in | what excludes it here | held by |"
    yield "|---:|---|---|---|"
    for index, row in enumerate(rows, start=1):
        yield f"| {index} | {row.files} | {row.here} | `{row.test}` |"


def to_json(row: Row) -> dict[str, Any]:
    """One row as JSON takes it: no upper bound is null."""
    low, high = row.true
    return {**asdict(row), "true": [low, None if math.isinf(high) else high]}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object, with the evidence")
    arguments = parser.parse_args()
    rows = compute()
    if arguments.json:
        print(json.dumps({"errors": [to_json(row) for row in rows]}, indent=1))
    else:
        print("\n".join(markdown(rows)))


if __name__ == "__main__":
    main()
