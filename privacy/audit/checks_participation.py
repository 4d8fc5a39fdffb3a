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
- fixed_size: rounds are uniformly random sets of n of N users. Given the rounds before, with counts
  of mean S / N and mean square Q / N, ``returning`` has mean n S / N, and a moment generating
  function below that of n (or N - n) draws with replacement, of variance Q / N - (S / N)^2 each. Q
  follows: a round adds 2 ``returning`` + n. The deviations add up to a martingale, whose steps are
  bounded by the largest count, which the law bounds.

Source: Hoeffding 1963, theorem 4 (sampling without replacement).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Check, in_rounds, judge, skip
from privacy.audit.checks_cohorts import binomial_weights, not_whole, sampling_setting
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import as_number

# The largest count of any user is beyond its bound this rarely.
_COUNT_LEVEL = 1e-9
_NO_LINE = "the ledger has no line yet"

Array = NDArray[np.float64]


def check_participation(evidence: Evidence) -> Check:
    """Users come again as often as chance has it."""
    name = "participation"
    claim = "Whom a round draws does not depend on who they are, nor on the rounds they were in."
    scheme, separation, population, cohort = sampling_setting(evidence)
    if scheme == "selected":
        return _check_cap(evidence, name, separation)
    reason = evidence.lacks("realised_cohort", "returning", "smallest_gap") or (
        None if evidence.rounds else _NO_LINE
    )
    sizes, returning = evidence["realised_cohort"], evidence["returning"]
    rate = cohort * separation / population
    if reason is None and (not 0 < rate <= 1 or len(not_whole(sizes, population))):
        reason = "the cohorts are not such as can be drawn: see cohort_total"
    if reason is None and evidence.rounds <= separation:
        reason = "nobody could have come again yet"
    if reason is not None:
        return skip(name, claim, reason)
    before = _before(sizes, separation)
    problems = _impossible(evidence, before)
    if problems:
        return judge(name, claim, problems, f"{evidence.rounds} rounds")
    if rate == 1.0:
        problems = in_rounds(
            "somebody came who was not in before", np.flatnonzero(returning != before) + 1
        )
        return judge(name, claim, problems, "every eligible user takes part")
    if scheme == "fixed_size":
        ratio, less, more = _of_equal_sets(sizes, returning, population)
    else:
        ratio, less, more = _of_coins(sizes, returning, separation, population, rate)
    if not 2.0 * more + _COUNT_LEVEL >= LEVEL:
        problems.append(f"the same users come again more often than by chance (p <= {more:.3g})")
    if not 2.0 * less + _COUNT_LEVEL >= LEVEL:
        problems.append(f"users come again less often than by chance (p <= {less:.3g})")
    return judge(
        name,
        claim,
        problems,
        f"the number of rounds that a user was in varies over users by {ratio:.4g} of the variance "
        f"that is expected; p <= {min(1.0, 2.0 * min(less, more)):.3g}; {_seen(evidence)}",
        {"ratio": ratio, "p_below": less, "p_above": more, **_extremes(evidence)},
        f"a variance that is {power.percent(power.deviations(1.0) * math.sqrt(2.0 / population))} "
        f"off or more{power.suffix()}; of pairs of users it shows nothing",
    )


def _check_cap(evidence: Evidence, name: str, separation: int) -> Check:
    """No user is in more rounds than is accounted, under "selected"."""
    claim = "No user is in more rounds than is accounted."
    reason = evidence.lacks("realised_cohort", "returning", "smallest_gap", "largest_count") or (
        None if evidence.rounds else _NO_LINE
    )
    if reason is not None:
        return skip(name, claim, reason)
    cap = evidence.constants.get("max_participations")
    number = np.arange(1, evidence.rounds + 1)
    most = np.minimum(np.inf if cap is None else as_number(cap), -(-number // separation))
    problems = _impossible(evidence, _before(evidence["realised_cohort"], 1))
    problems += in_rounds(
        f"a user is there more often than {'separation allows' if cap is None else cap}",
        number[~(evidence["largest_count"] <= most)],
    )
    return judge(
        name,
        claim,
        problems,
        f"{_seen(evidence)}; accounted: {int(most[-1])}, {separation} apart",
        {**_extremes(evidence), "most": float(most[-1])},
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


def _impossible(evidence: Evidence, before: Array) -> list[str]:
    """Numbers that no users can have."""
    returning, gap = evidence["returning"], evidence["smallest_gap"]
    whole = (returning >= 0) & (returning == np.floor(returning)) & (returning <= before)
    problems = in_rounds(
        "no possible number of earlier rounds is recorded", np.flatnonzero(~whole) + 1
    )
    number = np.arange(1, evidence.rounds + 1)
    sound = np.where(returning > 0, (gap >= 1) & (gap < number), np.isnan(gap))
    problems += in_rounds(
        "whether anybody was in before and when contradict each other", np.flatnonzero(~sound) + 1
    )
    if evidence.lacks("largest_count"):
        return problems
    count, sizes = evidence["largest_count"], evidence["realised_cohort"]
    # Nobody has been there more often than all together, nor the most frequent one than the mean;
    # and what no line has reached yet is reached by one round more.
    reached = np.concatenate([[0.0], np.maximum.accumulate(count)[:-1]])
    sound = np.where(
        sizes > 0,
        (count - 1 <= returning) & ((count - 1) * sizes >= returning) & (count <= reached + 1),
        count == 0,
    )
    return problems + in_rounds(
        "the largest count contradicts the other numbers", np.flatnonzero(~sound) + 1
    )


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
    kept = weights > 0
    law = np.maximum(0.0, values[kept]), weights[kept]
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


def check_separation(evidence: Evidence) -> Check:
    """No user is in two rounds that are closer than the separation."""
    name = "separation"
    claim = "Two rounds of one user are at least the separation apart (groups: a multiple of it)."
    scheme, separation, _, _ = sampling_setting(evidence)
    reason = evidence.lacks("smallest_gap") or (None if evidence.rounds else _NO_LINE)
    if reason is None and scheme not in ("cyclic_poisson", "selected"):
        reason = f"{scheme or 'no'} sampling keeps no distance between two rounds of one user"
    if reason is None and scheme == "selected" and separation == 1:
        reason = "no distance between two rounds of one user is claimed"
    if reason is not None:
        return skip(name, claim, reason)
    gap = evidence["smallest_gap"]
    again = ~np.isnan(gap)
    near, odd = again & ~(gap >= separation), again & (gap % separation != 0)
    if scheme == "selected":
        odd = np.zeros_like(again)
    problems = in_rounds(
        f"a user was in a round less than {separation} before", np.flatnonzero(near) + 1
    )
    problems += in_rounds("a user of another group takes part", np.flatnonzero(odd & ~near) + 1)
    least = f"{np.nanmin(gap):g}" if again.any() else "none yet"
    return judge(
        name,
        claim,
        problems,
        f"smallest distance between two rounds of one user: {least}; separation {separation}",
        {"smallest_gap": float(np.nanmin(gap)) if again.any() else None, "separation": separation},
    )
