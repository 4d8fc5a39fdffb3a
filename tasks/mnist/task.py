"""The MNIST task: which digit was written, by artificial clients or by the digits' writers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pfl_bench.data import Store, open_store
from pfl_bench.types import ConfigError
from tasks.common.images.store import WRITER, Images
from tasks.common.images.task import ImageOptions, ImageTask, build_task, read_store

TASK_NAME = "mnist"


class Options(ImageOptions):
    """Options of the MNIST task, beside those of all tasks on images.

    Attributes:
        splits: "published" (60,000 and 10,000 images) or "writers": of all 70,000 images, those of
            whole writers are held out. Needs a store with QMNIST's writers.
        val_fraction: Of "writers": the part of the writers who are in val.
        test_fraction: Of "writers": the part of the writers who are in test.
        split_seed: Of "writers": which writers those are.
    """

    splits: Literal["published", "writers"] = "published"
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    test_fraction: float = Field(default=0.1, ge=0, lt=1)
    split_seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _fractions_are_of_writers(self) -> Options:
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"val_fraction {self.val_fraction:g} and test_fraction {self.test_fraction:g} "
                "leave no writer for train; their sum must be below 1"
            )
        changed = self.changed("val_fraction", "test_fraction", "split_seed")
        if self.splits == "published" and changed:
            raise ValueError(f"{changed[0]}: for splits 'writers' alone; remove it, or set splits")
        return self


def build(options: Options) -> ImageTask:
    """Open a prepared store and make the row's clients; refused as ``build_task`` says."""
    store = open_store(options.data, TASK_NAME)
    splits = _split_by_writer(store, options) if options.splits == "writers" else None
    return build_task(store, options.partition, splits)


def _split_by_writer(store: Store, options: Options) -> dict[str, Images]:
    """Divide all images among train, val and test, whole writers."""
    parts = list(read_store(store).values())
    known = [part.writers for part in parts if part.writers is not None]
    if WRITER not in store.fields:
        raise ConfigError(
            f"task.splits: 'writers', but {options.data} does not know who wrote what; prepare it "
            "again with QMNIST's two label files beside MNIST's, or set task.splits=published"
        )
    writers = np.concatenate(known)
    inputs = np.concatenate([part.inputs for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    splits = {}
    for name, chosen in _divided(np.unique(writers), options).items():
        rows = np.flatnonzero(np.isin(writers, chosen))
        if len(rows):
            splits[name] = Images(inputs[rows], targets[rows], writers[rows])
    return splits


def _divided(writers: NDArray[np.int64], options: Options) -> dict[str, NDArray[np.int64]]:
    """The writers of each split."""
    shuffled = np.random.default_rng(options.split_seed).permutation(writers)
    num_val = round(options.val_fraction * len(writers))
    num_test = round(options.test_fraction * len(writers))
    val, test, train = np.split(shuffled, [num_val, num_val + num_test])
    return {"train": train, "val": val, "test": test}
