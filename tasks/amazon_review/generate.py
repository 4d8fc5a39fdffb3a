"""Generates made-up reviews in FedScale's layout, with client sizes as skewed as real ones.

The words are numbered and the reviewers made up; ``GENERATED.txt`` in the folder says so. A review
has words that all reviews share, words that its reviewer likes, and words that go with its stars.
"""

from __future__ import annotations

import csv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from pfl_bench.data import new_folder
from pfl_bench.types import Progress
from tasks.common.fedscale.layout import COLUMNS, FOLDER
from tasks.common.options import StrictOptions
from tasks.common.sources import mark_made_up

# Most of Amazon's stars are five.
STARS = np.array([0.08, 0.06, 0.10, 0.20, 0.56])
NUM_CLASSES = len(STARS)
SHARE_COMMON, SHARE_OWN = 0.7, 0.1
WORDS_OF_STARS, WORDS_COMMON = 60, 400
# The words of neighbouring stars are mixed up so often.
CONFUSED = 0.3
FEWEST, SPREAD = 4, 1.0
SPLITS = (("train", 0.8), ("val", 0.1), ("test", 0.1))


class Options(StrictOptions):
    """Options of generating reviews.

    Attributes:
        users: Number of reviewers.
        mean_reviews: Mean of a reviewer's reviews, of which each has at least 4.
        mean_words: Mean words of a review.
        seed: Seed of everything that is drawn.
    """

    users: int = Field(default=200, ge=1, le=1_000_000)
    mean_reviews: float = Field(default=30.0, ge=5, le=10_000)
    mean_words: float = Field(default=30.0, ge=2, le=1_000)
    seed: int = Field(default=0, ge=0)


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write generated reviews; see ``tasks``."""
    with new_folder(out, "reviews") as folder:
        counts = _write(folder / FOLDER, options, progress)
        what = "These reviews are not Amazon's: words and reviewers"
        mark_made_up(folder, "amazon_review", what, options)
    return {
        "what": "made-up reviews in FedScale's layout, not Amazon Review",
        "users": options.users,
        "reviews": counts,
        "prepare_options": [],
    }


def _write(folder: Path, options: Options, progress: Progress) -> dict[str, int]:
    folder.mkdir()
    counts = {split: 0 for split, _ in SPLITS}
    with ExitStack() as files:
        writers = {}
        for split in counts:
            path = folder / f"{split}.csv"
            file = files.enter_context(path.open("w", encoding="utf-8", newline=""))
            writers[split] = csv.writer(file)
            writers[split].writerow((COLUMNS[0], "data_path", *COLUMNS[2:]))
        for user in range(options.users):
            rng = np.random.default_rng([options.seed, user])
            reviews = _reviews(options, rng)
            ends = np.rint(np.cumsum([share for _, share in SPLITS]) * len(reviews)).astype(int)
            starts = [0, *ends[:-1].tolist()]
            for (split, _), start, end in zip(SPLITS, starts, ends.tolist(), strict=True):
                for text, label in reviews[start:end]:
                    writers[split].writerow((user, text, label + 1, label))
                counts[split] += end - start
            progress("writing reviewers", user + 1, options.users)
    return counts


def _reviews(options: Options, rng: np.random.Generator) -> list[tuple[str, int]]:
    """A reviewer's reviews and their classes: a log-normal number of them, in a taste of its own.

    A class is dearer to some reviewers than to others: its shares are drawn around those of all.
    """
    more = (options.mean_reviews - FEWEST) * rng.lognormal(-(SPREAD**2) / 2, SPREAD)
    number = FEWEST + int(more)
    labels = rng.choice(NUM_CLASSES, number, p=rng.dirichlet(8 * STARS))
    lengths = 1 + rng.poisson(options.mean_words - 1, number)
    favourite = int(rng.integers(WORDS_COMMON))
    return [
        (_text(int(label), int(length), favourite, rng), int(label))
        for label, length in zip(labels, lengths, strict=True)
    ]


def _text(label: int, length: int, favourite: int, rng: np.random.Generator) -> str:
    kind = rng.random(length)
    # Zipf-like: low numbers are common.
    rank = (WORDS_COMMON * rng.random(length) ** 3).astype(np.int64)
    own = (favourite + rank // 20) % WORDS_COMMON
    moved = np.where(rng.random(length) < CONFUSED, rng.choice([-1, 1], length), 0)
    said = np.clip(label + moved, 0, NUM_CLASSES - 1)
    place = rank * WORDS_OF_STARS // WORDS_COMMON
    columns = (array.tolist() for array in (kind, rank, own, said, place))
    return " ".join(_word(*row) for row in zip(*columns, strict=True))


def _word(kind: float, rank: int, own: int, said: int, place: int) -> str:
    if kind < SHARE_COMMON:
        return f"w{rank}"
    return f"mine{own}" if kind < SHARE_COMMON + SHARE_OWN else f"s{said}x{place}"
