"""Counts in FedScale's paper, and how what was read compares with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.common.fedscale.streaming import Source
from tasks.common.leaf import table1


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a data set in FedScale's table 5; its samples are rounded to ``rounding``."""

    clients: int
    samples: int
    rounding: int


def looks_full(found: Source, published: Counts) -> bool:
    """Whether so many samples look like the whole data, not a part of them."""
    return table1.looks_full(found.num_samples, published.samples)


def table5(found: Source, published: Counts) -> dict[str, Any]:
    """Compare counts with table 5.

    The paper does not say whether it counts all splits, and its repository says "training
    datasets" of the same numbers; so both counts are given, and either may agree.

    Returns:
        "table5": clients and samples of train and of all splits; "differs_from_published": a
        sentence for each number that neither agrees with, None for parts of the data.
    """
    train = found.surveys["train"]
    measured = {
        "train": {"clients": len(train.clients), "samples": train.num_rows},
        "all": {"clients": found.num_clients, "samples": found.num_samples},
    }
    if not looks_full(found, published):
        return {"table5": measured, "differs_from_published": None}
    differs: list[str] = []
    for what, wanted, slack in (
        ("clients", published.clients, 0),
        ("samples", published.samples, published.rounding // 2),
    ):
        here = [measured[part][what] for part in ("train", "all")]
        if all(abs(number - wanted) > slack for number in here):
            differs.append(
                f"{what}: {here[0]:,} in train and {here[1]:,} in all here, {wanted:,} published"
            )
    return {"table5": measured, "differs_from_published": differs}
