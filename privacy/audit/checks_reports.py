"""Are PrivUnit's reports as random as is claimed?

Guarantee: their noise has no law element by element; its length has one. A report is a vector of
one length l (1 below), independent of all others. It points a random share t of l along its
client's update, or against it, and else in a uniformly random direction across it. Its mean is the
clipped update. Let x be the sum of n reports less that of their means, of P elements: it is
claimed to be sqrt(n) l long, and bounds of how far W = |x|^2 / n can be from 1 are:

- Above: the mean of |x| is sqrt(n) at most, and another value of one report moves it by 2 at most,
  so that sqrt(W) > 1 + s with probability exp(-s^2 / 2) at most (McDiarmid). Loose: it shows
  reports that are several times too long, or that all draw the same.
- Below: across all n updates there are d = P - n directions at least, in which x is a sum of n
  vectors a_k w_k, w_k uniform on a sphere, independent of a_k in [0, 1], whose square has at least
  the mean (1 - E t^2) d / P. As a uniform w is sub-Gaussian of variance 1/d,
  E exp(-r |y + a w|^2) <= E exp(-r a^2) exp(-r (1 - 2 r / d) |y|^2), from which one vector after
  another comes off; then Chernoff's bound. Nearly that of a chi-square of d degrees where n is far
  below P; nothing where it is not. Reports that are not randomised have W = 0.

Whether a report hides its update is in the angle between the two: see ``checks_clients``.

Source: McDiarmid 1989, lemma 1.2; Vershynin 2018, "High-dimensional probability", theorem 3.4.6
(here with its exact constant, 1/d).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.audit.check import Finding, check
from privacy.audit.checks_noise import claimed_noise
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.errors import PrivacyError
from privacy.privunit import CapDesign, design

Array = NDArray[np.float64]

# Rates of Chernoff's bound, in parts of d / 2, below which it holds.
_RATES = np.geomspace(1e-5, 0.5, 60)


def claimed_design(evidence: Evidence) -> CapDesign:
    """How reports are drawn that are such as the ledger's constants say.

    Raises:
        PrivacyError: None are.
    """
    noise, size = (
        evidence.constant("noise_multiplier", "actual"),
        evidence.constant("num_parameters"),
    )
    try:
        return design(1.0 / noise, int(size))
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise PrivacyError(f"no report is such as is recorded: {error}") from error


@check("noise_scale", "The reports are as long, and as random, as is claimed.")
def check_report_scale(evidence: Evidence, inputs: AuditInputs) -> Finding:
    claimed_noise(inputs)
    keys = ("noise.count", "noise.sum_squares", "update_noise_stddev")
    count, squares, stddev, *_ = evidence.need(*keys, "num_contributions", "num_nonfinite")
    found, number, size = Finding(), evidence.sent, evidence.constant("num_parameters")
    try:
        plan = claimed_design(evidence)
    except PrivacyError as error:
        return Finding([str(error)]).seen("the constants")
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

    Args:
        ratios: Shape (k,): W of each round.
        number: Shape (k,): reports of each.
        plan: The law of a report.
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
    """Bounds of log E exp(-r n W).

    Args:
        number: Shape (k,): n.
        plan: The law of a report.

    Returns:
        The rates r, shape (m,), and the bounds, shape (k, m); m is 0 where no direction is left
        that lies across all updates.
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
