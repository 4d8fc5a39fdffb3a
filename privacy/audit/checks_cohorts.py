"""Were users drawn as is accounted?

Guarantee: checked here is that the realised cohorts have the law of the scheme: the number of those
who took part in all, exactly binomial under the Poisson schemes, and how much it varies from round
to round, which tells a fixed-size cohort from a Poisson one; and that no user was drawn twice.
Who the users are is for ``checks_participation``.

Under "cyclic_poisson" the groups' sizes are random and not recorded. Over whole cycles each user
has had exactly one chance a cycle, whatever the group, so that the total of c cycles is binomial of
c * N draws at q_g; over the first r rounds of a cycle, of N draws at q_g * r / separation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power
from privacy.audit.check import LEVEL, Check, in_rounds, judge, skip
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import as_number
from privacy.audit.tails import binomial, chernoff

# Standard deviations beyond which a binomial is left out of account: 1e-30 and less.
_REACH = 13.0
# A group's size is taken to be anywhere within a range that it leaves this rarely.
_GROUP_LEVEL = 1e-9

_NO_LINE = "the ledger has no line yet"


def sampling_setting(evidence: Evidence) -> tuple[str, int, int, float]:
    """Scheme, separation, population and cohort of this very run.

    Args:
        evidence: The ledger.

    Returns:
        An empty scheme where a number cannot be one.
    """
    constants = evidence.constants
    actual = constants.get("actual") or {}
    separation = as_number(constants.get("separation", 1))
    numbers = (separation, as_number(actual.get("population_size")))
    # A float counts users exactly up to here.
    if not all(1 <= number < 2**53 for number in numbers):
        return "", 1, 1, math.nan
    cohort = as_number(actual.get("cohort_size"))
    return str(constants.get("sampling")), int(numbers[0]), int(numbers[1]), cohort


def check_cohort_total(evidence: Evidence) -> Check:
    """How many took part in all has the law of the sampling scheme."""
    name = "cohort_total"
    claim = "As many users took part, over all rounds, as the sampling that is accounted draws."
    reason = evidence.lacks("realised_cohort") or (None if evidence.rounds else _NO_LINE)
    if reason is not None:
        return skip(name, claim, reason)
    scheme, separation, population, cohort = sampling_setting(evidence)
    if scheme == "selected":
        reason = "who takes part is selected: no claim rests on how many do"
        return skip(name, claim, reason)
    sizes = evidence["realised_cohort"]
    problems = in_rounds("no whole cohort size", not_whole(sizes, population))
    if problems or not 0 < cohort * separation <= population:
        problems = problems or [f"cohorts of {cohort:g} cannot be drawn from {population} users"]
        return judge(name, claim, problems, f"{evidence.rounds} rounds")
    if scheme in ("fixed_size", "full"):
        wrong = np.flatnonzero(sizes != cohort) + 1
        problems = in_rounds(f"the cohort is not {cohort:g}", wrong)
        text = f"{evidence.rounds} rounds of {cohort:g} exactly, as {scheme} sampling has them"
        return judge(name, claim, problems, text)
    if scheme not in ("poisson", "cyclic_poisson"):
        return judge(name, claim, [f"there is no sampling scheme {scheme!r}"], "the constants")
    cycles, rest = divmod(len(sizes), separation)
    rate = cohort * separation / population
    parts = [(int(sizes[: cycles * separation].sum()), cycles * population, rate)]
    if rest:
        parts.append((int(sizes[-rest:].sum()), population, rate * rest / separation))
    parts = [part for part in parts if part[1]]
    values = [binomial(*part) for part in parts]
    problems = [
        f"{total} took part in {draws} draws with probability {q:.6g}, expected {draws * q:.6g}"
        for (total, draws, q), value in zip(parts, values, strict=True)
        if value * len(parts) < LEVEL
    ]
    smallest = min(values)
    return judge(
        name,
        claim,
        problems,
        f"{int(sizes.sum())} took part in {evidence.rounds} rounds, {cohort * len(sizes):.6g} "
        f"expected; exact binomial p = {smallest:.3g}",
        {"total": int(sizes.sum()), "expected": cohort * len(sizes), "p_value": smallest},
        _visible_rate(max(cycles, 1) * population, rate, len(parts)),
    )


def _visible_rate(draws: int, rate: float, tests: int) -> str:
    off = power.deviations(tests) * math.sqrt((1.0 - rate) / (draws * rate))
    if off >= 1.0:
        return "no rate that is smaller: it has too few draws"
    return f"a rate that is {power.percent(off)} off or more{power.suffix()}"


def not_whole(sizes: NDArray[np.float64], population: int) -> NDArray[np.int64]:
    """Rounds whose cohort is no number of users.

    Args:
        sizes: Shape (T,).
        population: Most that it can be.
    """
    wrong = np.isnan(sizes) | (sizes < 0) | (sizes > population) | (sizes != np.floor(sizes))
    return np.flatnonzero(wrong) + 1


def check_cohort_dispersion(evidence: Evidence) -> Check:
    """Cohorts vary from round to round as much as the sampling scheme makes them."""
    name = "cohort_dispersion"
    claim = "Cohorts vary from round to round as independent draws do: neither less nor more."
    scheme, separation, population, cohort = sampling_setting(evidence)
    reason = evidence.lacks("realised_cohort") or (None if evidence.rounds else _NO_LINE)
    if reason is None and scheme not in ("poisson", "cyclic_poisson"):
        reason = f"cohorts do not vary by chance under {scheme or 'no'} sampling"
    sizes = evidence["realised_cohort"]
    rate = cohort * separation / population
    if reason is None and (not 0 < rate <= 1 or len(not_whole(sizes, population))):
        reason = "the cohorts are not such as can be drawn: see cohort_total"
    if reason is None and rate == 1.0:
        reason = "every eligible user takes part"
    if reason is None and separation > 1 and len(sizes) < 2 * separation:
        reason = f"no group of {separation} has had its second turn yet"
    if reason is not None:
        return skip(name, claim, reason)
    if separation == 1:
        squares, laws = (sizes - cohort) ** 2, [_binomial_squares(population, rate, cohort)] * 2
    else:
        pairs = len(sizes) // (2 * separation)
        turns = sizes[: pairs * 2 * separation].reshape(pairs, 2, separation)
        squares = ((turns[:, 0] - turns[:, 1]) ** 2).ravel()
        laws = [_difference_squares(size, rate) for size in _group_range(population, separation)]
    total, count = float(squares.sum()), squares.size
    below = chernoff(total, count, *laws[0], above=False)
    above = chernoff(total, count, *laws[1], above=True)
    expected = count * float(np.dot(*laws[0]))
    ratio = total / expected
    problems = []
    if 2.0 * below < LEVEL:
        problems.append(
            f"cohorts vary less than independent draws: fixed sizes? (p <= {below:.3g})"
        )
    if 2.0 * above < LEVEL:
        problems.append(f"cohorts vary more than independent draws (p <= {above:.3g})")
    return judge(
        name,
        claim,
        problems,
        f"variance {ratio:.4g} of what is expected, over {count} "
        f"{'rounds' if separation == 1 else 'pairs of rounds of one group'}; "
        f"p <= {min(1.0, 2.0 * min(below, above)):.3g}",
        {"ratio": ratio, "p_below": below, "p_above": above},
        _visible_variance(math.sqrt(2.0 / count)),
    )


def _visible_variance(stddev: float) -> str:
    """Of a ratio of variances that has this standard deviation, about."""
    low, high = max(0.0, 1.0 - power.deviations(1.0) * stddev), 1.0 + power.deviations(1.0) * stddev
    less = f"of {low:.2g} of what is expected or less, or " if low > 0.0 else ""
    return f"a variance {less}of {high:.2g} of it or more{power.suffix()}"


def binomial_weights(size: int, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of a binomial and their probabilities, up to what is too rare to matter.

    Args:
        size: Draws.
        rate: Probability, in (0, 1).
    """
    from scipy import stats

    spread = math.sqrt(size * rate * (1.0 - rate))
    low = max(0, math.floor(size * rate - _REACH * spread - _REACH**2))
    high = min(size, math.ceil(size * rate + _REACH * spread + _REACH**2))
    values = np.arange(low, high + 1, dtype=np.float64)
    return values, stats.binom(size, rate).pmf(values)


def _binomial_squares(
    size: int, rate: float, mean: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared deviations of a binomial from its mean, and their probabilities."""
    values, weights = binomial_weights(size, rate)
    kept = weights > 0
    return (values[kept] - mean) ** 2, weights[kept]


def _difference_squares(size: int, rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared differences of two equal binomials, and their probabilities."""
    values, weights = binomial_weights(size, rate)
    both = np.convolve(weights, weights[::-1])
    kept = both > 0
    shift = np.arange(len(both), dtype=np.float64) - (len(values) - 1)
    return shift[kept] ** 2, both[kept]


def _group_range(population: int, separation: int) -> tuple[int, int]:
    """Smallest and largest size that a group can be expected to have."""
    from scipy import stats

    law = stats.binom(population, 1.0 / separation)
    level = _GROUP_LEVEL / separation
    return max(1, int(law.ppf(level))), min(population, int(law.isf(level)) + 1)


def _others(evidence: Evidence) -> list[int]:
    """Rounds in which the updates that came in are not, one each, those of who was drawn."""
    digest = evidence.central.digest
    if evidence.central.missing == evidence.rounds:
        return []
    return [
        number
        for number in range(1, evidence.rounds + 1)
        if digest("users", number) != digest("trained", number)
    ]


def check_users_distinct(evidence: Evidence) -> Check:
    """No user was drawn twice, and each who was drawn contributed once at most."""
    name = "users_distinct"
    claim = "No user is in a round twice, and every contribution is that of a user who was drawn."
    reason = evidence.lacks(
        "realised_cohort", "distinct_users", "num_contributions", "num_nonfinite"
    ) or (None if evidence.rounds else _NO_LINE)
    if reason is not None:
        return skip(name, claim, reason)
    cohort, distinct = evidence["realised_cohort"], evidence["distinct_users"]
    updates = evidence["num_contributions"] + evidence["num_nonfinite"]
    canaries = np.nan_to_num(evidence["num_canaries"])
    problems = in_rounds("a user is drawn twice", np.flatnonzero(distinct != cohort) + 1)
    problems += in_rounds(
        "the updates are not those of the users drawn",
        np.flatnonzero(updates != cohort + canaries) + 1,
    )
    problems += in_rounds("the updates are those of other users than were drawn", _others(evidence))
    lost = int(np.nansum(evidence["num_nonfinite"]))
    text = f"{int(np.nansum(cohort))} draws, all distinct in their round; {lost} were not finite"
    if evidence.central.missing == evidence.rounds:
        text += "; whose updates came in is not recorded"
    if canaries.any():
        text += f"; {int(canaries.sum())} contributions are canaries'"
    return judge(name, claim, problems, text)
