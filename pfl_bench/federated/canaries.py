"""Canaries of a private federated run, built from its plan and its private seed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pfl_bench.rng import Purpose, stream
from pfl_bench.types import ConfigError
from privacy.description import Columns
from privacy.plan.plan import PrivacyPlan

if TYPE_CHECKING:
    from privacy.empirical.canaries import Canaries
    from privacy.empirical.canary_options import CanaryOptions


def build_canaries(
    options: CanaryOptions, plan: PrivacyPlan, seed: int, device: torch.device
) -> Canaries:
    """Build a run's canaries, drawn by its private seed; ConfigError if they suit no mechanism."""
    from privacy.empirical.canaries import Canaries

    stated = plan.mechanism.description
    if stated.norm == "l1" and options.seen_direction == "sphere":
        raise ConfigError(
            f"privacy.audit: canaries in directions of the sphere have a bounded L2 norm, but "
            f"{plan.mechanism.name} clips in L1, which would shrink them to nothing; set "
            "privacy.audit.kind to one_run with direction: coordinate"
        )
    canaries = Canaries(
        options,
        plan.request.num_parameters,
        plan.actual.participation,
        plan.request.num_rounds,
        plan.actual.noise_multiplier,
        partial(stream, seed, Purpose.CANARIES),
        device,
    )
    is_central = stated.law == "gaussian" and not stated.randomizes_clients
    # A matrix that is not stated has no covariance either.
    known = None if isinstance(stated.strategy, Columns) else stated.strategy
    canaries.match(known if is_central else None)
    return canaries


def canary_result(canaries: Canaries, plan: PrivacyPlan, done: int) -> dict[str, Any]:
    """Bounds that a run's canaries show after ``done`` rounds, all that they have seen."""
    actual = plan.actual
    assert actual.delta is not None
    compose = partial(plan.mechanism.composition, actual.participation)
    return canaries.result(done, actual.delta, compose)
