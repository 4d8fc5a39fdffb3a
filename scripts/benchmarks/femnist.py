"""A round on generated images of FEMNIST's shapes and skew; see ``sides``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.rounds import run
from benchmarks.workload import SEED, Workload
from pfl_bench.data import FieldSpec, StoreWriter

NUM_CLASSES = 62
NUM_USERS, MEAN_EXAMPLES = 200, 226.83
FEMNIST = {
    "softmax": Workload("femnist", "softmax", 40, 10, 0.1),
    "cnn": Workload("femnist", "cnn", 8, 10, 0.1, has_dropout=True),
    "leaf_cnn": Workload("femnist", "leaf_cnn", 3, 10, 0.05),
}


def make_store(
    path: Path, num_users: int = NUM_USERS, mean_examples: float = MEAN_EXAMPLES
) -> None:
    """Write generated images of FEMNIST's shape, users of FEMNIST's skew (mean 227, sd 89)."""
    rng = np.random.default_rng(SEED)
    spread = np.sqrt(np.log1p((88.94 / 226.83) ** 2))
    sizes = rng.lognormal(np.log(mean_examples) - spread**2 / 2, spread, num_users)
    fields = {"inputs": FieldSpec("uint8", (28, 28)), "targets": FieldSpec("uint8")}
    with StoreWriter(
        path,
        task="femnist",
        variant="generated",
        source="generated noise of FEMNIST's shape, for timing only",
        split_by="user",
        num_classes=NUM_CLASSES,
        input_shape=(28, 28),
        fields=fields,
    ) as writer:
        for user, size in enumerate(np.maximum(1, sizes.astype(int))):
            inputs = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
            targets = rng.integers(0, NUM_CLASSES, size, dtype=np.uint8)
            writer.append("train", f"user-{user:05d}", inputs=inputs, targets=targets)


def main() -> None:
    """Time all models, private and not."""
    run(__doc__.split("\n")[0], FEMNIST, make_store)
