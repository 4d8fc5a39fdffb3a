"""Protocol of mechanisms: each sums clipped updates, noises the sum once, and releases it.

Guarantee: unit and adjacency are the sampler's (``privacy.amplification``). Seen per round, a
private mechanism with ``NoiseScale`` z is at least as private as one Gaussian mechanism with noise
of standard deviation z times the sensitivity of the sum (``clip_norm`` when a user is added or
removed, twice that, and so half the multiplier, when one is replaced); all that it releases
(update, count) is paid from that one z.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PlanError, PrivacyError, check_noise_multiplier

# Elements of noise that are drawn at once.
_PIECE = 1 << 16

if TYPE_CHECKING:
    from torch import Tensor

    from privacy.aggregate import Aggregate
    from privacy.amplification import Composition, Participation
    from privacy.clipping import ClipOutcome
    from privacy.description import Description


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """Noise of a round, and the two cohorts between which it is scaled.

    Attributes:
        noise_multiplier: z, the effective multiplier that the accountant sees for a deployment
            with ``noise_cohort_size`` users a round: standard deviation of the noise on the sum
            in multiples of clip_norm. 0 for no noise (epsilon is then infinite).
        cohort_size: C_sm, the expected users of a round of this run, configured, positive.
        noise_cohort_size: C_lg, the users of a round of the simulated deployment.
        num_rounds: T, the rounds that are planned, which correlated noise is fitted to; 0 if
            nobody says.
        separation: Rounds that lie between two of one user at least, counted as a distance; 1 if
            the sampler keeps none.
    """

    noise_multiplier: float
    cohort_size: float
    noise_cohort_size: float
    num_rounds: int = 0
    separation: int = 1

    def __post_init__(self) -> None:
        check_noise_multiplier(self.noise_multiplier)
        for name, value in (
            ("cohort_size", self.cohort_size),
            ("noise_cohort_size", self.noise_cohort_size),
        ):
            if not (math.isfinite(value) and value > 0):
                raise PrivacyError(f"{name} is {value!r}, but must be finite and positive")

    @property
    def ratio(self) -> float:
        """C_sm / C_lg: the noise of this run in parts of the deployment's."""
        return self.cohort_size / self.noise_cohort_size


@dataclass(frozen=True, slots=True)
class Release:
    """Release of one round.

    Attributes:
        mean_update: Shape (P,), float32: the noised sum over the configured cohort size.
        clip_norm: Bound that this round's updates were clipped to; None without clipping.
        update_noise_stddev: Standard deviation of the noise in each element of the sum.
        count_noise_stddev: That of the noise in the sum of the centred bits; None if no count is
            released.
        noisy_fraction_unclipped: Noisy fraction of updates within the bound; may lie outside
            [0, 1]; None if no count is released.
        lag_correlation: Correlation of each element's noise with its noise in the release before;
            0 where each round's noise is drawn anew.
    """

    mean_update: Tensor
    clip_norm: float | None
    update_noise_stddev: float
    count_noise_stddev: float | None = None
    noisy_fraction_unclipped: float | None = None
    lag_correlation: float = 0.0


class Mechanism(Protocol):
    """One round's privacy; built by ``privacy/mechanisms/<name>.py``.

    Each such module exposes ``Options`` (a strict, frozen pydantic model), ``DESCRIPTION`` (what
    all that it builds have in common) and
    ``build(options: Options, noise: NoiseScale) -> Mechanism``.
    """

    @property
    def name(self) -> str:
        """Name of the mechanism, which is its module's."""

    @property
    def is_private(self) -> bool:
        """Whether it clips and noises, so that an accountant can say what a round costs."""

    @property
    def clip_norm(self) -> float | None:
        """The bound in force now; None without clipping."""

    @property
    def update_noise_multiplier(self) -> float:
        """Noise on the deployment's sum of updates, in multiples of clip_norm; 0 for none."""

    @property
    def count_noise_stddev(self) -> float | None:
        """Noise on the deployment's sum of centred bits; None if no count is released."""

    @property
    def description(self) -> Description:
        """Description for the ledger, the audit and the privacy statement."""

    def clip_settings(self) -> dict[str, float | str]:
        """Settings of the clip, for the privacy statement: JSON-serialisable."""

    def composition(
        self, participation: Participation, noise_multiplier: float, rounds: int
    ) -> Composition:
        """Composition of so many rounds, for an accountant.

        Args:
            participation: How users are drawn.
            noise_multiplier: z of the setting that is accounted; this one counts, not the
                mechanism's own, because calibration searches over it.
            rounds: Number of rounds, at least 0.

        Raises:
            PlanError: Nothing is proved of the mechanism under this participation.
            PrivacyError: A number is out of its range.
        """

    def accumulate(
        self,
        aggregate: Aggregate,
        update: Tensor,
        weight: float,
        rng: np.random.Generator | None = None,
    ) -> ClipOutcome:
        """Take one client's update into the sum.

        Args:
            aggregate: The round's sum, changed in place.
            update: Shape (P,), a float dtype; not changed.
            weight: Weight of the client; private mechanisms allow 1 alone.
            rng: The client's own source of noise; needed where clients randomise their updates.

        Raises:
            PlanError: The mechanism does not allow the weight.
        """

    def release(self, aggregate: Aggregate, rng: np.random.Generator) -> Release:
        """Noise the sum, once a round whatever the number of workers, and move the bound.

        Args:
            aggregate: The merged sum of all workers; not changed. May be empty.
            rng: Source of the noise, used in a fixed order.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from round to round, for a checkpoint: numbers and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave.

        Raises:
            PrivacyError: A key is missing or foreign, or a value is not allowed.
        """


@runtime_checkable
class MovesBound(Protocol):
    """Protocol of mechanisms whose bound moves, so that other processes can clip to it."""

    def follow(self, clip_norm: float) -> None:
        """Take over the bound of the coming round from the process that moves it."""


class NormalSource(Protocol):
    """Source of standard normals one after another: a generator, or ``PrefetchedNoise``."""

    @overload
    def standard_normal(self, size: None = None) -> float: ...
    @overload
    def standard_normal(self, size: int) -> NDArray[np.float64]: ...


@runtime_checkable
class BeginsWithNormals(Protocol):
    """Protocol of mechanisms whose release first draws P values by ``standard_normal``.

    They are then drawn while clients train, and ``release`` is given what was prefetched.
    """

    begins_with_normals: bool

    def release(self, aggregate: Aggregate, rng: NormalSource) -> Release:
        """As ``Mechanism.release``, with the stream or with its prefetched normals."""


@dataclass(frozen=True, slots=True)
class RoundStreams:
    """The streams that a round's noise was drawn from, for an audit that draws it again.

    Attributes:
        rng: The server's source of the round's noise, from its beginning.
        clients: Opens the sources of all clients that reported, from their beginnings.
        num_parameters: P.
        wanted: How many first elements of the noise are compared; P for all.
        draws_all: Whether all P elements may be drawn to come to what is drawn after them.
    """

    rng: np.random.Generator
    clients: Callable[[], Sequence[np.random.Generator]]
    num_parameters: int
    wanted: int
    draws_all: bool


@dataclass(frozen=True, slots=True)
class ReplayedNoise:
    """Draws of a round's streams.

    Attributes:
        values: Shape (wanted,), float64: the first elements of the noise, in multiples of its
            standard deviation.
        count: The draw on the count; None where there is none, or it was not drawn.
        stddev: Standard deviation of the noise in multiples of that of a round whose noise is
            drawn anew; None where it is that.
    """

    values: NDArray[np.float64]
    count: float | None = None
    stddev: float | None = None


@runtime_checkable
class ReplaysNoise(Protocol):
    """Protocol of mechanisms whose noise follows from the round's streams alone."""

    def replay_noise(self, streams: RoundStreams) -> ReplayedNoise:
        """Draw the noise of a round again, as ``release`` or the clients have drawn it.

        Called once for each round, in order, where rounds are correlated.

        Args:
            streams: Those of the round.
        """


class Stateless:
    """Mixin of mechanisms that keep no state."""

    name: str

    def state_dict(self) -> dict[str, Any]:
        """Nothing changes from round to round."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that the state is empty."""
        check_state_keys(self.name, state, set())


def check_unit_weight(mechanism: str, weight: float) -> None:
    """Check that a client has weight 1 under a private mechanism.

    Another would scale the sensitivity, and if it follows the number of examples, disclose that
    number.
    """
    if weight != 1.0:
        raise PlanError(
            f"the {mechanism} mechanism was given a client of weight {weight!r}, but every client "
            "must have weight 1: a weight would scale what one user can change, which the noise "
            "does not cover; use uniform weighting"
        )


def check_state_keys(mechanism: str, state: Mapping[str, Any], expected: set[str]) -> None:
    """Check that a saved state has the expected keys and no other."""
    missing, foreign = sorted(expected - set(state)), sorted(set(state) - expected)
    if missing or foreign:
        raise PrivacyError(
            f"the saved state is not one of the {mechanism} mechanism: missing keys {missing}, "
            f"foreign keys {foreign}; resume with the configuration that the run was started with"
        )


def check_saved(mechanism: Mechanism, state: Mapping[str, Any]) -> None:
    """Check a state (PrivacyError); numbers of a strategy, whose last bits vary, are taken anew."""
    fresh, scalar = mechanism.state_dict(), (int, float)
    own = {key: own for key, own in fresh.items() if not isinstance(own, scalar) and len(own)}
    try:
        copy.copy(mechanism).load_state_dict({**fresh, **state, **own})
    except (TypeError, ValueError) as error:
        raise PrivacyError(f"the saved state is not one of {mechanism.name}: {error}") from error


def noised_mean(total: Tensor, stddev: float, cohort_size: float, rng: NormalSource) -> Tensor:
    """Add Gaussian noise to a sum and divide by the configured cohort size.

    ``total`` is float32 or float64 of shape (P,), and is not changed; the answer is float32, of the
    same shape and device. A ``stddev`` of 0 draws nothing. The cohort is the configured expected
    one: the realised one depends on who took part, so dividing by it would release something that
    the noise does not cover.
    """
    if stddev == 0.0:
        return mean_of(total, cohort_size)
    # numpy and not torch's generator: its CPU engine keeps 32 bits of a seed, so that streams
    # could collide, and its CUDA engine gives other numbers than its CPU one.
    noise = np.empty(total.numel(), dtype=np.float32)
    # In pieces: the same draws, without a vector of float64 in memory.
    for start in range(0, len(noise), _PIECE):
        piece = rng.standard_normal(min(_PIECE, len(noise) - start))
        piece *= stddev
        noise[start : start + len(piece)] = piece
    return mean_of(total, cohort_size, noise)


def mean_of(total: Tensor, cohort_size: float, noise: NDArray[np.floating] | None = None) -> Tensor:
    """Add noise to a sum and divide by the configured cohort size, as ``noised_mean`` has it.

    Shapes are (P,): ``total`` and ``noise`` in float32 or float64, the answer in float32 on the
    device of ``total``. The noise may be written over.
    """
    import torch

    if noise is None:
        return torch.div(total, cohort_size, out=torch.empty_like(total, dtype=torch.float32))
    noisy = torch.from_numpy(noise).to(torch.float32).to(total.device)
    return noisy.add_(total).div_(cohort_size)
