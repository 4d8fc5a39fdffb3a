"""Engine with corrupted clients: the rounds of the attack, and the updates that they forge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.config.sections import AttackOptions
from pfl_bench.config.training import FederatedOptions
from pfl_bench.simulation.corrupted_task import CorruptedSplit
from pfl_bench.types import Engine, FederatedSplit, LocalResult, returned


def boost_of(attack: AttackOptions, federated: FederatedOptions) -> float:
    """The factor on what a corrupted client sends.

    With k attackers among n clients of a round and central rate r, the mean moves the model by
    r / n times the sum of updates: n / (k * r) times each attacker's moves it to the attackers'
    mean model, as far as the honest clients stay where they are.

    Source: Bagdasaryan et al. 2020, "How to backdoor federated learning", section 4.2, equation 3.
    """
    if attack.boost != "replace":
        return attack.boost
    attackers = max(1.0, attack.corrupted_fraction * federated.cohort_size)
    return max(1.0, federated.cohort_size / (attackers * federated.central_learning_rate))


def attacking(
    engine: Engine,
    split: FederatedSplit,
    attack: AttackOptions,
    federated: FederatedOptions,
    notice: Callable[[str], None],
) -> AttackingEngine:
    """The engine of a run whose training split has corrupted users; says that they attack."""
    assert isinstance(split, CorruptedSplit)  # a task under attack gives no other
    boost = boost_of(attack, federated)
    every = "each round" if attack.every == 1 else f"one round in {attack.every}"
    notice(
        f"attack: {attack.kind} by {len(split.corrupted)} of {split.num_users} training users in "
        f"{every}, what they send times {boost:g}"
    )
    return AttackingEngine(engine, split, attack.every, boost)


class AttackingEngine:
    """An engine whose corrupted clients attack in one of ``every`` rounds.

    An attacker's update is multiplied by ``boost``.
    """

    def __init__(self, engine: Engine, split: CorruptedSplit, every: int, boost: float) -> None:
        self._engine = engine
        self._split = split
        self._every = every
        self._boost = boost
        self.description = engine.description
        self.trains_alone = engine.trains_alone

    def train(
        self, users: NDArray[np.int64], round_index: int, central: Tensor
    ) -> Iterator[LocalResult]:
        """Train each user; see ``Engine.train``."""
        is_attacked = round_index % self._every == 0
        self._split.is_attacked = is_attacked
        for result in self._engine.train(users, round_index, central):
            if not is_attacked or result.user not in self._split.corrupted:
                yield result
                continue
            poison = self._split.poison
            forged = poison.forge(result.update, result.user, round_index)
            update = returned(poison, "forge", forged, Tensor, result.update.shape)
            if self._boost != 1.0:
                update = update * self._boost
            yield result if update is result.update else replace(result, update=update)
