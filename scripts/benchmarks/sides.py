"""The sides of a round's benchmark: ours, a bare PyTorch loop, and PyPI's ``pfl``.

All train the same batches of the same users, from the same weights. ``pfl`` runs its simulated
backend with its ``FederatedAveraging`` on its ``PyTorchModel``, as its recipes do, its users'
tensors in memory as the bare loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import OurSide, Seconds, Side, in_turn
from benchmarks.pfl_side import PflSide, Privacy, is_installed
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.sampling import build_sampler

CLIP_NORM, SEED = 0.4, 0
OURS, VECTORIZED = "pfl-bench", "pfl-bench, vectorized"


@dataclass(frozen=True)
class Workload:
    """A model of a task, and how its clients train.

    Attributes:
        task: Name of the task.
        model: Name of the model.
        cohort_size: Clients a round.
        batch_size: Examples a step.
        learning_rate: Local rate: small, so that rounding does not grow over a client's steps.
        gradient_clip: Bound of the gradient's global norm; None for none.
        has_dropout: Whether the model drops anything in training.
        noise_multiplier: Of private rounds. Noise for a cohort of ten drives an LSTM's gates into
            saturation within rounds, and numbers too small for a processor's fast path follow: a
            smaller one keeps the model one that a training has.
    """

    task: str
    model: str
    cohort_size: int
    batch_size: int
    learning_rate: float
    gradient_clip: float | None = None
    has_dropout: bool = False
    noise_multiplier: float = 1.0


@dataclass(frozen=True)
class Agreement:
    """How far another side may be from the bare loop after the first round.

    Attributes:
        tolerance: Largest relative difference of the central parameters.
        of_step: Whether it is relative to the first central step, else to the parameters.
    """

    tolerance: float
    of_step: bool


@dataclass(frozen=True)
class Measured:
    """What each side took, and how far it was from the bare loop.

    Attributes:
        seconds: By side; the first round, which warms up, is left out.
        steps: Local steps of each of these rounds.
        agreement: By side, where it can be compared.
    """

    seconds: dict[str, Seconds]
    steps: list[int]
    agreement: dict[str, float]


def configuration(
    store: Path, load: Workload, private: bool, engine: str = "sequential"
) -> dict[str, Any]:
    """A run of our own that does what the other sides do."""
    tree: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "seed": SEED,
        "device": "cpu",
        "task": {"name": load.task, "data": str(store)},
        "model": {"name": load.model},
        "federated": {
            "num_rounds": 1000,
            "cohort_size": load.cohort_size,
            "sampling": "poisson" if private else "fixed_size",
            "local_batch_size": load.batch_size,
            "local_learning_rate": load.learning_rate,
            "local_gradient_clip_global_norm": load.gradient_clip,
            "engine": engine,
        },
        "evaluation": {"final_splits": []},
    }
    if private:
        tree["privacy"] = {
            "mechanism": {"name": "gaussian", "clip_norm": CLIP_NORM},
            "population_size": 1_000_000,
            "hypothetical_population": True,
            "noise_multiplier": load.noise_multiplier,
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

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        batches: Batches,
        load: Workload,
        private: bool,
    ) -> None:
        self._module, self._loss, self._batches = module, loss, batches
        self._load, self._private = load, private
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._central = [p.detach().clone() for p in self._parameters]

    def round(self, index: int) -> None:
        total = [torch.zeros_like(p) for p in self._central]
        cohort = self._batches.of_round(index)
        self._module.train()
        for user, inputs, targets in cohort:
            # For dropout.
            seed_torch(SEED, Purpose.LOCAL_TRAINING, torch.device("cpu"), index, user)
            self._train(inputs, targets)
            with torch.no_grad():
                pairs = zip(self._parameters, self._central, strict=True)
                update = [p - start for p, start in pairs]
                scale = 1.0
                if self._private:
                    norm = torch.stack([u.norm() for u in update]).norm()
                    scale = min(1.0, CLIP_NORM / float(norm))
                for accumulated, part in zip(total, update, strict=True):
                    accumulated.add_(part, alpha=scale)
        self._step(total, self._load.cohort_size if self._private else len(cohort), index)

    def _train(self, inputs: Tensor, targets: Tensor) -> None:
        with torch.no_grad():
            for parameter, start in zip(self._parameters, self._central, strict=True):
                parameter.copy_(start)
        optimizer = torch.optim.SGD(self._parameters, lr=self._load.learning_rate)
        size = self._load.batch_size
        for batch, labels in zip(inputs.split(size), targets.split(size), strict=True):
            optimizer.zero_grad()
            self._loss(self._module(batch), labels).backward()
            if self._load.gradient_clip is not None:
                nn.utils.clip_grad_norm_(self._parameters, self._load.gradient_clip)
            optimizer.step()

    @torch.no_grad()
    def _step(self, total: list[Tensor], cohort_size: int, index: int) -> None:
        rng = self._batches.noise_of_round(index)
        for start, part in zip(self._central, total, strict=True):
            if self._private:
                noise = rng.standard_normal(part.numel())
                noise *= self._load.noise_multiplier * CLIP_NORM
                part.add_(torch.from_numpy(noise).float().view(part.shape))
            start.add_(part, alpha=1 / cohort_size)

    def vector(self) -> Tensor:
        return torch.cat([p.reshape(-1) for p in self._central])


class _Pfl(PflSide):
    """``pfl``, whose vector leaves out what is not trained."""

    def vector(self) -> Tensor:
        trained = [p for p in self._module.parameters() if p.requires_grad]
        return torch.cat([p.detach().reshape(-1) for p in trained])


def pfl_side(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Batches,
    load: Workload,
    private: bool,
) -> PflSide:
    """``pfl`` on the same batches, its tensors in memory as the bare loop's."""

    def train_loss(inputs: Tensor, targets: Tensor, **_: Any) -> Tensor:
        module.train()
        return loss(module(inputs), targets)

    module.loss, module.metrics = train_loss, lambda *_, **__: {}  # type: ignore[assignment]
    data: dict[int, tuple[Tensor, Tensor]] = {}

    def cohort(index: int) -> list[int]:
        data.clear()
        data.update({user: (x, y) for user, x, y in batches.of_round(index)})
        return [*data]

    local = {
        "local_batch_size": load.batch_size,
        "local_num_epochs": 1,
        "local_learning_rate": load.learning_rate,
        "local_max_grad_norm": load.gradient_clip,
    }
    trained = [p for p in module.parameters() if p.requires_grad]
    central = torch.optim.SGD(trained, lr=1.0)
    privacy = Privacy(CLIP_NORM, load.noise_multiplier) if private else None
    return _Pfl(module, cohort, data.__getitem__, central, local, privacy)


def our_sides(store: Path, load: Workload, private: bool, folder: Path) -> dict[str, OurSide]:
    """Ours by each engine, each with a run folder of its own, by name."""
    sides: dict[str, OurSide] = {}
    for engine, name in (("sequential", OURS), ("vectorized", VECTORIZED)):
        place = folder / engine
        place.mkdir(parents=True)
        tree = configuration(store, load, private, engine)
        sides[name] = OurSide(tree, place, sides.get(OURS))
    return sides


def measure(
    load: Workload,
    private: bool,
    own: Mapping[str, OurSide],
    build_plain: Callable[[nn.Module], nn.Module],
    repeats: int,
    agreement: Agreement,
) -> Measured:
    """Time the sides in turn and check that they computed the same thing.

    Args:
        load: What they train.
        private: Whether updates are clipped and noise is added.
        own: Our sides by name, of ``our_sides``.
        build_plain: Makes of our model the other sides', with the same weights.
        repeats: Rounds to time.
        agreement: What is the same thing.

    Raises:
        SystemExit: A side computed something else.
    """
    ours = own[OURS]
    batches = Batches(ours, load, private)
    before = ours.vector() if agreement.of_step else 0
    modules = [build_plain(ours.model.module) for _ in range(2)]
    loss = ours.task.loss
    sides: dict[str, Side] = {
        **own,
        "bare": BareSide(modules[0], loss, batches, load, private),
    }
    if is_installed():
        sides["pfl"] = pfl_side(modules[1], loss, batches, load, private)
    # Noise and dropout masks of pfl are its own, so it is compared only where there are none.
    compared = [name for name in sides if name != "pfl" or not (private or load.has_dropout)]
    measured = Measured({side: Seconds() for side in sides}, [], {})
    for index in range(1, repeats + 2):
        batches.of_round(index)
        for name in in_turn(sides, index):
            # Round 1 warms up.
            timed = measured.seconds[name] if index > 1 else Seconds()
            timed.add(partial(sides[name].round, index), ours.device)
        if index > 1:
            measured.steps.append(int(ours.scalars["train/num_steps"]))
            continue
        reference = sides["bare"].vector()
        scale = float((reference - before).norm())
        for name in compared:
            if name == "bare":
                continue
            difference = float((sides[name].vector() - reference).norm()) / scale
            measured.agreement[name] = difference
            if not difference <= agreement.tolerance:
                raise SystemExit(f"{load.model}: {name} computed something else: {difference:.2e}")
    return measured
