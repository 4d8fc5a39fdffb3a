"""A round of Reddit's LSTM on generated comments; see ``sides``.

The setting is LEAF's: cohort 10, batches of 5 sequences of 10
tokens, a vocabulary of 10,000, the gradient's global norm clipped at 5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.rounds import run
from benchmarks.workload import SEED, Workload
from pfl_bench.data import FieldSpec, StoreWriter

LOAD = Workload(
    "reddit", "stacked_lstm", 10, 5, 0.1, gradient_clip=5.0, noise_multiplier=0.01, plain="lstm"
)
NUM_USERS, VOCABULARY, LENGTH = 200, 10_000, 10
PAD, FIRST_WORD = 0, 2
# Comments a user: LEAF, table 1 (of which 60 % are train), from 5 to 1,000.
MEAN_COMMENTS, SD_COMMENTS, TRAIN_FRACTION = 34.07, 62.95, 0.6
# Words a comment: mean 46.6 and median 24 in the comments of December 2005.
MEDIAN_WORDS, MEAN_WORDS = 24.0, 46.55


def make_store(path: Path) -> None:
    """Write generated comments of Reddit's shape: words by Zipf's law, users of Reddit's skew."""
    rng = np.random.default_rng(SEED)
    spread = np.sqrt(np.log1p((SD_COMMENTS / MEAN_COMMENTS) ** 2))
    comments = rng.lognormal(np.log(MEAN_COMMENTS) - spread**2 / 2, spread, NUM_USERS)
    counts = np.maximum(1, TRAIN_FRACTION * comments.clip(5, 1000)).astype(int)
    chance = 1 / np.arange(1, VOCABULARY - FIRST_WORD + 1)
    chance /= chance.sum()
    length_spread = np.sqrt(2 * np.log(MEAN_WORDS / MEDIAN_WORDS))
    fields = {
        "tokens": FieldSpec("uint16", (LENGTH,)),
        "targets": FieldSpec("uint16", (LENGTH,)),
        "counted": FieldSpec("uint16"),
        "first": FieldSpec("bool"),
        "subreddit": FieldSpec("uint32"),
    }
    with StoreWriter(
        path,
        task="reddit",
        variant="generated",
        source="generated words of Reddit's shape, for timing only",
        split_by="example",
        num_classes=VOCABULARY,
        input_shape=(LENGTH,),
        fields=fields,
        extra={"pad_id": PAD, "unk_id": 1},
    ) as writer:
        for user, count in enumerate(counts):
            rows: list[np.ndarray] = []
            for words in rng.lognormal(np.log(MEDIAN_WORDS), length_spread, count).astype(int) + 2:
                row = np.full((-(-words // LENGTH), LENGTH), PAD)
                row.flat[:words] = FIRST_WORD + rng.choice(len(chance), words, p=chance)
                rows.append(row)
            tokens = np.concatenate(rows).astype(np.uint16)
            # A target is the token that comes next in the comment; those of padding do not count.
            following = [np.append(row.flat[1:], PAD).reshape(row.shape) for row in rows]
            writer.append(
                "train",
                f"user-{user:05d}",
                tokens=tokens,
                targets=np.concatenate(following).astype(np.uint16),
                counted=((tokens != PAD) @ (1 << np.arange(LENGTH))).astype(np.uint16),
                first=np.concatenate([np.arange(len(row)) == 0 for row in rows]),
                subreddit=np.zeros(len(tokens), np.uint32),
            )


def main() -> None:
    """Time a round with and without privacy."""
    run(__doc__.split("\n")[0], {LOAD.model: LOAD}, make_store)
