"""Errors of the privacy package; each message says what is wrong, why, and how to mend it."""

from __future__ import annotations

import math


class PrivacyError(ValueError):
    """Something asked of the privacy package is wrong or cannot be done."""


class PlanError(PrivacyError):
    """A combination whose accounting would be wrong, or that no accountant here can account."""


class BudgetExceededError(PrivacyError):
    """The next round would spend more than the budget; it must not be run."""


class LedgerError(PrivacyError):
    """A ledger is damaged, has been altered, or would come to count a release twice."""


def check_count(name: str, value: float, least: int = 1) -> None:
    """Refuse what is no whole number, or is below ``least``."""
    if value < least or value != int(value):
        raise PrivacyError(f"{name} is {value!r}, but must be a whole number, at least {least}")


def check_noise_multiplier(value: float) -> None:
    """Refuse a noise multiplier that is not finite, or is below 0."""
    if not (math.isfinite(value) and value >= 0.0):
        raise PrivacyError(f"noise_multiplier is {value!r}, but must be finite and at least 0")
