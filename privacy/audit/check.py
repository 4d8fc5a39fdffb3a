"""Checks of an audit: one ``Check`` a claim, with its evidence.

Guarantee: none of its own. "passed" means that the evidence does not contradict the claim at the
level that the check names. "skipped" means that nothing was looked at, and says why: the claim does
not apply, or the run has nothing to look at by its nature. "incomplete" means that the run's folder
lacks what it should hold, so that the claim was not checked, or not for all rounds: an audit with
such a check has not passed.

A check is a function of the ledger's evidence and the inputs under ``@check(name, claim)``. It
returns a ``Finding``, or raises ``SkippedError`` or ``IncompleteError``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from privacy.audit.evidence import Evidence, SkippedError
from privacy.audit.inputs import AuditInputs

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
    """One claim, held against the record."""

    name: str  # machine name, unique within an audit
    outcome: Outcome  # "passed", "failed", "incomplete" or "skipped"
    claim: str  # what must be so, a sentence
    evidence: str  # what was found, or why nothing could be; for a human
    # What the evidence rests on, JSON-serialisable but for numbers that are not finite.
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_json_dict(self) -> dict[str, Any]:
        """The check as plain data."""
        return asdict(self)


@dataclass(slots=True)
class Finding:
    """Findings of a check so far."""

    # What contradicts the claim, a clause each; the first few are shown.
    problems: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)  # see ``Check``
    text: str = ""  # what was looked at

    def add(self, is_wrong: bool, problem: str) -> None:
        """Add a problem if there is one."""
        if is_wrong:
            self.problems.append(problem)

    def in_rounds(self, what: str, rounds: Sequence[int] | NDArray[Any]) -> None:
        """Add one problem for a fault of rounds, shape (k,), from 1; none for no problem."""
        if not len(rounds):
            return
        named = ", ".join(str(int(number)) for number in rounds[:_NAMED])
        more = "" if len(rounds) <= _NAMED else " and others"
        where = f"round {named}" if len(rounds) == 1 else f"{len(rounds)} rounds ({named}{more})"
        self.problems.append(f"{what} in {where}")

    def where(self, what: str, wrong: Any, rounds: NDArray[np.int64] | None = None) -> None:
        """Add one problem for a fault, as ``in_rounds``.

        ``wrong``, shape (k,), bool, says which of ``rounds``, shape (k,), have it; None for 1, 2,
        ...
        """
        self.in_rounds(what, np.flatnonzero(wrong) + 1 if rounds is None else rounds[wrong])

    def test(self, what: str, value: float, parts: float, sign: str = "=") -> None:
        """Add a problem if a p-value is below the level over ``parts``, or is no number.

        ``what`` says what it means; ``sign`` is "<=" for a bound of a p-value.
        """
        self.add(not value >= LEVEL / parts, f"{what}: p {sign} {value:.3g}")

    def test_rounds(self, what: str, values: Any, rounds: NDArray[np.int64], parts: float) -> None:
        """Test a p-value of each round, shape (k,), with a level over ``parts`` that all share.

        One that is no number is too small. ``rounds`` has their numbers, from 1.
        """
        allowed = LEVEL / parts
        self.where(what, ~(np.asarray(values) * max(1, len(values)) >= allowed), rounds)

    def seen(self, text: str, power: str | None = None, /, **numbers: Any) -> Finding:
        """Say what was looked at.

        ``power`` is, of a check of random numbers, the smallest deviation that it sees, in a run of
        this length, with probability ``SEEN``.
        """
        self.numbers |= numbers
        if power is not None:
            self.numbers["smallest_seen"] = power
            text += f". A run of this length would show {power}"
        self.text = text
        return self


@dataclass(slots=True)
class Comparison(Finding):
    """Findings over steps, whose sketches are compared with those that the reference computes."""

    steps: int = 0
    largest: float = 0.0  # difference, in multiples of what is allowed

    def compare(
        self, what: str, recorded: NDArray[np.float64], own: NDArray[np.float64], allowed: float
    ) -> None:
        """Add a problem if two sketches, shape (BLOCKS + 1,), differ by more than is allowed."""
        off = float(np.abs(recorded - own).max())
        self.largest = max(self.largest, float(off / allowed))
        self.add(
            not off <= allowed,
            f"{what} is not what the reference computes: its norm is {recorded[0]:.6g} instead of "
            f"{own[0]:.6g}, its sketch off by {off:.2g}, rounding makes {allowed:.1g} at most",
        )

    def compared(self, text: str) -> Finding:
        """Say what was looked at, and the largest difference."""
        if self.largest:
            text += f"; largest difference {self.largest:.2g} of what rounding may make"
        return self.seen(text, steps=self.steps, largest=self.largest)


@dataclass(frozen=True, slots=True)
class Claim:
    """A check that can be made of any run."""

    name: str  # of the checks; "{}" stands for a label
    text: str  # the claim; "{}" stands for a label
    # Looks at a run's evidence and inputs, and at a label if there is one.
    body: Callable[..., Finding]

    def __call__(self, evidence: Evidence, inputs: AuditInputs, *label: str) -> Check:
        """Make the check; ``label`` is a side, where the name has a place for it."""
        name, claim = self.name.format(*label), self.text.format(*label)
        # A ledger that was tampered with may hold any number. What comes of it is NaN or infinite,
        # which no check takes for a pass.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                found = self.body(evidence, inputs, *label)
            except SkippedError as error:
                return Check(name, error.outcome, claim, str(error), error.numbers)
            except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                # The same, of what ends in no number: an infinite count, text for a mapping.
                what = f"{error} ({type(error).__name__})"
                text = f"no run records such values: with them the check ends in {what}"
                return Check(name, "failed", claim, text)
        return conclude(name, claim, found)


def check(name: str, claim: str) -> Callable[[Callable[..., Finding]], Claim]:
    """Make a function the check of a machine name and of a claim, a sentence that must be so."""
    return lambda body: Claim(name, claim, body)


def conclude(name: str, claim: str, found: Finding) -> Check:
    """The check that a finding comes to: failed if there is a problem."""
    if not found.problems:
        return Check(name, "passed", claim, found.text, found.numbers)
    shown = "; ".join(found.problems[:_NAMED])
    if len(found.problems) > _NAMED:
        shown += f"; and {len(found.problems) - _NAMED} more"
    return Check(name, "failed", claim, f"{shown}. Looked at: {found.text}", found.numbers)


def verdict(checks: Sequence[Check]) -> Outcome:
    """Verdict of checks: "failed", "incomplete" or "passed"."""
    outcomes = {check.outcome for check in checks}
    for outcome in ("failed", "incomplete"):
        if outcome in outcomes:
            return outcome
    return "passed"
