"""What an audit says: one ``Check`` a claim, with its evidence.

Guarantee: none of its own. "passed" means that the evidence does not contradict the claim at the
level that the check names. "skipped" means that nothing was looked at, and says why: the claim does
not apply, or the run has nothing to look at by its nature. "incomplete" means that the run's folder
lacks what it should hold, so that the claim was not checked, or not for all rounds: an audit with
such a check has not passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from numpy.typing import NDArray

Outcome = Literal["passed", "failed", "incomplete", "skipped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

# Probability with which any check of an audit fails on a run that does what it claims, at most, but
# for those of canaries; and of one check, of which that many at most are of random numbers.
FAMILY_LEVEL = 1e-5
NUM_STATISTICAL = 20
LEVEL = FAMILY_LEVEL / NUM_STATISTICAL
# Probability with which a check sees the smallest deviation that it is said to see.
SEEN = 0.9
# Of what is wrong in many rounds, so many are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, held against the record.

    Attributes:
        name: Machine name, unique within an audit.
        outcome: "passed", "failed", "incomplete" or "skipped".
        claim: What must be so, a sentence.
        evidence: What was found, or why nothing could be; for a human.
        numbers: What the evidence rests on, JSON-serialisable but for numbers that are not finite.
    """

    name: str
    outcome: Outcome
    claim: str
    evidence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_json_dict(self) -> dict[str, Any]:
        """The check as plain data."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "claim": self.claim,
            "evidence": self.evidence,
            "numbers": dict(self.numbers),
        }


def judge(
    name: str,
    claim: str,
    problems: Sequence[str],
    evidence: str,
    numbers: Mapping[str, Any] | None = None,
    power: str | None = None,
) -> Check:
    """Make a check that fails if there is a problem.

    Args:
        name: See ``Check``.
        claim: See ``Check``.
        problems: What contradicts the claim, a clause each; the first few are shown.
        evidence: What was looked at.
        numbers: See ``Check``.
        power: Of a check of random numbers: the smallest deviation that it sees, in a run of this
            length, with probability ``SEEN``.
    """
    numbers = dict(numbers or {})
    if power is not None:
        numbers["smallest_seen"] = power
        evidence += f". A run of this length shows {power}"
    if not problems:
        return Check(name, "passed", claim, evidence, numbers)
    more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    found = "; ".join(problems[:_NAMED]) + more
    return Check(name, "failed", claim, f"{found}. Looked at: {evidence}", numbers)


def skip(name: str, claim: str, reason: str) -> Check:
    """Make a check of which nothing was looked at."""
    return Check(name, "skipped", claim, reason)


def lack(name: str, claim: str, reason: str) -> Check:
    """Make a check that could not be made because the run's folder lacks something."""
    return Check(name, "incomplete", claim, reason)


def verdict(checks: Sequence[Check]) -> Outcome:
    """What checks come to: "failed", "incomplete" or "passed"."""
    outcomes = {check.outcome for check in checks}
    for outcome in ("failed", "incomplete"):
        if outcome in outcomes:
            return outcome
    return "passed"


def in_rounds(what: str, rounds: Sequence[int] | NDArray[Any]) -> list[str]:
    """One problem for a fault that several rounds have; empty if none has.

    Args:
        what: The fault.
        rounds: Numbers of the rounds, from 1.
    """
    if not len(rounds):
        return []
    named = ", ".join(str(int(number)) for number in rounds[:_NAMED])
    if len(rounds) == 1:
        return [f"{what} in round {named}"]
    more = "" if len(rounds) <= _NAMED else " and others"
    return [f"{what} in {len(rounds)} rounds ({named}{more})"]
