"""A round of FLAIR's local training: ours, a bare loop, ``pfl``, Flower, and large batches.

ResNet-18 on crops of 224 pixels, batches of 16, two local epochs, users of FLAIR's skew, half of
whom have one or two images. Ours reads JPEGs from a store, and decodes, crops and flips them; the
bare loop finds the same batches decoded in memory, in the same layout; ``pfl`` runs its own recipe
(``flair_pfl.py``) on the same users; Flower's clients read, decode and crop the same batches. Its
and pfl's private rounds have a fixed bound, and Flower averages where others take a step of Adam.
The pictures are drawn, the starting weights random: neither
changes the time.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Machine, OurSide, Seconds, in_turn, torch_defaults, write_json
from benchmarks.flair_bare import BareSide, LargeBatches
from benchmarks.flair_data import make_store, make_weights, write_pfl_file
from benchmarks.flair_material import FlairJob, FlairMaterial
from benchmarks.flair_pfl import pfl_side
from benchmarks.flair_report import LARGE, summarise, table
from benchmarks.options import ENGINES, PEERS
from benchmarks.pfl_side import PflSide, Privacy
from benchmarks.remote import RemoteSide
from benchmarks.sides import BARE, missing_peers, tell

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
TOLERANCE = {"float32": 1e-3, "tf32": 0.05, "bfloat16": 0.05}


def configuration(
    name: str, files: Mapping[str, Path], engine: str, options: argparse.Namespace
) -> dict[str, Any]:
    """A row of FLAIR's table 1, but for the cohort."""
    start, _, private = name.partition("-")
    model, local_rate, central_rate, private_rate = STARTS[start]
    if start == "fine_tuned":
        model = {**model, "weights": str(files["weights"])}
    tree: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "seed": SEED,
        "device": options.device,
        "precision": options.precision,
        "channels_last": options.channels_last,
        "task": {"name": "flair", "data": str(files["store"]), "crop": CROP},
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
            "engine": engine,
            "workers": 1,
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
            # The same cohorts whatever the code, so that two versions can be compared.
            "nonce": "bench",
        }
    return tree


class Workload:
    """One workload with its sides.

    Args:
        name: One of ``WORKLOADS``.
        files: Paths of "store", "weights" and, where pfl is compared, "pfl".
        folder: Of our runs; made.
        options: The command line.
    """

    def __init__(
        self, name: str, files: Mapping[str, Path], folder: Path, options: argparse.Namespace
    ) -> None:
        self.name, self._options = name, options
        self.sides: dict[str, Any] = {}
        for engine in options.engine:
            (folder / engine).mkdir(parents=True)
            tree = configuration(name, files, engine, options)
            self.ours = OurSide(tree, folder / engine)
            self.sides[f"pfl-bench, {engine}"] = self.ours
        self.device = self.ours.device
        job = FlairJob(
            configuration(name, files, "sequential", options),
            options.threads,
            self.ours.cohort_seed,
        )
        self._private = job.private
        material = FlairMaterial(job)
        self.batches = material.clients
        self.sides[BARE] = BareSide(material.module(), self.batches, job.tree)
        self.start = self.sides[BARE].vector()
        classes = self.ours.task.facts.num_classes
        self.pfl: PflSide | None = None
        if "pfl" in options.peers:
            module = material.module().to(memory_format=torch.contiguous_format)
            privacy = Privacy(*job.noise) if job.private else None
            users = self.batches.users_of_round
            self.pfl = pfl_side(module, CROP, files["pfl"], classes, users, privacy)
            self.sides["pfl"] = self.pfl
        self.startup_seconds = {}
        if "flower" in options.peers:
            self.sides["Flower"] = RemoteSide("flower", job, folder / "flower")
            self.startup_seconds["Flower"] = self.sides["Flower"].startup_seconds
        sizes = (options.large_batch, CROP, classes, job.tree)
        self.large = {LARGE: LargeBatches(material.module(), *sizes, compiled=False)}
        if self.device.type == "cuda" and options.compiled:
            compiled = LargeBatches(material.module(), *sizes, compiled=True)
            self.large[f"{LARGE}, compiled"] = compiled

    def measure(self) -> dict[str, Any]:
        """Time the sides in turn; check that they computed the same thing."""
        seconds = {side: Seconds() for side in (*self.sides, *self.large)}
        images: list[int] = []
        large_steps = 1 if self.device.type == "cpu" else 20
        agreement: dict[str, dict[str, float]] = {}
        for index in range(1, self._options.repeats + 2):
            for side in self.sides.values():
                side.prepare(index)
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
                agreement = self._check()
            examples = sum(client.num_examples for client in clients)
            self._check_examples(examples)
            if index > 1:
                images.append(2 * examples)
        large_images = large_steps * self._options.large_batch
        for side in self.startup_seconds:
            # It is this process's, which only waits.
            seconds[side].processor.clear()
        return {
            **summarise(seconds, images, large_images),
            "workload": f"flair resnet18 {self.name.partition('-')[0]}",
            "private": self._private,
            "precision": self._options.precision,
            "cohort_size": self._options.cohort,
            "agreement": agreement,
            "startup_seconds": self.startup_seconds,
        }

    def close(self) -> None:
        """End what other processes there are."""
        for side in self.sides.values():
            if hasattr(side, "close"):
                side.close()

    def _check(self) -> dict[str, dict[str, float]]:
        reference = self.sides[BARE].vector() - self.start
        found = {}
        for name, side in self.sides.items():
            if name.startswith("pfl-bench"):
                difference = side.vector() - self.start - reference
                share = float(difference.norm() / reference.norm())
                if not share <= TOLERANCE[self._options.precision]:
                    raise SystemExit(
                        f"{self.name}: the central step of {name} differs from the bare loop's by "
                        f"{share:.2e} of it"
                    )
                found[name] = {"step_difference": share}
        return found

    def _check_examples(self, examples: int) -> None:
        seen = {
            name: int(side.scalars["train/num_examples"])
            for name, side in self.sides.items()
            if isinstance(side, OurSide)
        }
        if self.pfl is not None:
            seen["pfl"] = self.pfl.num_examples
        for side, count in seen.items():
            if count != examples:
                raise SystemExit(f"{self.name}: {side} trained on {count} images, not {examples}")


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
    parser.add_argument(
        "--compiled",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether a GPU's large batches are timed by torch.compile too, which takes a minute",
    )
    parser.add_argument("--data-workers", type=int, help="threads that read ahead")
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=["sequential"])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
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
    absent = missing_peers(options.peers)
    options.peers = [peer for peer in options.peers if peer not in absent]
    for line in absent.values():
        tell(line)
    machine = Machine()
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        folder = Path(home)
        store = make_store(folder, options.users, SEED)
        files = {"store": store, "weights": make_weights(folder / "random-weights.pth", SEED)}
        if "pfl" in options.peers:
            files["pfl"] = write_pfl_file(folder / "pfl.h5", store)
        for name in options.only or WORKLOADS:
            workload = Workload(name, files, folder / name, options)
            try:
                results.append(workload.measure())
            finally:
                workload.close()
            tell(table({"results": results[-1:]}))
    report = {"subject": "flair", "machine": machine.describe(), "results": results}
    if options.json is not None:
        write_json(options.json, report)
    print(table(report))
