"""Do attacks on real users show more than is claimed?

Guarantee: a run whose shadow runs do what they claim fails this with probability 1 less the
attack's confidence at most (``privacy.empirical.membership``), which is far more than other
checks': the attack was asked for. What was attacked are shadow runs of the run's own settings, not
the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privacy.audit.check import Finding, check
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number


@check(
    "attacks",
    "Attacks on the membership of real users show no more than the claim allows.",
)
def check_attacks(evidence: Evidence, inputs: AuditInputs) -> Finding:
    found, seen = Finding(), []
    upper = as_number(inputs.side("actual").get("epsilon"))
    for kind, one in (inputs.attacks or {}).items():
        verdict = one.get("verdict") if isinstance(one, Mapping) else None
        if not isinstance(verdict, Mapping) or "refuted" not in verdict:
            found.add(True, f"attack.json has no verdict of {kind}")
            continue
        seen.append(_described(kind, one, verdict))
        found.add(
            verdict["refuted"] is True,
            f"{kind}: {verdict.get('num_correct')} of {_guesses(verdict)} guesses about users are "
            f"right, wealth of bets {as_number(verdict.get('wealth')):.4g}; more than epsilon "
            f"{upper:.4g} (actual) allows",
        )
        lower = as_number(verdict.get("epsilon"))
        found.add(not lower <= upper, f"{kind}: {lower:.4g} was shown, {upper:.4g} is stated")
    return found.seen("; ".join(seen) or "attack.json")


def _guesses(verdict: Mapping[str, Any]) -> int:
    guesses = verdict.get("guesses")
    return sum(guesses.values()) if isinstance(guesses, Mapping) else 0


def _described(kind: str, one: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    judged = "the claim was not tested" if verdict["refuted"] is None else "within the claim"
    if verdict["refuted"]:
        judged = "above the claim"
    return (
        f"{kind} on {one.get('users')} users of {one.get('shadows')} shadow runs: area under the "
        f"ROC curve {as_number(one.get('auc')):.3f}, {judged}"
    )
