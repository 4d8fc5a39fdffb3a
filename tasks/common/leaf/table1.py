"""LEAF's table 1: what it counts, of a source before any choice, beside what was published."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TITLE = "LEAF, table 1"
# Sources with fewer samples than this share of the published ones are parts of the data.
FULL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Counts:
    """A row of the table; ``mean`` and ``sd`` (the population's) are of a user's samples."""

    users: int
    samples: int
    mean: float
    sd: float


# Source: Caldas et al. 2018 (LEAF), table 1.
FEMNIST = Counts(3_550, 805_263, 226.83, 88.94)
SENT140 = Counts(660_120, 1_600_498, 2.42, 4.71)
SHAKESPEARE = Counts(1_129, 4_226_158, 3_743.28, 6_212.26)
CELEBA = Counts(9_343, 200_288, 21.44, 7.63)
REDDIT = Counts(1_660_820, 56_587_343, 34.07, 62.95)


def count(sizes: Collection[int]) -> Counts:
    """Count what the table counts, of each user's samples; all of it is 0 without users."""
    own = np.fromiter(sizes, dtype=np.int64, count=len(sizes))
    if not len(own):
        return Counts(0, 0, 0.0, 0.0)
    return Counts(len(own), int(own.sum()), float(own.mean()), float(own.std()))


def looks_full(found: int, published: int) -> bool:
    """Whether so many samples look like all of those that were published, not a part of them."""
    return found >= FULL_SHARE * published


def differences(rows: Iterable[tuple[str, float, float]]) -> list[str]:
    """A sentence for each number, here and as published, that differs."""
    return [
        f"{name}: {found:,} here, {wanted:,} published"
        for name, found, wanted in rows
        if found != wanted
    ]


def compare(
    sizes: Collection[int],
    published: Counts,
    counted: str,
    *,
    full: bool | None = None,
    more: Iterable[tuple[str, int, int]] = (),
) -> dict[str, Any]:
    """Set a source's counts beside its row of the table, as facts for the store.

    ``sizes`` are the samples of each user, before any choice; ``counted`` tells a human what one
    sample is and which are meant, as "windows of all roles". ``full`` says whether this looks like
    all of the data, None to see it from the samples; ``more`` has further numbers to compare: what
    it is, how many here, how many were published.

    Returns:
        "table1": "counted", the four numbers, and "published" with "title" and the same four, the
        shape that ``pfl-bench data stats`` shows; "differs_from_published": a sentence for each
        number that differs (of mean and sd as rounded in the table), None for a part of the data.
    """
    here = count(sizes)
    if full is None:
        full = looks_full(here.samples, published.samples)
    rounded = asdict(here) | {"mean": round(here.mean, 2), "sd": round(here.sd, 2)}
    rows = [(name, rounded[name], wanted) for name, wanted in asdict(published).items()]
    differs = differences([*more, *rows])
    return {
        "table1": {
            "counted": counted,
            **asdict(here),
            "published": {"title": TITLE, **asdict(published)},
        },
        "differs_from_published": differs if full else None,
    }
