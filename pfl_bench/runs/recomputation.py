"""Result of computing rounds again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from privacy.audit.check import Check

Mode = Literal["none", "first", "sample", "all"]
MODES: tuple[Mode, ...] = ("none", "first", "sample", "all")
# Of one core, by default.
SECONDS = 8.0
_CLAIM = "Rounds that are computed again, by a plain loop from their start, come to the same."


@dataclass
class Recomputation:
    """Rounds that were computed again, and the differences found.

    Attributes:
        mode: Which rounds were asked for.
        of: Rounds that the ledger has.
        rounds: Rounds that were computed again, in the order in which they were.
        problems: What differs, by round.
        reasons: Why not all of those that were asked for, a clause each.
        compared: Checkpoints that were compared element by element.
        far: The largest distance of central parameters from a checkpoint's.
        seconds: It took.
        code: Digests of the code that ran (empty if unknown) and of the code that audits.
        unit: What is counted: "rounds", or "steps" of DP-SGD.
    """

    mode: Mode
    of: int = 0
    rounds: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)
    far: float = 0.0
    seconds: float = 0.0
    code: dict[str, str] = field(default_factory=dict)
    unit: str = "rounds"

    def to_json_dict(self) -> dict[str, Any]:
        """As ``audit.json`` has it."""
        return {
            "mode": self.mode,
            "rounds": len(self.rounds),
            "of": self.of,
            "unit": self.unit,
            "which": sorted(self.rounds) if self.unit == "rounds" else [],
            "problems": self.problems,
            "not_recomputed": self.reasons,
            "checkpoints": self.compared,
            "seconds": round(self.seconds, 2),
            "code": {**self.code, "same": len(set(self.code.values())) == 1},
        }

    def to_check(self) -> Check:
        """The recomputation as a check of an audit: skipped where no round was computed."""
        why = f"; not all: {'; '.join(self.reasons)}" if self.reasons else ""
        if self.problems:
            return Check("recomputation", "failed", _CLAIM, "; ".join(self.problems[:6]))
        if not self.rounds:
            return Check("recomputation", "skipped", _CLAIM, f"not recomputed{why[9:]}")
        text = f"{len(self.rounds)} of {self.of} rounds computed again in {self.seconds:.1f} s"
        if self.compared:
            named = ", ".join(map(str, self.compared))
            text += f"; parameters after round {named} within {self.far:.2g}, element by element"
        return Check("recomputation", "passed", _CLAIM, text + why)
