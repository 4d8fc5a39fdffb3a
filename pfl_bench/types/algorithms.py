"""Federated algorithms: what a client sends, and what the centre makes of the mean update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.types.state import Stateful

if TYPE_CHECKING:
    from torch import Tensor

    from pfl_bench.types.training import LocalResult, LocalTraining


@dataclass(slots=True)
class ClientUpload:
    """Contents of a client's message to the centre.

    Attributes:
        update: Shape (P,), float32. A transform that changes it gives a tensor of its own, valid
            until its next client.
        weight: What the client counts for; 1 in a private run, where nothing else is accepted.
        num_bytes: Bytes that sending takes.
        scalar: A number that goes beside the update; see ``Algorithm.receive``. 0 in a private run.
    """

    update: Tensor
    weight: float
    num_bytes: float
    scalar: float = 0.0


class UpdateTransform(Stateful):
    """Base of what happens to an update on the client: a compression, or a step of an algorithm.

    Attributes:
        keeps_state: Whether it remembers clients from round to round. Then one process trains them
            all, and no mechanism covers it. What changes unsaid is refused by a private run, and by
            several processes, which also refuse what the centre changes of it.
        expected_bytes: Bytes that an update of the model's P parameters takes with this transform
            alone, the same for each client; None for one that does not change the size.
    """

    keeps_state: bool = False
    expected_bytes: float | None = None

    def send(self, upload: ClientUpload, result: LocalResult, round_index: int) -> ClientUpload:
        """Do to a client's update what the transform does.

        Args:
            upload: As the transform before has left it; may be changed and given back.
            result: What local training gave, unchanged by transforms.
            round_index: From 1.
        """
        raise NotImplementedError


class Algorithm(Stateful):
    """Base of federated algorithms: how a client trains, and what becomes of the mean update.

    The centre's state is kept by attributes, which checkpoints hold (see ``Stateful``).

    Attributes:
        local_training: How each client trains.
        uploads: What each client sends. Mechanisms cover ("update",) and nothing else.
        downloads: What each client is sent: vectors of P parameters.
        transform: What happens first of all to what clients send; None for nothing.
        corrects_steps: Whether ``correction`` gives anything, which not every engine adds, and
            neither a private run nor several processes accept: it is asked user by user.
        personal_training: How each client of a round also trains a model of its own, from what
            ``own_model`` gives; its proximal term draws to the central model. None for no such
            models, which no private run accepts.
        follows_mean: Whether the mean of the updates, as clients computed them and by their
            weights, is what the central optimizer gets.
    """

    local_training: LocalTraining
    uploads: tuple[str, ...] = ("update",)
    downloads: tuple[str, ...] = ("central",)
    transform: UpdateTransform | None = None
    corrects_steps: bool = False
    personal_training: LocalTraining | None = None
    follows_mean: bool = True

    def begin(self, num_users: int, central: Tensor) -> None:
        """Take note of the run; called once, before the first round.

        Args:
            num_users: Users of the training split.
            central: Shape (P,), on the device of training; its values do not matter.
        """

    def correction(self, user: int) -> Tensor | None:
        """Correction that is added to the gradient of each of a user's steps in this round.

        Gradients are clipped without it.

        Returns:
            Shape (P,), valid until the next call; None for nothing.
        """
        return None

    def own_model(self, user: int) -> Tensor | None:
        """The model that a user keeps, shape (P,); None while it is the central one."""
        return None

    def keep(self, user: int, model: Tensor) -> None:
        """Keep what a user's ``personal_training`` has come to.

        Args:
            user: Index of the user in the training split.
            model: Shape (P,), valid during the call.
        """

    def receive(self, weight: float, mean_scalar: float) -> None:
        """Take note of what clients sent beside their updates; called before ``central_gradient``.

        Args:
            weight: Sum of the weights of the clients whose updates count: their number where all
                count alike; 0 where there are none. In a private run the configured cohort size.
            mean_scalar: Mean, by these weights, of their scalars; 0 where there are none, and in a
                private run.
        """

    def central_gradient(self, mean_update: Tensor, out: Tensor) -> None:
        """Write the gradient that the central optimizer takes: by default the negative mean update.

        Args:
            mean_update: Shape (P,).
            out: Shape (P,), NaN before; each element is overwritten. Nothing is returned.
        """
        import torch

        torch.neg(mean_update, out=out)
