"""A round of Shakespeare's LSTM on generated text; see ``sides``.

The setting is LEAF's, windows of 80 characters in batches of 10;
but clients are few and have at most 60 windows (LEAF's: 3,743 on average), so that a round takes
seconds: its time is that of the steps, and grows with their number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.rounds import run
from benchmarks.workload import SEED, Workload
from pfl_bench.data import FieldSpec, StoreWriter

LOAD = Workload(
    "shakespeare", "stacked_lstm", 5, 10, 0.05, noise_multiplier=0.01, plain="last_step"
)
NUM_USERS, NUM_CHARACTERS, LENGTH = 60, 80, 80
MOST_WINDOWS, MEAN_WINDOWS, SD_WINDOWS = 60, 3_743.28, 6_212.26


def make_store(path: Path) -> None:
    """Write generated windows of Shakespeare's shape, users of its skew (table 1) up to a limit."""
    rng = np.random.default_rng(SEED)
    spread = np.sqrt(np.log1p((SD_WINDOWS / MEAN_WINDOWS) ** 2))
    sizes = rng.lognormal(np.log(MEAN_WINDOWS) - spread**2 / 2, spread, NUM_USERS)
    fields = {
        "inputs": FieldSpec("uint8", (LENGTH,)),
        "targets": FieldSpec("uint8"),
        "play": FieldSpec("uint16"),
    }
    with StoreWriter(
        path,
        task="shakespeare",
        variant="generated",
        source="generated characters of Shakespeare's shape, for timing only",
        split_by="example",
        num_classes=NUM_CHARACTERS,
        input_shape=(LENGTH,),
        fields=fields,
    ) as writer:
        for user, size in enumerate(sizes.clip(10, MOST_WINDOWS).astype(int)):
            text = rng.integers(0, NUM_CHARACTERS, size + LENGTH, dtype=np.uint8)
            windows = np.lib.stride_tricks.sliding_window_view(text, LENGTH)
            writer.append(
                "train",
                f"user-{user:05d}",
                inputs=windows[:size].copy(),
                targets=text[LENGTH:],
                play=np.zeros(size, np.uint16),
            )


def main() -> None:
    """Time a round with and without privacy."""
    run(__doc__.split("\n")[0], {LOAD.model: LOAD}, make_store)
