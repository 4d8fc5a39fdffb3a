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
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.evaluation.personalized_clients import PersonalizedClients
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.types import Algorithm, FederatedSplit, LocalResult


class PersonalTraining:
    """Trains the models that the clients of a round keep, one client after another.

    A client's draws are those of its training of the central model: both models see the same
    batches in the same order, as far as they take as many.

    Args:
        parts: What the run is made of; its algorithm has a ``personal_training``.
    """

    def __init__(self, parts: FederatedParts) -> None:
        local = parts.algorithm.personal_training
        assert local is not None, "the algorithm has none: see of()"
        self._algorithm, self._weight = parts.algorithm, local.proximal_weight
        self._pull: Tensor | None = None
        self._engine = sequential.SequentialEngine(
            sequential.Options(),
            parts.model,
            parts.split,
            parts.forward,
            local,
            parts.resolved.config.seed,
            lambda user: self._pull,
        )

    @classmethod
    def of(cls, parts: FederatedParts) -> PersonalTraining | None:
        """That of a run; None if its algorithm's clients keep no models."""
        return None if parts.algorithm.personal_training is None else cls(parts)

    def train(self, users: NDArray[np.int64], index: int, central: Tensor) -> Iterator[LocalResult]:
        """Train the own model of each user; one that comes out not finite is not kept.

        Args:
            users: Indices into the training split.
            index: The round, from 1.
            central: Shape (P,).

        Yields:
            One result a user, whose ``update`` is that of its own model.
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


class KeptModels:
    """Gives evaluation the models that clients keep; others are evaluated with the central one.

    Args:
        algorithm: Keeps them.
        model: Its memory is the working copy.
        clients: The training users, by the ids that evaluated splits name them.
    """

    def __init__(
        self, algorithm: Algorithm, model: FlatModel, clients: PersonalizedClients
    ) -> None:
        self._algorithm = algorithm
        self._model = model
        self._clients = clients
        self._central = torch.zeros(0)

    @classmethod
    def of(cls, parts: FederatedParts, notice: Callable[[str], None]) -> KeptModels | None:
        """Those of a run; None if its algorithm's clients keep none.

        Args:
            parts: What the run is made of.
            notice: Told of users of evaluated splits who train nothing.

        Raises:
            ConfigError: Evaluated splits have other users than the training split.
        """
        if parts.algorithm.personal_training is None:
            return None
        section = parts.name_of("algorithm")
        clients = PersonalizedClients(parts.resolved.config, section, parts.task, None, notice)
        return cls(parts.algorithm, parts.model, clients)

    def begin(self) -> None:
        """See ``OwnModels``."""
        self._central = self._model.vector.clone()

    def end(self) -> None:
        """See ``OwnModels``."""
        self._model.vector.copy_(self._central)

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        """Put a user's own model into the working memory.

        Args:
            split: The split whose user it is.
            user: Index of the user.

        Returns:
            All positions of the user's examples; none for a user who has no training examples.
        """
        place = int(self._clients.places(split)[user])
        if place < 0:
            return np.arange(0)
        kept = self._algorithm.own_model(place)
        self._model.vector.copy_(self._central if kept is None else kept)
        return np.arange(int(split.offsets[user + 1] - split.offsets[user]))
