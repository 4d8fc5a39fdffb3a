"""Trainers whose only models are the clients' own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_bench.evaluation.personalized_clients import PersonalizedClients
from pfl_bench.types import FederatedSplit, PersonalModels, Trainer


class PersonalizedModels(Trainer):
    """Base of trainers whose only models are the clients' own: no release, no centre."""

    def __init__(self, clients: PersonalizedClients) -> None:
        self._clients = clients

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
