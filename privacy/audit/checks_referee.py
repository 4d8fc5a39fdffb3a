"""Does a second accountant, written apart from the first, come to the same epsilon?

Guarantee: ``check_epsilon`` asks the accountants that stated the epsilon, so that an error of
theirs repeats itself. Here what was recorded is described anew from the ledger's constants, and
``privacy.audit.referee`` bounds the smallest epsilon that is true of it, from both sides. A stated
epsilon below the lower bound fails, whatever accountant it is from. One that is above the upper
bound by more than its accountant's looseness fails, too: it is of other rounds or other noise.

- pld, prv: their discretisation, ``_OF_PLD`` and ``_PLD_FLOOR``.
- rdp: the epsilon of the Renyi divergences, computed anew and converted by the same theorem. It may
  not be below it, to ``_OF_RDP``, nor above that of whole orders alone: fractional ones are left
  out where the accountant's series for them is not stable. Where rdp rests on a theorem's bound
  (sampling without replacement), it is that bound, computed anew.

Correlated noise that no sampling amplifies is one Gaussian mechanism. Its sensitivity is added up
anew for users in fixed groups; for selected users it is the mechanism's own, and the evidence says
so. Mechanisms that are not listed have no second implementation: they are skipped by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from privacy.accountant import LARGEST_EPSILON
from privacy.audit import referee, referee_renyi
from privacy.audit.check import Finding, check
from privacy.audit.checks_accounting import composed
from privacy.audit.described import Described, describe, own_users
from privacy.audit.evidence import Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import AuditInputs, as_number
from privacy.audit.referee import Bounds
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.errors import PrivacyError
from privacy.statement.statement import json_epsilon

# By how much an epsilon may lie above the upper bound: pld's pessimistic rounding is 1 % at most
# from epsilon 0.1 on, prv adds 0.01 or 0.2 % of the bound by rdp.
_OF_PLD, _PLD_FLOOR = 0.02, 0.02
_OF_PRV = 0.005
_OF_RDP = 1e-3
# Numbers on disk are rounded, and so is the referee's arithmetic.
_ROUNDING = 1e-6
# Beyond it, exp() of privacy losses overflows; such an epsilon promises nothing.
_LARGEST_EPSILON = 500.0
# Below it pld and prv say of themselves that rounding takes delta up: see privacy.accountant.
_DELTA_A_ROUND = 2.0**-49


@check(
    "referee_{}",
    "The stated epsilon ({}) is not below what a second accountant, written apart, shows to be "
    "true, and not above it by more than its accountant is loose.",
)
def check_referee(evidence: Evidence, inputs: AuditInputs, label: str) -> Finding:
    """One of the two epsilons, held against a second implementation's bounds."""
    evidence.need_lines()
    side, found = inputs.side(label), Finding()
    epsilon, delta = as_number(side.get("epsilon")), as_number(side.get("delta"))
    try:
        part, rounds = composed(evidence, inputs, label)
        described = describe(evidence, inputs, label, rounds, part)
    except (ValueError, ZeroDivisionError) as error:
        raise SkippedError(f"the recorded constants cannot be described ({error})") from error
    if isinstance(described, str):
        is_own = own_users(evidence.constants, label) is not None
        raise (IncompleteError if is_own else SkippedError)(described)
    if described.count == 0 or not 0.0 < delta < 1.0 or math.isnan(epsilon):
        raise SkippedError("there is nothing to compose, or no epsilon, or no delta")
    if not described.noise > 0.0:
        found.add(not math.isinf(epsilon), f"{epsilon:.6g} is stated of rounds without noise")
        return found.seen("no noise: nothing but infinity is true")
    beyond = f"an epsilon of {epsilon:.4g} at delta {delta:.3g} is beyond the referee's numbers"
    own = str(inputs.statement.get("accountant"))
    try:
        bounds = bounds_of(described, delta, min(epsilon, _LARGEST_EPSILON))
        if bounds.lower == 0.0 and math.isinf(bounds.upper):
            raise SkippedError(beyond)
        least, most = _allowed(described, bounds, delta, own)
    except PrivacyError as error:
        raise SkippedError(f"{beyond}: {error}") from None
    # Accountants state infinity in the place of a larger one.
    most = math.inf if most > LARGEST_EPSILON else most
    why = f"what {own} comes to when it is computed anew"
    if least <= bounds.lower:
        why = "which is the least that is true"
    found.add(
        epsilon < least * (1.0 - _ROUNDING), f"{epsilon:.6g} is stated, below {least:.6g}: {why}"
    )
    found.add(
        epsilon > most * (1.0 + _ROUNDING),
        f"{epsilon:.6g} is stated by {own}, above {most:.6g}, the most that it comes to: it is of "
        "other rounds or other noise than were run",
    )
    return found.seen(
        f"{_in_words(described)}: the true epsilon is from {bounds.lower:.6g} to {bounds.upper:.6g}"
        f", by a second implementation; {epsilon:.6g} is stated by {own}{described.note}",
        lower=bounds.lower,
        upper=json_epsilon(bounds.upper),
        most=json_epsilon(most),
    )


def _allowed(described: Described, bounds: Bounds, delta: float, own: str) -> tuple[float, float]:
    """The least and the most that may be stated."""
    tight = bounds.upper * (1.0 + _OF_PLD) + _PLD_FLOOR
    if own in ("rdp", "prv") and math.isfinite(by_rdp := _rdp(described, delta)):
        if own == "rdp":
            least = max(bounds.lower, by_rdp * (1.0 - _OF_RDP))
            return least, _rdp(described, delta, is_whole=True) * (1.0 + _OF_RDP)
        tight += _OF_PRV * by_rdp
    if own == "pld" and described.count * _DELTA_A_ROUND > delta:
        # Its own rounding takes so much of delta that it gives the bound by rdp.
        tight = max(tight, _rdp(described, delta, is_whole=True) * (1.0 + _OF_RDP))
    return bounds.lower, tight


@lru_cache(maxsize=256)
def bounds_of(described: Described, delta: float, near: float) -> Bounds:
    """Bounds of the smallest epsilon that is true at a delta, ``near`` being of its size."""
    kind, noise, count = described.kind, described.noise, described.count
    rate, apart = described.rate, math.fsum(other**-2.0 for other in described.beside)
    if described.beside and kind != "gaussian":
        # What is true of a part is at most what is true of all; Gaussians add up exactly.
        steps = bounds_of(replace(described, beside=()), delta, near)
        return Bounds(max(steps.lower, epsilon_of_mu(math.sqrt(apart), delta)), math.inf)
    if kind == "answers":
        epsilon = referee.answers_epsilon(noise, count, delta)
        return Bounds(epsilon, epsilon)
    kind, noise = _unsampled(described)
    if kind == "gaussian":
        epsilon = epsilon_of_mu(math.sqrt(count * (1.0 / noise) ** 2 + apart), delta)
        return Bounds(epsilon, epsilon if epsilon < LARGEST_EPSILON else math.inf)
    if kind == "fixed-size gaussian":
        # The pair of data sets where all others send the opposite of what the user sends.
        losses = referee.sampled_gaussian_losses(rate, noise / 2.0, count, delta)
        dominating = referee.fixed_size_gaussian_loss(rate, noise, count, delta)
        lower = referee.composed_bounds(losses, count, delta, near).lower
        return Bounds(lower, referee.composed_bounds([dominating], count, delta, near).upper)
    if kind == "truncated gaussian":
        return _truncated_bounds(described, delta, near)
    if kind in ("laplace", "sampled laplace"):
        pure = count * math.log1p(rate * math.expm1(1.0 / noise)) if noise > 0.002 else math.inf
        if 1.0 / noise > _LARGEST_EPSILON:
            return Bounds(0.0, math.inf)
        losses = referee.sampled_laplace_losses(rate, noise)
        found = referee.composed_bounds(losses, count, delta, near)
        return Bounds(found.lower, min(found.upper, pure))
    losses = referee.sampled_gaussian_losses(rate, noise, count, delta)
    return referee.composed_bounds(losses, count, delta, near)


def _unsampled(described: Described) -> tuple[str, float]:
    """Kind and noise of a round; a plain Gaussian's where everybody is in a cohort."""
    kind, noise = described.kind, described.noise
    if described.rate == 1.0 and kind == "sampled gaussian":
        return "gaussian", noise
    if described.rate == 1.0 and kind == "fixed-size gaussian":
        return "gaussian", noise / 2.0  # a replaced user moves the sum by two bounds
    return kind, noise


def _truncated_bounds(described: Described, delta: float, near: float) -> Bounds:
    """Of data sets whose other users send nothing; and of a pair that dominates every round."""
    rate, noise, count = described.rate, described.noise, described.count
    full, placed = referee.full_cohorts(*described.sizes, rate)
    joins = (1.0 - full) * rate + full * placed
    losses = referee.sampled_gaussian_losses(joins, noise, count, delta)
    lower = referee.composed_bounds(losses, count, delta, near).lower
    losses = referee.sampled_gaussian_losses(rate, noise, count, delta)
    if placed > 0.0:
        crowded = referee.sampled_gaussian_losses(placed, noise / 2.0, count, delta)
        pairs = zip(losses, crowded, strict=True)
        losses = [referee.mixed_loss(roomy, other, full) for roomy, other in pairs]
    return Bounds(lower, referee.composed_bounds(losses, count, delta, near).upper)


@lru_cache(maxsize=256)
def _rdp(described: Described, delta: float, is_whole: bool = False) -> float:
    (kind, noise), rate = _unsampled(described), described.rate
    divergences: dict[str, Callable[[float], float]] = {
        "gaussian": lambda order: 0.5 * order / noise**2,
        "sampled gaussian": partial(referee_renyi.sampled_gaussian_divergence, rate, noise),
        "fixed-size gaussian": partial(referee_renyi.fixed_size_divergence, rate, noise),
        "laplace": partial(referee_renyi.laplace_divergence, noise),
    }
    if kind not in divergences:
        return math.inf
    divergence = divergences[kind]
    apart = math.fsum(other**-2.0 for other in described.beside)
    return referee_renyi.rdp_epsilon(
        lambda order: described.count * divergence(order) + 0.5 * order * apart, delta, is_whole
    )


def _in_words(described: Described) -> str:
    if described.kind == "answers":
        return f"{described.count} randomized responses of epsilon {described.noise:.6g}"
    sampled = "" if described.rate == 1.0 else f", each at probability {described.rate:.6g}"
    beside = "".join(f", and a gaussian of {noise:.6g}" for noise in described.beside)
    return (
        f"{described.count} times {described.kind} of multiplier {described.noise:.6g}{sampled}"
        f"{beside}"
    )
