"""The sides of a round's benchmark, built, taken in turn, compared and timed.

Ours by each engine, a bare PyTorch loop, PyPI's ``pfl`` and Flower's simulation train the same
batches of the same users, from the same weights. Sides of one process share the benchmark's own;
those of several, and Flower, have processes of their own and are told when it is their turn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bare import BareSide
from benchmarks.common import OurSide, Seconds, Side, in_turn, torch_defaults
from benchmarks.local_training import Material, large_step
from benchmarks.options import Options
from benchmarks.pfl_side import is_installed, pfl_side
from benchmarks.remote import RemoteSide
from benchmarks.workload import Job, Workload, configuration

# Largest relative difference of the first central step from the bare loop's, where all is the same.
# bfloat16 has 8 bits of a number, and where each operation rounds is a side's own choice.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
# Largest relative difference of the first step's norm, where noise or dropout masks differ: a
# private step is mostly noise, whose norm is known to a fraction of a percent by its many elements.
NORM_TOLERANCE = 0.1
# Largest relative difference of the loss after the first round, but for noise of a side's own.
LOSS_TOLERANCE = 0.02
BARE = "bare"


class _Threaded:
    """A side of this process, with the threads of torch that are its own.

    Args:
        side: The side.
        threads: Its threads.
    """

    def __init__(self, side: Side, threads: int) -> None:
        self._side, self._threads = side, threads

    def prepare(self, index: int) -> None:
        self._side.prepare(index)

    def round(self, index: int) -> None:
        torch.set_num_threads(self._threads)
        self._side.round(index)

    def vector(self) -> Tensor:
        return self._side.vector()


@dataclass
class Sides:
    """All sides of a workload.

    Attributes:
        named: The sides by name.
        first: Ours, whose cohorts all take.
        remote: Names of those in processes of their own.
        startup_seconds: Of these, before their first round.
    """

    named: dict[str, Side]
    first: OurSide
    remote: set[str] = field(default_factory=set)
    startup_seconds: dict[str, float] = field(default_factory=dict)


def _name(family: str, threads: int = 1, processes: int = 1, slots: int | None = None) -> str:
    parts = [family]
    parts += [f"{slots} slots"] if slots is not None else []
    parts += [f"{threads} threads"] if threads > 1 else []
    parts += [f"{processes} processes"] if processes > 1 else []
    return ", ".join(parts)


def flower_is_installed() -> bool:
    """Whether there is a Flower that can simulate."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


@contextlib.contextmanager
def build_sides(
    store: Path, load: Workload, private: bool, options: Options, folder: Path
) -> Iterator[Sides]:
    """Build the sides that the options ask for, and end their processes at last.

    Args:
        store: The data.
        load: What is trained.
        private: Whether updates are clipped and noise is added.
        options: The command line.
        folder: For the sides' files; made.
    """
    job = Job(str(store), load, private, options.precision, device=options.device)
    sides: Sides | None = None
    with contextlib.ExitStack() as stack:
        for threads in options.threads:
            torch.set_num_threads(threads)
            for engine, slots in _ours(options):
                place = folder / f"{engine}-{slots}-{threads}"
                place.mkdir(parents=True)
                own = replace(job, engine=engine, slots=slots, threads=threads)
                ours = OurSide(configuration(own), place)
                stack.callback(ours.close)
                if sides is None:
                    sides = Sides({}, ours)
                    job = replace(job, cohort_seed=ours.cohort_seed)
                name = _name(f"pfl-bench, {engine}", threads, slots=slots)
                sides.named[name] = _Threaded(ours, threads)
            material = Material(replace(job, threads=threads))
            assert sides is not None
            sides.named[_name(BARE, threads)] = _Threaded(BareSide(material), threads)
            if "pfl" in options.peers:
                sides.named[_name("pfl", threads)] = _Threaded(pfl_side(material), threads)
        job = replace(job, threads=min(options.threads), processes=options.processes)
        for name, kind, told, ranks in _elsewhere(job, options):
            remote = RemoteSide(kind, told, folder / name.replace(", ", "-"), ranks)
            stack.callback(remote.close)
            sides.named[name] = remote
            sides.remote.add(name)
            sides.startup_seconds[name] = remote.startup_seconds
        yield sides


def _ours(options: Options) -> Iterator[tuple[str, int | None]]:
    """Engine and slots of our sides in this process."""
    for engine in options.engines:
        for slots in (options.slots or (None,)) if engine == "vectorized" else (None,):
            yield engine, slots


def _elsewhere(job: Job, options: Options) -> Iterator[tuple[str, str, Job, int]]:
    """Name, kind, job and ranks of the sides in processes of their own."""
    count, threads = options.processes, job.threads
    if count > 1:
        for engine in options.engines:
            name = _name(f"pfl-bench, {engine}", threads, count)
            yield name, "ours", replace(job, engine=engine), 1
        if "pfl" in options.peers:
            # torch.distributed's processes are each told.
            yield _name("pfl", threads, count), "pfl", replace(job, processes=1), count
    if "flower" in options.peers:
        yield _name("Flower", threads, count), "flower", job, 1


def missing_peers(peers: Iterable[str]) -> dict[str, str]:
    """Messages on each peer that is asked for and not installed."""
    found = {"pfl": is_installed(), "flower": flower_is_installed()}
    return {
        peer: f"{peer} is not installed, so there is no comparison with it: see docs/performance.md"
        for peer in peers
        if not found[peer]
    }


def measure(
    store: Path, load: Workload, private: bool, options: Options, folder: Path
) -> dict[str, Any]:
    """Time the sides in turn and check that they computed the same thing.

    Args:
        store: The data.
        load: What is trained.
        private: Whether updates are clipped and noise is added.
        options: The command line.
        folder: For the sides' files.

    Returns:
        The workload, each round's seconds by side, local steps of each round, and how far each
        side's parameters and loss were from the bare loop's after the first round.

    Raises:
        SystemExit: A side computed something else, or ended.
    """
    with build_sides(store, load, private, options, folder) as sides:
        seconds = {name: Seconds() for name in sides.named}
        agreement = _Agreement(sides, Material(_job_of(store, load, private, options, sides)))
        steps: list[int] = []
        examples: list[int] = []
        for index in range(1, options.repeats + 2):
            for side in sides.named.values():
                side.prepare(index)
            for name in in_turn(sides.named, index):
                # Round 1 warms up.
                timed = seconds[name] if index > 1 else Seconds()
                with torch_defaults() if name.split(",")[0] == "pfl" else contextlib.nullcontext():
                    timed.add(partial(sides.named[name].round, index), sides.first.device)
            if index == 1:
                agreement.check(options.precision)
            else:
                steps.append(int(sides.first.scalars["train/num_steps"]))
                examples.append(int(sides.first.scalars["train/num_examples"]))
        limit = _large_batches(agreement.material, options)
    rows = {}
    for name, taken in seconds.items():
        rows[name] = {"seconds": taken.wall}
        if name not in sides.remote:
            rows[name]["processor_seconds"] = taken.processor
    return {
        "workload": f"{load.task} {load.model}",
        "private": private,
        "precision": options.precision,
        "cohort_size": load.cohort_size,
        "device": options.device,
        "steps": steps,
        "examples": examples,
        "large_batch": limit,
        "sides": rows,
        "startup_seconds": sides.startup_seconds,
        "loss_before": agreement.loss_before,
        "agreement": agreement.found,
    }


def _job_of(store: Path, load: Workload, private: bool, options: Options, sides: Sides) -> Job:
    seed, device = sides.first.cohort_seed, options.device
    return Job(str(store), load, private, options.precision, cohort_seed=seed, device=device)


def _large_batches(material: Material, options: Options) -> dict[str, Any] | None:
    """Seconds of plain steps on one large batch: nobody trains faster on this device."""
    if options.large_batch is None:
        return None
    step = large_step(material, options.large_batch)
    seconds = Seconds()
    for index in range(options.repeats + 1):
        # The first warms up.
        timed = seconds if index else Seconds()
        with torch_defaults():
            timed.add(step, torch.device(options.device))
    return {"examples": options.large_batch, "seconds": seconds.wall}


class _Agreement:
    """Distances of the sides from the bare loop after the first round.

    Args:
        sides: Before it.
        material: Gives a model and the round's clients.
    """

    def __init__(self, sides: Sides, material: Material) -> None:
        self._sides, self.material = sides, material
        self._before = sides.named[BARE].vector()
        self.loss_before = self._loss(self._before)
        self.found: dict[str, dict[str, float]] = {}

    def check(self, precision: str) -> None:
        """Compare all sides: steps where noise and dropout are the same, else their norms.

        Raises:
            SystemExit: A side computed something else.
        """
        reference = self._sides.named[BARE].vector()
        scale = float((reference - self._before).norm())
        load = self.material.job.load
        wanted = self._loss(reference)
        for name, side in self._sides.named.items():
            vector = side.vector()
            loss = self._loss(vector)
            norm = float((vector - self._before).norm()) / scale * self._shares(name)
            found = {
                "loss": loss,
                "loss_difference": abs(loss - wanted) / wanted,
                "norm_difference": abs(norm - 1),
            }
            is_same = found["norm_difference"] <= NORM_TOLERANCE
            has_own_draws = self.material.job.private or (
                load.has_dropout and name.partition(",")[0] == "pfl"
            )
            if name.startswith(("pfl-bench", BARE)) or not self.material.job.private:
                is_same = is_same and found["loss_difference"] <= LOSS_TOLERANCE
            if name.startswith(("pfl-bench", BARE)) or not has_own_draws:
                found["step_difference"] = float((vector - reference).norm()) / scale
                is_same = is_same and found["step_difference"] <= TOLERANCE[precision]
            self.found[name] = found
            if not is_same:
                raise SystemExit(f"{load.model}: {name} computed something else: {found}")

    def _shares(self, name: str) -> float:
        """Divisor of a side's private sum, in cohort sizes: peers take the drawn cohort's."""
        if not self.material.job.private or name.startswith(("pfl-bench", BARE)):
            return 1.0
        drawn = len(self.material.clients.users_of_round(1))
        return drawn / self.material.job.cohort_size

    @torch.no_grad()
    def _loss(self, vector: Tensor) -> float:
        """Mean loss of the first round's clients under these parameters."""
        module = self.material.module().eval()
        torch.nn.utils.vector_to_parameters(
            vector.to(self.material.device),
            [p for p in module.parameters() if p.requires_grad],
        )
        clients = self.material.clients
        losses = []
        for user in clients.users_of_round(1):
            inputs, targets = clients.client(user, 1)
            losses.append(float(self.material.loss(module(inputs), targets)))
        return sum(losses) / len(losses)


def tell(line: str) -> None:
    """Say something beside the results."""
    print(line, file=sys.stderr, flush=True)
