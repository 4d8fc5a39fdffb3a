"""The digits task: 1,797 real handwritten digits of 8 x 8 pixels, assigned to artificial users."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import InMemorySplit
from pfl_bench.types import DataFacts
from tasks.common.classification import InMemoryTask
from tasks.common.options import StrictOptions

# Spread of the log-normal user sizes: a user at the 90th percentile weighs 3.6 times the median.
SIZE_SPREAD = 1.0


def skewed(
    labels: NDArray[np.int64], num_users: int, label_concentration: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assign every example to exactly one user; every user gets at least one.

    Sizes are one plus a multinomial share of the rest, with log-normal weights. Each user has a
    label distribution drawn from a symmetric Dirichlet; the users' places are filled in random
    order, each with a class drawn from its user's distribution among the classes that are left.

    ``labels``, shape (n,), are classes from 0, and ``num_users`` 1 to n. Small values of
    ``label_concentration``, the parameter of the Dirichlet distribution, give users of one class,
    large ones users alike.

    Returns:
        The order of the examples, shape (n,), a permutation of 0..n - 1, and the offsets, shape
        (num_users + 1,): user u owns ``order[offsets[u]:offsets[u + 1]]``.

    Source: Hsu, Qi and Brown 2019, section 3 (Dirichlet label skew); the unequal sizes are ours.
    """
    num_examples = len(labels)
    num_classes = int(labels.max()) + 1
    weights = rng.lognormal(sigma=SIZE_SPREAD, size=num_users)
    sizes = 1 + rng.multinomial(num_examples - num_users, weights / weights.sum())
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    preferences = rng.dirichlet(np.full(num_classes, label_concentration), size=num_users)
    shuffled = rng.permutation(num_examples)
    left = [list(shuffled[labels[shuffled] == label]) for label in range(num_classes)]
    owners = np.repeat(np.arange(num_users), sizes)
    order = np.empty(num_examples, dtype=np.int64)
    for place in rng.permutation(num_examples):
        remaining = np.array([len(examples) for examples in left])
        chances = preferences[owners[place]] * (remaining > 0)
        if chances.sum() <= 0:  # nothing is left of any class that this user has
            chances = remaining.astype(np.float64)
        label = rng.choice(num_classes, p=chances / chances.sum())
        order[place] = left[label].pop()
    return order, offsets


NUM_EXAMPLES = 1797
NUM_CLASSES = 10
NUM_HELD_OUT = NUM_EXAMPLES // 6  # a sixth for "val" and a sixth for "test"
MAX_PIXEL = 16.0
USERS_PER_HELD_OUT_USER = 6
PARTS_OF_A_USER = 6  # split by example: one for "val", one for "test", the others for "train"
_FILE = "sklearn/datasets/data/digits.csv.gz"


class Options(StrictOptions):
    """Options of the digits task.

    Attributes:
        num_users: Training users, 1 to 1,199; "val" and "test" get a sixth as many each.
        label_concentration: Dirichlet parameter of the users' label skew, 0.001 to 1,000,000.
        partition_seed: Seed of the split and of the partition; separate from the run's seed, so
            that runs with different seeds see the same users.
        split_by: "user" gives val and test users of their own; "example" gives a sixth of each
            training user's examples, rounded down, to each of them.
    """

    num_users: int = Field(default=300, ge=1, le=NUM_EXAMPLES - 2 * NUM_HELD_OUT)
    label_concentration: float = Field(default=1.0, ge=1e-3, le=1e6)
    partition_seed: int = Field(default=0, ge=0)
    split_by: Literal["user", "example"] = "user"


class DigitsTask(InMemoryTask[InMemorySplit]):
    """Classify handwritten digits; cross entropy loss."""


def build(options: Options) -> DigitsTask:
    """Load the digits from scikit-learn's own installation and assign them to users.

    Splits have disjoint examples, and disjoint users unless they are split by example.
    """
    pixels, labels = _read_digits()
    inputs = (pixels / MAX_PIXEL).astype(np.float32)
    targets = labels.astype(np.int64)
    splits: dict[str, InMemorySplit] = {}
    digest = hashlib.sha256()
    for name, (part, offsets, ids) in _partitioned(options).items():
        tensors = torch.from_numpy(inputs[part]), torch.from_numpy(targets[part])
        splits[name] = InMemorySplit(name, *tensors, offsets, ids)
        for array in splits[name].content():
            digest.update(array.tobytes())
    facts = DataFacts(
        source=(
            "scikit-learn load_digits (1,797 of the UCI optical recognition digits); the writers "
            "are not known: users are dealt artificially"
        ),
        variant="sklearn-digits-dirichlet",
        checksum=f"sha256:{digest.hexdigest()}",
        num_classes=NUM_CLASSES,
        input_shape=(inputs.shape[1],),
        split_by=options.split_by,
        extra=options.model_dump(exclude={"split_by"}),
        artificial_users=True,
    )
    return DigitsTask("digits", splits, facts)


# Examples, shape (n,), in the order of their users; offsets, shape (U + 1,); ids of the users.
_Part = tuple[NDArray[np.int64], NDArray[np.int64], list[str]]


# The rows of a table have the same users: they are drawn once for all of them.
@functools.lru_cache(maxsize=4)
def _partitioned(options: Options) -> dict[str, _Part]:
    found = _by_user(options) if options.split_by == "user" else _by_example(options)
    for part, offsets, _ in found.values():
        part.setflags(write=False)
        offsets.setflags(write=False)
    return found


def _by_user(options: Options) -> dict[str, _Part]:
    targets = _read_digits()[1].astype(np.int64)
    # The order of these draws defines the partition of a seed: new ones go to the end.
    rng = np.random.default_rng(options.partition_seed)
    shuffled = rng.permutation(NUM_EXAMPLES)
    parts = {
        "train": shuffled[2 * NUM_HELD_OUT :],
        "val": shuffled[:NUM_HELD_OUT],
        "test": shuffled[NUM_HELD_OUT : 2 * NUM_HELD_OUT],
    }
    num_held_out_users = max(1, options.num_users // USERS_PER_HELD_OUT_USER)
    found = {}
    for name, part in parts.items():
        num_users = options.num_users if name == "train" else num_held_out_users
        order, offsets = skewed(targets[part], num_users, options.label_concentration, rng)
        ids = [f"{name}-{user:04d}" for user in range(num_users)]
        found[name] = (part[order], offsets, ids)
    return found


def _by_example(options: Options) -> dict[str, _Part]:
    targets = _read_digits()[1].astype(np.int64)
    rng = np.random.default_rng(options.partition_seed)
    order, offsets = skewed(targets, options.num_users, options.label_concentration, rng)
    sizes = np.diff(offsets)
    held_out = sizes // PARTS_OF_A_USER
    # A user's examples are in random order.
    ranks = np.arange(NUM_EXAMPLES) - np.repeat(offsets[:-1], sizes)
    last_val, last_test = np.repeat(held_out, sizes), np.repeat(2 * held_out, sizes)
    chosen = {
        "train": (ranks >= last_test, sizes - 2 * held_out),
        "val": (ranks < last_val, held_out),
        "test": ((ranks >= last_val) & (ranks < last_test), held_out),
    }
    found = {}
    for name, (mask, counts) in chosen.items():
        users = np.flatnonzero(counts)
        ends = np.concatenate([[0], np.cumsum(counts[users])]).astype(np.int64)
        found[name] = (order[mask], ends, [f"user-{user:04d}" for user in users])
    return found


@functools.cache
def _read_digits() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels of shape (1797, 64), 0 to 16, and labels of shape (1797,), from scikit-learn's file.

    Importing scikit-learn, which reads the same file, takes a second; this takes 0.02.
    """
    try:
        home = metadata.distribution("scikit-learn")
        table = np.loadtxt(str(home.locate_file(_FILE)), delimiter=",")
    except (metadata.PackageNotFoundError, OSError):
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        return pixels, labels
    return table[:, :-1], table[:, -1]
