"""What happens on a client between its local training and the centre: one stage after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from pfl_bench.costs import BYTES_PER_PARAMETER
from pfl_bench.types import Algorithm, LocalResult, SendsMore


@dataclass(slots=True)
class Outgoing:
    """What a client is about to send.

    Attributes:
        update: Shape (P,), float32. A stage that changes it gives a tensor of its own, valid until
            its next client.
        weight: What the client counts for.
        num_bytes: Bytes that sending takes.
    """

    update: Tensor
    weight: float
    num_bytes: float


class ClientStage(Protocol):
    """A stage: an attack, a compression, or what an algorithm does to an update."""

    @property
    def keeps_state(self) -> bool:
        """Whether it remembers clients from round to round.

        Then one process trains them all, and no mechanism covers it.
        """

    def send(self, outgoing: Outgoing, result: LocalResult, round_index: int) -> Outgoing:
        """Do to a client's update what the stage does.

        Args:
            outgoing: As the stage before has left it; may be changed and given back.
            result: What local training gave, unchanged by stages.
            round_index: From 1.
        """


@runtime_checkable
class Resizes(Protocol):
    """What a stage also has that changes how much is sent; the same for each client."""

    @property
    def expected_bytes(self) -> float:
        """Bytes that an update of the model's P parameters takes with this stage alone."""


@runtime_checkable
class HasStage(Protocol):
    """What an algorithm also has that changes what clients send."""

    @property
    def stage(self) -> ClientStage:
        """The first stage of all."""


@runtime_checkable
class HasState(Protocol):
    """What a stage also has that keeps state, or an algorithm that does."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round: tensors, numbers, texts, lists and mappings."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""


def upload_bytes(stages: Sequence[ClientStage], num_parameters: int) -> float:
    """Bytes that a client sends in a round, known before it trains.

    Args:
        stages: What updates go through.
        num_parameters: P.
    """
    dense = float(num_parameters * BYTES_PER_PARAMETER)
    resizing = [stage for stage in stages if isinstance(stage, Resizes)]
    return dense + sum(stage.expected_bytes - dense for stage in resizing)


def download_bytes(algorithm: Algorithm, num_parameters: int) -> float:
    """Bytes that a client is sent in a round: its algorithm's vectors, not compressed."""
    vectors = len(algorithm.downloads) if isinstance(algorithm, SendsMore) else 1
    return float(vectors * num_parameters * BYTES_PER_PARAMETER)
