"""Checks of mechanisms whose clients noise their own updates: is each report random enough?

Guarantee: ``report_noise`` tests single reports. What is tested was measured from outside the
mechanism, of each client: the report, as it moved the sum, against the clipped update. Reports of
different rounds and clients are independent.

- ``local_gaussian``: what a report has beyond its update is P independent normal draws. Its length
  squared is chi-square, of which the laws of the smallest and of the largest of a round are exact,
  and its product with the unit update is normal.
- ``privunit``: a report has one length l. Its product with the unit update u has as its mean the
  clipped update's own length, and its square the mean l^2 E t^2 of the claimed law, both of which
  grow with what a report gives away (Chernoff bounds of the claimed law).

``noise_scale`` tests a round of ``privunit``, whose noise has no law element by element; its length
has one. A report points a random share t of its length l (1 below) along its client's update, or
against it, and else in a uniformly random direction across it. Its mean is the clipped update. Let
x be the sum of n reports less that of their means, of P elements: it is claimed to be sqrt(n) l
long, and bounds of how far W = |x|^2 / n can be from 1 are:

- Above: the mean of |x| is sqrt(n) at most, and another value of one report moves it by 2 at most,
  so that sqrt(W) > 1 + s with probability exp(-s^2 / 2) at most (McDiarmid). Loose: it shows
  reports that are several times too long, or that all draw the same.
- Below: across all n updates there are d = P - n directions at least, in which x is a sum of n
  vectors a_k w_k, w_k uniform on a sphere, independent of a_k in [0, 1], whose square has at least
  the mean (1 - E t^2) d / P. As a uniform w is sub-Gaussian of variance 1/d,
  E exp(-r |y + a w|^2) <= E exp(-r a^2) exp(-r (1 - 2 r / d) |y|^2), from which one vector after
  another comes off; then Chernoff's bound. Nearly that of a chi-square of d degrees where n is far
  below P; nothing where it is not. Reports that are not randomised have W = 0.

Source: McDiarmid 1989, lemma 1.2; Vershynin 2018, "High-dimensional probability", theorem 3.4.6
(here with its exact constant, 1/d).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import tails
from privacy.audit.check import LEVEL, SEEN, Finding, check
from privacy.audit.checks_noise import claimed_noise
from privacy.audit.evidence import Evidence, SkippedError
from privacy.audit.inputs import AuditInputs
from privacy.noise.privunit import CapDesign, design
from privacy.recording.shard_observation import REPORT_KEYS

# Updates with independent normal draws added.
NORMAL_REPORTS = ("noised", "gaussian")
Array = NDArray[np.float64]

# Rounding of a length, relative, for each root of the reports that are summed in float32.
_ROUNDING = 1e-5
# Rates of Chernoff's bound, in parts of d / 2, below which it holds.
_RATES = np.geomspace(1e-5, 0.5, 60)


def claimed_design(evidence: Evidence) -> CapDesign:
    """Design of reports that follows from the ledger's constants.

    ``ValueError`` or ``ArithmeticError`` where none follows.
    """
    noise = evidence.constant("noise_multiplier", "actual")
    return design(1.0 / noise, int(evidence.constant("num_parameters")))


@check("noise_scale", "The reports are as long, and as random, as is claimed.")
def check_report_scale(evidence: Evidence, inputs: AuditInputs) -> Finding:
    claimed_noise(inputs)
    keys = ("noise.count", "noise.sum_squares", "update_noise_stddev")
    count, squares, stddev, *_ = evidence.need(*keys, "num_contributions", "num_nonfinite")
    found, number, size = Finding(), evidence.sent, evidence.constant("num_parameters")
    plan = claimed_design(evidence)
    absent = (number > 0) & ~evidence.has_noise
    found.where("noise is claimed, but none was observed", absent)
    at = np.flatnonzero((number > 0) & evidence.has_noise)
    if not len(at):
        return found.seen("nobody has reported")
    number, each = number[at], evidence["clip_norm"][at] / plan.mean_length
    wanted = np.sqrt(number / size) * each
    wrong = ~np.isclose(stddev[at], wanted, rtol=1e-9, atol=0.0)
    found.where("the reports are claimed to have another length", wrong, at + 1)
    found.where(f"the noise does not have {size:g} elements", count[at] != size, at + 1)
    ratios = squares[at] / size
    singles, pooled = _p_values(ratios, number, plan)
    found.test_rounds("the noise is not that of so many reports", singles, at + 1, 2.0)
    found.test("the noise of all rounds together is not that of so many", pooled, 2.0, "<=")
    lengths = np.sqrt(ratios)
    ratio = math.sqrt(float(np.average(ratios, weights=number)))
    return found.seen(
        f"{ratio:.4g} of the claimed length over {number.sum():g} reports in {len(at)} rounds "
        f"(from {lengths.min():.4g} to {lengths.max():.4g} in one); p <= {pooled:.3g}",
        ratio=ratio,
        smallest_p=float(singles.min()),
        pooled_p=pooled,
    )


def _p_values(ratios: Array, number: Array, plan: CapDesign) -> tuple[Array, float]:
    """Bounds of the two-sided p-values of each round and of all together.

    ``ratios`` are W of each round and ``number`` its reports, shape (k,).
    """
    excess = np.maximum(0.0, np.sqrt(ratios) - 1.0)
    above, all_above = -(excess**2) / 2.0, np.sqrt(ratios).mean() - 1.0
    rates, moments = _log_moments(number, plan)
    logs = rates * (ratios * number)[:, None] + moments
    below = logs.min(axis=1, initial=0.0)
    all_below = float(logs.sum(axis=0).min(initial=0.0))
    pooled = min(all_below, -len(ratios) * max(0.0, float(all_above)) ** 2 / 2.0)
    singles = np.minimum(1.0, 2.0 * np.exp(np.minimum(below, above)))
    # What is not recorded is NaN, and no p-value.
    return np.where(np.isnan(ratios), 0.0, singles), min(1.0, 2.0 * math.exp(pooled))


def _log_moments(number: Array, plan: CapDesign) -> tuple[Array, Array]:
    """Bounds of log E exp(-r n W), shape (k, m), for n of shape (k,), and the rates r, shape (m,).

    m is 0 where no direction is left that lies across all updates.
    """
    wanted = number.astype(np.int64)
    most = int(wanted.max())
    across = plan.dimension - most
    if across < 2:
        return np.empty(0), np.empty((len(wanted), 0))
    rates = _RATES * across / 2.0
    kept = (1.0 - _mean_square(plan)) * across / plan.dimension
    moments, rate, moment = np.zeros((len(wanted), len(rates))), rates, np.zeros_like(rates)
    rows = {int(count): np.flatnonzero(wanted == count) for count in np.unique(wanted)}
    for count in range(1, most + 1):
        moment = moment + np.log1p(kept * np.expm1(-rate))
        rate = rate * (1.0 - 2.0 * rate / across)
        if count in rows:
            moments[rows[count]] = moment
    return rates, moments


def _mean_square(plan: CapDesign) -> float:
    """E t^2 of a report: its mean square over the cap and over the rest, each as often as drawn.

    Source: t^2 of a uniform direction has the law Beta(1/2, (P - 1) / 2), and so t^2 on the cap
    the mean of a Beta(3/2, (P - 1) / 2) law's tail.
    """
    from scipy.special import betaincc

    half, square = (plan.dimension - 1) / 2.0, plan.threshold**2
    inside = float(betaincc(1.5, half, square)) / plan.dimension
    share = float(betaincc(0.5, half, square))
    outside = (1.0 / plan.dimension - inside / 2.0) / (1.0 - math.exp(plan.log_cap))
    choice = plan.choice_probability
    return choice * inside / share + (1.0 - choice) * outside


@check("report_noise", "Each client's report hides the client's own update as is claimed.")
def check_report_noise(evidence: Evidence, inputs: AuditInputs) -> Finding:
    described = inputs.configured.description
    if not described.randomizes_clients:
        raise SkippedError("no client adds noise: the noise is added to the sum")
    if described.reports != "direction" and (described.reports, described.law) != NORMAL_REPORTS:
        raise SkippedError(
            f"{inputs.configured.mechanism} does not state a law of its reports that is tested"
        )
    claimed_noise(inputs)
    counted, stddev, _ = evidence.need("reports.count", "update_noise_stddev", "num_nonfinite")
    found, number = Finding(), evidence.sent
    watches_all = ~np.isnan(evidence["unseen"])
    wrong = np.where(watches_all, number != np.nan_to_num(counted), counted > number)
    found.where("not every report was measured", wrong)
    at = np.flatnonzero(counted > 0)
    if not len(at):
        return found.seen("nobody has reported")
    columns = {key: evidence[f"reports.{key}"][at] for key in REPORT_KEYS}
    if described.reports == "direction":
        text, shown = _privunit(found, evidence, columns, at)
    else:
        text, shown = _normal(found, evidence, columns, at, stddev[at] / np.sqrt(number[at]))
    return found.seen(f"{int(counted[at].sum())} reports: {text}", shown)


def _normal(
    found: Finding, evidence: Evidence, columns: dict[str, Array], at: Any, stddev: Array
) -> tuple[str, str]:
    """Of reports that are updates with normal draws added."""
    from scipy import stats

    size, count = evidence.constant("num_parameters"), columns["count"]
    law: Any = stats.chi2(size)
    slack = 1.0 + _ROUNDING * np.sqrt(count)
    least = (columns["quietest"] / stddev) ** 2
    most = (columns["loudest"] / stddev) ** 2
    # The law of the smallest and of the largest of so many, by the union bound.
    low, high = count * law.cdf(least * slack), count * law.sf(most / slack)
    each = np.nan_to_num(np.minimum(1.0, np.minimum(low, high)))
    found.test_rounds("a client's noise is not of the claimed length", each, at + 1, 6.0)
    directed = columns["directed"].sum()
    excess = (columns["along"] - columns["clipped"]) / stddev
    mean = square = 1.0
    if directed:
        mean = float(2.0 * stats.norm.sf(abs(excess.sum()) / math.sqrt(directed)))
        squares = float((columns["excess_squares"] / stddev**2).sum())
        square = float(tails.squares("gaussian", squares, directed, float(slack.max()) - 1.0))
    for what, value in (("mean", mean), ("spread", square)):
        found.test(f"noise goes with the client's own update by its {what}", value, 3.0)
    found.numbers |= {"smallest_p": float(each.min()), "mean_p": mean, "spread_p": square}
    cut = float(np.sqrt(law.ppf(LEVEL / (6.0 * len(at) * max(1.0, count.max()))) / size))
    return (
        f"noise from {np.sqrt(least.min() / size):.4g} to {np.sqrt(most.max() / size):.4g} of the "
        f"claimed length; p = {min(found.numbers.values()):.3g}",
        f"one report of one client with noise of {cut:.3g} of the claimed length or less, always",
    )


def _privunit(
    found: Finding, evidence: Evidence, columns: dict[str, Array], at: Any
) -> tuple[str, str]:
    """Of reports of one length."""
    plan = claimed_design(evidence)
    length = evidence["clip_norm"][at] / plan.mean_length
    slack = _ROUNDING * np.sqrt(columns["count"])
    short, long = columns["shortest"] / length, columns["longest"] / length
    wrong = ~((short >= 1.0 - slack) & (long <= 1.0 + slack))
    found.where("a report is not of the claimed length", wrong, at + 1)
    directed = float(columns["directed"].sum())
    values, weights = report_law(plan)
    clipped = float((columns["clipped"] / evidence["clip_norm"][at]).sum())
    along = float((columns["along"] / length).sum())
    mean = square = 1.0
    if directed:
        # A report points along its update or against it, by a coin. The logarithm of its moment
        # generating function is concave in the coin, so that the mean coin bounds their sum.
        agree = min(1.0, 0.5 * (1.0 + clipped / directed))
        both = np.concatenate([agree * weights, (1.0 - agree) * weights])
        mean = _tails(along + directed, directed, 1.0 + np.concatenate([values, -values]), both)
        squares = float((columns["along_squares"] / length**2).sum())
        square = _tails(squares, directed, values**2, weights)
    for what, value in (("the update", mean), ("the update's line", square)):
        found.test(f"reports do not point along {what} as often as claimed", value, 3.0)
    wanted = max(clipped * plan.mean_length, 1e-30)
    ratio = along / wanted
    found.numbers |= {"ratio": ratio, "mean_p": mean, "square_p": square}
    # As of a normal sum, which it nearly is.
    second = float(np.dot(weights, values**2))
    least = (np.sqrt(2.0 * np.log(6.0 / LEVEL)) + 1.3) * np.sqrt(directed * second) / wanted
    return (
        f"they point along their updates {ratio:.4g} times as far as claimed, "
        f"p = {min(mean, square):.3g}",
        f"reports that point along their updates {float(least):.2g} further than claimed, "
        f"relative, with probability {SEEN:g}",
    )


def _tails(total: float, count: float, values: Array, weights: Array) -> float:
    """Bound of the two-sided p-value of a sum of so many draws."""
    sides = (tails.chernoff(total, int(count), values, weights, above) for above in (False, True))
    return min(1.0, 2.0 * min(sides))


def report_law(plan: CapDesign) -> tuple[Array, Array]:
    """The law of a report's share t along its direction: values and their probabilities.

    A uniform direction has the density (1 - t^2)^((P - 3) / 2); the cap and the rest of it are
    drawn as often as the plan says. What is further out than the grid has less than e^-70.
    """
    spread = 12.0 / np.sqrt(plan.dimension)
    edges = np.linspace(max(-1.0, -spread), min(1.0, plan.threshold + spread), 40001)
    values = (edges[1:] + edges[:-1]) / 2.0
    logs = (plan.dimension - 3.0) / 2.0 * np.log1p(-(values**2))
    weights = np.exp(logs - logs.max())
    inside = values >= plan.threshold
    weights[inside] *= plan.choice_probability / weights[inside].sum()
    weights[~inside] *= (1.0 - plan.choice_probability) / weights[~inside].sum()
    return values, weights
