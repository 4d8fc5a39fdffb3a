"""Sizes, separations and caps that no scheme can keep: each is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from privacy.amplification import Participation
from privacy.errors import PrivacyError

FITTING: dict[str, Any] = {
    "scheme": "selected",
    "population_size": 12,
    "cohort_size": 3,
    "min_separation": 2,
    "max_participations": 1,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_participations": 0}, "max_participations is 0, but must be a whole number of"),
        ({"max_participations": 1.5}, "max_participations is 1.5, but must be a whole number of"),
        ({"min_separation": 0}, "separation is 0, but must be a whole number of rounds"),
        ({"min_separation": 1.5}, "separation is 1.5, but must be a whole number of rounds"),
        ({"population_size": 0}, "population_size is 0, but must be a whole number of users"),
        ({"population_size": 12.5}, "population_size is 12.5, but must be a whole number of"),
        ({"cohort_size": 0}, "cohort_size is 0, but must be positive"),
        ({"cohort_size": 13}, "cohort_size 13 is more than population_size 12"),
        ({"scheme": "poisson"}, "separation is 2 under poisson sampling"),
        ({"scheme": "poisson", "min_separation": 1}, "max_participations is 1 under poisson"),
        ({"scheme": "full", "min_separation": 1}, "under full participation the cohort is"),
    ],
)
def test_what_no_scheme_can_keep_is_refused(changes: dict[str, Any], message: str) -> None:
    assert Participation.named(**FITTING).max_participations == 1
    with pytest.raises(PrivacyError, match=message):
        Participation.named(**{**FITTING, **changes})
