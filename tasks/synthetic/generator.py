"""Generate LEAF's synthetic data: one linear model a task, and tasks around cluster centres."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from pfl_bench.types import ConfigError, SplitBy
from tasks.common.leaf.plan import SPLITS
from tasks.common.options import StrictOptions

Style = Literal["paper", "code", "first_code"]
MIN_EXAMPLES, MAX_EXAMPLES = 5, 1000
SIZE_MEAN, SIZE_SIGMA = 3.0, 2.0  # of the logarithm of a task's size
DECAY = -1.2  # the i-th feature has the variance i ** DECAY
# The appendix writes N(., I) and N(0, 0.1 I): variances.
PAPER_MODEL_SD, PAPER_NOISE_SD = 1.0, 0.1**0.5
CODE_MODEL_SD = CODE_NOISE_SD = 0.1
_WORLD, _TASK = 0, 1  # streams of the style "paper"


class Recipe(StrictOptions):
    """Recipe of the data.

    Attributes:
        num_tasks: Tasks (users).
        cluster_probabilities: Probability of each cluster of true models; positive, sum 1.
        num_features: Features, without the intercept.
        num_classes: Classes.
        side_dimension: Dimension of the cluster centres (the appendix's s); None for the number of
            clusters, as in LEAF's code.
        seed: Seed of the data; separate from the run's seed.
        style: "paper" follows appendix A; "code" draws what LEAF's generator draws, in its order
            and with its constants; "first_code" is the same with the labels of LEAF's first
            generator, whose softmax ran over a task's examples instead of its classes.
    """

    num_tasks: int = Field(default=1000, ge=1, le=1_000_000)
    cluster_probabilities: list[float] = Field(default=[1.0])
    num_features: int = Field(default=60, ge=1, le=100_000)
    num_classes: int = Field(default=5, ge=2, le=1000)
    side_dimension: int | None = Field(default=None, ge=1, le=1000)
    seed: int = Field(default=931231, ge=0, le=2**32 - 1)
    style: Style = "paper"

    @field_validator("cluster_probabilities")
    @classmethod
    def _probabilities(cls, values: list[float]) -> list[float]:
        if not values or not all(0 < value <= 1 for value in values) or abs(sum(values) - 1) > 1e-6:
            raise ValueError(
                f"{values} must be positive numbers that sum to 1, such as [1.0] or [0.5, 0.5]"
            )
        return values

    @property
    def sides(self) -> int:
        """Dimension of the cluster centres."""
        return self.side_dimension or len(self.cluster_probabilities)


@dataclass(frozen=True, slots=True)
class Pool:
    """Examples by user, in memory.

    Attributes:
        names: The U users.
        inputs: Shape (n, d), float32.
        targets: Shape (n,), int64, 0 to K - 1.
        offsets: Shape (U + 1,), int64: user u owns the examples ``offsets[u]:offsets[u + 1]``.
        clusters: Shape (U,), int64: the cluster of each user; None if it is not known.
    """

    names: list[str]
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]
    offsets: NDArray[np.int64]
    clusters: NDArray[np.int64] | None


def task_sizes(num_tasks: int, seed: int) -> NDArray[np.int64]:
    """Draw the tasks' numbers of examples, shape (num_tasks,): log-normal, 5 to 1,000.

    The draws are those of LEAF's generator: from numpy's legacy generator, freshly seeded. All
    styles share them, so they differ in the examples and not in how many there are.

    Source: Caldas et al. 2018 (LEAF), appendix A, step 3 of each task.
    """
    drawn = np.random.RandomState(seed).lognormal(SIZE_MEAN, SIZE_SIGMA, num_tasks)
    return np.minimum(drawn.astype(np.int64) + MIN_EXAMPLES, MAX_EXAMPLES)


def generate(recipe: Recipe) -> Pool:
    """Generate all tasks, "0" to "T - 1"; the same recipe gives the same on the same platform.

    Source: Caldas et al. 2018 (LEAF), appendix A; the styles "code" and "first_code" take the order
        of draws and the constants of LEAF's generator.
    """
    sizes = task_sizes(recipe.num_tasks, recipe.seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    inputs = np.empty((int(offsets[-1]), recipe.num_features), dtype=np.float32)
    targets = np.empty(len(inputs), dtype=np.int64)
    clusters = np.empty(recipe.num_tasks, dtype=np.int64)
    shares = np.asarray(recipe.cluster_probabilities) / sum(recipe.cluster_probabilities)
    draw_task = (_paper if recipe.style == "paper" else _code)(recipe, shares)
    for task, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        features, targets[start:stop], clusters[task] = draw_task(task, stop - start)
        inputs[start:stop] = features
    names = [str(task) for task in range(recipe.num_tasks)]
    return Pool(names, inputs, targets, offsets, clusters)


Drawn = tuple[NDArray[np.float64], NDArray[np.int64], int]


def _feature_scale(num_features: int) -> NDArray[np.float64]:
    scale: NDArray[np.float64] = np.sqrt(np.arange(1, num_features + 1, dtype=np.float64) ** DECAY)
    return scale


def _scores(features: NDArray[np.float64], model: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear scores of shape (n, K); the first row of the model, shape (d + 1, K), is added."""
    scores: NDArray[np.float64] = features @ model[1:] + model[0]
    return scores


def _paper(recipe: Recipe, shares: NDArray[np.float64]) -> Callable[[int, int], Drawn]:
    """The appendix: one stream for what tasks share, and one for each task."""
    features, side = recipe.num_features, recipe.sides
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(_WORLD,)))
    num_clusters = len(shares)
    centres = rng.normal(rng.normal(size=(num_clusters, 1)), size=(num_clusters, side))
    mixing = rng.normal(size=(features + 1, recipe.num_classes, side))
    scale = _feature_scale(features)

    def draw_task(task: int, count: int) -> Drawn:
        rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(_TASK, task)))
        cluster = int(rng.choice(num_clusters, p=shares))
        model = mixing @ rng.normal(centres[cluster], PAPER_MODEL_SD)
        mean = rng.normal(rng.normal(), size=features)
        drawn = mean + scale * rng.normal(size=(count, features))
        noise = rng.normal(scale=PAPER_NOISE_SD, size=(count, recipe.num_classes))
        # The sigmoid is monotone: without it there are no ties where it would round to 1.
        return drawn, np.argmax(_scores(drawn, model) + noise, axis=1), cluster

    return draw_task


def _code(recipe: Recipe, shares: NDArray[np.float64]) -> Callable[[int, int], Drawn]:
    """LEAF's generator: one legacy stream, seeded a second time after the sizes."""
    features, side = recipe.num_features, recipe.sides
    rng = np.random.RandomState(recipe.seed)
    num_clusters = len(shares)
    mixing = rng.normal(size=(features + 1, recipe.num_classes, side))
    centres = [rng.normal(rng.normal(), 1.0, side) for _ in range(num_clusters)]
    scale = _feature_scale(features)
    # The first generator's softmax ran over the examples of a task instead of the classes.
    axis = 0 if recipe.style == "first_code" else 1

    def draw_task(task: int, count: int) -> Drawn:
        cluster = int(rng.choice(num_clusters, p=shares))
        mean = rng.normal(rng.normal(), 1.0, features)
        # What multivariate_normal draws for a diagonal covariance in descending order.
        drawn = mean + scale * rng.standard_normal((count, features))
        model = mixing @ rng.normal(centres[cluster], CODE_MODEL_SD)
        noise = rng.normal(0.0, CODE_NOISE_SD, (count, recipe.num_classes))
        raw = np.exp(_scores(drawn, model) + noise)
        return drawn, np.argmax(raw / raw.sum(axis=axis, keepdims=True), axis=1), cluster

    return draw_task


_NOTHING = 1e-9  # what is left of 1 after fractions that sum to 1 in decimal


# By name, the places of a user's examples in a pool: shape (n,), int64.
Users = dict[str, NDArray[np.int64]]


def counts(total: int, train_fraction: float, val_fraction: float) -> tuple[int, int, int]:
    """Numbers, of ``total`` examples or users, at least 1, that go to train, val and test.

    Train and val get their fraction rounded down (LEAF's rule for train), and each split that is to
    have anything at least one, while there are enough: train first, then test, then val.
    """
    with_test = 1 - train_fraction - val_fraction > _NOTHING
    test_least = int(with_test and total >= 2)
    val_least = int(val_fraction > 0 and total >= 2 + with_test)
    val = max(val_least, min(int(val_fraction * total + _NOTHING), total - 1 - test_least))
    train = max(1, min(int(train_fraction * total + _NOTHING), total - val - test_least))
    if not with_test:
        train = total - val
    return train, val, total - train - val


def everyone(pool: Pool) -> Users:
    """All users of a pool."""
    bounds = itertools.pairwise(pool.offsets.tolist())
    return {
        name: np.arange(start, stop, dtype=np.int64)
        for name, (start, stop) in zip(pool.names, bounds, strict=True)
    }


def divide(
    users: Users, split_by: SplitBy, train_fraction: float, val_fraction: float, seed: int
) -> dict[str, Users]:
    """Split users, or the examples of each, as ``counts`` says; splits that get none are left out.

    A user's examples are shuffled by a stream of that user's name.
    """
    splits: dict[str, Users] = {name: {} for name in SPLITS}
    if split_by == "user":
        names = list(users)
        order = np.random.default_rng(seed).permutation(len(names))
        ends = np.cumsum(counts(len(order), train_fraction, val_fraction))[:-1]
        for split, chosen in zip(SPLITS, np.split(order, ends), strict=True):
            splits[split] = {names[user]: users[names[user]] for user in np.sort(chosen)}
    else:
        for name, places in users.items():
            word = hashlib.sha256(name.encode()).digest()[:8]
            rng = np.random.default_rng([seed, int.from_bytes(word, "little")])
            own = rng.permutation(places)
            ends = np.cumsum(counts(len(own), train_fraction, val_fraction))[:-1]
            for split, share in zip(SPLITS, np.split(own, ends), strict=True):
                if len(share):
                    splits[split][name] = share
    return {split: own for split, own in splits.items() if own}


def drop_small(splits: Mapping[str, Users], min_examples: int) -> tuple[dict[str, Users], int]:
    """Drop and count users with too few examples over all splits; each split must keep somebody."""
    totals: Counter[str] = Counter()
    for users in splits.values():
        totals.update({name: len(places) for name, places in users.items()})
    small = {name for name, count in totals.items() if count < min_examples}
    kept: dict[str, Users] = {}
    for split, users in splits.items():
        kept[split] = {name: places for name, places in users.items() if name not in small}
        if not kept[split]:
            raise ConfigError(
                f"min_examples {min_examples}: leaves no user in split '{split}'; the largest user "
                f"has {max(totals.values())} examples: choose a smaller number"
            )
    return kept, len(small)


def partition_evenly(users: Users, seed: int, split: str, first: int = 0) -> Users:
    """Assign a split's examples to as many artificial users, in shares that differ by one.

    Only as many users get something as there are examples; ``first`` is the number of the first.
    Each ``split`` has draws of its own.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    shuffled = rng.permutation(np.concatenate(list(users.values())))
    shares = np.array_split(shuffled, len(users))
    return {f"iid-{user:06d}": own for user, own in enumerate(shares, first) if len(own)}
