"""Is the noise of each round worth what is accounted, and do delta and populations make sense?

Guarantee: checked here is that the standard deviations that a round claims are worth the noise
multiplier that the epsilons rest on, update and count together (whether they are the true ones is
for ``checks_noise``); that delta excludes publishing one unit; and that the populations are those
of the data, or declared not to be.
"""

from __future__ import annotations

import numpy as np

from privacy.audit.check import Finding, check
from privacy.audit.errors import SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import SIDES, AuditInputs, as_number


@check(
    "noise_multiplier",
    "In each round the noise on the update and on the count together is worth the noise "
    "multiplier that is accounted.",
)
def check_noise_multiplier(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """The noise of each round, update and count together, has at least the stated multiplier.

    Source: Andrew et al. 2021, theorem 1: z**-2 = z_update**-2 + (2 s_b)**-2.
    """
    configured, found = inputs.configured, Finding()
    clip, stddev, count = evidence.need("clip_norm", "update_noise_stddev", "count_noise_stddev")
    # Of the noise at multiplier and bound 1: Laplace noise is counted by its scale.
    scale = configured.description.stddev
    if scale is None:
        raise SkippedError(f"{configured.mechanism} adds no noise of a standard deviation")
    # One user's update is so long, at most.
    clip = clip * configured.description.reach(evidence.constant("num_parameters"))
    simulated, actual = (evidence.constant("noise_multiplier", side) for side in SIDES)
    expects = np.full(evidence.rounds, actual > 0)
    if configured.description.randomizes_clients:
        # A sum of n reports has the noise of n; each must hide its own client alone.
        stddev = stddev / np.sqrt(evidence.sent)
        expects &= evidence.sent > 0
    spent = (scale * clip / stddev) ** 2
    worth = (spent + np.where(np.isnan(count), 0.0, 1.0 / (2.0 * count) ** 2)) ** -0.5
    sound = (stddev >= 0.0) & ~(count < 0.0) & (worth >= actual * (1.0 - 1e-9))
    found.where(f"the noise is worth less than {actual:.6g}", expects & ~sound)
    found.add(not actual >= 0, "the ledger records no noise multiplier")
    stated = as_number(inputs.statement.get("update_noise_multiplier"))
    less = expects & (spent**-0.5 * simulated < stated * actual * (1.0 - 1e-9))
    # Where rounds share noise, what is stated is of all of them.
    less &= not configured.description.correlates_rounds
    found.where(f"noise on the updates alone is worth less than {stated:.6g}, as stated", less)
    least, most = float(np.nanmin(worth, initial=np.inf)), float(np.nanmax(worth, initial=0.0))
    text = (
        f"from {least:.6g} to {most:.6g} over {evidence.rounds} rounds; accounted are {actual:.6g} "
        f"(actual), {simulated:.6g} (simulated)"
    )
    if inputs.configured.description.correlates_rounds:
        text += "; correlated noise: each round alone, which is necessary and not enough"
    return found.seen(text, smallest=least, actual=actual, simulated=simulated)


@check(
    "delta", "Each delta is below one over its population, so that publishing one unit is excluded."
)
def check_delta(evidence: Evidence, inputs: AuditInputs) -> Finding:
    found, shown = Finding(), []
    for label in SIDES:
        side = inputs.side(label)
        delta, population = as_number(side.get("delta")), as_number(side.get("population_size"))
        found.numbers[label] = {"delta": delta, "population_size": population}
        shown.append(f"{label} {delta:.4g} against 1/{population:g}")
        found.add(
            not (delta > 0.0 and delta * population < 1.0),
            f"delta ({label}) {delta:.4g} is not below 1/{population:g}",
        )
    return found.seen("; ".join(shown))


@check(
    "population",
    "The actual population is that of the data; the simulated one is too, or is declared to be "
    "hypothetical.",
)
def check_population(evidence: Evidence, inputs: AuditInputs) -> Finding:
    configured, units, found = inputs.configured, inputs.data.num_units, Finding()
    sides = [evidence.constants.get(label) or inputs.side(label) for label in SIDES]
    simulated, actual = (as_number(side.get("population_size")) for side in sides)
    numbers = {"simulated": simulated, "actual": actual, "data": units}
    wanted = actual if configured.population_size is None else configured.population_size
    found.add(simulated != wanted, f"{simulated:g} users are simulated, but {wanted:g} configured")
    found.add(
        simulated != actual and not configured.hypothetical_population,
        f"{simulated:g} users are simulated, {actual:g} drawn from, none declared",
    )
    if units is None and not found.problems:
        raise SkippedError(inputs.data.why_absent, **numbers)
    found.add(
        units is not None and actual != units,
        f"{actual:g} are accounted as the actual population, the data have {units}",
    )
    declared = " (declared hypothetical)" if configured.hypothetical_population else ""
    opened = "not opened" if units is None else f"{units}"
    text = f"simulated {simulated:g}{declared}, actual {actual:g}, data {opened}"
    return found.seen(text, **numbers)
