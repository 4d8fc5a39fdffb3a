"""Sampling schemes that the audit has no description of its own of: what they say of themselves.

Guarantee: none of its own. What such a scheme leaves unsaid is not known, and a check that needs it
is incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    name, side = str(constants.get("sampling")), constants.get(label)
    if name in ADJACENCY or not isinstance(side, Mapping):
        return None
    sizes = [as_number(side.get(key)) for key in ("population_size", "cohort_size")]
    cap = constants.get("max_participations")
    try:
        return Participation.named(
            name,
            int(sizes[0]),
            sizes[1],
            int(as_number(constants.get("separation", 1))),
            None if cap is None else int(as_number(cap)),
        )
    except (PrivacyError, ValueError, OverflowError):
        return None
