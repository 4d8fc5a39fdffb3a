"""What the bugs of ``fifth_bugs`` share: their form, the rows they are planted into, and hooks.

They were planted at commit 712aecfd by somebody who had read neither the audit's checks nor its
reference. The patches are those of then. Where a description named another thing than its patch
changes, it was corrected; no bug was changed so that it would be caught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.federated import round as federated
from pfl_bench.rng import Purpose
from privacy.clipping import ClipOutcome, l2_norm
from privacy.mechanism import mean_of
from privacy.mechanisms import adaptive_gaussian, gaussian
from tests.sabotage.paper_planting import wrap

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Noise = NDArray[np.float64]
Settings = tuple[str, ...]

FEDERATED = "configs/demo/private_federated.yaml"
CENTRAL_DP = "configs/demo/central_dp.yaml"
ROUNDS = 12
# The demonstration row as it is has the adaptive mechanism.
ADAPTIVE: Settings = (f"federated.num_rounds={ROUNDS}", "checkpoint.every=4")
EPOCHS: Settings = ("central.num_epochs=4", "checkpoint.every=2", "evaluation.every=2")
PLD = "privacy.accountant=pld"
# Each client makes its report of its own, so that the cohort cannot be another than simulated.
REPORTS: Settings = ("privacy.noise_cohort_size=null", "privacy.epsilon=50.0")
CYCLIC: Settings = (
    "federated.sampling=cyclic_poisson",
    "federated.separation=3",
    "privacy.noise_cohort_size=60",
    "privacy.epsilon=20.0",
)


def mechanism(name: str, clip_norm: float = 0.3, **options: float) -> str:
    """The setting of a mechanism."""
    more = "".join(f", {key}: {value}" for key, value in options.items())
    return f"privacy.mechanism={{name: {name}, clip_norm: {clip_norm}{more}}}"


def gaussian_with(*more: str) -> Settings:
    """The row with the Gaussian mechanism in place of the adaptive one, and with more settings."""
    return (*ADAPTIVE, mechanism("gaussian"), *more)


GAUSSIAN = gaussian_with()
SEQUENTIAL = gaussian_with("federated.engine=sequential")
BANDED: Settings = (
    *ADAPTIVE,
    mechanism("banded_matrix_factorization", bands=3),
    *CYCLIC,
)
RESTARTED_TREE: Settings = (
    *ADAPTIVE,
    mechanism("tree_aggregation", restart_every=4),
    *CYCLIC,
)
PRIVUNIT: Settings = (*ADAPTIVE, mechanism("privunit"), *REPORTS, PLD)


@dataclass(frozen=True)
class FifthBug:
    """One privacy bug of the fifth list, planted into a run of a demonstration row.

    Attributes:
        name: Machine name, unique.
        description: What is wrong and, where that is not plain, what it leaks.
        plant: Changes the code that runs.
        settings: Of the command line, over ``config``.
        config: A file under ``configs/demo``.
        killed_after: Round (epoch) after which the run is killed, and then resumed.
        shared: Whether it is in a file that run and audit share, so that the audit may have it too.
        sound: Whether it is no bug: a run that must pass.
    """

    name: str
    description: str
    plant: Plant
    settings: Settings = GAUSSIAN
    config: str = FEDERATED
    killed_after: int | None = None
    shared: bool = False
    sound: bool = False

    def command(self, folder: Path) -> list[str]:
        """Arguments of ``pfl-bench`` for the run, without ``--resume``."""
        return ["run", self.config, *self.settings, "--out", str(folder), "--quiet"]


def change_noise(patch: Patch, change: Callable[[Noise, Tensor], Any]) -> None:
    """Change the noise of the Gaussian mechanisms, which go on to claim what it would have been.

    Args:
        patch: Undone by the caller.
        change: Of the round's noise and the sum before it, both of shape (P,), to what is added.
    """

    def noised_mean(total: Tensor, stddev: float, cohort_size: float, rng: Any) -> Tensor:
        if stddev == 0.0:
            return mean_of(total, cohort_size)
        noise = rng.standard_normal(total.numel()) * stddev
        return mean_of(total, cohort_size, np.asarray(change(noise, total)))

    for module in (gaussian, adaptive_gaussian):
        patch.setattr(module, "noised_mean", noised_mean)


def change_stream(patch: Patch, purpose: Purpose, change: Callable[[int, int], Any]) -> None:
    """Let a round's streams of one purpose be those of another seed and index.

    Args:
        patch: Undone by the caller.
        purpose: Of the streams.
        change: Of seed and index, to seed and index.
    """

    def changing(real: Any) -> Any:
        def stream(seed: int, asked: Purpose, index: int = 0, client: int = 0) -> Any:
            if asked == purpose:
                seed, index = change(seed, index)
            return real(seed, asked, index, client)

        return stream

    wrap(patch, federated, "stream", changing)


class RawMeans:
    """Keeps the mean before noise of the last round, as the Gaussian mechanism takes it in.

    Attributes:
        last: Tensor of shape (P,); None before the first round.
    """

    def __init__(self, patch: Patch) -> None:
        self.last: Any = None

        def keeping(real: Any) -> Any:
            def release(mechanism: Any, aggregate: Any, rng: Any) -> Any:
                self.last = (aggregate.total / mechanism._noise.cohort_size).clone()
                return real(mechanism, aggregate, rng)

            return release

        wrap(patch, gaussian.Gaussian, "release", keeping)


def honest_outcome(update: Tensor, clip_norm: float) -> ClipOutcome:
    """What a developer would go on reporting, who believes in the clip."""
    norm = l2_norm(update)
    return ClipOutcome(norm, norm <= clip_norm, True, min(norm, clip_norm))
