"""What a client sends, and what happens to it between local training and the centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from pfl_bench.types.training import LocalResult


@dataclass(slots=True)
class ClientUpload:
    """What a client is about to send.

    Attributes:
        update: Shape (P,), float32. A transform that changes it gives a tensor of its own, valid
        until
            its next client.
        weight: What the client counts for.
        num_bytes: Bytes that sending takes.
    """

    update: Tensor
    weight: float
    num_bytes: float


class UpdateTransform(Protocol):
    """A transform: an attack, a compression, or what an algorithm does to an update."""

    @property
    def keeps_state(self) -> bool:
        """Whether it remembers clients from round to round.

        Then one process trains them all, and no mechanism covers it.
        """

    def send(self, upload: ClientUpload, result: LocalResult, round_index: int) -> ClientUpload:
        """Do to a client's update what the transform does.

        Args:
            upload: As the transform before has left it; may be changed and given back.
            result: What local training gave, unchanged by transforms.
            round_index: From 1.
        """


@runtime_checkable
class Resizes(Protocol):
    """What a transform also has that changes how much is sent; the same for each client."""

    @property
    def expected_bytes(self) -> float:
        """Bytes that an update of the model's P parameters takes with this transform alone."""


@runtime_checkable
class HasUpdateTransform(Protocol):
    """What an algorithm also has that changes what clients send."""

    @property
    def transform(self) -> UpdateTransform:
        """The first transform of all."""


@runtime_checkable
class HasState(Protocol):
    """What a transform also has that keeps state, or an algorithm that does."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round: tensors, numbers, texts, lists and mappings."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
