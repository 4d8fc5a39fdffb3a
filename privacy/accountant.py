"""Epsilon of composed rounds, by one of three accountants behind one interface.

Guarantee: what is returned is an upper bound of the epsilon of the adaptive composition of the
events, at the given delta and adjacency. "rdp" (dp-accounting) is the loosest; "pld"
(dp-accounting) and "prv" (Opacus) are numerical compositions with pessimistic rounding, usually
tight to 1 %, less so below epsilon 0.1, beyond 100,000 rounds, or for many small randomized
responses. Both multiply rounding errors of delta by the rounds; that much of delta is set aside,
and where it is more than half of it, "pld" gives the bound of "rdp" and "prv" refuses. Which
accountant knows which event is in ``KNOWN_EVENTS``; the others are refused.

An epsilon above ``LARGEST_EPSILON`` is returned as infinity: it promises nothing, and the
numerical accountants cannot represent it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any, Literal, get_args

import numpy as np

from privacy.accountants.poisson import rounds_pld
from privacy.accountants.prv import prv_epsilon
from privacy.accountants.renyi import renyi_epsilon
from privacy.accountants.self_composition import self_composed
from privacy.accountants.truncation import truncated_pld, untruncated
from privacy.accountants.without_replacement import replaced_pld
from privacy.amplification import Composition
from privacy.errors import PlanError, PrivacyError, check_count
from privacy.sampling_scheme import SamplingScheme, scheme_names, scheme_type

Accountant = Literal["rdp", "pld", "prv"]
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)

# What each accountant can compose: kinds of events, as ``_kind_of`` names them.
KNOWN_EVENTS: dict[str, tuple[str, ...]] = {
    "rdp": ("gaussian", "sampled gaussian", "fixed-size sampled gaussian", "laplace"),
    "pld": (
        "gaussian",
        "sampled gaussian",
        "fixed-size sampled gaussian",
        "truncated sampled gaussian",
        "laplace",
        "sampled laplace",
        "randomized response",
    ),
    "prv": ("gaussian", "sampled gaussian"),
}
_ADJACENCIES = {
    "gaussian": ("add-or-remove-one", "replace-one", "zero-out"),
    "laplace": ("add-or-remove-one", "zero-out"),
    "fixed-size sampled gaussian": ("replace-one",),
    "randomized response": ("replace-one",),
}

LARGEST_EPSILON = 1e6

_PLD_LARGEST_GRID = 1 << 23
# Between them, squares and exponentials of noise multipliers are numbers.
_NOISE_RANGE = (1e-100, 1e100)
# Of delta, an FFT and a round of its power.
_FFT_ERROR = 2.0**-51


def check_accountant(accountant: str, scheme: SamplingScheme) -> None:
    """Check that an accountant exists and knows a Gaussian under a sampling scheme."""
    if accountant not in ACCOUNTANTS:
        raise PrivacyError(f"the accountant is {accountant!r}, but must be one of {ACCOUNTANTS}")
    if accountant not in scheme.accountants:
        known = [name for name in scheme_names() if accountant in scheme_type(name).accountants]
        raise PlanError(
            f"the accountant {accountant} does not know {scheme.title}, and accounting it as "
            f"Poisson would be wrong; use the accountant {' or '.join(scheme.accountants)}, or "
            f"sample by poisson. {accountant} knows {', '.join(known)}"
        )


def check_composition(composition: Composition, accountant: str) -> None:
    """Check that an accountant can compose an event, and that the adjacency is the event's."""
    if accountant not in ACCOUNTANTS:
        raise PrivacyError(f"the accountant is {accountant!r}, but must be one of {ACCOUNTANTS}")
    for event, _ in composition.parts:
        _check_event(event, composition.adjacency, accountant)
    check_count("rounds", composition.count, least=0)


def _check_event(event: Any, adjacency: str, accountant: str) -> None:
    kind, _ = _kind_of(event)
    if kind not in KNOWN_EVENTS[accountant]:
        able = [name for name in ACCOUNTANTS if kind in KNOWN_EVENTS[name]]
        hint = ", or sample by poisson" if kind == "fixed-size sampled gaussian" else ""
        raise PlanError(
            f"the accountant {accountant} cannot compose a {kind} mechanism, and another event in "
            f"its place would be wrong; use the accountant {' or '.join(able)}{hint}"
        )
    allowed = _ADJACENCIES.get(kind, ("add-or-remove-one",))
    if adjacency not in allowed:
        raise PlanError(
            f"a {kind} event is accounted under {' or '.join(allowed)} adjacency, not "
            f"{adjacency!r}: its sensitivity would be another; take both from one "
            "privacy.amplification.Composition"
        )
    noise = _noise_of(event)
    if noise != 0.0 and not _NOISE_RANGE[0] <= noise <= _NOISE_RANGE[1]:
        what = "share of random reports" if kind == "randomized response" else "noise multiplier"
        raise PrivacyError(
            f"the {what} is {noise!r}, but must be 0, or from {_NOISE_RANGE[0]:g} to "
            f"{_NOISE_RANGE[1]:g}; usual noise multipliers are from 0.3 to 100"
        )


def check_delta(delta: float) -> None:
    """Check that a delta is below 1, and not so small that its logarithm is that of 0."""
    if not 1e-300 <= delta < 1.0:
        raise PrivacyError(
            f"delta is {delta!r}, but must be 1e-300 or more and below 1; the usual choice is "
            "population_size ** -1.1"
        )


def compute_epsilon(
    event: Any, rounds: int, delta: float, accountant: str, adjacency: str
) -> float:
    """Upper bound of epsilon after so many equal rounds.

    ``event`` is one round, such as ``privacy.amplification.sampled_gaussian`` has. Adjacency is
    "add-or-remove-one", "zero-out" for events without sampling, or "replace-one" for sampling
    without replacement. Epsilon is as in ``compose_epsilon``.
    """
    return compose_epsilon([Composition(event, rounds, adjacency)], delta, accountant)


def compose_epsilon(
    compositions: Sequence[Composition], delta: float, accountant: str, coarseness: float = 1.0
) -> float:
    """Upper bound of epsilon of one composition after another, all under one adjacency.

    The grid is ``coarseness`` (at least 1) times coarser, for searches; only "pld" takes it. The
    result stays an upper bound. It is at least 0: 0 for nothing, infinity without noise or above
    ``LARGEST_EPSILON``.

    Raises:
        PrivacyError: An argument is out of its range.
        PlanError: The accountant does not know an event, or the adjacencies differ.
    """
    check_delta(delta)
    for composition in compositions:
        check_composition(composition, accountant)
    if len({composition.adjacency for composition in compositions}) > 1:
        raise PlanError(
            "rounds under different adjacencies have no epsilon together; run them under one "
            "sampling scheme"
        )
    composed = (part for composition in compositions for part in composition.parts)
    parts = tuple((event, int(count)) for event, count in composed if count)
    if not parts:
        return 0.0
    if any(_noise_of(event) == 0 for event, _ in parts):
        return math.inf
    epsilon = _epsilon(parts, float(delta), accountant, coarseness)
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf


def _kind_of(event: Any) -> tuple[str, Any]:
    """The kind of an event, and the unsampled event inside of it."""
    from dp_accounting import dp_event

    kinds = {
        dp_event.GaussianDpEvent: "gaussian",
        dp_event.LaplaceDpEvent: "laplace",
        dp_event.RandomizedResponseDpEvent: "randomized response",
        dp_event.TruncatedSubsampledGaussianDpEvent: "truncated sampled gaussian",
    }
    plain = kinds.get(type(event))
    if plain is not None:
        return plain, event
    inner = kinds.get(type(getattr(event, "event", None)))
    if isinstance(event, dp_event.PoissonSampledDpEvent) and inner in ("gaussian", "laplace"):
        return f"sampled {inner}", event.event
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent) and inner == "gaussian":
        return "fixed-size sampled gaussian", event.event
    raise PlanError(
        f"cannot account the event {event!r}; supported are a Gaussian, and a Gaussian sampled by "
        "Poisson, by truncated Poisson or without replacement; a Laplace, and a Laplace sampled by "
        "Poisson; and randomized response"
    )


def _noise_of(event: Any) -> float:
    """Number that is 0 if and only if an event has no noise at all."""
    kind, plain = _kind_of(event)
    return float(plain.noise_parameter if kind == "randomized response" else plain.noise_multiplier)


@lru_cache(maxsize=4096)
def _epsilon(
    parts: tuple[tuple[Any, int], ...], delta: float, accountant: str, coarseness: float
) -> float:
    rough_parts = tuple((_rough(event), count) for event, count in parts)
    if all(_kind_of(event)[0] in KNOWN_EVENTS["rdp"] for event, _ in rough_parts):
        rough = renyi_epsilon(rough_parts, delta)
    else:
        rough = sum(count * _pure_epsilon(event) for event, count in parts)
    if accountant == "rdp" or rough > 10 * LARGEST_EPSILON:
        return rough
    if accountant == "pld":
        return _guarded_pld_epsilon(parts, delta, rough, coarseness)
    return prv_epsilon(parts, delta, rough, _rounding_of_delta(parts))


def _rough(event: Any) -> Any:
    """An event that dominates another, and that rdp knows; the event itself where there is none."""
    return untruncated(event) if _kind_of(event)[0] == "truncated sampled gaussian" else event


def _guarded_pld_epsilon(
    parts: tuple[tuple[Any, int], ...], delta: float, rough: float, coarseness: float
) -> float:
    """PLD's epsilon, or the rough bound, which is as true, where PLD has none or a larger one."""
    # Pure epsilons add up, whatever the grid makes of many small ones.
    bound = min(rough, sum(count * _pure_epsilon(event) for event, count in parts))
    margin = _rounding_of_delta(parts)
    if margin > delta / 2.0 or bound > 10 * LARGEST_EPSILON or _exceeds_exp(parts):
        return bound
    grid, epsilon = rough, _pld_epsilon(parts, delta - margin, rough, coarseness)
    # The rough bound sets the grid; where it is pure DP's, it may lie far above the answer.
    while 0.0 < epsilon < math.inf and _pld_interval(epsilon) < _pld_interval(grid):
        grid, epsilon = epsilon, _pld_epsilon(parts, delta - margin, epsilon, coarseness)
    return min(epsilon, bound)


def _exceeds_exp(parts: Sequence[tuple[Any, int]]) -> bool:
    """Whether an event's privacy loss is beyond what exp() can take."""
    return any(700.0 < _pure_epsilon(event) < math.inf for event, _ in parts)


def is_exact(composition: Composition, delta: float) -> bool:
    """Whether PLD itself answers, not the looser bound that takes its place at tiny deltas."""
    return _rounding_of_delta([(composition.event, composition.count)]) <= delta / 2.0


def _rounding_of_delta(parts: Sequence[tuple[Any, int]]) -> float:
    """Error in delta of a composition by FFT: its n-th power multiplies rounding by n.

    Measured against exact Gaussians: at most 0.2 (pld) and 0.9 (prv) of rounds * 2**-53. Plain
    Gaussians are composed without a transform.
    """
    from dp_accounting import dp_event

    powers = sum(n for event, n in parts if not isinstance(event, dp_event.GaussianDpEvent))
    return _FFT_ERROR * (powers + len(parts))


def _pure_epsilon(event: Any) -> float:
    """Epsilon at delta 0 of one event that has such; infinite otherwise."""
    kind, plain = _kind_of(event)
    if "laplace" in kind:
        epsilon = 1.0 / float(plain.noise_multiplier)
        if kind == "laplace" or epsilon > 700.0:
            return epsilon
        return math.log1p(event.sampling_probability * math.expm1(epsilon))
    if kind == "randomized response":
        lie = plain.noise_parameter / plain.num_buckets
        return math.log((1.0 - plain.noise_parameter + lie) / lie)
    return math.inf


def has_no_noise(composition: Composition) -> bool:
    """Whether an event that is composed has no noise at all, so that there is no guarantee."""
    return any(count and _noise_of(event) == 0 for event, count in composition.parts)


def _pld_interval(rdp_epsilon: float) -> float:
    """Grid of the privacy loss: dp-accounting's 1e-4 around epsilon 2, in proportion elsewhere.

    Pessimistic rounding adds about 0.75 * rounds * interval**2 to epsilon [measured], below 0.2 %
    for 40,000 rounds. Coarser only as epsilon grows, up to what exp() takes: it stays monotone.
    """
    if rdp_epsilon < 0.2:
        return 1e-5
    if rdp_epsilon < 20.0:
        return 1e-4
    return float(10.0 ** (math.floor(math.log10(rdp_epsilon / 2.0)) - 4))


def _least_interval(parts: Sequence[tuple[Any, int]]) -> float:
    """Keep the grid of one Gaussian's losses, up to 1 / (2 z^2) + 10 / z, within the memory.

    Of a cohort that is cut at a cap, the larger one: that of a full cohort, of half the multiplier.
    """
    inner = [_kind_of(_rough(event)) for event, _ in parts]
    plain = [event for kind, event in inner if "gaussian" in kind]
    noises = [event.noise_multiplier for event in plain]
    return max((0.5 / noise**2 + 10.0 / noise for noise in noises), default=0.0) / _PLD_LARGEST_GRID


def _pld_epsilon(
    parts: tuple[tuple[Any, int], ...], delta: float, rough_epsilon: float, coarseness: float
) -> float:
    from dp_accounting import pld
    from dp_accounting.pld import privacy_loss_distribution

    interval = min(max(_pld_interval(rough_epsilon) * coarseness, _least_interval(parts)), 700.0)
    kinds = {_kind_of(event)[0] for event, _ in parts}
    with np.errstate(divide="ignore", over="ignore"):  # infinities can be taken
        if kinds <= {"gaussian", "sampled gaussian"}:
            # dp-accounting's accountant begins with the identity, which decides the last bits.
            losses = [privacy_loss_distribution.identity(value_discretization_interval=interval)]
            for event, count in parts:
                rate = getattr(event, "sampling_probability", None)
                losses.append(rounds_pld(_noise_of(event), rate, count, interval))
        # Of the others, that of dp-accounting (0.6.0) does not know fixed sizes, has a looser bound
        # of truncated samples, and composes randomized response once, whatever the count.
        elif kinds <= {"gaussian", "sampled gaussian", "laplace", "sampled laplace"}:
            accountant = pld.PLDAccountant(value_discretization_interval=interval)
            for event, count in parts:
                accountant.compose(event, count)
            return float(accountant.get_epsilon(delta))
        else:
            losses = [self_composed(_loss_of(event, interval), count) for event, count in parts]
        composed = reduce(lambda one, other: one.compose(other), losses)
        return float(composed.get_epsilon_for_delta(delta))


def _loss_of(event: Any, interval: float) -> Any:
    """Privacy loss distribution of one event that is composed here, or of a Gaussian beside it."""
    from dp_accounting.pld import privacy_loss_distribution

    kind, plain = _kind_of(event)
    if kind == "randomized response":
        return privacy_loss_distribution.from_randomized_response(
            event.noise_parameter, event.num_buckets, value_discretization_interval=interval
        )
    if kind == "fixed-size sampled gaussian":
        rate = event.sample_size / event.source_dataset_size
        return replaced_pld(plain.noise_multiplier, rate, interval)
    if kind == "truncated sampled gaussian":
        return truncated_pld(event, interval)
    if kind == "gaussian":
        return replaced_pld(plain.noise_multiplier, 1.0, interval)
    raise PlanError(f"a {kind} mechanism is not composed with rounds of another sampling scheme")
