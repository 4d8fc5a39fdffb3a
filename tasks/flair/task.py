"""The FLAIR task: say what is in a picture, one client a Flickr user; several labels a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, StoreSplit, gather, open_store
from pfl_bench.types import ConfigError, DataError, DataFacts, Examples
from tasks.flair.decoding import Decoder
from tasks.flair.transform import CropFlipNormalize

TASK_NAME = "flair"
KEPT_BYTES_LIMIT = 8 << 30
# Of the store's facts, what a summary repeats; the lists of labels are thousands of words.
FACTS_SHOWN = ("form", "generated", "problems", "differs_from_published")


class Options(BaseModel):
    """Options of the FLAIR task.

    Attributes:
        data: Path of the store that ``pfl-bench data prepare flair`` wrote.
        labels: "coarse" (17 in FLAIR), "fine" (1,628) or "binary" (one coarse label, or not).
        binary_label: The coarse label of "binary".
        partition: "natural" users, or "iid": users of the same sizes, to whom the training
            pictures are dealt at random; a guarantee for such a user protects no person, and the
            statement says so.
        partition_seed: Seed of that deal.
        max_examples_per_user: A user with more gives a random subset of this size, drawn anew at
            each read for training; None for no limit.
        resize: Side to which decoded pictures are scaled before the crop; None keeps them.
        crop: Side of the random crop; evaluation scales whole pictures to it.
        augment: Whether training crops and flips at random.
        decode: "cpu", "gpu" (nvJPEG), or "auto": where the model lives.
        keep_decoded: Keep decoded pictures in the memory of the device that decoded them
            (3 * side^2 bytes each, at most 8 GiB).
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str
    labels: Literal["coarse", "fine", "binary"] = "coarse"
    binary_label: str = "structure"
    partition: Literal["natural", "iid"] = "natural"
    partition_seed: int = Field(default=0, ge=0)
    max_examples_per_user: int | None = Field(default=512, ge=1)
    resize: int | None = Field(default=None, ge=1, le=4096)
    crop: int = Field(default=224, ge=1)
    augment: bool = True
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    keep_decoded: bool = False


class FlairSplit:
    """One split of a FLAIR store.

    Args:
        stored: The store's split.
        options: As in ``Options``.
        decoder: Turns bytes into pixels.
        classes: The stored label of each output; one for "binary".

    Attributes:
        name: Name of the split.
        offsets: Shape (U + 1,): user u owns the pictures ``offsets[u]:offsets[u + 1]``.
        num_users: Number of users.
        num_examples: Number of pictures.
    """

    def __init__(
        self, stored: StoreSplit, options: Options, decoder: Decoder, classes: Sequence[int]
    ) -> None:
        self._stored = stored
        self._decoder = decoder
        self._labels = "fine" if options.labels == "fine" else "coarse"
        self._column = {label: column for column, label in enumerate(classes)}
        self._max_examples = options.max_examples_per_user
        self._kept: dict[int, Tensor] | None = {} if options.keep_decoded else None
        self.name: str = stored.name
        self.offsets: NDArray[np.int64] = stored.offsets
        self.num_users: int = stored.num_users
        self.num_examples: int = stored.num_examples
        self._deal: NDArray[np.int64] | None = None
        if options.partition == "iid" and stored.name == "train":
            rng = np.random.default_rng(options.partition_seed)
            self._deal = rng.permutation(self.num_examples)

    def client_ids(self) -> Sequence[str]:
        """The users, in the order of ``offsets``; numbers where pictures were dealt at random."""
        if self._deal is not None:
            return [f"iid-{user}" for user in range(self.num_users)]
        return self._stored.client_ids()

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        """Read a user's pictures, or a fresh random subset if the user has too many.

        Args:
            user: Index of the user.
            rng: Draws the subset; untouched when all pictures are read.

        Raises:
            IndexError: There is no such user.
            DataError: A picture is damaged.
        """
        if not 0 <= user < self.num_users:
            raise IndexError(
                f"user {user} of split {self.name!r}: there are users 0 to {self.num_users - 1}"
            )
        start, stop = int(self.offsets[user]), int(self.offsets[user + 1])
        chosen = np.arange(start, stop)
        if self._max_examples is not None and stop - start > self._max_examples:
            chosen = start + np.sort(rng.choice(stop - start, self._max_examples, replace=False))
        return self._read(chosen)

    def read_range(self, start: int, stop: int) -> Examples:
        """Read the pictures ``start:stop`` of all users; never subsampled.

        Raises:
            IndexError: The range is not within the split.
            DataError: A picture is damaged.
        """
        if not 0 <= start <= stop <= self.num_examples:
            raise IndexError(
                f"examples {start}:{stop} of split {self.name!r}: there are {self.num_examples}"
            )
        return self._read(np.arange(start, stop))

    def read_examples(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Examples:
        """Read chosen pictures, in the order of ``indices``; ``rng`` stays untouched.

        Args:
            indices: Shape (n,), pictures counted over all users; may repeat, may be empty.
            rng: Not used: the batch is augmented by the task's ``transform``.

        Raises:
            IndexError: An index is outside the split.
            DataError: A picture is damaged.
        """
        outside = indices[(indices < 0) | (indices >= self.num_examples)]
        if len(outside):  # before the deal, which would take a negative index for another example
            raise IndexError(
                f"example {outside[0]} of split {self.name!r}: "
                f"there are examples 0 to {self.num_examples - 1}"
            )
        return self._read(indices)

    def _read(self, indices: NDArray[np.int64]) -> Examples:
        if self._deal is not None:
            indices = self._deal[indices]
        targets = torch.zeros((len(indices), len(self._column)))
        for row, labels in enumerate(gather(self._stored, self._labels, indices)):
            for label in labels.tolist():
                column = self._column.get(label)
                if column is not None:
                    targets[row, column] = 1.0
        return Examples(self._read_pictures(indices), targets)

    def _read_pictures(self, indices: NDArray[np.int64]) -> Tensor:
        if self._kept is None:
            return self._decode(indices)
        kept = self._kept
        absent = np.array([i for i in np.unique(indices) if int(i) not in kept], dtype=np.int64)
        if len(absent):
            kept.update(zip(absent.tolist(), self._decode(absent), strict=True))
        return (
            torch.stack([kept[i] for i in indices.tolist()])
            if len(indices)
            else self._decode(indices)
        )

    def _decode(self, indices: NDArray[np.int64]) -> Tensor:
        where = f"split {self.name!r}, example"
        names = [f"{where} {index}" for index in indices.tolist()]
        return self._decoder.decode(gather(self._stored, "image", indices), names)


class FlairTask:
    """Several labels a picture; mean binary cross entropy over labels and pictures.

    Args:
        store: An open FLAIR store.
        options: As in ``Options``.

    Raises:
        ConfigError: The options do not fit the data.
    """

    metrics: tuple[str, ...] = ("multilabel",)

    def __init__(self, store: Store, options: Options) -> None:
        self._options = options
        stored = store.facts
        side = stored.input_shape[-1]
        self._decoder = Decoder(options.decode, side, options.resize)
        if options.crop > self._decoder.side:
            raise ConfigError(
                f"task.crop: {options.crop} is more than the {self._decoder.side} pixels of a side "
                f"that pictures have when they are cropped (stored {side}, task.resize "
                f"{options.resize}); lower task.crop or raise task.resize"
            )
        names, self._classes = _classes(stored, options)
        self.transform = CropFlipNormalize(self._decoder.side, options.crop, options.augment)
        self.split_names: tuple[str, ...] = store.split_names
        self._splits = {
            name: FlairSplit(store.split(name), options, self._decoder, self._classes)
            for name in self.split_names
        }
        if options.keep_decoded:
            self._check_memory()
        self.facts: DataFacts = replace(
            stored,
            variant=stored.variant + ("-iid" if options.partition == "iid" else ""),
            num_classes=len(names),
            input_shape=(3, options.crop, options.crop),
            extra={key: stored.extra[key] for key in FACTS_SHOWN if key in stored.extra},
            class_names=names,
            artificial_users=options.partition == "iid" or bool(stored.extra.get("generated")),
        )

    def _check_memory(self) -> None:
        pictures = sum(split.num_examples for split in self._splits.values())
        needed = pictures * 3 * self._decoder.side**2
        if needed > KEPT_BYTES_LIMIT:
            raise ConfigError(
                f"task.keep_decoded: {pictures} pictures of {self._decoder.side} x "
                f"{self._decoder.side} pixels take {needed / 2**30:.1f} GiB, more than the "
                f"{KEPT_BYTES_LIMIT >> 30} GiB that are allowed; set it to false, or task.resize "
                "to a smaller side"
            )

    def use_device(self, device: torch.device) -> None:
        """Decode where the model lives, if the options say so.

        Raises:
            ConfigError: They ask for a GPU and the model is elsewhere.
        """
        self._decoder.use_device(device)

    def split(self, name: str) -> FlairSplit:
        """Open one split.

        Raises:
            DataError: The store has no split of that name.
        """
        if name not in self._splits:
            raise DataError(
                f"task flair: {self._options.data} has no split {name!r}; there are: "
                f"{', '.join(self.split_names)}"
            )
        return self._splits[name]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross entropy of logits of shape (n, K) and multi-hot targets (n, K)."""
        return functional.binary_cross_entropy_with_logits(outputs, targets)

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross entropy of each example's labels, shape (n,)."""
        losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return losses.mean(dim=1)


def _classes(stored: DataFacts, options: Options) -> tuple[tuple[str, ...], list[int]]:
    """Names of the outputs, and which stored label each stands for."""
    kind = "fine" if options.labels == "fine" else "coarse"
    names: list[str] = list(stored.extra[f"{kind}_labels"])
    if options.labels != "binary":
        return tuple(names), list(range(len(names)))
    if options.binary_label not in names:
        near = get_close_matches(options.binary_label, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else "."
        raise ConfigError(
            f"task.binary_label: '{options.binary_label}' is no coarse label{hint} There are: "
            f"{', '.join(names)}"
        )
    return (options.binary_label,), [names.index(options.binary_label)]


def build(options: Options) -> FlairTask:
    """Open a prepared store.

    Args:
        options: Options of the task.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
        ConfigError: The options do not fit the data.
    """
    path = Path(options.data)
    if not path.is_file():
        raise DataError(
            f"task flair: there is no file {path}; make it by `pfl-bench data prepare flair "
            f"--source DIR --out {path}`, of the published files (`pfl-bench data download flair`, "
            "about 6 GB) or of generated pictures (`pfl-bench data generate flair --out DIR`)"
        )
    return FlairTask(open_store(path, TASK_NAME), options)
