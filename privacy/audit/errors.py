"""Reasons why a check is not made."""

from __future__ import annotations

from typing import Any, Literal


class SkippedError(Exception):
    """Nothing is looked at, for a reason; ``numbers`` as of ``Check``."""

    outcome: Literal["skipped", "incomplete"] = "skipped"

    def __init__(self, reason: str, **numbers: Any) -> None:
        super().__init__(reason)
        self.numbers = numbers


class IncompleteError(SkippedError):
    """The check cannot be made because the folder, or what a plug-in states, lacks something."""

    outcome = "incomplete"
