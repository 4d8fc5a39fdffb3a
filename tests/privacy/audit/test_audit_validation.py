"""A quick part of scripts/audit_validation.py: bounds are below the truth where it is known."""

from __future__ import annotations

import runpy
from functools import partial
from typing import Any

import pytest
from scipy.stats import binom

from tests.helpers import REPOSITORY

SCRIPT: dict[str, Any] = runpy.run_path(str(REPOSITORY / "scripts" / "audit_validation.py"))
TRIALS = 60
MOST_ABOVE = binom.ppf(0.999, TRIALS, 0.025)


def bounds_of(trial: Any, mechanism: str, epsilon: float, effect: bool) -> dict[str, Any]:
    found: dict[str, Any] = SCRIPT["run_trials"](
        SCRIPT[mechanism], trial, epsilon, effect, TRIALS, seed=2
    )
    return {name: values for name, values in found.items() if "estimate" not in name}


CASES = [
    (partial(SCRIPT["per_round_trial"], count=1000), "GAUSSIAN"),
    (partial(SCRIPT["one_run_trial"], count=200), "GAUSSIAN"),
    (SCRIPT["one_shot_trial"], "GAUSSIAN"),
]


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 16.0])
@pytest.mark.parametrize(("trial", "mechanism"), CASES, ids=["per_round", "one_run", "one_shot"])
def test_bounds_are_below_the_truth(trial: Any, mechanism: str, epsilon: float) -> None:
    for name, bounds in bounds_of(trial, mechanism, epsilon, True).items():
        assert (bounds > epsilon).sum() <= MOST_ABOVE, name
        if name.startswith("worst_case, normal") and epsilon >= 4.0:
            assert (bounds >= epsilon / 2).all(), name


@pytest.mark.parametrize(("trial", "mechanism"), CASES, ids=["per_round", "one_run", "one_shot"])
def test_without_effect_bounds_are_0(trial: Any, mechanism: str) -> None:
    for name, bounds in bounds_of(trial, mechanism, 4.0, False).items():
        assert (bounds > 0.0).sum() <= MOST_ABOVE, name
