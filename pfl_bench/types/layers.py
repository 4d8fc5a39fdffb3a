"""Models and their layers: what they may do that PyTorch's do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class KeepFactors(Protocol):
    """Takes the gradient of a weight matrix as the two matrices that it is the product of."""

    def __call__(self, name: str, left: Tensor, right: Tensor) -> None:
        """Keep ``left.T @ right``.

        Args:
            name: The layer's parameter that it is the gradient of, of shape (rows, columns).
            left: Shape (n, rows).
            right: Shape (n, columns).
        """


@runtime_checkable
class GivesFactoredGradients(Protocol):
    """A layer that can give gradients of its weights as products, to whoever asks for them.

    Attributes:
        keep_factors: Where the gradients of weights that require one go in a backward pass that
            was begun with it, in place of autograd's; None, which it is but for that time, for
            autograd.
    """

    keep_factors: KeepFactors | None


@runtime_checkable
class CountsFlops(Protocol):
    """A model with operations that ``torch.utils.flop_counter`` has no formula for."""

    def own_flops(self, inputs: Tensor) -> int:
        """FLOPs of these operations in a forward and a backward pass.

        Args:
            inputs: Shape (n, ...), as the model takes them.
        """


@runtime_checkable
class NormalizesByStatistics(Protocol):
    """A model that normalises its inputs by statistics of the training examples' inputs.

    A run of example-level DP releases them with noise before the first step. They are buffers of
    the model, so that checkpoints hold them.
    """

    def moments(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Of each example, what is averaged over the training split.

        Args:
            inputs: Shape (n, K, ...), as the model takes them.

        Returns:
            Shapes (n, K): mean of each channel over its positions, and mean of its square.
        """

    def set_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Take the statistics, shapes (K,); a channel of variance 0 is not used."""


@runtime_checkable
class DepartsFromRow(Protocol):
    """A model that may be another one than published numbers are of.

    Attributes:
        departure: Why such numbers are not comparable with this model's; empty if they are.
    """

    departure: str


@runtime_checkable
class ComputesInSlots(Protocol):
    """A layer that can compute for several clients at once, each with weights of its own.

    One that holds trainable parameters and is none of PyTorch's common layers needs this to be
    trained by the vectorized engine's layers.
    """

    def forward_slots(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Compute the layer for L clients.

        Args:
            inputs: Shape (L * n, ...): n examples of the first client, n of the second and so on.
            weights: By the name of a parameter of the layer, shape (L, *its shape).

        Returns:
            Shape (L * n, ...), in the same order, differentiable in inputs and weights.
        """
