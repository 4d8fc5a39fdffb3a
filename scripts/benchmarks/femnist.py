"""A round on FEMNIST's shapes and skew: ours by each engine, a bare PyTorch loop, and ``pfl``."""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import summarise, table, write_report
from benchmarks.sides import SEED, Agreement, Workload, measure, our_sides
from pfl_bench.store import FieldSpec, StoreWriter

NUM_CLASSES = 62
AGREEMENT = Agreement(tolerance=1e-4, of_step=False)
KINDS = {"yes": (True,), "no": (False,), "both": (False, True)}
FEMNIST = {
    "softmax": Workload("femnist", "softmax", 40, 10, 0.1),
    "cnn": Workload("femnist", "cnn", 8, 10, 0.1, has_dropout=True),
    "leaf_cnn": Workload("femnist", "leaf_cnn", 3, 10, 0.05),
}


def make_store(path: Path, num_users: int, mean_examples: float) -> None:
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


def measure_model(
    name: str, private: bool, store: Path, repeats: int, folder: Path
) -> dict[str, Any]:
    """Time the sides with one model."""
    load = FEMNIST[name]
    own = our_sides(store, load, private, folder)
    measured = measure(load, private, own, copy.deepcopy, repeats, AGREEMENT)
    return summarise(name, private, measured.seconds, measured.agreement)


def main() -> None:
    """Time all workloads, private and not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(FEMNIST))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--private", choices=("yes", "no", "both"), default="both")
    parser.add_argument("--out", default="bench.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "generated.h5"
        make_store(store, num_users=200, mean_examples=226.83)
        for name in arguments.only or FEMNIST:
            for private in KINDS[arguments.private]:
                run_folder = Path(folder) / f"{name}-{private}"
                results.append(measure_model(name, private, store, arguments.repeats, run_folder))
                print(table(results[-1:]).split("\n", 2)[2], file=sys.stderr, flush=True)
    write_report(Path(arguments.out), arguments.repeats, results)
    print(table(results))
