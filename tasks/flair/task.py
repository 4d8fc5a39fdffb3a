"""The FLAIR task: say what is in a picture, one client a Flickr user; several labels a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pfl_bench.data import Store, StoreSplit, gather, open_store
from pfl_bench.data.in_memory import split_named
from pfl_bench.types import ConfigError, DataFacts, Examples, did_you_mean
from tasks.common.classification import known_facts
from tasks.common.options import StoredOptions
from tasks.common.partition.split import PartitionedSplit
from tasks.common.vision.decoding import check_kept
from tasks.flair.decoding import CropFlipNormalize, Decoder

TASK_NAME = "flair"
# Of the store's facts, what a summary repeats; the lists of labels are thousands of words.
FACTS_SHOWN = ("form", "generated", "problems", "differs_from_published")


class Options(StoredOptions):
    """Options of the FLAIR task, beside those of all tasks on a store.

    Attributes:
        labels: "coarse" (17 in FLAIR), "fine" (1,628) or "binary" (one coarse label, or not).
        binary_label: The coarse label of "binary".
        partition: "natural" users, or "iid": users of the same sizes, to whom the training
            pictures are assigned at random; a guarantee for such a user protects no person, and the
            statement says so.
        partition_seed: Seed of that partition.
        max_examples_per_user: As of all tasks on a store; 512 here.
        resize: Side to which decoded pictures are scaled before the crop; None keeps them.
        crop: Side of the random crop; evaluation scales whole pictures to it.
        augment: Whether training crops and flips at random.
        decode: "cpu", "gpu" (nvJPEG), or "auto": where the model lives.
        keep_decoded: Keep decoded pictures in the memory of the device that decoded them
            (3 * side^2 bytes each, at most 8 GiB).
    """

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


class FlairSplit(PartitionedSplit):
    """One split of a FLAIR store.

    ``classes`` has the stored label of each output; one for "binary".
    """

    def __init__(
        self, stored: StoreSplit, options: Options, decoder: Decoder, classes: Sequence[int]
    ) -> None:
        is_iid = options.partition == "iid" and stored.name == "train"
        seed = options.partition_seed if is_iid else None
        fields = ("fine" if options.labels == "fine" else "coarse", "image")
        super().__init__(stored, fields, self._to_examples, options.max_examples_per_user, seed)
        self._decoder = decoder
        self._column = {label: column for column, label in enumerate(classes)}
        self._kept: dict[int, Tensor] | None = {} if options.keep_decoded else None

    def _read(self, indices: NDArray[np.int64]) -> Examples:
        level, _ = self._fields
        return self._to_examples(
            {level: self.gather(level, indices), "places": self.order[indices]}
        )

    def _to_examples(self, fields: Mapping[str, Any]) -> Examples:
        """Pixels, uint8, shape (n, 3, side, side), and multi-hot targets, shape (n, K)."""
        lists = fields[self._fields[0]]
        targets = torch.zeros((len(lists), len(self._column)))
        for row, labels in enumerate(lists):
            for label in labels.tolist():
                column = self._column.get(label)
                if column is not None:
                    targets[row, column] = 1.0
        return Examples(self._read_pictures(fields["places"]), targets)

    def _read_pictures(self, indices: NDArray[np.int64]) -> Tensor:
        kept = self._kept
        if kept is None or not len(indices):
            return self._decode(indices)
        absent = np.array([i for i in np.unique(indices) if int(i) not in kept], dtype=np.int64)
        if len(absent):
            kept.update(zip(absent.tolist(), self._decode(absent), strict=True))
        return torch.stack([kept[i] for i in indices.tolist()])

    def _decode(self, indices: NDArray[np.int64]) -> Tensor:
        where = f"split {self.name!r}, example"
        names = [f"{where} {index}" for index in indices.tolist()]
        return self._decoder.decode(gather(self._stored, "image", indices), names)


class FlairTask:
    """Several labels a picture of a store; mean binary cross entropy over labels and pictures."""

    metrics: tuple[str, ...] = ("multilabel",)

    def __init__(self, store: Store, options: Options) -> None:
        stored = store.facts
        side = stored.input_shape[-1]
        self._decoder = Decoder(options.decode, side, options.resize)
        self.reads_alike: bool = options.decode == "cpu"
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
            pictures = sum(split.num_examples for split in self._splits.values())
            check_kept(pictures, self._decoder.side, "pictures", "task.resize")
        self.facts: DataFacts = replace(
            stored,
            variant=stored.variant + ("-iid" if options.partition == "iid" else ""),
            num_classes=len(names),
            input_shape=(3, options.crop, options.crop),
            extra=known_facts(store, FACTS_SHOWN),
            class_names=names,
            artificial_users=options.partition == "iid" or bool(stored.extra.get("generated")),
        )

    def use_device(self, device: torch.device) -> None:
        """Decode where the model lives, if the options say so; refused if they cannot be met."""
        self._decoder.use_device(device)

    def split(self, name: str) -> FlairSplit:
        """Open one split."""
        return split_named(name, self._splits, TASK_NAME)

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
        hint = did_you_mean(options.binary_label, names, ".")
        raise ConfigError(
            f"task.binary_label: '{options.binary_label}' is no coarse label{hint} There are: "
            f"{', '.join(names)}"
        )
    return (options.binary_label,), [names.index(options.binary_label)]


def build(options: Options) -> FlairTask:
    """Open a prepared store.

    Raises:
        DataError: There is no such file, or it was prepared for another task or is damaged.
        ConfigError: The options do not fit the data.
    """
    return FlairTask(open_store(options.data, TASK_NAME), options)
