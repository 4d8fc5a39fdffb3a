"""Bases of mechanisms whose noise is correlated over rounds: accounting, checks, the release.

Guarantee: unit user, added or removed in the rounds of a fixed pattern ("selected": zeroed out, in
rounds of any pattern within separation and cap). All rounds together are one Gaussian mechanism,
which is refused where the sampler keeps no pattern; ``BandedSum`` is amplified where it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.amplification import (
    Composition,
    Participation,
    check_composition_numbers,
    sampled_gaussian,
)
from privacy.description import SAME_COEFFICIENTS
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale, NormalSource, Release, check_state_keys, mean_of
from privacy.noise.clipped_sum import ClipOptions, ClippedSum
from privacy.noise.factorization import separated_squared_sensitivity, squared_sensitivities

# Elements that are worked on at a time: float64 buffers of them stay in the cache.
CHUNK = 1 << 16


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


class CorrelatedSum(ClippedSum):
    """Base of mechanisms that noise the sum of a round by Gaussian noise made with earlier rounds'.

    A subclass gives ``name``, ``description``, ``_squared_sensitivity``, ``_next_noise`` and
    ``_noise_profile``, and says what it keeps. The clipping bound is the same in every round:
    the noise of one round is taken back in later ones, which holds in one unit alone.
    """

    begins_with_normals = True

    def __init__(self, options: ClipOptions, noise: NoiseScale) -> None:
        super().__init__(options.clip_norm, noise)
        self._options = options
        self._rounds = 0
        self._profile: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        # What coming rounds' noise is made with, at multiplier 1: shape (P,) each. A tensor is
        # never changed.
        self._kept: list[Tensor] = []

    @property
    def update_noise_multiplier(self) -> float:
        """The largest of the planned rounds' noise, in multiples of clip_norm."""
        if self._noise.noise_multiplier == 0.0:
            return 0.0
        planned = max(self._noise.num_rounds, 1)
        return self._noise.noise_multiplier * float(self._stddevs(planned)[0][:planned].max())

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """One Gaussian over all rounds, for a user whose rounds are all those of the pattern.

        Schemes without a pattern are refused, and another separation than the run's.
        """
        from dp_accounting import dp_event

        self._check_setting(participation, noise_multiplier, rounds)
        squared = self._squared_sensitivity(participation, int(rounds))
        scheme = participation.scheme
        if scheme.pattern == "none" and scheme.adjacency != "replace-one":
            raise PlanError(
                f"the mechanism {self.name} under {scheme.name} sampling: nothing keeps two rounds "
                "of a user apart, so that correlated noise has no amplified guarantee, and no "
                "better one than for a user who is in every round; sample by cyclic_poisson with a "
                "separation (at least the bands, for amplification), or use the mechanism gaussian"
            )
        if scheme.pattern == "none":
            raise PlanError(
                f"the mechanism {self.name} under {scheme.name} sampling: replacing a user moves "
                "the rounds of two users, and who is drawn depends on who else is, which no "
                "sensitivity here covers; sample by cyclic_poisson, or use the mechanism gaussian"
            )
        event = dp_event.GaussianDpEvent(noise_multiplier / math.sqrt(squared or 1.0))
        return Composition(event, 1 if squared else 0, participation.adjacency)

    def _check_setting(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> None:
        """Check the numbers of a composition, and that it is of the sampler that the run has."""
        check_composition_numbers(noise_multiplier, rounds)
        apart = self._noise.separation
        if self._noise.num_rounds and participation.min_separation != apart:
            raise PlanError(
                f"the rounds of a user are to be accounted as {participation.min_separation} "
                f"apart, but the mechanism was built for a separation of {apart}; take both from "
                "federated.separation"
            )

    def _squared_sensitivity(self, participation: Participation, rounds: int) -> float:
        """Squared sensitivity of so many rounds, at a bound of 1; 0 if none was released."""
        raise NotImplementedError

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
            stddevs, correlations = self._stddevs(self._rounds + 1)
            stddev, correlation = float(stddevs[self._rounds]), float(correlations[self._rounds])
            noise = self._next_noise(rng, aggregate.total.numel())
            noise *= scale
        self._rounds += 1
        return Release(
            mean_update=mean_of(aggregate.total, self._noise.cohort_size, noise),
            clip_norm=self._clip_norm,
            update_noise_stddev=stddev * scale,
            lag_correlation=correlation,
        )

    def _stddevs(self, rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The ``_noise_profile`` of so many rounds or more."""
        if self._profile is None or len(self._profile[0]) < rounds:
            self._profile = self._noise_profile(self._noise.num_rounds or 2 * rounds)
        return self._profile

    def _num_kept(self, rounds: int) -> int:
        """Vectors that are kept after so many rounds with noise."""
        raise NotImplementedError

    def _saved_strategy(self) -> dict[str, Any]:
        """The strategy as a checkpoint has it, under its key; empty where it cannot differ."""
        return {}

    def _take_strategy(self, saved: Any) -> bool:
        """Go on with a saved strategy; False if it is another than the settings give."""
        return bool(saved in self._saved_strategy().values())

    def state_dict(self) -> dict[str, Any]:
        """Rounds that were released, the strategy, and the noise that the next ones take back."""
        return {"rounds": self._rounds, **self._saved_strategy(), "noise": list(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        strategy = self._saved_strategy()
        check_state_keys(self.name, state, {"rounds", *strategy, "noise"})
        if not all(self._take_strategy(state[key]) for key in strategy):
            options = self._options.model_dump(exclude={"clip_norm"})
            settings = ", ".join(f"{name} {value}" for name, value in options.items())
            raise PrivacyError(
                f"the saved strategy of the {self.name} mechanism is another than {settings}, "
                f"num_rounds {self._noise.num_rounds} and separation {self._noise.separation} "
                "give; resume with the configuration, and on a machine like the one, that the run "
                "was started with"
            )
        rounds = int(state["rounds"])
        count = self._num_kept(rounds) if self._noise.noise_multiplier else 0
        self._kept = check_vectors(self.name, state["noise"], count)
        self._rounds, self._profile = rounds, None


class BandedOptions(ClipOptions):
    """Options of the mechanisms that spread a draw of noise over some rounds."""

    bands: Annotated[int, Field(ge=1)]


class BandedSum(CorrelatedSum):
    """Base of those whose strategy C is a banded matrix.

    A subclass gives ``strategy`` and ``_weights`` too. More bands than planned rounds are refused.
    The noise of the last ``bands - 1`` rounds is kept, the latest first.
    """

    def __init__(self, options: BandedOptions, noise: NoiseScale) -> None:
        check_bands(options.bands, noise)
        super().__init__(options, noise)
        self._bands = options.bands

    @cached_property
    def strategy(self) -> NDArray[np.float64]:
        """The elements of C that are not 0, float64: found when first needed, not when built."""
        raise NotImplementedError

    def _weights(self) -> list[float]:
        """The coming round's row of C, from the diagonal back."""
        raise NotImplementedError

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Poisson-sampled Gaussians, one a round of a user, where that is proved; else one."""
        apart = participation.scheme.is_independent and participation.min_separation >= self._bands
        if self._bands > 1:
            self._check_setting(participation, noise_multiplier, rounds)
        if self._bands == 1 or apart:
            return sampled_gaussian(participation, noise_multiplier, rounds)
        return super().composition(participation, noise_multiplier, rounds)

    def _next_noise(self, rng: NormalSource, length: int) -> NDArray[np.float64]:
        """The coming row of C^-1 Z, of ``length`` normal draws; shape (length,)."""
        return self._correlated(rng.standard_normal(length))

    def _correlated(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Solve the next row of C Y = Z for Y, in place of the draws, and keep it.

        Band after band and not as one product, whose order of summation, and so whose last bits, a
        library may change with the memory that it is given.
        """
        check_length(self._kept, len(draws))
        first, *later = self._weights()
        for start in range(0, len(draws), CHUNK):
            part = draws[start : start + CHUNK]
            for weight, vector in zip(later, self._kept, strict=False):
                part -= vector.numpy()[start : start + CHUNK].astype(np.float64) * weight
            part /= first
        newest = torch.from_numpy(draws).to(torch.float32)
        self._kept = [newest, *self._kept][: self._bands - 1]
        return draws

    def _num_kept(self, rounds: int) -> int:
        return min(rounds, self._bands - 1)

    def _take_strategy(self, saved: Any) -> bool:
        """Go on with the saved C: another machine may have found other last bits."""
        taken = np.asarray(saved, dtype=np.float64)
        own = self.strategy
        if taken.shape != own.shape or not np.allclose(taken, own, rtol=0, atol=SAME_COEFFICIENTS):
            return False
        self.strategy = taken
        return True
