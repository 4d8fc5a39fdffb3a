"""A round of FLAIR's local training: ours, a bare PyTorch loop, PyPI's ``pfl``, and large batches.

ResNet-18 on crops of 224 pixels, batches of 16, two local epochs, users of FLAIR's skew, half of
whom have one or two images. Ours reads JPEGs from a store, and decodes, crops and flips them; the
bare loop finds the same batches decoded in memory, in the same layout; ``pfl`` runs its own recipe
(``flair_pfl.py``) on the same users. The pictures are drawn, the starting weights random: neither
changes the time.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import OurSide, Seconds, in_turn, write_report
from benchmarks.flair_bare import BareSide, Batches, LargeBatches
from benchmarks.flair_data import make_store, make_weights, write_pfl_file
from benchmarks.flair_pfl import pfl_side
from benchmarks.flair_report import summarise, table
from benchmarks.pfl_side import PflSide, Privacy, is_installed

SEED, CROP = 0, 224
# Of the rows: model, local rate, central rate without and with privacy.
STARTS: dict[str, tuple[dict[str, Any], float, float, float]] = {
    "scratch": ({"init": "random", "normalization": "group"}, 0.1, 0.1, 0.02),
    "fine_tuned": ({"init": "imagenet", "normalization": "frozen"}, 0.01, 0.1, 0.02),
}
WORKLOADS = [f"{start}{private}" for start in STARTS for private in ("", "-private")]
# Epsilon 2 with FLAIR's population and 5,000 rounds of 5,000 users, by RDP.
NOISE_MULTIPLIER, NOISE_COHORT, POPULATION, CLIP_NORM = 18.668, 5000, 41_131, 0.1
# Largest relative difference between our first round's central step and the bare loop's.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05}


def configuration(name: str, store: Path, weights: Path, options: argparse.Namespace) -> Any:
    """A row of FLAIR's table 1, but for the cohort."""
    start, _, private = name.partition("-")
    model, local_rate, central_rate, private_rate = STARTS[start]
    if start == "fine_tuned":
        model = {**model, "weights": str(weights)}
    tree: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "seed": SEED,
        "device": options.device,
        "precision": options.precision,
        "channels_last": options.channels_last,
        "task": {"name": "flair", "data": str(store), "crop": CROP},
        "model": {"name": "resnet18", **model},
        "federated": {
            "num_rounds": 5000,
            "cohort_size": options.cohort,
            "sampling": "poisson" if private else "fixed_size",
            "weighting": "uniform" if private else "examples",
            "local_epochs": 2,
            "local_batch_size": 16,
            "local_learning_rate": local_rate,
            "local_gradient_clip_norm": 10.0,
            "central_optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "epsilon": 0.01},
            "central_learning_rate": private_rate if private else central_rate,
            "data_workers": options.data_workers,
        },
        "evaluation": {"final_splits": []},
    }
    if private:
        tree["privacy"] = {
            "mechanism": {
                "name": "adaptive_gaussian",
                "clip_norm": CLIP_NORM,
                "quantile": 0.1,
                "clip_learning_rate": 0.2,
            },
            "population_size": POPULATION,
            "hypothetical_population": True,
            "noise_cohort_size": NOISE_COHORT,
            "noise_multiplier": NOISE_MULTIPLIER,
        }
    return tree


class Workload:
    """One workload with its sides.

    Args:
        name: One of ``WORKLOADS``.
        files: Paths of "store", "weights" and, where pfl is installed, "pfl".
        folder: Of our run.
        options: The command line.
    """

    def __init__(
        self, name: str, files: Mapping[str, Path], folder: Path, options: argparse.Namespace
    ) -> None:
        self.name, self._options = name, options
        tree = configuration(name, files["store"], files["weights"], options)
        self.ours = OurSide(tree, folder)
        self.device = self.ours.device
        self.start = self.ours.vector()
        classes = self.ours.task.facts.num_classes
        # Copies have our weights' layout in memory too.
        copies = [copy.deepcopy(self.ours.model.module) for _ in range(4)]
        self.batches = Batches(self.ours, tree)
        self.bare = BareSide(copies[0], self.batches, tree)
        self.sides: dict[str, Any] = {"pfl-bench": self.ours, "bare": self.bare}
        self.pfl: PflSide | None = None
        if "pfl" in files:
            privacy = None
            if "privacy" in tree:
                scale = options.cohort / NOISE_COHORT
                privacy = Privacy(CLIP_NORM, NOISE_MULTIPLIER * scale)
            users = self.batches.users_of_round
            copies[1].to(memory_format=torch.contiguous_format)
            self.pfl = pfl_side(copies[1], CROP, files["pfl"], classes, users, privacy)
            self.sides["pfl"] = self.pfl
        sizes = (options.large_batch, CROP, classes, tree)
        self.large = {"large batch": LargeBatches(copies[2], *sizes, compiled=False)}
        if self.device.type == "cuda":
            self.large["large batch, compiled"] = LargeBatches(copies[3], *sizes, compiled=True)

    def measure(self) -> dict[str, Any]:
        """Time the sides in turn; check that they computed the same thing."""
        seconds = {side: Seconds() for side in (*self.sides, *self.large)}
        images: list[int] = []
        large_steps = 1 if self.device.type == "cpu" else 20
        agreement = 0.0
        for index in range(1, self._options.repeats + 2):
            clients = self.batches.of_round(index)
            # Round 1 warms up.
            timed = seconds if index > 1 else {side: Seconds() for side in seconds}
            for side in in_turn(self.sides, index):
                with torch_defaults() if side == "pfl" else contextlib.nullcontext():
                    timed[side].add(partial(self.sides[side].round, index), self.device)
            for side, large in self.large.items():
                with torch_defaults():
                    timed[side].add(partial(large.train, large_steps), self.device)
            if index == 1:
                agreement = self._check(self.ours.vector(), self.bare.vector())
            examples = sum(client.num_examples for client in clients)
            self._check_examples(examples)
            if index > 1:
                images.append(2 * examples)
        large_images = large_steps * self._options.large_batch
        return summarise(self.name, seconds, images, large_images, agreement)

    def _check(self, ours: Tensor, bare: Tensor) -> float:
        reference = bare - self.start
        difference = float((ours - self.start - reference).norm() / reference.norm())
        if not difference <= TOLERANCE[self._options.precision]:
            raise SystemExit(
                f"{self.name}: pfl-bench's central step differs from the bare loop's by "
                f"{difference:.2e} of it"
            )
        return difference

    def _check_examples(self, examples: int) -> None:
        seen = {"pfl-bench": int(self.ours.scalars["train/num_examples"])}
        if self.pfl is not None:
            seen["pfl"] = self.pfl.num_examples
        for side, count in seen.items():
            if count != examples:
                raise SystemExit(f"{self.name}: {side} trained on {count} images, not {examples}")


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """What a process has that asked torch for nothing: our device settings repeat bit for bit."""
    cudnn = torch.backends.cudnn
    kept = cudnn.deterministic, cudnn.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled()
    cudnn.deterministic, cudnn.allow_tf32 = False, True
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.allow_tf32 = kept
        torch.use_deterministic_algorithms(deterministic, warn_only=True)


def read_options() -> argparse.Namespace:
    """Read the command line; defaults follow the device."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=WORKLOADS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(TOLERANCE), default="float32")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--users", type=int, help="users of all splits; eight tenths train")
    parser.add_argument("--cohort", type=int, help="expected users a round")
    parser.add_argument("--large-batch", type=int, help="images of the large batch")
    parser.add_argument("--data-workers", type=int, help="threads that read ahead")
    parser.add_argument("--out", default="bench-flair.json")
    options = parser.parse_args()
    defaults = {"users": 160, "cohort": 24, "large_batch": 64, "data_workers": 1}
    if options.device == "cuda":
        defaults = {"users": 500, "cohort": 200, "large_batch": 512, "data_workers": 4}
    for key, value in defaults.items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    return options


def main() -> None:
    """Time all workloads."""
    options = read_options()
    torch.set_num_threads(options.threads)
    results = []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        store = make_store(folder, options.users, SEED)
        files = {"store": store, "weights": make_weights(folder / "random-weights.pth", SEED)}
        if is_installed():
            files["pfl"] = write_pfl_file(folder / "pfl.h5", store)
        for name in options.only or WORKLOADS:
            run_folder = folder / name
            run_folder.mkdir()
            results.append(Workload(name, files, run_folder, options).measure())
            print(table(results[-1:]), file=sys.stderr, flush=True)
    if not is_installed():
        print("pfl is not installed, so there is no comparison with it: pip install -e '.[bench]'")
    write_report(Path(options.out), options.repeats, results)
    print(table(results))
