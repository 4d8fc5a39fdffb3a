"""Base of algorithms whose clients remember something from round to round."""

from __future__ import annotations

from collections.abc import Callable

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.types import ClientUpload, LocalResult, UpdateTransform


class LearnsFromClients(UpdateTransform):
    """Tells an algorithm of each client that has trained, and leaves its update as it is.

    ``learn`` is called with what a client's training gave, with what the client counts for, and
    with the round, from 1. A client may send a vector of P parameters beside its update.
    """

    keeps_state = True

    def __init__(
        self, learn: Callable[[LocalResult, float, int], None], sends_vector: bool
    ) -> None:
        self._learn = learn
        self._sends_vector = sends_vector

    def send(self, upload: ClientUpload, result: LocalResult, round_index: int) -> ClientUpload:
        """See ``UpdateTransform``."""
        self._learn(result, upload.weight, round_index)
        if self._sends_vector:
            upload.num_bytes += result.update.numel() * BYTES_PER_PARAMETER
        return upload
