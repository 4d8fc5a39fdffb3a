"""Is the noise of each round worth what is accounted, and do delta and populations make sense?

Guarantee: checked here is that the standard deviations that a round claims are worth the noise
multiplier that the epsilons rest on, update and count together (whether they are the true ones is
for ``checks_noise``); that delta excludes publishing one unit; and that the populations are those
of the data, or declared not to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from privacy.audit.check import Check, in_rounds, judge, skip
from privacy.audit.checks_noise import reports
from privacy.audit.checks_record import SIDES
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number


def check_noise_multiplier(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The noise of each round, update and count together, has at least the stated multiplier.

    Source: Andrew et al. 2021, theorem 1: z**-2 = z_update**-2 + (2 s_b)**-2.
    """
    name = "noise_multiplier"
    claim = (
        "In each round the noise on the update and on the count together is worth the noise "
        "multiplier that is accounted."
    )
    keys = ("clip_norm", "update_noise_stddev", "count_noise_stddev")
    reason = evidence.lacks(*keys)
    if reason is None and not evidence.rounds:
        reason = "the ledger has no line yet"
    # Of the noise at multiplier and bound 1: Laplace noise is counted by its scale.
    scale = inputs.configured.description.stddev
    if reason is None and scale is None:
        reason = f"{inputs.configured.mechanism} adds no noise of a standard deviation"
    if reason is not None or scale is None:
        return skip(name, claim, str(reason))
    clip, stddev, count = (evidence[key] for key in keys)
    with np.errstate(divide="ignore", invalid="ignore"):
        if inputs.configured.randomizes_clients:
            # A sum of n reports has the noise of n; each must hide its own client alone.
            stddev = stddev / np.sqrt(reports(evidence))
        spent = (scale * clip / stddev) ** 2
        spent += np.where(np.isnan(count), 0.0, 1.0 / (2.0 * count) ** 2)
        worth = spent**-0.5
    actual = as_number((evidence.constants.get("actual") or {}).get("noise_multiplier"))
    simulated = as_number((evidence.constants.get("simulated") or {}).get("noise_multiplier"))
    expects = np.full(evidence.rounds, actual > 0)
    if inputs.configured.randomizes_clients:
        expects &= reports(evidence) > 0
    sound = (stddev >= 0.0) & ~(count < 0.0) & (worth >= actual * (1.0 - 1e-9))
    low = np.flatnonzero(expects & ~sound) + 1
    problems = in_rounds(f"the noise is worth less than {actual:.6g}", low)
    if not actual >= 0:
        problems.append("the ledger records no noise multiplier")
    least, most = (float(f(worth, initial=g)) for f, g in ((np.nanmin, np.inf), (np.nanmax, 0.0)))
    text = (
        f"from {least:.6g} to {most:.6g} over {evidence.rounds} rounds; accounted are {actual:.6g} "
        f"(actual), {simulated:.6g} (simulated)"
    )
    if np.nan_to_num(evidence["noise.lag_correlation"]).any():
        text += "; correlated noise: each round alone, which is necessary and not enough"
    numbers = {"smallest": least, "actual": actual, "simulated": simulated}
    return judge(name, claim, problems, text, numbers)


def check_delta(inputs: AuditInputs) -> Check:
    """Both deltas are below one over their population."""
    claim = "Each delta is below one over its population, so that publishing one unit is excluded."
    problems, shown, numbers = [], [], {}
    for label in SIDES:
        side = inputs.side(label)
        delta, population = as_number(side.get("delta")), as_number(side.get("population_size"))
        numbers[label] = {"delta": delta, "population_size": population}
        shown.append(f"{label} {delta:.4g} against 1/{population:g}")
        if not (delta > 0.0 and delta * population < 1.0):
            problems.append(f"delta ({label}) {delta:.4g} is not below 1/{population:g}")
    return judge("delta", claim, problems, "; ".join(shown), numbers)


def check_population(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The populations are the data's, or declared to be hypothetical."""
    configured, units = inputs.configured, inputs.data.num_units
    claim = (
        "The actual population is that of the data; the simulated one is too, or is declared to "
        "be hypothetical."
    )
    sides = [evidence.constants.get(label) or inputs.side(label) for label in SIDES]
    simulated, actual = (as_number(side.get("population_size")) for side in sides)
    numbers: Mapping[str, Any] = {"simulated": simulated, "actual": actual, "data": units}
    problems = []
    wanted = actual if configured.population_size is None else configured.population_size
    if simulated != wanted:
        problems.append(f"{simulated:g} users are simulated, but {wanted:g} configured")
    if simulated != actual and not configured.hypothetical_population:
        problems.append(f"{simulated:g} users are simulated, {actual:g} drawn from, none declared")
    if units is not None and actual != units:
        problems.append(f"{actual:g} are accounted as the actual population, the data have {units}")
    if units is None and not problems:
        return replace(skip("population", claim, inputs.data.why_absent), numbers=numbers)
    declared = " (declared hypothetical)" if configured.hypothetical_population else ""
    seen = "not opened" if units is None else f"{units}"
    text = f"simulated {simulated:g}{declared}, actual {actual:g}, data {seen}"
    return judge("population", claim, problems, text, numbers)
