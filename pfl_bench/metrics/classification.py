"""Single-label classification: accuracy and cross entropy."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from pfl_bench.config.training import NoOptions
from pfl_bench.types import DataFacts, UserInputError

LOWER_IS_BETTER = frozenset({"loss"})
HEADLINES = ("accuracy",)

Options = NoOptions


class Classification:
    """Accuracy and mean cross entropy over all examples taken in, each example weighing the same.

    A tie between logits goes to the lower class, as ``argmax`` has it. Non-finite logits count as
    wrong and make the loss non-finite.
    """

    def __init__(self) -> None:
        self._correct = 0
        self._loss = 0.0
        self._count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Take a batch in.

        Args:
            outputs: Shape (n, K), logits.
            targets: Shape (n,), int64, in 0..K-1.

        Returns:
            "accuracy" (0 or 1) and "loss" (nats) of each example, each of shape (n,).

        Raises:
            UserInputError: Shapes do not fit, or targets are no whole numbers.
        """
        if outputs.ndim != 2 or targets.shape != outputs.shape[:1] or targets.is_floating_point():
            raise UserInputError(
                "classification metrics take outputs of shape (n, K), logits, and targets of shape "
                f"(n,), whole numbers; got {tuple(outputs.shape)} and {targets.dtype} "
                f"{tuple(targets.shape)}; name a metric that fits, or change the task's model or "
                "targets"
            )
        finite = outputs.isfinite().all(dim=1)
        correct = (outputs.argmax(dim=1) == targets) & finite
        loss = functional.cross_entropy(outputs, targets, reduction="none")
        self._correct += int(correct.sum())
        self._loss += float(loss.cpu().double().sum())  # Metal has no float64
        self._count += len(targets)
        return {"accuracy": correct.float(), "loss": loss}

    def merge(self, other: Classification) -> None:
        """Take in what another instance has seen."""
        self._correct += other._correct
        self._loss += other._loss
        self._count += other._count

    def compute(self) -> dict[str, float]:
        """Accuracy in 0..1 and mean cross entropy in nats."""
        if self._count == 0:
            raise UserInputError("classification metrics over zero examples are undefined")
        return {"accuracy": self._correct / self._count, "loss": self._loss / self._count}


def build(options: Options, facts: DataFacts) -> Classification:
    """Build an empty accumulator; the data's facts do not matter to it."""
    return Classification()
