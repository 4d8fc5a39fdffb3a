"""Was each user drawn as often as any other, whatever rounds the user had been in before?

Guarantee: checked here is who is drawn, of which a line keeps three numbers: the sum, over the
users of the round, of the rounds that each was in before (``returning``), the fewest rounds since
one of them was last in, and the most that one of them has been in. Over all lines, the last two are
the smallest separation and the largest count of any user, whatever the scheme. What depends on the
user and shows in none (two users who always come together, but no more often than others) is not
seen.

Let user i have been in c_i rounds at the end. ``returning`` adds up to the sum of c (c - 1) / 2,
and the cohorts' sizes to that of c, so that the sum of (c - m)^2 is known for every m. Chances that
depend on who the user is make it larger; users who take turns make it smaller.

- poisson: the c_i are independent and binomial, of T draws at q; m is q T.
- cyclic_poisson: of a user of group g, c_i is binomial of the T_g rounds that are the group's, at
  q; m is q T_g. As users are dealt to groups independently and uniformly, what the sums over the
  rounds of the groups come to, c^2 - 2 q T_g c, is independent over users and of one known law,
  without a group's size. A round is a group's by its remainder modulo ``separation``.
- selected: nothing is claimed of chance, but that no user is in more rounds than the cap and the
  separation allow.
- fixed_size, and truncated_poisson given the sizes of its cohorts: rounds are uniformly random sets
  of n of N users. Given the rounds before, with counts of mean S / N and mean square Q / N,
  ``returning`` has mean n S / N, and a moment generating function below that of n (or N - n) draws
  with replacement, of variance Q / N - (S / N)^2 each. Q follows: a round adds 2 ``returning`` + n.
  The deviations add up to a martingale, whose steps are bounded by the largest count, which the law
  bounds.

Source: Hoeffding 1963, theorem 4 (sampling without replacement).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Finding, check
from privacy.audit.checks_cohorts import binomial_weights, drawn, sampling_of
from privacy.audit.errors import IncompleteError, SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number
from privacy.audit.own_schemes import own_users

# The largest count of any user is beyond its bound this rarely.
_COUNT_LEVEL = 1e-9
_KEYS = ("realised_cohort", "returning", "smallest_gap")

Array = NDArray[np.float64]


@check(
    "participation",
    "Whom a round draws does not depend on who they are, nor on the rounds they were in; selected "
    "users are in no more rounds than is accounted.",
)
def check_participation(evidence: Evidence, inputs: AuditInputs) -> Finding:
    if sampling_of(evidence).scheme == "selected":
        return _of_selected(evidence)
    sizes, returning, _ = evidence.need(*_KEYS)
    sampling = sampling_of(evidence)
    separation, population, rate = sampling.separation, sampling.population, sampling.rate
    own = own_users(evidence.constants)
    if own is not None and not (own.sampling_probability == rate == 1.0):
        raise IncompleteError(
            f"how often users come again under {own.scheme.name} sampling is not known to the "
            "audit; that each round's users are those that it draws is for cohort_replay"
        )
    drawn(sampling, sizes)
    if evidence.rounds <= separation:
        raise SkippedError("nobody could have come again yet")
    before = _before(sizes, separation)
    found = _impossible(evidence, before)
    if found.problems:
        return found.seen(f"{evidence.rounds} rounds")
    if rate == 1.0:
        found.where("somebody came who was not in before", returning != before)
        return found.seen("every eligible user takes part")
    if sampling.scheme in ("fixed_size", "truncated_poisson"):
        ratio, less, more = _of_equal_sets(sizes, returning, population)
    else:
        ratio, less, more = _of_coins(sizes, returning, separation, population, rate)
    for what, value in (("more", more), ("less", less)):
        found.add(
            not 2.0 * value + _COUNT_LEVEL >= LEVEL,
            f"the same users come again {what} often than by chance (p <= {value:.3g})",
        )
    return found.seen(
        f"the number of rounds that a user was in varies over users by {ratio:.4g} of the variance "
        f"that is expected; p <= {min(1.0, 2.0 * min(less, more)):.3g}; {_seen(evidence)}",
        power.shown(
            "a variance that is {1:.2g} % off or more",
            power.deviations(1.0) * math.sqrt(2.0 / population),
        )
        + "; of pairs of users it shows nothing",
        ratio=ratio,
        p_below=less,
        p_above=more,
        **_extremes(evidence),
    )


def _of_selected(evidence: Evidence) -> Finding:
    sizes, _, _, count = evidence.need(*_KEYS, "largest_count")
    cap, separation = evidence.constants.get("max_participations"), sampling_of(evidence).separation
    number = np.arange(1, evidence.rounds + 1)
    most = np.minimum(np.inf if cap is None else as_number(cap), -(-number // separation))
    found = _impossible(evidence, _before(sizes, 1))
    allowed = "separation allows" if cap is None else cap
    found.where(f"a user is there more often than {allowed}", ~(count <= most))
    return found.seen(
        f"{_seen(evidence)}; accounted: {int(most[-1])}, {separation} apart",
        **_extremes(evidence),
        most=float(most[-1]),
    )


def _extremes(evidence: Evidence) -> dict[str, float | None]:
    """The largest count and the smallest separation of any user; None where there is none."""
    found: dict[str, float | None] = {}
    for name, extreme in (("largest_count", np.nanmax), ("smallest_gap", np.nanmin)):
        values = evidence[name]
        found[name] = None if np.isnan(values).all() else float(extreme(values))
    return found


def _seen(evidence: Evidence) -> str:
    seen = _extremes(evidence)
    count, gap = seen["largest_count"], seen["smallest_gap"]
    often = "how often is not recorded" if count is None else f"nobody in more than {count:g}"
    return f"{often} of {evidence.rounds} rounds, " + (
        "nobody in two" if gap is None else f"nor in two less than {gap:g} apart"
    )


def _before(values: Array, separation: int) -> Array:
    """Sum of the values of the earlier rounds of the same remainder; shape (T,)."""
    sums = np.zeros_like(values)
    for first in range(min(separation, len(values))):
        sums[first::separation] = np.cumsum(values[first::separation]) - values[first::separation]
    return sums


def _impossible(evidence: Evidence, before: Array) -> Finding:
    """Numbers that no users can have."""
    returning, gap, found = evidence["returning"], evidence["smallest_gap"], Finding()
    whole = (returning >= 0) & (returning == np.floor(returning)) & (returning <= before)
    found.where("no possible number of earlier rounds is recorded", ~whole)
    number = np.arange(1, evidence.rounds + 1)
    sound = np.where(returning > 0, (gap >= 1) & (gap < number), np.isnan(gap))
    found.where("whether anybody was in before and when contradict each other", ~sound)
    if not evidence.has("largest_count"):
        return found
    count, sizes = evidence["largest_count"], evidence["realised_cohort"]
    # Nobody has been there more often than all together, nor the most frequent one than the mean;
    # and what no line has reached yet is reached by one round more.
    reached = np.concatenate([[0.0], np.maximum.accumulate(count)[:-1]])
    sound = np.where(
        sizes > 0,
        (count - 1 <= returning) & ((count - 1) * sizes >= returning) & (count <= reached + 1),
        count == 0,
    )
    found.where("the largest count contradicts the other numbers", ~sound)
    return found


def _of_coins(
    sizes: Array, returning: Array, separation: int, population: int, rate: float
) -> tuple[float, float, float]:
    """Of independent users: how much their counts vary, and bounds of both tails."""
    whole, rest = divmod(len(sizes), separation)
    turns = whole + (np.arange(len(sizes)) % separation < rest)
    # Whatever is added to each user's value makes it positive, and no difference.
    shift = (rate * float(turns.max())) ** 2
    total = float(np.sum(2.0 * returning + sizes - 2.0 * rate * turns * sizes))
    total += population * shift
    laws = []
    for count, groups in ((whole + 1, rest), (whole, separation - rest)):
        if groups:
            counts, weights = binomial_weights(count, rate)
            values = counts**2 - 2.0 * rate * count * counts + shift
            laws.append((values, weights * groups / separation))
    values, weights = (np.concatenate(parts) for parts in zip(*laws, strict=True))
    law = np.maximum(0.0, values), weights
    variance = rate * (1.0 - rate) * len(sizes) / separation
    ratio = 1.0 + (total / population - float(np.dot(*law))) / variance
    below = tails.chernoff(total, population, *law, above=False)
    return ratio, below, tails.chernoff(total, population, *law, above=True)


def _of_equal_sets(sizes: Array, returning: Array, population: int) -> tuple[float, float, float]:
    """Of sets of fixed sizes, each as likely as any other: as above."""
    mean, share = _before(sizes, 1) / population, sizes / population
    squares = _before(2.0 * returning + sizes, 1) / population
    draws = np.minimum(sizes, population - sizes)
    # Of one user's count, whose law all share.
    spread = _before(share * (1.0 - share), 1)
    deviation = float(np.sum(returning - sizes * mean))
    below, above = tails.martingale(
        deviation,
        float(np.sum(draws * np.maximum(0.0, squares - mean**2))),
        float(np.sum(draws * spread)),
        _largest_count(len(sizes), float(share.max()), population),
    )
    final = float(np.sum(share * (1.0 - share)))
    return 1.0 + 2.0 * deviation / population / final, below, above


def _largest_count(rounds: int, rate: float, population: int) -> float:
    """A count that no user exceeds, but for ``_COUNT_LEVEL``."""
    from scipy import stats

    return float(min(rounds, stats.binom(rounds, rate).isf(_COUNT_LEVEL / population)))


@check(
    "separation",
    "Two rounds of one user are at least the separation apart (groups: a multiple of it).",
)
def check_separation(evidence: Evidence, inputs: AuditInputs) -> Finding:
    (gap,) = evidence.need("smallest_gap")
    sampling, found = sampling_of(evidence), Finding()
    scheme, separation = sampling.scheme, sampling.separation
    own = own_users(evidence.constants)
    pattern = {"cyclic_poisson": "groups", "selected": "separated"}.get(scheme, "none")
    pattern = pattern if own is None else own.scheme.pattern
    if pattern == "none":
        keeps = "sampling keeps no distance between two rounds of one user"
        raise SkippedError(f"{scheme or 'no'} {keeps}")
    if pattern == "separated" and separation == 1:
        raise SkippedError("no distance between two rounds of one user is claimed")
    again = ~np.isnan(gap)
    near = again & ~(gap >= separation)
    found.where(f"a user was in a round less than {separation} before", near)
    if pattern == "groups":
        odd = again & ~near & (gap % separation != 0)
        found.where("a user of another group takes part", odd)
    least = float(np.nanmin(gap)) if again.any() else None
    shown = "none yet" if least is None else f"{least:g}"
    return found.seen(
        f"smallest distance between two rounds of one user: {shown}; separation {separation}",
        smallest_gap=least,
        separation=separation,
    )
