"""Training: who takes part in a round, how a client trains and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from pfl_bench.types.state import Stateful


@dataclass(slots=True)
class RoundStatistics:
    """Statistics of a round's training, beside the sum.

    Attributes:
        loss: Sum over clients, whose updates count, of their mean training loss.
        num_examples: Examples that these trained on, once each.
        num_steps: Their local steps.
        weight: What they count for.
        scalar: Sum of the scalars that they sent beside their updates, each times its weight.
        steps: Steps of all clients, those too whose update was lost: they have had the cost.
        processed: Examples that went through them.
        lost: Users whose update was not finite.
        bytes_up: What sending took all clients.
        users: Whose updates were taken in, in that order, as often as they were.
        clients: Of each client, its user, mean training loss and examples; kept for a selection
            that learns from them.
    """

    loss: float = 0.0
    num_examples: int = 0
    num_steps: int = 0
    weight: float = 0.0
    scalar: float = 0.0
    steps: int = 0
    processed: int = 0
    lost: list[int] = field(default_factory=list)
    bytes_up: float = 0.0
    users: list[int] = field(default_factory=list)
    clients: list[tuple[int, float, int]] = field(default_factory=list)

    def merge(self, other: RoundStatistics) -> None:
        """Take in what was counted of other clients of the same round."""
        for each in fields(self):
            own = getattr(self, each.name)
            own += getattr(other, each.name)  # in place, of lists
            setattr(self, each.name, own)


class Participants:
    """Base of what decides who is trained in a round.

    Attributes:
        rests_on: What decides who takes part beside coins of their own; empty where nothing does.
        uses_data: Whether it depends on what clients have learned who takes part.
        selector: The plug-in that selects them; None without one.
    """

    rests_on: tuple[str, ...] = ()
    uses_data: bool = False
    selector: Stateful | None = None

    def begin(self, done: int) -> None:
        """Prepare the files of a run that has so many rounds behind it."""

    def draw(self, index: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The users whose updates make round ``index`` (from 1), ascending; may be empty."""
        raise NotImplementedError

    def finish(
        self, index: int, users: NDArray[np.int64], counted: RoundStatistics
    ) -> dict[str, float]:
        """Take note that the round has ended.

        Args:
            index: The round, from 1.
            users: Shape (n,), as ``draw`` gave them.
            counted: What their training came to.

        Returns:
            Scalars of the round, "systems/bytes_down" and "systems/bytes_up" among them.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""


@dataclass(frozen=True, slots=True)
class LocalResult:
    """Result of one client's local training.

    Attributes:
        user: Index of the user in the training split.
        update: Shape (P,), local minus central parameters, float32; valid until the next client.
        num_examples: Examples that the client trained on, once each.
        num_steps: Local optimizer steps.
        loss: Mean training loss over the local steps, a scalar tensor.
        num_processed: Examples that went through the local steps, again in each epoch.
        start_loss: Mean loss of the central parameters on the client's examples, before it trains;
            None unless ``LocalTraining.measures_start``.
    """

    user: int
    update: Tensor
    num_examples: int
    num_steps: int
    loss: Tensor
    num_processed: int
    start_loss: float | None = None


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """Local training of a client, as engines execute it.

    A local step takes the gradient of the loss (0 for a parameter that takes no part in it),
    clipped; then adds ``proximal_weight * (local - central)``, the algorithm's ``correction`` for
    the client, and ``weight_decay * local``. Of that sum g it makes ``v = momentum * v + g``, where
    v is zero before a client's first step of a round, and moves the local parameters by
    ``-rate * v``: torch.optim.SGD without dampening, not Nesterov's, begun anew for each client in
    each round. With ``corrects_beside_momentum`` the correction is no part of g; the step is
    followed by another of ``-rate * correction``.

    Attributes:
        epochs: Passes over the client's examples.
        max_steps: Stop after so many steps even if epochs are left; None for no limit.
        batch_size: Examples a step; the last batch of an epoch may be smaller (but see below).
        learning_rate: Rate of local SGD; of a run with a ``schedule``, the full one.
        proximal_weight: FedProx's mu: adds mu * (local - central) to each gradient; 0 for FedAvg.
        gradient_clip_norm: Bound of the L2 norm of each weight tensor's gradient; None for none.
        gradient_clip_global_norm: Bound of the L2 norm of the whole gradient, all weight tensors
            together; None for none. At most one of the two is given.
        batches_across_epochs: Whether batches run over the ends of epochs; the last batch of all
            may then be smaller, and no other.
        batch_fraction: Minibatch SGD: one single step on this fraction of the client's examples,
            drawn without replacement, at least one; ``epochs``, ``max_steps`` and ``batch_size``
            do not matter then. None for steps as those say.
        measures_start: Whether a client first computes the loss of the central parameters on all
            of its examples, as they were read for training: without dropout or random transforms.
        momentum: From 0 to below 1; 0 for none.
        weight_decay: Coupled L2 penalty, 0 or larger; 0 for none.
        corrects_beside_momentum: See above.
        schedule: From a round, 1-based, to the fraction of ``learning_rate`` that its clients use;
            None for all of it in each round.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    max_steps: int | None = None
    proximal_weight: float = 0.0
    gradient_clip_norm: float | None = None
    batches_across_epochs: bool = False
    batch_fraction: float | None = None
    gradient_clip_global_norm: float | None = None
    measures_start: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    corrects_beside_momentum: bool = False
    schedule: Callable[[int], float] | None = None

    def rate(self, round_index: int) -> float:
        """Rate of the local steps of a round, 1-based."""
        factor = 1.0 if self.schedule is None else self.schedule(round_index)
        return self.learning_rate * factor


class Engine(Protocol):
    """Runs the local training of a round's clients."""

    @property
    def description(self) -> str:
        """Properties that decide the rounding of its results, such as "vectorized, 16 slots"."""

    @property
    def trains_alone(self) -> bool:
        """Whether a client's update is the same bits whoever else is trained."""

    def train(
        self, users: NDArray[np.int64], round_index: int, central: Tensor
    ) -> Iterator[LocalResult]:
        """Train each user from ``central``, shape (P,); a result says whose it is.

        Results come in an order that depends on nothing but the arguments, not always that of
        ``users``.
        """
