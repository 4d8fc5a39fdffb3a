"""A round on FEMNIST's shapes and skew: ours, a bare PyTorch loop, and PyPI's ``pfl``."""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common import OurSide, Seconds, Side, in_turn, write_report
from benchmarks.pfl_side import PflSide, Privacy, is_installed
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.sampling import build_sampler
from pfl_bench.store import FieldSpec, StoreWriter

CLIP_NORM, NOISE_MULTIPLIER, SEED = 0.4, 1.0, 0
NUM_CLASSES = 62


@dataclass(frozen=True)
class Workload:
    """A model of the FEMNIST task and how its clients train."""

    model: str
    cohort_size: int
    batch_size: int
    learning_rate: float
    has_dropout: bool = False


FEMNIST = {
    "softmax": Workload("softmax", 40, 10, 0.1),
    "cnn": Workload("cnn", 8, 10, 0.1, has_dropout=True),
    "leaf_cnn": Workload("leaf_cnn", 3, 10, 0.05),
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


def configuration(store: Path, load: Workload, private: bool) -> dict[str, Any]:
    """A run of our own that does what the other sides do."""
    tree: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "seed": SEED,
        "device": "cpu",
        "task": {"name": "femnist", "data": str(store)},
        "model": {"name": load.model},
        "federated": {
            "num_rounds": 1000,
            "cohort_size": load.cohort_size,
            "sampling": "poisson" if private else "fixed_size",
            "local_batch_size": load.batch_size,
            "local_learning_rate": load.learning_rate,
        },
        "evaluation": {"final_splits": []},
    }
    if private:
        tree["privacy"] = {
            "mechanism": {"name": "gaussian", "clip_norm": CLIP_NORM},
            "population_size": 1_000_000,
            "hypothetical_population": True,
            "noise_multiplier": NOISE_MULTIPLIER,
        }
    return tree


class Batches:
    """The users and batches of our side's rounds, as float tensors in memory."""

    def __init__(self, side: OurSide, load: Workload, private: bool) -> None:
        self._split, self._load, self._cohort_seed = side.split, load, side.cohort_seed
        scheme = "poisson" if private else "fixed_size"
        self._sampler = build_sampler(scheme, side.split.num_users, load.cohort_size)
        self._cache: dict[int, list[tuple[int, Tensor, Tensor]]] = {}

    def noise_of_round(self, index: int) -> np.random.Generator:
        """The stream that our side's noise comes from."""
        return stream(self._cohort_seed, Purpose.NOISE, index)

    def of_round(self, index: int) -> list[tuple[int, Tensor, Tensor]]:
        """User, inputs and targets, shuffled as our engine shuffles them."""
        if index not in self._cache:
            self._cache[index] = []
            rng = stream(self._cohort_seed, Purpose.SAMPLING, index)
            for user in self._sampler.draw(rng).tolist():
                examples = self._split.read_user(user, np.random.default_rng(0))
                rng = stream(SEED, Purpose.LOCAL_TRAINING, index, user)
                order = torch.from_numpy(rng.permutation(len(examples)))
                entry = (user, examples.inputs[order], examples.targets[order])
                self._cache[index].append(entry)
        return self._cache[index]


class BareSide:
    """What one writes by hand: a loop over users and batches, nothing logged or accounted."""

    def __init__(self, module: nn.Module, batches: Batches, load: Workload, private: bool) -> None:
        self.module, self._batches, self._load, self._private = module, batches, load, private
        self.parameters = list(module.parameters())
        self.central = [p.detach().clone() for p in self.parameters]

    def round(self, index: int) -> None:
        total = [torch.zeros_like(p) for p in self.central]
        cohort = self._batches.of_round(index)
        self.module.train()
        for user, inputs, targets in cohort:
            seed_torch(SEED, Purpose.LOCAL_TRAINING, torch.device("cpu"), index, user)
            with torch.no_grad():
                for parameter, start in zip(self.parameters, self.central, strict=True):
                    parameter.copy_(start)
            optimizer = torch.optim.SGD(self.parameters, lr=self._load.learning_rate)
            size = self._load.batch_size
            for batch, labels in zip(inputs.split(size), targets.split(size), strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(self.module(batch), labels).backward()
                optimizer.step()
            with torch.no_grad():
                pairs = zip(self.parameters, self.central, strict=True)
                update = [p - start for p, start in pairs]
                scale = 1.0
                if self._private:
                    norm = torch.stack([u.norm() for u in update]).norm()
                    scale = min(1.0, CLIP_NORM / float(norm))
                for accumulated, part in zip(total, update, strict=True):
                    accumulated.add_(part, alpha=scale)
        with torch.no_grad():
            rng = self._batches.noise_of_round(index)
            for start, part in zip(self.central, total, strict=True):
                if self._private:
                    noise = rng.standard_normal(part.numel())
                    noise *= NOISE_MULTIPLIER * CLIP_NORM
                    part.add_(torch.from_numpy(noise).float().view(part.shape))
                start.add_(
                    part, alpha=1 / (self._load.cohort_size if self._private else len(cohort))
                )

    def vector(self) -> Tensor:
        return torch.cat([p.reshape(-1) for p in self.central])


def pfl_side(module: nn.Module, batches: Batches, load: Workload, private: bool) -> PflSide:
    """``pfl`` on the same batches, its tensors in memory as the bare loop's."""

    def loss(inputs: Tensor, targets: Tensor, **_: Any) -> Tensor:
        module.train()
        return functional.cross_entropy(module(inputs), targets)

    module.loss, module.metrics = loss, lambda *_, **__: {}  # type: ignore[assignment]
    data: dict[int, tuple[Tensor, Tensor]] = {}

    def cohort(index: int) -> list[int]:
        data.clear()
        data.update({user: (x, y) for user, x, y in batches.of_round(index)})
        return [*data]

    local = {
        "local_batch_size": load.batch_size,
        "local_num_epochs": 1,
        "local_learning_rate": load.learning_rate,
    }
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    privacy = Privacy(CLIP_NORM, NOISE_MULTIPLIER) if private else None
    return PflSide(module, cohort, data.__getitem__, central, local, privacy)


def measure(name: str, private: bool, store: Path, repeats: int, folder: Path) -> dict[str, Any]:
    """Time the sides in turn and check that they computed the same thing."""
    load = FEMNIST[name]
    ours = OurSide(configuration(store, load, private), folder)
    batches = Batches(ours, load, private)
    modules = [copy.deepcopy(ours.model.module) for _ in range(2)]
    sides: dict[str, Side] = {
        "pfl-bench": ours,
        "bare": BareSide(modules[0], batches, load, private),
    }
    if is_installed():
        sides["pfl"] = pfl_side(modules[1], batches, load, private)
    seconds = {side: Seconds() for side in sides}
    agreement: dict[str, float] = {}
    for index in range(1, repeats + 2):
        batches.of_round(index)
        for side_name in in_turn(sides, index):
            # Round 1 warms up.
            timed = seconds[side_name] if index > 1 else Seconds()
            timed.add(partial(sides[side_name].round, index), ours.device)
        if index == 1:
            # Noise of pfl and dropout masks of pfl are its own, so it is compared only where
            # there are none.
            reference = sides["bare"].vector()
            scale = float(reference.norm())
            agreement["pfl-bench"] = float((ours.vector() - reference).norm()) / scale
            if "pfl" in sides and not private and not load.has_dropout:
                agreement["pfl"] = float((sides["pfl"].vector() - reference).norm()) / scale
    for side_name, difference in agreement.items():
        if difference > 1e-4:
            raise SystemExit(f"{name}: {side_name} computed something else: {difference:.2e}")
    return summarise(name, private, {k: v.wall for k, v in seconds.items()}, agreement)


def summarise(
    name: str, private: bool, seconds: dict[str, list[float]], agreement: dict[str, float]
) -> dict[str, Any]:
    """Medians and the ratios to the bare loop, round by round on the same users."""
    result: dict[str, Any] = {"workload": name, "private": private, "agreement": agreement}
    for side, values in seconds.items():
        ratios = [own / bare for own, bare in zip(values, seconds["bare"], strict=True)]
        result[side] = {
            "median_seconds": statistics.median(values),
            "ratio_to_bare": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
    return result


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| workload | private | side | s a round (median) | ratio to bare loop: median (min-max) |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        for side in ("bare", "pfl-bench", "pfl"):
            if side in result:
                row = result[side]
                spread = f"{row['ratio_min']:.2f}-{row['ratio_max']:.2f}"
                lines.append(
                    f"| {result['workload']} | {'yes' if result['private'] else 'no'} | {side} "
                    f"| {row['median_seconds']:.3f} | {row['ratio_to_bare']:.3f} ({spread}) |"
                )
    return "\n".join(lines)


def main() -> None:
    """Time all workloads, private and not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(FEMNIST))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", default="bench.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "generated.h5"
        make_store(store, num_users=200, mean_examples=226.83)
        for name in arguments.only or FEMNIST:
            for private in (False, True):
                run_folder = Path(folder) / f"{name}-{private}"
                run_folder.mkdir()
                results.append(measure(name, private, store, arguments.repeats, run_folder))
                print(table(results[-1:]).split("\n", 2)[2], file=sys.stderr, flush=True)
    write_report(Path(arguments.out), arguments.repeats, results)
    print(table(results))
