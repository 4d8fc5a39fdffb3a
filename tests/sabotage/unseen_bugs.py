"""Bugs that the record of one run cannot show: where the audit ends."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pfl_bench.client.engines.sequential import SequentialEngine
from tests.sabotage.planting import SEQUENTIAL, Bug, Patch


def train_on_from_the_last(patch: Patch) -> None:
    """A client begins where the client before it has ended, and sends the way of both."""
    real = SequentialEngine._train_client
    last: dict[str, Any] = {}

    def train(self: SequentialEngine, user: int, examples: Any, index: int, central: Tensor) -> Any:
        start = last["end"] if last.get("round") == index else central
        result = real(self, user, examples, index, start)
        last.update(round=index, end=self._model.vector.detach().clone())
        result.update.add_(start - central)
        return result

    patch.setattr(SequentialEngine, "_train_client", train)


UNSEEN = (
    Bug(
        "client_trains_on",
        "a client trains on from the client before, so that one user moves others' updates",
        "`SequentialEngine._train_client` begins elsewhere",
        unseen="the record begins where an update is taken in: what an update was computed from, "
        "only training it again would show",
        plant=train_on_from_the_last,
        changes=SEQUENTIAL,
    ),
)
