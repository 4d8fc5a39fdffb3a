"""Sampling schemes that the audit has no description of its own of: what they say of themselves.

Guarantee: none of its own. What such a scheme leaves unsaid is not known, and a check that needs it
is incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from privacy.audit.inputs import as_number
from privacy.errors import PrivacyError
from privacy.sampling_scheme import Participation

# How each scheme is accounted: written down here once more, independent of the plan's table.
ADJACENCY = {
    "poisson": "add-or-remove-one",
    "truncated_poisson": "add-or-remove-one",
    "cyclic_poisson": "add-or-remove-one",
    "full": "add-or-remove-one",
    "fixed_size": "replace-one",
    "selected": "zero-out",
    "shuffled": "zero-out",
}


def own_users(constants: Mapping[str, Any], label: str = "actual") -> Participation | None:
    """Users as a scheme draws them that is not described here; None of any other."""
    if str(constants.get("sampling")) in ADJACENCY or not isinstance(constants.get(label), Mapping):
        return None
    with suppress(ValueError):
        return users_of(constants, label)
    return None


def users_of(constants: Mapping[str, Any], label: str) -> Participation:
    """Users as a side of the constants has them drawn; ``ValueError`` for numbers that are none."""
    side, cap = constants.get(label) or {}, constants.get("max_participations")
    return Participation.named(
        str(constants.get("sampling")),
        _whole(side.get("population_size"), f"{label}.population_size"),
        as_number(side.get("cohort_size")),
        _whole(constants.get("separation", 1), "separation"),
        None if cap is None else _whole(cap, "max_participations"),
    )


def _whole(value: Any, name: str) -> int:
    number = as_number(value)
    if not number.is_integer():
        raise PrivacyError(f"{name} is {value!r} in the ledger, but must be a whole number")
    return int(number)
