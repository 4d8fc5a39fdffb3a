"""Errors of the privacy package; each message says what is wrong, why, and how to mend it."""

from __future__ import annotations


class PrivacyError(ValueError):
    """Something asked of the privacy package is wrong or cannot be done."""


class PlanError(PrivacyError):
    """A combination whose accounting would be wrong, or that no accountant here can account."""


class BudgetExceededError(PrivacyError):
    """The next round would spend more than the budget; it must not be run."""


class LedgerError(PrivacyError):
    """A ledger is damaged, has been altered, or would come to count a release twice."""
