"""Generates made-up comments, a text file a client, as FedScale publishes Reddit.

The comments are those of ``tasks.common.text.drawing``: numbers of users and comments and their
skew are Reddit's, the words are numbered, the users made up, and ``GENERATED.txt`` in the folder
says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from pfl_bench.data import new_folder
from pfl_bench.types import Progress
from tasks.common.fedscale.generating import SHARES
from tasks.common.options import StrictOptions
from tasks.common.sources import mark_made_up
from tasks.common.text.drawing import count_comments, draw_blocks

SUBREDDITS = 5


class Options(StrictOptions):
    """Options of generating comments.

    Attributes:
        users: Number of clients of all splits together.
        comments: Comments of all users, 5 to 1,000 a user; None for 34 a user, LEAF's mean.
        mean_tokens: Mean number of words of a comment, 6 to 100.
        words: Different words.
        seed: Seed of everything that is drawn.
    """

    users: int = Field(default=100, ge=5, le=1_000_000)
    comments: int | None = Field(default=None, ge=1)
    mean_tokens: float = Field(default=20.0, ge=6, le=100)
    words: int = Field(default=1000, ge=10, le=60_000)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _comments_fit(self) -> Self:
        count_comments(self.users, self.comments)
        return self


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write generated comments; see ``tasks``."""
    with new_folder(out, "comments") as folder:
        _write(folder, options, progress)
        what = "These comments are not Reddit's: words and users"
        mark_made_up(folder, "reddit_albert", what, options)
    return {
        "what": "made-up comments in FedScale's form, not Reddit",
        "users": options.users,
        "comments": count_comments(options.users, options.comments),
        "prepare_options": [],
    }


def _write(folder: Path, options: Options, progress: Progress) -> None:
    for split in SHARES:
        (folder / split).mkdir()
    ends = np.rint(np.cumsum(list(SHARES.values())) * options.users)
    users, words = options.users, options.words
    blocks = draw_blocks(
        users, options.comments, words, SUBREDDITS, options.mean_tokens, options.seed
    )
    for block in blocks:
        bounds = np.concatenate(([0], np.cumsum(block.lengths))).tolist()
        first = 0
        for user, count in zip(block.users.tolist(), block.counts.tolist(), strict=True):
            comments = [
                " ".join(f"w{word}" for word in block.tokens[bounds[i] : bounds[i + 1]].tolist())
                for i in range(first, first + count)
            ]
            first += count
            split = list(SHARES)[int(np.searchsorted(ends, user, side="right"))]
            path = folder / split / f"client-{user:06d}.txt"
            path.write_text("\n".join(comments) + "\n", encoding="utf-8")
            progress("writing users", user + 1, options.users)
