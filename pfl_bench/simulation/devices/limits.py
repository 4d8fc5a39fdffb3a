"""Limits of participation: at most so often, and not too soon."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pfl_bench.simulation.devices.availability import Ids
from pfl_bench.types import ConfigError


class Limits:
    """The limits of a run; a user was in a round if its update was used.

    Two rounds of one user are ``separation`` or more apart, and it is in ``most`` of them at most,
    if that is limited. There must be enough users to fill the rounds.
    """

    def __init__(
        self, num_users: int, cohort_size: int, num_rounds: int, separation: int, most: int | None
    ) -> None:
        if cohort_size * min(separation, num_rounds) > num_users:
            raise ConfigError(
                f"federated.cohort_size: {cohort_size} users a round that rest for separation "
                f"{separation} are {cohort_size * separation} users, but the training split has "
                f"{num_users}; lower one of them, or use data with more users"
            )
        if most is not None and cohort_size * num_rounds > num_users * most:
            raise ConfigError(
                f"federated.max_participations: {num_users} users, {most} times each, cannot fill "
                f"{num_rounds} rounds of {cohort_size}; raise it to "
                f"{-(-cohort_size * num_rounds // num_users)}, or lower num_rounds or cohort_size"
            )
        self._separation, self._most = separation, most
        self._everybody = np.arange(num_users, dtype=np.int64)
        self._counts = np.zeros(num_users, np.int64)
        self._last = np.zeros(num_users, np.int64)

    def allowed(self, index: int) -> Ids:
        """The users who may be in round ``index``, ascending."""
        if self._separation == 1 and self._most is None:
            return self._everybody
        free = (self._last == 0) | (index - self._last >= self._separation)
        if self._most is not None:
            free &= self._counts < self._most
        return np.flatnonzero(free)

    def note(self, users: Ids, index: int) -> None:
        """Take note of who was in a round."""
        self._counts[users] += 1
        self._last[users] = index

    def state_dict(self) -> dict[str, Any]:
        """Counts and last rounds."""
        return {
            "counts": torch.from_numpy(self._counts.copy()),
            "last": torch.from_numpy(self._last.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._counts = state["counts"].numpy().copy()
        self._last = state["last"].numpy().copy()
