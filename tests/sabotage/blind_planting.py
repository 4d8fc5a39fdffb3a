"""What a bug is that was planted blind: by somebody who had not read the checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.federated import round as federated
from pfl_bench.federated.trainer import FederatedTrainer
from privacy.amplification import Participation
from privacy.clipping import ClipOutcome, add_clipped_, l2_norm
from privacy.mechanism import mean_of
from privacy.mechanisms import gaussian
from privacy.noise import clipped_sum
from privacy.schemes.poisson import Poisson
from tests.sabotage.planting import Bug, Patch, Plant

OPEN = "passes the audit, at one seed at least, when it was planted"
Users = NDArray[np.int64]
Vector = NDArray[np.float64]
# Standard deviation of the noise in each element of the sum, and what draws it.
Draw = Callable[[np.random.Generator, Tensor, float, dict[str, Any]], Vector]

# What a plant has seen of itself: how far the run under it is from one without.
WITNESSED: list[float] = []
# Names a file in which a bug in another process bears witness.
MARK = "PFL_BENCH_BLIND_MARK"


@dataclass(frozen=True)
class Blind:
    """A bug that was planted blind.

    Attributes:
        bug: As other planted bugs.
        breaks: What of the guarantee does not hold.
        real_epsilon: What epsilon would truly be, roughly, where a run claims 4.07 (or as said).
        at_least: What the largest of the plant's witnesses must come to: else nothing was planted.
    """

    bug: Bug
    breaks: str
    real_epsilon: str
    at_least: float = 1e-9


def witness(value: float) -> None:
    """Say how far this round, client or draw is from what it should be."""
    WITNESSED.append(abs(float(value)))


def witness_elsewhere(value: float) -> None:
    """The same, in a worker process."""
    with Path(os.environ[MARK]).open("a", encoding="ascii") as file:
        file.write(f"{abs(float(value))!r}\n")


def witnessed(mark: Path) -> float:
    """The largest of what was witnessed, by any process."""
    elsewhere = [float(line) for line in mark.read_text().split()] if mark.exists() else []
    return max([*WITNESSED, *elsewhere], default=0.0)


def noising(draw: Draw) -> Plant:
    """Plant other noise into the Gaussian mechanism; its witness is its distance from the real."""

    def plant(patch: Patch) -> None:
        state: dict[str, Any] = {}

        def noised(
            total: Tensor, stddev: float, cohort_size: float, rng: np.random.Generator
        ) -> Tensor:
            honest = copy_of(rng).standard_normal(total.numel()) * stddev
            noise = draw(rng, total, stddev, state)
            witness(float(np.abs(noise - honest).max()) / stddev)
            return mean_of(total, cohort_size, noise.astype(np.float32))

        patch.setattr(gaussian, "noised_mean", noised)

    return plant


def copy_of(rng: np.random.Generator) -> np.random.Generator:
    """A generator that gives what this one would, without moving it."""
    copied = np.random.Generator(np.random.Philox())
    copied.bit_generator.state = rng.bit_generator.state
    return copied


def counting_from_resume(patch: Patch, purposes: tuple[int, ...]) -> None:
    """Let the streams of some purposes begin at round 1 again when a run is resumed."""
    done = [0]
    real_stream, real_begin = federated.stream, FederatedTrainer.begin

    def begin(self: FederatedTrainer, rounds: int) -> None:
        done[0] = rounds
        real_begin(self, rounds)

    def stream(seed: int, purpose: Any, index: int = 0, client: int = 0) -> np.random.Generator:
        if index and int(purpose) in purposes:
            witness(done[0])
            index -= done[0]
        return real_stream(seed, purpose, index, client)

    patch.setattr(FederatedTrainer, "begin", begin)
    patch.setattr(federated, "stream", stream)


def cohorts(
    draw: Callable[[Participation, np.random.Generator, int, dict[str, Any]], Users],
) -> Plant:
    """Plant another draw into Poisson sampling, with a memory from round to round.

    Its witness is by how many users the cohort differs from the real one.
    """

    def plant(patch: Patch) -> None:
        state: dict[str, Any] = {}
        real = Poisson.draw

        def drawn(
            self: Poisson,
            among: Participation,
            rng: np.random.Generator,
            index: int = 1,
            groups: Users | None = None,
        ) -> Users:
            honest = real(self, among, copy_of(rng), index, groups)
            users = np.sort(draw(among, rng, index, state)).astype(np.int64)
            witness(len(np.setxor1d(honest, users)))
            return users

        patch.setattr(Poisson, "draw", drawn)

    return plant


def clipping(wrong: Callable[[Tensor, Tensor, float, dict[str, Any]], ClipOutcome]) -> Plant:
    """Plant another clip; its witness is by how much of the bound its contributions exceed it."""

    def plant(patch: Patch) -> None:
        state: dict[str, Any] = {}

        def clipped(total: Tensor, update: Tensor, clip_norm: float) -> ClipOutcome:
            before = total.clone()
            outcome = wrong(total, update, clip_norm, state)
            witness(max(0.0, l2_norm(total - before) / clip_norm - 1.0))
            return outcome

        patch.setattr(clipped_sum, "add_clipped_", clipped)

    return plant


def honest_outcome(update: Tensor, clip_norm: float) -> ClipOutcome:
    """What a developer would go on reporting, who believes in the clip."""
    return add_clipped_(torch.zeros_like(update, dtype=torch.float32), update, clip_norm)


def blind(
    name: str,
    description: str,
    planted: str,
    breaks: str,
    real_epsilon: str,
    at_least: float = 1e-9,
    *,
    expects: tuple[str, ...] = (),
    **more: Any,
) -> Blind:
    """A bug that checks catch whatever the seed; or, without ``expects``, one that may pass."""
    unseen = "" if expects else OPEN
    bug = Bug(name, description, planted, expects, unseen=unseen, **more)
    return Blind(bug, breaks, real_epsilon, at_least)
