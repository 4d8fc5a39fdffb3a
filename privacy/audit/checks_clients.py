"""Where clients noise their updates themselves: does each report hide its own update?

Guarantee: what is tested was measured from outside the mechanism, of each client: the report, as it
moved the sum, against the clipped update. Under ``local_gaussian`` what a report has beyond its
update is P independent normal draws: its length squared is chi-square, of which the laws of the
smallest and of the largest of a round are exact, and its product with the unit update is normal.
Under ``privunit`` a report has one length l, its product with the unit update u has as its mean the
clipped update's own length, and its square the mean l^2 E t^2 of the claimed law, both of which
grow with what a report gives away (Chernoff bounds of the claimed law). Reports of different rounds
and clients are independent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit import power, tails
from privacy.audit.check import LEVEL, Finding, SkippedError, check
from privacy.audit.checks_noise import claimed_noise
from privacy.audit.checks_reports import claimed_design
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs
from privacy.errors import PrivacyError
from privacy.privunit import CapDesign
from privacy.sum_watch import REPORT_KEYS

# Rounding of a length, relative, for each root of the reports that are summed in float32.
_ROUNDING = 1e-5

Array = NDArray[np.float64]

# Updates with independent normal draws added.
NORMAL_REPORTS = ("noised", "gaussian")


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
        mean = float(tails.sums(excess.sum(), directed, 0.0))
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
    try:
        plan = claimed_design(evidence)
    except PrivacyError as error:
        found.problems.append(str(error))
        return "the constants", "nothing"
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
    further = "reports that point along their updates {:.2g} further than claimed, relative,"
    return (
        f"they point along their updates {ratio:.4g} times as far as claimed, "
        f"p = {min(mean, square):.3g}",
        power.shown(further, float(least)),
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
