"""Are the epsilons those of what the ledger records, and do their terms make sense?

Guarantee: each epsilon is computed anew, from the ledger's constants and the number of its lines,
by its own accountant, by rdp and by pld. How rounds compose is asked of the mechanism, and held
against what the guarantee says in words (``privacy.audit.described``), or the evidence says that it
was not. A stated epsilon below the tightest of the bounds fails, and so does one that is not its
own accountant's: one above it is true, but of another run, whose rounds or noise were taken for
this one's.

The standard deviations that a round claims must be worth the noise multiplier that the epsilons
rest on, update and count together (whether they are the true ones is for ``checks_noise``); delta
must exclude publishing one unit; and the populations must be those of the data, or be declared not
to be.
"""

from __future__ import annotations

import math

import numpy as np

from privacy.accountant import ACCOUNTANTS, compose_epsilon
from privacy.amplification import Composition
from privacy.audit.check import Finding, check
from privacy.audit.described import contradictions, describe, users_of
from privacy.audit.evidence import Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import SIDES, AuditInputs, as_number
from privacy.errors import PrivacyError
from privacy.statement.statement import json_epsilon

# Relative; far above what two runs of one accountant differ by, far below what matters.
_TOLERANCE = 1e-6
# By how much PRV's upper bound lies above its estimate: it may be stated with less care.
_PRV_RESOLUTION, _PRV_RELATIVE_RESOLUTION = 0.01, 0.002
_OWN_WORD = "; what is composed is the mechanism's own word"
_MEND = (
    "It is computed apart where the mechanism's DESCRIPTION states law, stddev and, of correlated "
    "noise, strategy (docs/tutorials/own_method.md), under a sampling scheme of the toolkit"
)


def composed(
    evidence: Evidence, inputs: AuditInputs, label: str, rounds: int | None = None
) -> tuple[Composition, int]:
    """Composition of the first rounds of one setting under the first line's constants; the rounds.

    By default the rounds are those of the stated epsilons: the recorded ones, or, before the end,
    those planned. ``ValueError``: the mechanism has no guarantee under these constants, or one is
    no number.
    """
    constants, steps = evidence.constants, evidence["steps"]
    if rounds is None and not inputs.is_final:
        planned = as_number(inputs.statement.get("rounds"))
        if not planned.is_integer():
            raise PrivacyError("the statement does not say how many rounds are planned")
        rounds = int(planned)
    elif rounds is None:
        of_steps = inputs.configured.unit == "example"
        rounds = int(steps[-1] if len(steps) else 0) if of_steps else evidence.rounds
    composition = inputs.composition(
        str(constants.get("mechanism")),
        constants.get("mechanism_options") or inputs.configured.mechanism_options,
        users_of(constants, label),
        evidence.constant("noise_multiplier", label),
        rounds,
    )
    return composition, rounds


@check(
    "epsilon_{}",
    "The stated epsilon ({}) is what its accountant makes of the recorded rounds: not below it, "
    "nor below the tightest valid bound, nor that of other rounds or noise.",
)
def check_epsilon(evidence: Evidence, inputs: AuditInputs, label: str) -> Finding:
    """One of the two epsilons, derived anew by its accountant, by rdp and by pld."""
    evidence.need_lines()
    side = inputs.side(label)
    stated, delta = as_number(side.get("epsilon")), as_number(side.get("delta"))
    own, found = str(inputs.statement.get("accountant")), Finding()
    values: dict[str, float] = {}
    reasons: dict[str, str] = {}
    part, rounds = composed(evidence, inputs, label)
    for accountant in ACCOUNTANTS:
        if accountant == "prv" != own:
            # The slowest, and never tighter than pld by more than pld's grid.
            continue
        try:
            values[accountant] = compose_epsilon([part], delta, accountant)
        except PrivacyError as error:
            reasons[accountant] = str(error)
    described, unheld = describe(evidence, inputs, label, rounds, part), ""
    if isinstance(described, str):
        unheld = f"{_OWN_WORD}: {described}"
    elif described.count and described.noise > 0.0:
        found.problems, unheld = contradictions(described, part), described.note
    floor, slack = 1.0 - _TOLERANCE, _TOLERANCE * values.get(own, 0.0)
    if own == "prv":
        slack = max(_PRV_RESOLUTION, _PRV_RELATIVE_RESOLUTION * values.get(own, 0.0))
    found.add(math.isnan(stated), "the statement has no epsilon")
    if not values:
        found.problems.append("no accountant can compose the recorded rounds")
    elif stated < min(values.values()) * floor:
        tightest = min(values, key=values.__getitem__)
        bound = f"{values[tightest]:.6g} ({tightest})"
        found.problems.append(f"{stated:.6g} is stated, below the tightest bound {bound}")
    if own not in values:
        found.problems.append(f"its own accountant {own!r} gives no epsilon")
    elif stated < values[own] * floor:
        found.problems.append(f"{stated:.6g} is stated, but {own} gives {values[own]:.6g}")
    elif stated > values[own] + slack:
        found.problems.append(
            f"{stated:.6g} is stated, but {own} gives only {values[own]:.6g}: it is of other "
            "rounds or other noise than were run"
        )
    if _OWN_WORD in unheld and not found.problems:
        # Its epsilons are right of what it says, of which nothing else says that it is true.
        raise IncompleteError(f"{unheld.removeprefix('; ')}. {_MEND}")
    computed = ", ".join(f"{key} {value:.6g}" for key, value in values.items())
    able = f"; not by {', '.join(reasons)}" if reasons else ""
    return found.seen(
        f"{stated:.6g} at delta {delta:.4g} stated by {own}; of {rounds} rounds: {computed}{able}"
        f"{unheld}",
        stated=json_epsilon(stated),
        delta=delta,
        rounds=rounds,
        computed={key: json_epsilon(value) for key, value in values.items()},
        not_computed=reasons,
    )


@check(
    "budget",
    "The rounds that were run stay within the configured budget of the simulated epsilon.",
)
def check_budget(evidence: Evidence, inputs: AuditInputs) -> Finding:
    budget, stated = inputs.configured.budget_epsilon, inputs.statement.get("budget_epsilon")
    if budget is None and stated is None:
        raise SkippedError("no budget is configured")
    evidence.need_lines()
    found, own = Finding(), str(inputs.statement.get("accountant"))
    found.add(
        budget is None or as_number(stated) != budget,
        f"the budget is {budget} in the configuration, {stated} in the statement",
    )
    delta = as_number(inputs.side("simulated").get("delta"))
    part, rounds = composed(evidence, inputs, "simulated")
    epsilon = compose_epsilon([part], delta, own)
    if budget is not None and not epsilon <= budget * (1.0 + _TOLERANCE):
        found.problems.append(f"{rounds} rounds have epsilon {epsilon:.6g}, beyond {budget:g}")
    return found.seen(
        f"epsilon (simulated) {epsilon:.6g} of at most {budget} after {rounds} rounds",
        epsilon=json_epsilon(epsilon),
        budget=budget,
    )


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
