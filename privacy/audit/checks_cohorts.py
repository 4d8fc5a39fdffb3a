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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import Finding, check
from privacy.audit.errors import IncompleteError, SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.audit.own_schemes import own_users

# Standard deviations beyond which a binomial is left out of account: 1e-30 and less.
_REACH = 13.0
# A group's size is taken to be anywhere within a range that it leaves this rarely.
_GROUP_LEVEL = 1e-9

Array = NDArray[np.float64]
# Values and their probabilities.
Law = tuple[Array, Array]


class Sampling(NamedTuple):
    """How this very run draws its users.

    Attributes:
        scheme: Empty where a number cannot be one.
        separation: Groups, or the distance of two rounds.
        population: Users.
        cohort: Expected users of a round.
    """

    scheme: str
    separation: int
    population: int
    cohort: float

    @property
    def rate(self) -> float:
        """Probability of an eligible user to take part."""
        return self.cohort * self.separation / self.population

    @property
    def cap(self) -> float:
        """Most users of a round; infinite without a cap."""
        if self.scheme != "truncated_poisson":
            return math.inf
        return min(self.population, math.ceil(self.cohort + 4.0 * math.sqrt(self.cohort)))


def sampling_of(evidence: Evidence) -> Sampling:
    """How the ledger says that users are drawn."""
    separation = evidence.constant("separation", default=1)
    population = evidence.constant("population_size", "actual")
    # A float counts users exactly up to here.
    if not all(1 <= number < 2**53 for number in (separation, population)):
        return Sampling("", 1, 1, math.nan)
    cohort = evidence.constant("cohort_size", "actual")
    scheme = str(evidence.constants.get("sampling"))
    return Sampling(scheme, int(separation), int(population), cohort)


def drawn(sampling: Sampling, sizes: Array) -> None:
    """Skip what rests on the law of cohorts where they are not such as can be drawn.

    Args:
        sampling: How users are drawn.
        sizes: Shape (T,): realised cohorts.

    Raises:
        SkippedError: They are not.
    """
    if not 0 < sampling.rate <= 1 or not_whole(sizes, sampling.population).any():
        raise SkippedError("the cohorts are not such as can be drawn: see cohort_total")


@check(
    "cohort_total",
    "As many users took part, over all rounds, as the sampling that is accounted draws.",
)
def check_cohort_total(evidence: Evidence, inputs: AuditInputs) -> Finding:
    (sizes,) = evidence.need("realised_cohort")
    sampling, found = sampling_of(evidence), Finding()
    scheme, separation, population, cohort = sampling
    if scheme == "selected":
        raise SkippedError("who takes part is selected: no claim rests on how many do")
    found.where("no whole cohort size", not_whole(sizes, population))
    if found.problems or not 0 < cohort * separation <= population:
        found.add(
            not found.problems, f"cohorts of {cohort:g} cannot be drawn from {population} users"
        )
        return found.seen(f"{evidence.rounds} rounds")
    if scheme in ("fixed_size", "full"):
        found.where(f"the cohort is not {cohort:g}", sizes != cohort)
        rounds = f"{evidence.rounds} rounds of {cohort:g} exactly"
        return found.seen(f"{rounds}, as {scheme} sampling has them")
    if scheme == "truncated_poisson":
        return _of_truncated(sampling, sizes, found)
    if scheme not in ("poisson", "cyclic_poisson"):
        return _of_own(evidence, sizes, found)
    cycles, rest = divmod(len(sizes), separation)
    rate, whole = sampling.rate, cycles * separation
    parts = [(int(sizes[:whole].sum()), cycles * population, rate)] if cycles else []
    if rest:
        parts.append((int(sizes[whole:].sum()), population, rate * rest / separation))
    smallest = 1.0
    for total, draws, q in parts:
        value = float(tails.binomials(total, draws, q, q))
        what = f"{total} took part in {draws} draws with probability {q:.6g}"
        found.test(f"{what}, {draws * q:.6g} expected", value, len(parts))
        smallest = min(smallest, value)
    off = power.deviations(len(parts)) * math.sqrt(
        (1.0 - rate) / (max(cycles, 1) * population * rate)
    )
    return found.seen(
        f"{int(sizes.sum())} took part in {evidence.rounds} rounds, {cohort * len(sizes):.6g} "
        f"expected; exact binomial p = {smallest:.3g}",
        power.shown(
            "a rate that is {1:.2g} % off or more",
            off,
            "no rate that is smaller: it has too few draws",
        ),
        total=int(sizes.sum()),
        expected=cohort * len(sizes),
        p_value=smallest,
    )


def _of_own(evidence: Evidence, sizes: Array, found: Finding) -> Finding:
    """Cohorts of a scheme that is not described here: by what it says of them itself."""
    name, users = evidence.constants.get("sampling"), own_users(evidence.constants)
    if users is None:
        return Finding([f"there is no sampling scheme {name!r}"]).seen("the constants")
    expected = [users.scheme.certain_cohort(users, r + 1) for r in range(len(sizes))]
    if None in expected:
        raise IncompleteError(
            f"the sampling scheme {name} does not say how many users a round has (certain_cohort)"
        )
    found.where(f"the cohort is not what {name} sampling draws", sizes != np.array(expected))
    return found.seen(f"{len(sizes)} rounds, by the scheme's own word")


def _of_truncated(sampling: Sampling, sizes: Array, found: Finding) -> Finding:
    """Cohorts that are cut at a cap: none above it, and as many in all as such have."""
    found.where(f"the cohort is above {sampling.cap:g}", sizes > sampling.cap)
    values, weights = binomial_weights(sampling.population, sampling.rate)
    cut = np.minimum(values, sampling.cap)
    total, expected = float(sizes.sum()), float(cut @ weights) * len(sizes)
    below = tails.chernoff(total, len(sizes), cut, weights, above=False)
    above = tails.chernoff(total, len(sizes), cut, weights, above=True)
    found.test("fewer took part than are drawn", below, 2.0, "<=")
    found.test("more took part than are drawn", above, 2.0, "<=")
    off = power.deviations(1.0) * math.sqrt(sampling.cohort * len(sizes)) / expected
    return found.seen(
        f"{int(total)} took part in {len(sizes)} rounds, {expected:.6g} expected, none more than "
        f"{sampling.cap:g} a round; p <= {min(1.0, 2.0 * min(below, above)):.3g}",
        power.shown("a rate that is {1:.2g} % off or more", off, "no rate: it has too few draws"),
        total=int(total),
        expected=expected,
    )


def not_whole(sizes: Array, population: int) -> NDArray[np.bool_]:
    """Whether each round's cohort is no number of users; shape (T,).

    Args:
        sizes: Shape (T,).
        population: Most that it can be.
    """
    whole = (sizes >= 0) & (sizes <= population) & (sizes == np.floor(sizes))
    return np.asarray(~whole)


@check(
    "cohort_dispersion",
    "Cohorts vary from round to round as independent draws do: neither less nor more.",
)
def check_cohort_dispersion(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """Chernoff bounds of the squared deviations, or of those of two turns of one group."""
    (sizes,) = evidence.need("realised_cohort")
    sampling, found = sampling_of(evidence), Finding()
    scheme, separation, population, cohort = sampling
    if scheme not in ("poisson", "truncated_poisson", "cyclic_poisson"):
        raise SkippedError(f"cohorts do not vary by chance under {scheme or 'no'} sampling")
    drawn(sampling, sizes)
    rate = sampling.rate
    if rate == 1.0:
        raise SkippedError("every eligible user takes part")
    if separation > 1 and len(sizes) < 2 * separation:
        raise SkippedError(f"no group of {separation} has had its second turn yet")
    if separation == 1:
        values, weights = binomial_weights(population, rate)
        values = np.minimum(values, sampling.cap)
        squares, laws = (sizes - cohort) ** 2, [((values - cohort) ** 2, weights)] * 2
    else:
        pairs = len(sizes) // (2 * separation)
        turns = sizes[: pairs * 2 * separation].reshape(pairs, 2, separation)
        squares = ((turns[:, 0] - turns[:, 1]) ** 2).ravel()
        laws = [_difference_squares(size, rate) for size in _group_range(population, separation)]
    total, count = float(squares.sum()), squares.size
    below = tails.chernoff(total, count, *laws[0], above=False)
    above = tails.chernoff(total, count, *laws[1], above=True)
    ratio = total / (count * float(np.dot(*laws[0])))
    less = "cohorts vary less than independent draws, as those of a fixed size do"
    found.test(less, below, 2.0, "<=")
    found.test("cohorts vary more than independent draws", above, 2.0, "<=")
    wide = power.deviations(1.0) * math.sqrt(2.0 / count)
    less = f"of {1.0 - wide:.2g} of what is expected or less, or " if wide < 1.0 else ""
    return found.seen(
        f"variance {ratio:.4g} of what is expected, over {count} "
        f"{'rounds' if separation == 1 else 'pairs of rounds of one group'}; "
        f"p <= {min(1.0, 2.0 * min(below, above)):.3g}",
        power.shown(f"a variance {less}of {{:.2g}} of it or more", 1.0 + wide),
        ratio=ratio,
        p_below=below,
        p_above=above,
    )


def binomial_weights(size: int, rate: float) -> Law:
    """Values of a binomial and their probabilities, up to what is too rare to matter.

    Args:
        size: Draws.
        rate: Probability, in (0, 1).

    Returns:
        Shapes (k,), float64: values and positive probabilities.
    """
    from scipy import stats

    spread = math.sqrt(size * rate * (1.0 - rate))
    low = max(0, math.floor(size * rate - _REACH * spread - _REACH**2))
    high = min(size, math.ceil(size * rate + _REACH * spread + _REACH**2))
    values = np.arange(low, high + 1, dtype=np.float64)
    weights = stats.binom(size, rate).pmf(values)
    return values[weights > 0], weights[weights > 0]


def _difference_squares(size: int, rate: float) -> Law:
    """Squared differences of two equal binomials, and their probabilities."""
    _, weights = binomial_weights(size, rate)
    both = np.convolve(weights, weights[::-1])
    shift = np.arange(len(both), dtype=np.float64) - (len(weights) - 1)
    return shift[both > 0] ** 2, both[both > 0]


def _group_range(population: int, separation: int) -> tuple[int, int]:
    """Smallest and largest size that a group can be expected to have."""
    from scipy import stats

    law = stats.binom(population, 1.0 / separation)
    level = _GROUP_LEVEL / separation
    return max(1, int(law.ppf(level))), min(population, int(law.isf(level)) + 1)


@check(
    "users_distinct",
    "No user is in a round twice, and every contribution is that of a user who was drawn.",
)
def check_users_distinct(evidence: Evidence, inputs: AuditInputs) -> Finding:
    cohort, distinct, _, not_finite = evidence.need(
        "realised_cohort", "distinct_users", "num_contributions", "num_nonfinite"
    )
    canaries, found = np.nan_to_num(evidence["num_canaries"]), Finding()
    found.where("a user is drawn twice", distinct != cohort)
    found.where("the updates are not those of the users drawn", evidence.sent != cohort + canaries)
    central, is_recorded = evidence.central, evidence.central.missing < evidence.rounds
    if is_recorded:
        others = (central.digests("users") != central.digests("trained")).any(axis=1)
        found.where("the updates are those of other users than were drawn", others)
    text = f"{int(np.nansum(cohort))} draws, all distinct in their round; "
    text += f"{int(np.nansum(not_finite))} were not finite"
    if not is_recorded:
        text += "; whose updates came in is not recorded"
    if canaries.any():
        text += f"; {int(canaries.sum())} contributions are canaries'"
    return found.seen(text)
