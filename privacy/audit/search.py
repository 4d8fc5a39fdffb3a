"""The price of a search over several runs, and of a selection from them.

Guarantee: of k runs on the same data under one plan (scheme, cohorts, noise, rounds and delta),
each with noise and cohorts of its own, all releases together have the epsilon of k times as many
rounds, composed; so has whatever is chosen from them by looking at releases and public data alone.
The hyperparameters that differ must not touch the plan, and must be chosen in advance or from
earlier releases. Choosing by a metric that is computed from users' data without noise is outside.

Of a selection the guarantee is that of ``privacy.tuning``, derived anew for the run that was
selected. From its folder can be seen: that the recorded epsilon follows from the recorded plans and
distribution, and that the run's ledger has one of these plans. How many trials there were is
secret, and whether they were drawn as is recorded can be seen only from the folder of the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privacy.accountant import check_delta, compose_epsilon
from privacy.amplification import Composition, Participation
from privacy.audit.check import Check, Finding, conclude
from privacy.audit.checks_accounting import composed
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import SIDES, AuditInputs, Compose, as_number
from privacy.errors import PrivacyError
from privacy.statement.statement import json_epsilon
from privacy.tuning import Trials, repeated, selection_epsilon

COVERS = (
    "It covers the releases of all these runs together, each with the scheme, cohorts, noise and "
    "rounds of this one and noise of its own, and whatever is chosen from them by looking at the "
    "releases and at public data. It does not cover a choice by metrics that were computed from "
    "users' data without noise."
)
Json = Mapping[str, Any]
_TOLERANCE = 1e-6
_CLAIM = (
    "The epsilon of the selection follows from the recorded plans and distribution of the number "
    "of trials, and the run has one of these plans; beside its sweep, it is the best of the trials "
    "that the seed draws."
)


@dataclass(frozen=True, slots=True)
class TunedRuns:
    """The bound for a search."""

    runs: int  # k, this run among them
    # By setting, "simulated" and "actual": of k runs together at the setting's delta; "inf" for
    # none.
    epsilon: dict[str, float | str]
    problems: dict[str, str]  # by setting: why there is no number


def tuned_runs(evidence: Evidence, inputs: AuditInputs, runs: int) -> TunedRuns:
    """Epsilon of so many runs like this one, composed by the statement's accountant.

    The ledger must have a line; fewer than 1 run, or no whole number, is a ``PrivacyError``.
    """
    if runs < 1 or runs != int(runs):
        raise PrivacyError(f"tuned runs are {runs!r}, but must be a whole number, at least 1")
    epsilons: dict[str, float | str] = {}
    problems: dict[str, str] = {}
    accountant = str(inputs.statement.get("accountant"))
    for label in SIDES:
        delta = as_number(inputs.side(label).get("delta"))
        try:
            part, _ = composed(evidence, inputs, label)
            together = compose_epsilon([repeated(part, runs)], delta, accountant)
            epsilons[label] = json_epsilon(together)
        except (ArithmeticError, ValueError) as error:
            problems[label] = str(error)
    return TunedRuns(runs, epsilons, problems)


def plan_composition(compose: Compose, plan: Json, side: str) -> Composition:
    """Composition of a recorded plan of one trial; ``PrivacyError`` for a number that is none.

    The plan has "mechanism", "mechanism_options", "rounds", and a setting for each side.
    """
    try:
        setting, rounds = plan[side], int(plan["rounds"])
        keys = ("sampling", "population_size", "cohort_size", "separation", "max_participations")
        participation = Participation.named(*(setting[key] for key in keys))
        noise = as_number(setting["noise_multiplier"])
        return compose(plan["mechanism"], plan["mechanism_options"], participation, noise, rounds)
    except (KeyError, TypeError, AttributeError) as error:
        raise PrivacyError(f"a recorded plan is damaged: {error!r}") from None


def check_selection(
    record: Json,
    evidence: Evidence | None,
    inputs: AuditInputs,
    of_sweep: Sequence[str] | None = None,
) -> Check:
    """Derive the epsilons of a selected run's ``selection.json`` anew.

    ``evidence`` is None where the ledger could not be read. ``of_sweep`` are the problems of the
    trials that the sweep drew and of its choice; None where only the selected run is there.
    """
    found = Finding([*(of_sweep or ())])
    numbers: dict[str, Any] = {}
    for side in SIDES:
        try:
            numbers[side] = _check_side(record, evidence, inputs, side, found)
        except (ValueError, ArithmeticError, TypeError, KeyError, AttributeError) as error:
            found.add(True, f"the {side} epsilon cannot be derived: {error}")
    chosen, seed = record.get("selected"), inputs.seed.configured
    if isinstance(chosen, Mapping) and seed is not None:
        other = chosen.get("run_seed")
        found.add(other != seed, f"the run of seed {other} was selected, not this one")
    shown = ", ".join(f"epsilon ({side}) {value:.6g}" for side, value in numbers.items())
    trials = record.get("trials")
    name = trials.get("distribution") if isinstance(trials, Mapping) else trials
    seen = "The sweep's trials were drawn again, and their scores compared"
    if of_sweep is None:
        seen = "How many trials there were, and that they were drawn so, one run cannot show"
    found.seen(
        f"{shown}, of the best of a random number of trials ({name}), by rdp; the recorded "
        f"selection. {seen}",
        **numbers,
    )
    return conclude("selection", _CLAIM, found)


def _check_side(
    record: Json, evidence: Evidence | None, inputs: AuditInputs, side: str, found: Finding
) -> float:
    trials = Trials.from_json_dict(dict(record["trials"]))
    delta = as_number(inputs.side(side).get("delta"))
    check_delta(delta)
    plans = [plan_composition(inputs.composition, plan, side) for plan in record["plans"]]
    derived = selection_epsilon(plans, trials, delta)
    stated = as_number(record["epsilon"][side])
    recorded_delta = as_number(record["delta"][side])
    found.add(recorded_delta != delta, f"delta ({side}) is {recorded_delta}, the run's {delta}")
    found.add(
        not (stated == derived or abs(stated - derived) <= _TOLERANCE * derived),
        f"epsilon ({side}) is recorded as {stated:.6g}, but comes to {derived:.6g}",
    )
    if evidence is not None:
        own, _ = composed(evidence, inputs, side)
        # A run has a plan's events, and no more of them.
        events = (own.event, own.beside, own.adjacency)
        known = any(
            events == (plan.event, plan.beside, plan.adjacency) and own.count <= plan.count
            for plan in plans
        )
        found.add(not known, f"the ledger's rounds ({side}) are none of the recorded plans")
    return derived
