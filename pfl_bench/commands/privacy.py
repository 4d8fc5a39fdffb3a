"""``pfl-bench privacy``: calculations without a run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from privacy.calibration import calibrate_noise_multiplier, default_delta, epsilon_of_rounds
from privacy.statement import json_epsilon


def main(arguments: argparse.Namespace) -> int:
    """Calibrate noise to an epsilon, or give the epsilon of a noise."""
    delta = default_delta(arguments.population) if arguments.delta is None else arguments.delta
    shared = (
        delta,
        arguments.sampling,
        arguments.population,
        arguments.cohort,
        arguments.rounds,
        arguments.accountant,
    )
    if arguments.action == "calibrate":
        noise = calibrate_noise_multiplier(arguments.epsilon, *shared)
    else:
        noise = arguments.noise_multiplier
    answer: dict[str, Any] = {
        "unit": "user",
        "sampling": arguments.sampling,
        "population_size": arguments.population,
        "cohort_size": arguments.cohort,
        "sampling_probability": arguments.cohort / arguments.population,
        "rounds": arguments.rounds,
        "delta": delta,
        "accountant": arguments.accountant,
        "noise_multiplier": noise,
        "epsilon": json_epsilon(epsilon_of_rounds(noise, *shared)),
    }
    if arguments.action == "calibrate":
        answer["target_epsilon"] = arguments.epsilon
    if arguments.json:
        print(json.dumps(answer))
    else:
        for key, value in answer.items():
            print(f"{key:22} {value:.6g}" if isinstance(value, float) else f"{key:22} {value}")
    return 0
