"""Trainers whose only models are the clients' own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfl_bench.evaluation.personalized_clients import PersonalizedClients
from pfl_bench.types import FederatedSplit, PersonalModels, Trainer


@dataclass(frozen=True)
class ExpectedWork:
    """Expected work of all rounds of a run together.

    ``clients`` counts trainings of a client, one client in two rounds twice; ``flops`` is None
    where it follows from steps and examples; ``num_bytes`` go each way, to clients and from them.
    """

    clients: float
    steps: float
    examples: float
    flops: float | None
    num_bytes: float


class PersonalizedModels(Trainer):
    """Base of trainers whose only models are the clients' own: no release, no centre."""

    def __init__(self, clients: PersonalizedClients) -> None:
        self._clients = clients

    def expected_work(self) -> ExpectedWork:
        """Expected work of training, if no loss diverges."""
        raise NotImplementedError

    def _put_model(self, place: int) -> None:
        """Put the model of the client at a place among ``clients`` into the working memory."""
        raise NotImplementedError

    @property
    def personal(self) -> PersonalModels:
        """Clients' own models, for evaluation: this trainer gives them."""
        return self

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        """Put a client's own model into the working memory.

        Gives all positions of the user's examples; none if the user is no client.
        """
        place = int(self._clients.places(split)[user])
        if place < 0:
            return np.arange(0)
        self._put_model(place)
        return np.arange(int(split.offsets[user + 1] - split.offsets[user]))
