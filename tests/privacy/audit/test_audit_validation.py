"""A quick part of scripts/audit_validation.py: bounds are below the truth where it is known."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from scipy.stats import binom

from scripts.validation.trials import (
    GAUSSIAN,
    Mechanism,
    one_run_trial,
    one_shot_trial,
    per_round_trial,
    run_trials,
)

TRIALS = 60
MOST_ABOVE = binom.ppf(0.999, TRIALS, 0.025)


def bounds_of(trial: Any, mechanism: Mechanism, epsilon: float, effect: bool) -> dict[str, Any]:
    found = run_trials(mechanism, trial, epsilon, effect, TRIALS, seed=2)
    return {name: values for name, values in found.items() if "estimate" not in name}


CASES = [
    (partial(per_round_trial, count=1000), GAUSSIAN),
    (partial(one_run_trial, count=200), GAUSSIAN),
    (one_shot_trial, GAUSSIAN),
]


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 16.0])
@pytest.mark.parametrize(("trial", "mechanism"), CASES, ids=["per_round", "one_run", "one_shot"])
def test_bounds_are_below_the_truth(trial: Any, mechanism: Mechanism, epsilon: float) -> None:
    for name, bounds in bounds_of(trial, mechanism, epsilon, True).items():
        assert (bounds > epsilon).sum() <= MOST_ABOVE, name
        if name.startswith("worst_case, normal") and epsilon >= 4.0:
            assert (bounds >= epsilon / 2).all(), name


@pytest.mark.parametrize(("trial", "mechanism"), CASES, ids=["per_round", "one_run", "one_shot"])
def test_without_effect_bounds_are_0(trial: Any, mechanism: Mechanism) -> None:
    for name, bounds in bounds_of(trial, mechanism, 4.0, False).items():
        assert (bounds > 0.0).sum() <= MOST_ABOVE, name
