"""The synthetic task of LEAF: generated in memory from its options, or read from LEAF JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pfl_bench.data import InMemorySplit
from pfl_bench.types import ConfigError, DataError, DataFacts, SplitBy
from tasks.common.classification import InMemoryTask
from tasks.common.leaf.json_files import LOOKED_FOR, find_files, read_splits
from tasks.common.leaf.options import check_fractions
from tasks.common.leaf.plan import SPLITS, UNSPLIT, published_split_by
from tasks.common.options import refuse
from tasks.synthetic.generator import (
    Pool,
    Recipe,
    Users,
    divide,
    drop_small,
    everyone,
    generate,
    partition_evenly,
)

# Features and labels of each user, a piece a file.
Pieces = dict[str, list[tuple[NDArray[np.float32], NDArray[np.int64]]]]
_FEATURE_CLASSES = 1000  # labels beyond are taken for a mistake


def read_pools(source: Path) -> dict[str, Pool]:
    """Read a JSON file, which is not split, or a folder of them; a pool a split, or ``UNSPLIT``."""
    if not source.exists():
        raise DataError(
            f"task synthetic: data {source} does not exist; give a JSON file or a folder with "
            f"{LOOKED_FOR}, or leave `data` out to have the data generated"
        )
    files = {UNSPLIT: [source]} if source.is_file() else find_files(source)
    if not files:
        raise DataError(f"task synthetic: {source} holds no data. Looked for {LOOKED_FOR}")
    pieces: dict[str, Pieces] = {split: {} for split in files}
    width: list[int] = []
    for split, user, where in read_splits(source, files):
        pieces[split].setdefault(user.user, []).append(
            (_features(user.x, width, where), _labels(user.y, where))
        )
    return {split: _pool(of_split) for split, of_split in pieces.items()}


def _pool(pieces: Pieces) -> Pool:
    together = [piece for own in pieces.values() for piece in own]
    sizes = [sum(len(labels) for _, labels in own) for own in pieces.values()]
    return Pool(
        list(pieces),
        np.concatenate([features for features, _ in together]),
        np.concatenate([labels for _, labels in together]),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        None,
    )


def _features(rows: list[Any], width: list[int], where: str) -> NDArray[np.float32]:
    """Features of shape (n, d); the first user says what d is."""
    values = _numbers(rows, where, "features")
    if values.ndim != 2 or not values.shape[1]:
        raise DataError(f"{where}: every x must be a list of the same number of features")
    width[:] = width or [values.shape[1]]
    if values.shape[1] != width[0]:
        raise DataError(
            f"{where}: has {values.shape[1]} features where users before have {width[0]}; the "
            "files are not of one data set"
        )
    return values.astype(np.float32)


def _labels(values: list[Any], where: str) -> NDArray[np.int64]:
    """Labels of shape (n,), which may be floats such as 3.0."""
    labels = _numbers(values, where, "labels")
    wrong = labels if labels.ndim != 1 else labels[(labels != np.floor(labels)) | (labels < 0)]
    if wrong.size or labels.max() >= _FEATURE_CLASSES:
        shown = wrong.reshape(-1)[0] if wrong.size else labels.max()
        raise DataError(
            f"{where}: the label {shown} is not a whole number from 0 to {_FEATURE_CLASSES - 1}: "
            "is this another data set?"
        )
    return labels.astype(np.int64)


def _numbers(values: list[Any], where: str, what: str) -> NDArray[np.float64]:
    array: NDArray[Any]
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unequal length
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise DataError(
            f"{where}: the {what} are not all finite numbers in rows of one length; the task reads "
            "LEAF's synthetic data, not text or images"
        )
    return array.astype(np.float64)


CLUSTER = "cluster"
SPLIT_OPTIONS = ("split_by", "train_fraction", "val_fraction", "split_seed")
_WORDS = {
    "paper": "as LEAF's appendix A says",
    "code": "as LEAF's generator does",
    "first_code": "as LEAF's first generator did",
}


class Options(Recipe):
    """Options of the synthetic task, beside those of the generator.

    Attributes:
        data: LEAF JSON to read in place of generating: a file, or a folder; then the options of
            the generator are refused.
        min_examples: Users with fewer examples, over all splits, are dropped.
        split_by: "example" divides each user's examples, "user" assigns whole users.
        train_fraction: Fraction for train, rounded down; at least one example a user.
        val_fraction: Fraction for val, rounded down; what both leave is test.
        split_seed: Seed of the split.
        partition: "natural" leaves examples with their users; "iid" then assigns each split's
            examples, in equal shares, to as many artificial users.
    """

    data: str | None = None
    min_examples: int = Field(default=0, ge=0)
    split_by: SplitBy = "example"
    train_fraction: float = Field(default=0.6, gt=0, le=1)
    val_fraction: float = Field(default=0.2, ge=0, lt=1)
    split_seed: int = Field(default=0, ge=0)
    partition: Literal["natural", "iid"] = "natural"

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        check_fractions(self.train_fraction, self.val_fraction)
        if self.data is not None:
            why = f"are for generated data, but data = {self.data!r} is read"
            refuse(self.changed(*Recipe.model_fields), f"{why}; leave one of the two out")
        return self


class ArraySplit(InMemorySplit):
    """One split in memory: some examples of a pool, by user."""

    def __init__(self, name: str, pool: Pool, users: Users) -> None:
        places = np.concatenate(list(users.values()))
        inputs, targets = (torch.from_numpy(part[places]) for part in (pool.inputs, pool.targets))
        offsets = np.cumsum([0, *map(len, users.values())]).astype(np.int64)
        super().__init__(name, inputs, targets, offsets, list(users))
        self._clusters: NDArray[np.int64] | None = None
        if pool.clusters is not None:
            owners = np.repeat(np.arange(len(pool.names)), np.diff(pool.offsets))
            self._clusters = pool.clusters[owners[places]]

    def read_clusters(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read the clusters, if known, of the examples ``start:stop``; shape (stop - start,)."""
        self._check_range(start, stop)
        if self._clusters is None:
            raise ValueError(f"split {self.name!r}: the clusters of these data are not known")
        return self._clusters[start:stop].copy()


class SyntheticTask(InMemoryTask[ArraySplit]):
    """Classify generated points; users' true models differ. Cross entropy of the model's outputs.

    The column "cluster" is there if it is known which cluster each example's task is of.
    """

    def __init__(
        self, splits: Mapping[str, ArraySplit], facts: DataFacts, column_names: tuple[str, ...]
    ) -> None:
        super().__init__("synthetic", splits, facts)
        self.column_names = column_names

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        """Read the clusters of the examples ``start:stop`` of a split; shape (stop - start,)."""
        if name not in self.column_names:
            raise ConfigError(
                f"column '{name}': the synthetic data have no such column; there are: "
                f"{', '.join(self.column_names) or 'none'}"
            )
        return self.split(split).read_clusters(start, stop)

    def column_values(self, name: str) -> Sequence[str] | None:
        """Clusters are just numbers."""
        return None


def build(options: Options) -> SyntheticTask:
    """Generate or read the data, and split them; splits that get nothing are absent."""
    if options.data is None:
        pools = {UNSPLIT: generate(options)}
        num_classes = options.num_classes
        source = f"generated {_WORDS[options.style]}; its users are no persons"
        variant = f"synthetic-{options.style.replace('_', '-')}"
    else:
        pools = read_pools(Path(options.data))
        num_classes = 1 + max(int(pool.targets.max()) for pool in pools.values())
        source = f"LEAF-format synthetic data, {options.data}"
        variant = "synthetic-json"
    found = {split: everyone(pool) for split, pool in pools.items()}
    users, num_dropped = drop_small(found, options.min_examples)
    clients = {split: list(own) for split, own in users.items()}
    published = None if UNSPLIT in clients else published_split_by(clients)
    if published is not None:
        changed = options.changed(*SPLIT_OPTIONS)
        if options.partition == "iid" and "split_seed" in changed:
            changed.remove("split_seed")  # the partition draws from it
        why = f"{options.data} is split by its publisher, by {published}"
        refuse(changed, f"{why}; leave these options out, or give data that are not split")
    splits = _splits(options, pools, users, published or options.split_by)
    digest = hashlib.sha256()
    for split in splits.values():
        for array in split.content():
            digest.update(array.tobytes())
        digest.update("\0".join(split.client_ids()).encode())
    facts = DataFacts(
        source=source,
        variant=variant,
        checksum=f"sha256:{digest.hexdigest()}",
        num_classes=num_classes,
        input_shape=next(iter(pools.values())).inputs.shape[1:],
        split_by=published or options.split_by,
        extra=_extra(options, published, users, num_dropped),
        artificial_users=True,
    )
    return SyntheticTask(splits, facts, (CLUSTER,) if options.data is None else ())


def _splits(
    options: Options, pools: Mapping[str, Pool], users: dict[str, Users], split_by: SplitBy
) -> dict[str, ArraySplit]:
    """The splits, in their usual order."""
    if UNSPLIT in users:
        fractions = options.train_fraction, options.val_fraction
        users = divide(users[UNSPLIT], options.split_by, *fractions, options.split_seed)
        pools = dict.fromkeys(users, pools[UNSPLIT])
    if options.partition == "iid":
        first, natural = 0, users
        users = {}
        for name, own in natural.items():
            users[name] = partition_evenly(own, options.split_seed, name, first)
            if split_by == "user":  # nobody is in two splits
                first += len(own)
    return {name: ArraySplit(name, pools[name], users[name]) for name in SPLITS if name in users}


def _extra(
    options: Options, published: SplitBy | None, users: Mapping[str, Users], num_dropped: int
) -> dict[str, Any]:
    """Facts beside the usual ones: the recipe, the split, how much there is."""
    sizes = np.array([len(places) for own in users.values() for places in own.values()])
    extra: dict[str, Any] = {
        "generated": True,
        "partition": options.partition,
        "min_examples": options.min_examples,
        "users_dropped": num_dropped,
        "examples_per_user": {
            "users": len(sizes),
            "examples": int(sizes.sum()),
            "mean": float(sizes.mean()),
            "sd": float(sizes.std()),
        },
    }
    if options.data is None:
        extra |= options.model_dump(include=set(Recipe.model_fields))
        extra["side_dimension"] = options.sides
    split: dict[str, Any] = {"by": published, "as": "published"}
    if published is None:
        split = {"as": "prepared here", "by": options.split_by}
        split |= {name: getattr(options, name) for name in SPLIT_OPTIONS[1:]}
    return extra | {"split": split}
