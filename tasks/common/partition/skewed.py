"""Artificial users with skewed labels and skewed sizes, as the digits task has them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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

    Raises:
        ValueError: ``num_users`` is below 1 or above the number of examples, or
            ``label_concentration`` is not positive.

    Source: Hsu, Qi and Brown 2019, section 3 (Dirichlet label skew); the unequal sizes are ours.
    """
    num_examples = len(labels)
    if not 1 <= num_users <= num_examples:
        raise ValueError(
            f"num_users = {num_users}: {num_examples} examples can be assigned to 1 to "
            f"{num_examples} users, as each needs one; choose a number in that range"
        )
    if not label_concentration > 0:
        raise ValueError(f"label_concentration = {label_concentration}: must be above 0")
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
