"""The vocabulary of the toolkit: frozen dataclasses, Protocols and errors.

This module imports nothing of ours. Everything that two rooms exchange is named here, so that a
task, an engine and a trainer can be written and read without one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

SplitBy = Literal["user", "example"]


class UserInputError(ValueError):
    """The user's input is wrong; the message says what, where and how to mend it."""


class ConfigError(UserInputError):
    """A configuration file or a ``key=value`` override is wrong."""


class DataError(UserInputError):
    """A data file is missing, damaged, foreign or contradicts itself."""


class PluginError(UserInputError):
    """A task, algorithm, mechanism or metric of that name cannot be had."""


class RunFolderError(UserInputError):
    """A run folder cannot be used as asked: busy, foreign, read-only, other configuration."""


class CrewError(RuntimeError):
    """One of a run's processes has died or cannot be reached; the run can be resumed."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A published file that ``pfl-bench data download`` can fetch and verify.

    Attributes:
        name: File name under the target folder.
        urls: The addresses that have it, http or https, in the order in which they are tried.
        size: Its bytes; None if unknown.
        digest: Digest of its content, "md5:<hex>" or "sha256:<hex>"; None if none is published.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled examples, ready for the model.

    Attributes:
        inputs: Shape (n, ...), the dtype that the model takes.
        targets: Shape (n, ...), the dtype that the loss takes.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """Number of examples."""
        return int(self.inputs.shape[0])


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What is known of the data behind a task, for statements, summaries and model shapes.

    Attributes:
        source: One line for a human, such as "MNIST test images with QMNIST writers".
        variant: Machine name of the variant of the data, such as "qmnist-digits".
        checksum: Digest of the content, "sha256:<hex>".
        num_classes: Number of classes of the target.
        input_shape: Shape of one example's input, without the leading axis.
        split_by: Whether splits divide users ("user") or each user's examples ("example").
        extra: Further facts, JSON-serialisable.
        class_names: Names of the classes, in the order of the outputs; empty where they have none.
        artificial_users: Whether examples were dealt to users who never had them; a guarantee for
            such a user protects no person, and the statement says so.
    """

    source: str
    variant: str
    checksum: str
    num_classes: int
    input_shape: tuple[int, ...]
    split_by: SplitBy
    extra: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    artificial_users: bool = False


class FederatedSplit(Protocol):
    """One split ("train", "val", "test"): users, each with a slice of the examples."""

    @property
    def name(self) -> str:
        """Name of the split."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Shape (U + 1,): user u owns the examples ``offsets[u]:offsets[u + 1]``."""

    @property
    def num_users(self) -> int:
        """Number of users, U."""

    @property
    def num_examples(self) -> int:
        """Number of examples of all users."""

    def client_ids(self) -> Sequence[str]:
        """The users' identifiers, in the order of ``offsets``."""

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read one user's examples for training; ``rng`` drives augmentation and subsampling."""

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` of all users, as evaluation sees them."""

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples of the pooled split for training, in the order of ``indices``."""


class BatchTransform(Protocol):
    """Turns what a split reads into what the model takes: a batch at a time, on the device.

    Draws are made apart from their use, from a client's own stream, so that a result does not
    depend on which engine makes the batches, or in which thread.
    """

    def draw(self, count: int, rng: np.random.Generator) -> Tensor:
        """Draw the augmentation of ``count`` examples: shape (count, k), int64, on the CPU."""

    def __call__(self, inputs: Tensor, draws: Tensor | None) -> Tensor:
        """Transform a batch.

        Args:
            inputs: Shape (n, ...), as the split gave them, on the device of the model.
            draws: Shape (n, k), of ``draw``, on that device; None as evaluation sees the examples.

        Returns:
            Shape (n, ...), float32.
        """


@runtime_checkable
class TransformsBatches(Protocol):
    """What a task also has whose inputs are transformed batch by batch."""

    @property
    def transform(self) -> BatchTransform:
        """Applied to each batch of inputs before the model."""


@runtime_checkable
class ReadsOnDevice(Protocol):
    """What a task also has whose reading depends on where the model lives."""

    def use_device(self, device: torch.device) -> None:
        """Take note of the device; called once, before the first read."""


@runtime_checkable
class HasColumns(Protocol):
    """What a task also has whose examples can be told apart by a column, such as subreddit."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns: one integer an example each."""

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read a column of the examples ``start:stop`` of a split; shape (stop - start,).

        Raises:
            ConfigError: There is no such column.
        """

    def column_values(self, name: str) -> Sequence[str] | None:
        """What the numbers of a column are called; None if they are just numbers."""


class Task(Protocol):
    """A learning problem on federated data; built by ``tasks/<name>/task.py``.

    A task may also be one that ``TransformsBatches``, ``ReadsOnDevice`` or ``HasColumns``.
    """

    @property
    def facts(self) -> DataFacts:
        """What is known of the data."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metric families that evaluation computes."""

    @property
    def split_names(self) -> tuple[str, ...]:
        """Splits that the data has, "train" among them."""

    def split(self, name: str) -> FederatedSplit:
        """Open one split.

        Raises:
            DataError: The data has no split of that name.
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of a batch: the plain mean of its examples' losses, a differentiable scalar."""


@runtime_checkable
class GivesExampleLosses(Protocol):
    """What a task also has whose losses come an example each without a detour."""

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example of a batch: those whose plain mean is ``loss``.

        Args:
            outputs: Shape (n, ...).
            targets: Shape (n, ...).

        Returns:
            Shape (n,), differentiable.
        """


@runtime_checkable
class SkipsOutputs(Protocol):
    """What a task also has whose loss leaves out outputs that take long, such as of padding."""

    def training_loss(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """``loss`` of what the module makes of the inputs, without the outputs that it ignores.

        In bfloat16 all of it runs under ``torch.autocast``: the loss is to be one that PyTorch
        computes in float32 there.

        Args:
            module: The task's model.
            inputs: Shape (n, ...).
            targets: Shape (n, ...).

        Returns:
            The same differentiable scalar, to rounding.
        """


class KeepProduct(Protocol):
    """Takes the gradient of a weight matrix as the two matrices that it is the product of."""

    def __call__(self, name: str, left: Tensor, right: Tensor) -> None:
        """Keep ``left.T @ right``.

        Args:
            name: The layer's parameter that it is the gradient of, of shape (rows, columns).
            left: Shape (n, rows).
            right: Shape (n, columns).
        """


@runtime_checkable
class GivesProducts(Protocol):
    """A layer that can give gradients of its weights as products, to whoever asks for them.

    Attributes:
        keep_product: Where the gradients of weights that require one go in a backward pass that
            was begun with it, in place of autograd's; None, which it is but for that time, for
            autograd.
    """

    keep_product: KeepProduct | None


@runtime_checkable
class CountsFlops(Protocol):
    """A model with operations that ``torch.utils.flop_counter`` has no formula for."""

    def own_flops(self, inputs: Tensor) -> int:
        """FLOPs of these operations in a forward and a backward pass.

        Args:
            inputs: Shape (n, ...), as the model takes them.
        """


@runtime_checkable
class ComputesInLanes(Protocol):
    """A layer that can compute for several clients at once, each with weights of its own.

    One that holds trainable parameters and is none of PyTorch's common layers needs this to be
    trained by the vectorized engine's layers.
    """

    def forward_lanes(self, inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Compute the layer for L clients.

        Args:
            inputs: Shape (L * n, ...): n examples of the first client, n of the second and so on.
            weights: By the name of a parameter of the layer, shape (L, *its shape).

        Returns:
            Shape (L * n, ...), in the same order, differentiable in inputs and weights.
        """


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
            Which of the user's examples to evaluate the model on: ascending positions within the
            user's own, 0 to n - 1; may be empty.

        Raises:
            DataError: There is nothing to make this user's model from.
        """


class Sampler(Protocol):
    """Draws a round's users, and knows what its randomness is worth in privacy."""

    @property
    def scheme(self) -> str:
        """How users are drawn: "poisson", "cyclic_poisson", "fixed_size" or "full"."""

    def draw(self, rng: np.random.Generator, round_index: int = 1) -> NDArray[np.int64]:
        """Draw the users of a round (from 1), sorted, none twice; may be empty."""


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What one client's local training gives.

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
    """How a client trains: what engines execute.

    A local step takes the gradient of the loss (0 for a parameter that takes no part in it),
    clipped; then adds ``proximal_weight * (local - central)``, what an algorithm that
    ``CorrectsSteps`` has for the client, and ``weight_decay * local``. Of that sum g it makes
    ``v = momentum * v + g``, where v is zero before a client's first step of a round, and moves the
    local parameters by ``-rate * v``: torch.optim.SGD without dampening, not Nesterov's, begun anew
    for each client in each round.

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
    schedule: Callable[[int], float] | None = None

    def rate(self, round_index: int) -> float:
        """Rate of the local steps of a round, 1-based."""
        factor = 1.0 if self.schedule is None else self.schedule(round_index)
        return self.learning_rate * factor


class Algorithm(Protocol):
    """A federated algorithm: how a client trains and what the centre does with the mean update."""

    @property
    def uploads(self) -> tuple[str, ...]:
        """What each client sends. Mechanisms cover ("update",) and nothing else."""

    @property
    def local_training(self) -> LocalTraining:
        """How each client trains."""

    def central_gradient(self, mean_update: Tensor, out: Tensor) -> None:
        """Write to ``out``, shape (P,), the gradient that the central optimizer takes."""


@runtime_checkable
class CorrectsSteps(Protocol):
    """What an algorithm also has that adds a vector of the client's own to its local gradients."""

    def begin(self, num_users: int, central: Tensor) -> None:
        """Take note of the run; called once, before the first round.

        Args:
            num_users: Users of the training split.
            central: Shape (P,), on the device of training; its values do not matter.
        """

    def correction(self, user: int) -> Tensor | None:
        """What is added to the gradient of each of a user's steps in this round.

        Gradients are clipped without it.

        Returns:
            Shape (P,), valid until the next call; None for nothing.
        """


@runtime_checkable
class SendsMore(Protocol):
    """What an algorithm also has whose centre sends clients more than the central parameters."""

    @property
    def downloads(self) -> tuple[str, ...]:
        """What each client is sent: vectors of P parameters."""


class Engine(Protocol):
    """Runs the local training of a round's clients."""

    @property
    def description(self) -> str:
        """What decides the rounding of its results, such as "vectorized, 16 lanes"."""

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
