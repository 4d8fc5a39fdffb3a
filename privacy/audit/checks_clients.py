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

from privacy.audit import tails
from privacy.audit.check import LEVEL, SEEN, Check, in_rounds, judge, skip
from privacy.audit.checks_noise import reports
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number
from privacy.errors import PrivacyError
from privacy.privunit import CapDesign, design
from privacy.sum_watch import REPORT_KEYS

# Rounding of a length, relative, for each root of the reports that are summed in float32.
_ROUNDING = 1e-5

Array = NDArray[np.float64]

# Updates with independent normal draws added.
NORMAL_REPORTS = ("noised", "gaussian")


def check_report_noise(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Every client's report is as noisy as is claimed, and independent of what it hides."""
    name = "report_noise"
    claim = "Each client's report hides the client's own update as is claimed."
    reason, described = None, inputs.configured.description
    if not described.randomizes_clients:
        reason = "no client adds noise: the noise is added to the sum"
    elif described.reports != "direction" and (described.reports, described.law) != NORMAL_REPORTS:
        reason = f"{inputs.configured.mechanism} does not state a law of its reports that is tested"
    elif not inputs.claims_noise:
        reason = "no noise is claimed: both epsilons are infinite"
    reason = reason or evidence.lacks("reports", "update_noise_stddev", "num_nonfinite")
    if reason is None and not evidence.rounds:
        reason = "the ledger has no line yet"
    if reason is not None:
        return skip(name, claim, reason)
    number, counted = reports(evidence), evidence["reports.count"]
    watches_all = ~np.isnan(evidence["unseen"])
    wrong = np.where(watches_all, number != np.nan_to_num(counted), counted > number)
    problems = in_rounds("not every report was measured", np.flatnonzero(wrong) + 1)
    at = np.flatnonzero(counted > 0)
    if not len(at):
        return judge(name, claim, problems, "nobody has reported")
    columns = {key: evidence[f"reports.{key}"][at] for key in REPORT_KEYS}
    if described.reports == "direction":
        made = _privunit(evidence, columns, at)
    else:
        stddev = evidence["update_noise_stddev"][at] / np.sqrt(number[at])
        made = _normal(evidence, columns, at, stddev)
    found, text, numbers, power = made
    total = int(counted[at].sum())
    return judge(name, claim, problems + found, f"{total} reports: {text}", numbers, power)


_Found = tuple[list[str], str, dict[str, Any], str]


def _normal(evidence: Evidence, columns: dict[str, Array], at: Any, stddev: Array) -> _Found:
    """Of reports that are updates with normal draws added."""
    from scipy import stats

    size = as_number(evidence.constants.get("num_parameters"))
    law: Any = stats.chi2(size)
    count = columns["count"]
    slack = 1.0 + _ROUNDING * np.sqrt(count)
    least = (columns["quietest"] / stddev) ** 2
    most = (columns["loudest"] / stddev) ** 2
    # The law of the smallest and of the largest of so many, by the union bound.
    low = np.minimum(1.0, count * law.cdf(least * slack))
    high = np.minimum(1.0, count * law.sf(most / slack))
    each = np.nan_to_num(np.minimum(low, high))
    problems = in_rounds(
        "a client's noise is not of the claimed length",
        at[~(each * 2 * len(at) >= LEVEL / 3.0)] + 1,
    )
    directed = columns["directed"]
    excess = (columns["along"] - columns["clipped"]) / stddev
    mean = square = 1.0
    if directed.sum():
        mean = float(tails.sums(excess.sum(), directed.sum(), 0.0))
        squares = float((columns["excess_squares"] / stddev**2).sum())
        square = float(tails.squares("gaussian", squares, directed.sum(), float(slack.max()) - 1.0))
    for what, value in (("mean", mean), ("spread", square)):
        if not value >= LEVEL / 3.0:
            problems.append(
                f"noise goes with the client's own update: its {what} has p = {value:.3g}"
            )
    cut = float(np.sqrt(law.ppf(LEVEL / (6.0 * len(at) * max(1.0, count.max()))) / size))
    return (
        problems,
        f"noise from {np.sqrt(least.min() / size):.4g} to {np.sqrt(most.max() / size):.4g} of the "
        f"claimed length; p = {min(float(each.min()), mean, square):.3g}",
        {"smallest_p": float(each.min()), "mean_p": mean, "spread_p": square},
        f"one report of one client with noise of {cut:.3g} of the claimed length or less, always",
    )


def _privunit(evidence: Evidence, columns: dict[str, Array], at: Any) -> _Found:
    """Of reports of one length."""
    size = as_number(evidence.constants.get("num_parameters"))
    noise = as_number((evidence.constants.get("actual") or {}).get("noise_multiplier"))
    try:
        plan = design(1.0 / noise, int(size))
    except (PrivacyError, ValueError, ZeroDivisionError, OverflowError) as error:
        return [f"no report is such as is recorded: {error}"], "the constants", {}, "nothing"
    length = evidence["clip_norm"][at] / plan.mean_length
    slack = _ROUNDING * np.sqrt(columns["count"])
    wrong = ~(
        (columns["shortest"] >= length * (1.0 - slack))
        & (columns["longest"] <= length * (1.0 + slack))
    )
    problems = in_rounds("a report is not of the claimed length", at[wrong] + 1)
    directed = float(columns["directed"].sum())
    values, weights = report_law(plan)
    second = float(np.dot(weights, values**2))
    clipped = float((columns["clipped"] / evidence["clip_norm"][at]).sum())
    along = float((columns["along"] / length).sum())
    squares = float((columns["along_squares"] / length**2).sum())
    mean = square = 1.0
    if directed:
        # A report points along its update or against it, by a coin. The logarithm of its moment
        # generating function is concave in the coin, so that the mean coin bounds their sum.
        agree = min(1.0, 0.5 * (1.0 + clipped / directed))
        both = np.concatenate([agree * weights, (1.0 - agree) * weights])
        mean = _tails(along + directed, directed, 1.0 + np.concatenate([values, -values]), both)
        square = _tails(squares, directed, values**2, weights)
    for what, value in (("the update", mean), ("the update's line", square)):
        if not value >= LEVEL / 3.0:
            problems.append(
                f"reports do not point along {what} as often as claimed: p = {value:.3g}"
            )
    wanted = max(clipped * plan.mean_length, 1e-30)
    # As of a normal sum, which it nearly is.
    seen = (np.sqrt(2.0 * np.log(6.0 / LEVEL)) + 1.3) * np.sqrt(directed * second)
    ratio = along / wanted
    return (
        problems,
        f"they point along their updates {ratio:.4g} times as far as claimed, "
        f"p = {min(mean, square):.3g}",
        {"ratio": ratio, "mean_p": mean, "square_p": square},
        f"reports that point along their updates {seen / wanted:.2g} further than claimed, "
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
