"""Models that clients keep beside the central one: their training, and their evaluation.

They are made and tested where the client's examples are. Nothing of them reaches the centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.engines import sequential
from pfl_bench.evaluation.personalized_clients import PersonalizedModels
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.types import LocalResult


class PersonalTraining:
    """Trains the models that the clients of a round keep, one client after another.

    A client's draws are those of its training of the central model: both models see the same
    batches in the same order, as far as they take as many.
    """

    def __init__(self, parts: FederatedParts) -> None:
        local = parts.algorithm.personal_training
        assert local is not None, "the algorithm has none"
        self._algorithm, self._weight = parts.algorithm, local.proximal_weight
        self._pull: Tensor | None = None
        self._engine = sequential.SequentialEngine(
            sequential.Options(),
            parts.model,
            parts.split,
            parts.forward,
            local,
            parts.resolved.config.seed,
            correction=lambda user: self._pull,
        )

    def train(self, users: NDArray[np.int64], index: int, central: Tensor) -> Iterator[LocalResult]:
        """Train the own model of each user in a round, from 1, beside ``central``, shape (P,).

        One that comes out not finite is not kept. A result's ``update`` is that of the user's own
        model.
        """
        for user in users.tolist():
            kept = self._algorithm.own_model(user)
            start = central if kept is None else kept.to(central.device)
            # The engine's proximal term draws to where it starts. That this is elsewhere than the
            # central model adds the same to each gradient.
            self._pull = None if kept is None else self._weight * (start - central)
            for result in self._engine.train(np.array([user]), index, start):
                trained = start + result.update
                if bool(trained.isfinite().all()):
                    self._algorithm.keep(user, trained)
                yield result


class KeptModels(PersonalizedModels):
    """Gives evaluation the models that clients keep; others are evaluated with the central one.

    Users of evaluated splits who train nothing are told to ``notice``; a ConfigError if such splits
    have other users altogether.
    """

    def __init__(self, parts: FederatedParts, notice: Callable[[str], None]) -> None:
        self._algorithm = parts.algorithm
        self._model = parts.model
        section = parts.name_of("algorithm")
        super().__init__(parts.resolved.config, section, parts.task, None, notice)
        self._central = torch.zeros(0)

    def begin(self) -> None:
        """See ``OwnModels``."""
        self._central = self._model.vector.clone()

    def _put_model(self, place: int) -> None:
        kept = self._algorithm.own_model(place)
        self._model.vector.copy_(self._central if kept is None else kept)
