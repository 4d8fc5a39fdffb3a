"""Clients that have models of their own, and where the users of evaluated splits are among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pfl_bench.config.schema import RunConfig
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import ConfigError, FederatedSplit, PersonalModels, Task


class PersonalizedModels:
    """Base of what gives evaluation models of the clients' own.

    The clients, ``_users`` of shape (C,), are ascending indices into the training split: all users,
    or ``num_clients`` drawn by the run's seed. ``notice`` is told of users of evaluated splits who
    have no model. ConfigError, which names the trainer's section, if the data do not fit: splits
    must divide each user's examples.
    """

    def __init__(
        self,
        config: RunConfig,
        section: str,
        task: Task,
        num_clients: int | None,
        notice: Callable[[str], None],
    ) -> None:
        if task.facts.split_by != "example":
            raise ConfigError(
                f"{section}: clients are tested with models of their own, but the splits of these "
                "data divide the clients, so no tested client has training examples; use data "
                "split by example (data prepare TASK ... split_by=example), or federated with "
                "evaluation.adaptation"
            )
        train = task.split("train")
        self._users: NDArray[np.int64] = np.arange(train.num_users)
        if num_clients is not None:
            if num_clients > train.num_users:
                raise ConfigError(
                    f"{section}.num_clients: {num_clients} is more than the {train.num_users} "
                    "training users; lower it, or leave it out for all"
                )
            rng = stream(config.seed, Purpose.PERSONAL)
            self._users = np.sort(rng.choice(train.num_users, num_clients, replace=False))
        ids = train.client_ids()
        self._place_of = {ids[user]: place for place, user in enumerate(self._users.tolist())}
        self._places: dict[str, NDArray[np.int64]] = {}
        evaluated = [*config.evaluation.splits, *config.evaluation.final_splits]
        for name in dict.fromkeys(evaluated):
            split = task.split(name)
            without = int((self._places_of(split) < 0).sum())
            if without == split.num_users:
                raise ConfigError(
                    f"{section}: no client of split '{name}' has training examples, so none has a "
                    "model of its own; evaluate a split of the same clients"
                )
            if without:
                notice(
                    f"split '{name}': {without} of its {split.num_users} clients have no model of "
                    "their own (no training examples, or not drawn) and are left out"
                )

    def _places_of(self, split: FederatedSplit) -> NDArray[np.int64]:
        """Place of each user of a split in ``_users`` by client id, shape (num_users,); or -1."""
        if split.name not in self._places:
            found = (self._place_of.get(name, -1) for name in split.client_ids())
            self._places[split.name] = np.fromiter(found, dtype=np.int64, count=split.num_users)
        return self._places[split.name]

    @property
    def personal(self) -> PersonalModels:
        """Clients' own models, for a trainer that makes them: its own."""
        return self

    def _put_model(self, place: int) -> None:
        """Put the model of the client at a place among ``_users`` into the working memory."""
        raise NotImplementedError

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        """Put a client's own model into the working memory.

        Gives all positions of the user's examples, shape (n,); none if the user is no client.
        """
        place = int(self._places_of(split)[user])
        if place < 0:
            return np.arange(0)
        self._put_model(place)
        return np.arange(int(split.offsets[user + 1] - split.offsets[user]))
