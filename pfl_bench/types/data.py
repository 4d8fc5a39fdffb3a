"""Data: published files, examples, and splits of them by user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

SplitBy = Literal["user", "example"]
# Of long work: what is being done, how much is done, and of how much; None where it is not known.
Progress = Callable[[str, int, int | None], None]


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
class HubDataset:
    """A copy of a task's data in a dataset repository of the Hugging Face Hub.

    Attributes:
        repository: "owner/name".
        pattern: The files that are fetched, such as "data/*.parquet"; parquet files all.
        num_rows: Rows of all files together, as published; None of a repository that the user
            names, whose files are of any kind and keep their folders in their names.
        note: Printed after the download: what these files are.
    """

    repository: str
    pattern: str
    num_rows: int | None
    note: str


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
    """Facts of the data behind a task, for statements, summaries and model shapes.

    Attributes:
        source: One line for a human, such as "MNIST test images with QMNIST writers".
        variant: Machine name of the variant of the data, such as "qmnist-digits".
        checksum: Digest of the content, "sha256:<hex>".
        num_classes: Number of classes of the target.
        input_shape: Shape of one example's input, without the leading axis.
        split_by: Whether splits divide users ("user") or each user's examples ("example").
        extra: Further facts, JSON-serialisable.
        class_names: Names of the classes, in the order of the outputs; empty where they have none.
        artificial_users: Whether examples were assigned to users who never had them; a guarantee
            for such a user protects no person, and the statement says so.
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
        """Read one user's examples for training; ``rng`` drives augmentation and subsampling.

        At most as many as ``offsets`` gives the user: more count as other users' in an audit.
        """

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the examples ``start:stop`` of all users, as evaluation sees them."""

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen examples of the pooled split for training, in the order of ``indices``."""


class SplitAround:
    """Base of a split around another: it is and reads as the other but where it says otherwise."""

    def __init__(self, split: FederatedSplit) -> None:
        self.name, self.offsets = split.name, split.offsets
        self.num_users, self.num_examples = split.num_users, split.num_examples
        self._split = split

    def client_ids(self) -> Sequence[str]:
        """See ``FederatedSplit``."""
        return self._split.client_ids()

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """See ``FederatedSplit``."""
        return self._split.read_user(user, rng)

    def read_range(self, start: int, stop: int) -> Examples:
        """See ``FederatedSplit``."""
        return self._split.read_range(start, stop)

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """See ``FederatedSplit``; ``indices`` has shape (n,)."""
        return self._split.read_examples(indices, rng)
