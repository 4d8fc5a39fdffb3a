"""Evaluation: metrics, and models of the clients' own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pfl_bench.types.data import FederatedSplit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@runtime_checkable
class Metric(Protocol):
    """A streaming family of metrics over (outputs, targets); built by ``metrics/<family>.py``."""

    def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Take a batch in.

        Args:
            outputs: Shape (n, ...), what the model gave.
            targets: Shape (n, ...).

        Returns:
            Values that each example has on its own, each of shape (n,), for per-client views;
            empty for a family that has none. The name "weight" is reserved: what each example
            counts for in the mean of a client or stratum (its tokens, say), at least 0; without
            it each counts for one.
        """

    def merge(self, other: Any) -> None:
        """Take in what another instance of the same family has seen."""

    def compute(self) -> dict[str, float]:
        """The metrics over all that was taken in."""


class PersonalModels(Protocol):
    """Gives each client a model of its own to be evaluated with."""

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        """Put the model of a user into the working memory.

        Args:
            split: The split whose user it is.
            user: Index of the user.

        Returns:
            Shape (k,): which of the user's n examples to evaluate the model on, ascending positions
            within the user's own, 0 to n - 1; may be empty.

        Raises:
            DataError: There is nothing to make this user's model from.
        """


class OwnModels(PersonalModels, Protocol):
    """Clients' own models that are evaluated beside the one that is in the working memory."""

    def begin(self) -> None:
        """Take the model as it is now for that of clients who have none of their own."""
