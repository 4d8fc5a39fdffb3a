#!/usr/bin/env python
"""Times a federated round of pfl-bench beside a bare PyTorch loop and beside PyPI's ``pfl``.

All sides train the same users on the same batches with the same model, optimizer, thread count
and (where private) clipping and noise scale, in turn, in one process; the result is a ratio. Each
side must have computed the same thing: after the first round the central parameters are compared.

    python scripts/bench.py femnist                  # all workloads
    python scripts/bench.py femnist --only softmax --repeats 9
    python scripts/bench.py memory                   # peak memory against the cohort

``pfl`` is optional: in an environment of its own, ``pip install -e '.[bench]'``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.building import build_model, build_task
from pfl_bench.config_file import resolve
from pfl_bench.federated import FederatedTrainer
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.run_folder import package_versions, processor_name
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


class OurSide:
    """The real federated trainer, reading its clients from the store."""

    def __init__(self, store: Path, load: Workload, private: bool, folder: Path) -> None:
        resolved = resolve(configuration(store, load, private), Path("bench"), ())
        task = build_task(resolved, torch.device("cpu"))
        self.model = build_model(resolved, task, torch.device("cpu"))
        self.trainer = FederatedTrainer(resolved, task, self.model, folder, lambda text: None)
        self.trainer.begin(0)
        self.split = task.split("train")
        self.cohort_seed = SEED
        if private:
            digest = self.model.initial_digest
            self.cohort_seed = resolved.private_seed(task.facts.checksum, digest)

    def round(self, index: int) -> None:
        self.trainer.advance(index)

    def vector(self) -> Tensor:
        return self.trainer.central


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


class PflSide:
    """PyPI's ``pfl``: its simulated backend, federated averaging, and Gaussian mechanism."""

    def __init__(self, module: nn.Module, batches: Batches, load: Workload, private: bool) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel
        from pfl.privacy.gaussian_mechanism import GaussianMechanism
        from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

        def loss(inputs: Tensor, targets: Tensor, **_: Any) -> Tensor:
            module.train()
            return functional.cross_entropy(module(inputs), targets)

        module.loss, module.metrics = loss, lambda *_, **__: {}  # type: ignore[assignment]
        self._module, self._batches, self._load = module, batches, load
        self._users: Iterator[int] = iter(())
        self._data: dict[int, Any] = {}
        dataset = FederatedDataset(lambda user: self._data[user], lambda: next(self._users))
        self._dataset_type = Dataset
        steps = []
        if private:
            gaussian = GaussianMechanism(CLIP_NORM, NOISE_MULTIPLIER)
            steps.append(CentrallyAppliedPrivacyMechanism(gaussian))
        self._backend = SimulatedBackend(dataset, dataset, postprocessors=steps)
        central = torch.optim.SGD(module.parameters(), lr=1.0)
        self._model = PyTorchModel(module, torch.optim.SGD, central)
        self._algorithm = FederatedAveraging()
        self._train = NNTrainHyperParams(
            local_batch_size=load.batch_size,
            local_num_epochs=1,
            local_learning_rate=load.learning_rate,
        )
        self._eval = NNEvalHyperParams(local_batch_size=load.batch_size)
        self._params = NNAlgorithmParams

    def round(self, index: int) -> None:
        cohort = self._batches.of_round(index)
        self._data = {
            user: self._dataset_type(raw_data=[inputs, targets], user_id=str(user))
            for user, inputs, targets in cohort
        }
        self._users = iter([user for user, _, _ in cohort])
        params = self._params(
            central_num_iterations=10_000,
            evaluation_frequency=10_000,
            train_cohort_size=len(cohort),
            val_cohort_size=None,
        )
        contexts, model, _ = self._algorithm.get_next_central_contexts(
            self._model, index, params, self._train, self._eval
        )
        for context in contexts:
            result, metrics = self._backend.gather_results(
                model, self._algorithm, central_context=context
            )
            self._algorithm.process_aggregated_statistics(context, metrics, model, result)

    def vector(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._module.parameters()])


def fresh_module(side: OurSide, store: Path, load: Workload, private: bool) -> nn.Module:
    """A second model with our side's initial weights."""
    resolved = resolve(configuration(store, load, private), Path("bench"), ())
    module = build_model(resolved, build_task(resolved, torch.device("cpu")), torch.device("cpu")).module
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    return module


def measure(name: str, private: bool, store: Path, repeats: int, folder: Path) -> dict[str, Any]:
    """Time the sides in turn and check that they computed the same thing."""
    load = FEMNIST[name]
    ours = OurSide(store, load, private, folder)
    batches = Batches(ours, load, private)
    sides: dict[str, Any] = {
        "pfl-bench": ours,
        "bare": BareSide(fresh_module(ours, store, load, private), batches, load, private),
    }
    if importlib.util.find_spec("pfl") is not None:
        module = fresh_module(ours, store, load, private)
        sides["pfl"] = PflSide(module, batches, load, private)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    agreement: dict[str, float] = {}
    for index in range(1, repeats + 2):
        batches.of_round(index)
        # Another side begins each time: what one leaves in the caches favours no other for good.
        turn = index % len(sides)
        order = [*sides][turn:] + [*sides][:turn]
        for side_name in order:
            started = time.perf_counter()
            sides[side_name].round(index)
            if index > 1:
                seconds[side_name].append(time.perf_counter() - started)
        if index == 1:
            # Round 1 warms up. Noise of pfl and dropout masks of pfl are its own, so it is
            # compared only where there are none.
            reference = sides["bare"].vector()
            scale = float(reference.norm())
            agreement["pfl-bench"] = float((ours.vector() - reference).norm()) / scale
            if "pfl" in sides and not private and not load.has_dropout:
                agreement["pfl"] = float((sides["pfl"].vector() - reference).norm()) / scale
    for side_name, difference in agreement.items():
        if difference > 1e-4:
            raise SystemExit(f"{name}: {side_name} computed something else: {difference:.2e}")
    return summarise(name, private, seconds, agreement)


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


def bench_femnist(arguments: argparse.Namespace) -> None:
    """Time all workloads, private and not."""
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
    versions = package_versions()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["pfl"] = importlib.metadata.version("pfl")
    report = {
        "command": sys.argv,
        "threads": torch.get_num_threads(),
        "processor": processor_name(),
        "versions": versions,
        "repeats": arguments.repeats,
        "results": results,
    }
    Path(arguments.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(results))


def bench_memory(arguments: argparse.Namespace) -> None:
    """Peak memory of a round at several cohorts, each in a process of its own."""
    if arguments.cohort is not None:
        _memory_of_one(arguments.cohort, Path(arguments.store))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "generated.h5"
        make_store(store, num_users=2500, mean_examples=30)
        peaks = {}
        for cohort in (20, 200, 2000):
            command = [sys.executable, __file__, "memory", "--cohort", str(cohort)]
            done = subprocess.run(
                [*command, "--store", str(store)], check=True, capture_output=True, text=True
            )
            peaks[cohort] = int(done.stdout)
    print("| cohort | peak memory (MiB) | ratio to cohort 20 |\n|---|---|---|")
    for cohort, peak in peaks.items():
        print(f"| {cohort} | {peak / 1024:.0f} | {peak / peaks[20]:.3f} |")


def _memory_of_one(cohort: int, store: Path) -> None:
    load = Workload("softmax", cohort, 10, 0.1)
    with tempfile.TemporaryDirectory() as folder:
        side = OurSide(store, load, True, Path(folder))
        side.round(1)
        side.round(2)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "femnist": bench_femnist,
        "memory": bench_memory,
    }
    parser.add_argument("what", choices=sorted(actions))
    parser.add_argument("--only", action="append", choices=sorted(FEMNIST))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", default="bench.json")
    parser.add_argument("--cohort", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    actions[arguments.what](arguments)


if __name__ == "__main__":
    main()
