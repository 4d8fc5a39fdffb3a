"""Scores that are kept of a run for each kind of canary, from which its bound follows.

Guarantee: none is claimed; each result says in words what its lower bound rests on
(``rests_on``). Unit: a canary, as a user; adjacency add-or-remove-one, under
selected zero-out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.amplification import Composition
from privacy.empirical.canary_options import CanaryOptions
from privacy.empirical.one_shot import audit_final, audit_held_out
from privacy.empirical.per_round import (
    THRESHOLD,
    StepTrials,
    epsilon_of_run,
    mu_by_clopper_pearson,
    mu_by_normal,
)
from privacy.errors import PrivacyError

Compose = Callable[[float, int], Composition]
Array = NDArray[np.float64]

COINS = "the canaries' directions, coins and participations are independent of data and noise"
_NO_SCORE = "nothing was observed, or nothing moved along the canaries: no bound but 0"


@dataclass(frozen=True, slots=True)
class CanaryObservation:
    """One round, along the directions.

    Attributes:
        release: Shape (n,): inner products with the released mean update, in parts of what one
            canary moves it by (clip_norm / cohort_size), less what the auditor knows of others.
        release_norm: Norm of the released mean update in the same parts.
        moved: Shape (n,): inner products with how far the model has moved since the start.
        moved_norm: Its norm.
        eligible: Shape (m,): canaries for which the round is one that they can take part in.
        taking_part: Shape (m,): those that did.
        round_number: From 1.
    """

    release: Array
    release_norm: float
    moved: Array
    moved_norm: float
    eligible: NDArray[np.bool_]
    taking_part: NDArray[np.bool_]
    round_number: int = 0


class ArrayScores:
    """Arrays that are all that is kept, by name: "scores", one for each direction, shape (n,)."""

    def __init__(self, options: CanaryOptions, **kept: Array) -> None:
        self._options = options
        self._kept = kept

    def observe(self, seen: CanaryObservation) -> None:
        """Keep the newest cosine with the movement, or what a round adds to the scores."""
        if self._options.seen_access == "final":
            self._kept["scores"] = _cosines(seen.moved, seen.moved_norm)
        else:
            self._kept["scores"] = self._after(seen)

    def _after(self, seen: CanaryObservation) -> Array:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """All arrays that are kept; coins and directions come from their streams."""
        return {name: torch.from_numpy(array.copy()) for name, array in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what is kept."""
        shapes = {name: array.shape for name, array in self._kept.items()}
        if {name: tuple(saved.shape) for name, saved in state.items()} != shapes:
            raise PrivacyError(
                "the saved canaries are not of this configuration, which keeps arrays of the "
                f"shapes {shapes}; resume with the configuration and the version that the run was "
                "started with"
            )
        for name, saved in state.items():
            self._kept[name] = np.asarray(saved.numpy(), dtype=np.float64).copy()


def _cosines(products: Array, norm: float) -> Array:
    """Inner products with directions of norm 1 to cosines; zeros for a vector of norm 0."""
    return products / norm if norm > 0.0 else np.zeros_like(products)


class OneShotScores(ArrayScores):
    """Cosines with the final model, or the largest of every round's.

    ``num_held_out`` directions after those of the canaries none has used.
    """

    def __init__(self, options: CanaryOptions, num_parameters: int, num_held_out: int) -> None:
        start = 0.0 if options.seen_access == "final" else -np.inf
        super().__init__(options, scores=np.full(options.count + num_held_out, start))
        self._num_parameters = num_parameters

    def _after(self, seen: CanaryObservation) -> Array:
        return np.maximum(self._kept["scores"], _cosines(seen.release, seen.release_norm))

    def result(self, rounds: int, delta: float, compose: Compose) -> dict[str, Any]:
        """The laws of the cosines, and the epsilon of telling them apart."""
        options, kept = self._options, self._kept["scores"]
        scores, held_out = kept[: options.count], kept[options.count :]
        *always, law = one_shot_rests_on(options)
        if rounds == 0 or not kept.any():
            return nothing(always)
        if options.seen_access == "final":
            bound = audit_final(scores, self._num_parameters, delta, options.one_sided)
        else:
            bound = audit_held_out(scores, held_out, delta, options.one_sided)
        return {**bound.to_json_dict(), "scores": scores.tolist(), "rests_on": [*always, law]}


def one_shot_rests_on(options: CanaryOptions) -> list[str]:
    """Assumptions of the bound of one shot, in words; the last is of the law without a canary."""
    is_final = options.seen_access == "final"
    law = "normal of variance 1/P" if is_final else "a normal one fitted to held-out directions"
    return [
        COINS,
        "cosines are normal, and a canary shifts its own without changing the spread",
        f"the null law is {law}",
    ]


class StepScores:
    """Trials of every round."""

    def __init__(self, options: CanaryOptions) -> None:
        self._options = options
        self._trials = StepTrials()
        # Of the last round: coins that the threshold guesses right, and coins.
        self.last_guesses = 0, 0

    def observe(self, seen: CanaryObservation) -> None:
        """Add the round's trials."""
        right = int(((seen.release > THRESHOLD) == seen.taking_part).sum())
        self.last_guesses = right, seen.taking_part.size
        self._trials.add(seen.release, seen.taking_part)

    def result(self, rounds: int, delta: float, compose: Compose) -> dict[str, Any]:
        """The bound of a step, and of the run that is composed of such steps."""
        found = step_bounds(self._trials, self._options, rounds, delta, compose)
        return {**found, "trials": asdict(self._trials)}

    def state_dict(self) -> dict[str, Any]:
        """The sums over trials."""
        return asdict(self._trials)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums."""
        names = {field.name for field in fields(StepTrials)}
        if set(state) != names:
            raise PrivacyError(f"the saved canaries have {sorted(state)}, not {sorted(names)}")
        self._trials = StepTrials(**state)


def step_bounds(
    trials: StepTrials, options: CanaryOptions, rounds: int, delta: float, compose: Compose
) -> dict[str, Any]:
    """Members of ``canaries.json`` that follow from trials; "lower_bound" 0 if none composes."""
    bound = mu_by_normal if options.step_bound == "normal" else mu_by_clopper_pearson
    mu, shift = bound(trials, options.one_sided), trials.shift
    lower = epsilon_of_run(mu, rounds, delta, compose)
    rests_on = [
        COINS,
        "each round's noise is drawn anew and Gaussian; users are drawn as the sampler claims; "
        "rounds compose as the accountant says (a lower bound given this structure)",
    ]
    if options.step_bound == "normal":
        rests_on.append("the release along a canary is normal with one spread, in or out")
    if lower is None:
        rests_on.append(
            "no lower bound can be composed for this mechanism and sampler, so it is 0; "
            "mu_lower_bound is that of one step"
        )
    return {
        "method": f"per_round_{options.step_bound}",
        "estimate": epsilon_of_run(max(shift or 0.0, 0.0), rounds, delta, compose),
        "lower_bound": lower or 0.0,
        "rests_on": rests_on,
        "mu_lower_bound": mu if math.isfinite(mu) else None,
        "mu_estimate": shift if shift is None or math.isfinite(shift) else None,
    }


def nothing(rests_on: list[str]) -> dict[str, Any]:
    """The result of canaries that have shown nothing: a lower bound of 0."""
    return {
        "method": "none",
        "estimate": None,
        "lower_bound": 0.0,
        "scores": None,
        "rests_on": [*rests_on, _NO_SCORE],
    }
