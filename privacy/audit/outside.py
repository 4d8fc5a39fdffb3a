"""Limits of a run's guarantee, and the price of a search over so many runs.

Guarantee: of k runs on the same data under one plan (scheme, cohorts, noise, rounds and delta),
each with noise and cohorts of its own, all releases together have the epsilon of k times as many
rounds, composed; so has whatever is chosen from them by looking at releases and public data alone.
The hyperparameters that differ must not touch the plan, and must be chosen in advance or from
earlier releases. Choosing by a metric that is computed from users' data without noise is outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy.accountant import compose_epsilon
from privacy.audit.checks_accounting import compositions
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import SIDES, AuditInputs, as_number
from privacy.errors import PrivacyError
from privacy.statement.statement import json_epsilon
from privacy.tuning import repeated

COVERS = (
    "It covers the releases of all these runs together, each with the scheme, cohorts, noise and "
    "rounds of this one and noise of its own, and whatever is chosen from them by looking at the "
    "releases and at public data. It does not cover a choice by metrics that were computed from "
    "users' data without noise."
)


@dataclass(frozen=True, slots=True)
class TunedRuns:
    """The bound for a search."""

    runs: int  # k, this run among them
    # By setting, "simulated" and "actual": of k runs together at the setting's delta; "inf" for
    # none.
    epsilons: dict[str, float | str]
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
            parts, _ = compositions(evidence, inputs, label)
            together = [repeated(part, runs) for part in parts]
            epsilons[label] = json_epsilon(compose_epsilon(together, delta, accountant))
        except (ArithmeticError, ValueError) as error:
            problems[label] = str(error)
    return TunedRuns(runs, epsilons, problems)
