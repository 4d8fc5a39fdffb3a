"""Base of mechanisms whose noise is correlated over rounds: accounting, checks, the release.

Guarantee: unit user, added or removed in the rounds of a fixed pattern ("selected": zeroed out, in
rounds of any pattern within separation and cap). ``unamplified`` is the one
Gaussian mechanism that all rounds are together; it is refused where the sampler keeps no pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, check_composition_numbers
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, NormalSource, Release, mean_of
from privacy.noise.clipped_sum import ClippedSum
from privacy.noise.factorization import separated_squared_sensitivity, squared_sensitivities

# Elements that are worked on at a time: float64 buffers of them stay in the cache.
CHUNK = 1 << 16


def unamplified(
    mechanism: str, participation: Participation, noise_multiplier: float, squared: float
) -> Composition:
    """One Gaussian over all rounds, for a user whose rounds are all those of the pattern.

    ``squared`` is the squared sensitivity of all rounds, in multiples of clip_norm squared; 0 if
    none was released. Schemes without a pattern are refused in the name of the mechanism.
    """
    from dp_accounting import dp_event

    scheme = participation.scheme
    if scheme.pattern == "none" and scheme.adjacency != "replace-one":
        raise PlanError(
            f"the mechanism {mechanism} under {scheme.name} sampling: nothing keeps two rounds of "
            "a user apart, so that correlated noise has no amplified guarantee, and no better one "
            "than for a user who is in every round; sample by cyclic_poisson with a separation (at "
            "least the bands, for amplification), or use the mechanism gaussian"
        )
    if scheme.pattern == "none":
        raise PlanError(
            f"the mechanism {mechanism} under {scheme.name} sampling: replacing a user moves the "
            "rounds of two users, and who is drawn depends on who else is, which no sensitivity "
            "here covers; sample by cyclic_poisson, or use the mechanism gaussian"
        )
    if squared <= 0.0:
        return Composition(dp_event.GaussianDpEvent(noise_multiplier), 0, participation.adjacency)
    event = dp_event.GaussianDpEvent(noise_multiplier / math.sqrt(squared))
    return Composition(event, 1, participation.adjacency)


def check_setting(
    noise: NoiseScale, participation: Participation, multiplier: float, rounds: int
) -> None:
    """Check the numbers of a composition, and that it is of the sampler that the run has."""
    check_composition_numbers(multiplier, rounds)
    if noise.num_rounds and participation.min_separation != noise.separation:
        raise PlanError(
            f"the rounds of a user are to be accounted as {participation.min_separation} apart, "
            f"but the mechanism was built for a separation of {noise.separation}; take both from "
            "federated.separation"
        )


def check_bands(bands: int, noise: NoiseScale) -> None:
    """Check that no band lies beyond the planned rounds."""
    if noise.num_rounds and bands > noise.num_rounds:
        raise PlanError(
            f"bands is {bands}, but the run has {noise.num_rounds} rounds, so that the later bands "
            f"would have nothing to act on; set bands to {noise.num_rounds} or less"
        )


def pattern_squared_sensitivity(
    column: Callable[[], NDArray[np.float64]], participation: Participation, rounds: int
) -> float:
    """Squared sensitivity of all rounds of a user under a Toeplitz matrix, at a bound of 1.

    Of the worst rounds that a scheme of separated rounds allows, and of every round of a group; 0
    without rounds, and for schemes that keep no pattern. ``column`` gives the matrix's first
    column, shape (n,), of which the rest is 0.
    """
    apart = participation.min_separation
    if participation.scheme.pattern == "separated":
        most = participation.most_participations(rounds)
        return separated_squared_sensitivity(column(), apart, most, rounds)
    if participation.scheme.pattern == "groups" and rounds > 0:
        return float(squared_sensitivities(column(), apart, rounds)[-1])
    return 0.0


def check_vectors(mechanism: str, vectors: Any, count: int) -> list[Tensor]:
    """Check that a saved state has so many noise vectors: of one shape (P,), float32, finite."""
    good = isinstance(vectors, list) and all(
        isinstance(vector, Tensor)
        and vector.dtype == torch.float32
        and vector.shape == vectors[0].shape
        and vector.dim() == 1
        and bool(vector.isfinite().all())
        for vector in vectors
    )
    if not good or len(vectors) != count:
        raise PrivacyError(
            f"the saved noise of the {mechanism} mechanism is not {count} finite float32 vectors "
            "of one length: without it the coming rounds could not take back what the last ones "
            "added; the checkpoint is damaged or of another configuration, start the run anew"
        )
    return list(vectors)


def check_length(vectors: Sequence[Tensor], length: int) -> None:
    """Check that vectors of earlier rounds have shape (length,), as the sum of the coming one."""
    if any(len(vector) != length for vector in vectors):
        raise PrivacyError(
            f"the sum has {length} elements, but the rounds before had {len(vectors[0])}; resume "
            "with the model that the run was started with"
        )


def solve_row_(
    draws: NDArray[np.float64], weights: Sequence[float], last: list[Tensor]
) -> list[Tensor]:
    """Solve the next row of C Y = Z for Y, in place of the draws, of shape (P,).

    Band after band and not as one product, whose order of summation, and so whose last bits, a
    library may change with the memory that it is given.

    ``weights`` are the row of C from the diagonal back, ``last`` the noise of the rounds before,
    the latest first, not changed; returned with the new noise, in float32, before it.
    """
    check_length(last, len(draws))
    first, *later = weights
    for start in range(0, len(draws), CHUNK):
        part = draws[start : start + CHUNK]
        for weight, vector in zip(later, last, strict=False):
            part -= vector.numpy()[start : start + CHUNK].astype(np.float64) * weight
        part /= first
    return [torch.from_numpy(draws).to(torch.float32), *last]


class CorrelatedSum(ClippedSum):
    """Base of mechanisms that noise the sum of a round by Gaussian noise made with earlier rounds'.

    A subclass gives ``name``, ``description``, ``composition``, ``_next_noise`` and
    ``_noise_profile``, and the state of its noise. The clipping bound is the same in every round:
    the noise of one round is taken back in later ones, which holds in one unit alone.
    """

    begins_with_normals = True

    def __init__(self, clip_norm: float, noise: NoiseScale) -> None:
        super().__init__(clip_norm, noise)
        self._rounds = 0
        self._profile: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def update_noise_multiplier(self) -> float:
        """The largest of the planned rounds' noise, that of the last, in multiples of clip_norm."""
        if self._noise.noise_multiplier == 0.0:
            return 0.0
        stddev, _ = self._noise_of(max(self._noise.num_rounds, 1))
        return self._noise.noise_multiplier * stddev

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """Draw the coming round's noise at multiplier 1, in units of clip_norm; shape (length,)."""
        raise NotImplementedError

    def _noise_profile(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Standard deviations at multiplier 1 and lag correlations; shape (rounds,) each."""
        raise NotImplementedError

    def release(self, aggregate: Aggregate, rng: NormalSource) -> Release:
        """Add the round's noise to the sum and divide by the configured cohort size.

        The stream gives P normal draws, or several times P (none if the multiplier is 0).
        """
        planned = self._noise.num_rounds
        if planned and self._rounds >= planned:
            raise PrivacyError(
                f"round {self._rounds + 1} is beyond the {planned} rounds that the noise was "
                "planned for, and that the privacy statement is about; raise "
                "federated.num_rounds from the start"
            )
        scale = self._noise.noise_multiplier * self._noise.ratio * self._clip_norm
        if scale == 0.0:
            stddev, correlation, noise = 0.0, 0.0, None
        else:
            stddev, correlation = self._noise_of(self._rounds + 1)
            noise = self._next_noise(rng, aggregate.total.numel())
            noise *= scale
        self._rounds += 1
        return Release(
            mean_update=mean_of(aggregate.total, self._noise.cohort_size, noise),
            clip_norm=self._clip_norm,
            update_noise_stddev=stddev * scale,
            lag_correlation=correlation,
        )

    def _noise_of(self, round_number: int) -> tuple[float, float]:
        """Standard deviation of a round's noise at multiplier 1, and its lag correlation."""
        if self._profile is None or len(self._profile[0]) < round_number:
            self._profile = self._noise_profile(max(self._noise.num_rounds, 2 * round_number))
        stddevs, correlations = self._profile
        return float(stddevs[round_number - 1]), float(correlations[round_number - 1])
