"""Frequency of FLAIR's labels, in all and over users; how it compares with the published one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import StoreSplit
from pfl_bench.types import DataError
from tasks.flair.published import IMAGES, NUM_COARSE, NUM_FINE, NUMBERS, USERS

_BLOCK_EXAMPLES = 1 << 15
# "Less than 0.1% of users": the paper's bound of a rare label.
_RARE = 0.001
NOTEBOOK: dict[str, Any] = {
    "images": sum(IMAGES.values()),
    "users": sum(USERS.values()),
    "coarse labels": NUM_COARSE,
    "fine labels": NUM_FINE,
    "coarse": NUMBERS["coarse_images"],
    "fine": NUMBERS["fine_images"],
}
DESCRIBED: dict[str, list[float]] = NUMBERS["described"]
DESCRIPTION = ("mean", "std", "min", "q25", "q50", "q75", "max")
PAPER: dict[str, list[float]] = NUMBERS["paper"]
# The notebook prints seven digits, which six decimals of values below ten are.
_DECIMALS = 6


@dataclass(frozen=True)
class LabelCounts:
    """Counts of one level of labels (K of them), over n images of U users.

    Attributes:
        images: Shape (K,), images that have the label.
        users: Shape (K,), users with at least one such image.
        per_image: Shape (n,), labels of each image.
        per_user: Shape (U,), different labels of each user.
    """

    images: NDArray[np.int64]
    users: NDArray[np.int64]
    per_image: NDArray[np.int64]
    per_user: NDArray[np.int64]

    def as_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Counts and shares by name of the K labels, the commonest first.

        Returns:
            "counts" (images), "share_of_users" (of all users, 0 to 1), and "rare": labels that
            are on less than 0.1% of the users, those that do not occur among them.
        """
        shares = self.users / len(self.per_user)
        order = sorted(range(len(names)), key=lambda label: (-self.images[label], names[label]))
        return {
            "counts": {names[label]: int(self.images[label]) for label in order},
            "share_of_users": {names[label]: float(shares[label]) for label in order},
            "rare": int(np.count_nonzero(shares < _RARE)),
        }


def count_labels(splits: Sequence[StoreSplit], field: str, num_labels: int) -> LabelCounts:
    """Count one level of labels, "coarse" or "fine", over splits of different users.

    Splits are read in blocks; each image has indices of 0 to ``num_labels`` - 1, none twice.
    """
    images, users = np.zeros((2, num_labels), dtype=np.int64)
    per_image, per_user = [], []
    for split in splits:
        for first, last in blocks_of_users(split.offsets, _BLOCK_EXAMPLES):
            start, stop = int(split.offsets[first]), int(split.offsets[last])
            lists = split.read(field, start, stop)
            lengths = np.array([len(labels) for labels in lists], dtype=np.int64)
            labels = np.concatenate(lists).astype(np.int64)
            if labels.size and labels.max() >= num_labels:
                raise DataError(
                    f"split {split.name!r}, images {start}:{stop}: {field} label {labels.max()} "
                    f"is not within 0..{num_labels - 1}. The store is damaged; copy it again or "
                    "prepare it again."
                )
            owners = np.repeat(np.arange(last - first), np.diff(split.offsets[first : last + 1]))
            pairs = np.unique(np.repeat(owners, lengths) * num_labels + labels)
            images += np.bincount(labels, minlength=num_labels)
            users += np.bincount(pairs % num_labels, minlength=num_labels)
            per_image.append(lengths)
            per_user.append(np.bincount(pairs // num_labels, minlength=last - first))
    return LabelCounts(images, users, np.concatenate(per_image), np.concatenate(per_user))


def blocks_of_users(offsets: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole users with so many images at most each, or of one larger user.

    User u has the images ``offsets[u]:offsets[u + 1]``, and ``offsets`` the shape (U + 1,).
    """
    first, users = 0, len(offsets) - 1
    while first < users:
        fits = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = max(fits, first + 1)
        yield first, last
        first = last


def describe(values: NDArray[np.int64]) -> dict[str, float | int | None]:
    """Describe numbers, shape (n,), n at least 1, as the published notebook does.

    Returns:
        "mean", "std" (sample: divided by n - 1; None for one value), "min", "q25", "q50", "q75"
        (linear interpolation) and "max".

    Source:
        apple/ml-flair, explore_labels.ipynb, which calls pandas' ``describe``.
    """
    quartiles = np.percentile(values, (25, 50, 75))
    return {
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "min": int(values.min()),
        **{f"q{rank}": float(q) for rank, q in zip((25, 50, 75), quartiles, strict=True)},
        "max": int(values.max()),
    }


def compare(statistics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Set each published number beside that of ``statistics``, which are of all splits.

    Returns:
        For each number "quantity", "published", "here" (None if the store has no such label) and
        "agrees": equal as far as the published number has digits.

    Source:
        apple/ml-flair, explore_labels.ipynb; Song et al. 2022, section 4.2.
    """
    coarse, fine = statistics["coarse"], statistics["fine"]
    counted = {
        "images": statistics["images"],
        "users": statistics["users"],
        "coarse labels": len(coarse["counts"]),
        "fine labels": len(fine["counts"]),
    }
    rows = [_row(name, NOTEBOOK[name], value, 0) for name, value in counted.items()]
    for level, here in (("coarse", coarse), ("fine", fine)):
        for label, count in NOTEBOOK[level].items():
            name = f"images with {level} label {label}"
            rows.append(_row(name, count, here["counts"].get(label), 0))
    for name, values in DESCRIBED.items():
        here = statistics["described"][name]
        for part, value in zip(DESCRIPTION, values, strict=True):
            rows.append(_row(f"{name}: {part}", value, here[part], _half_a_unit(value)))
    shares = coarse["share_of_users"]
    found = (
        statistics["largest_share"],
        shares.get("structure"),
        shares.get("religion"),
        fine["rare"],
    )
    for (name, (value, tolerance)), number in zip(PAPER.items(), found, strict=True):
        rows.append(_row(name, value, number, tolerance))
    return rows


def _half_a_unit(value: float) -> float:
    return 0.0 if float(value).is_integer() else 0.5 * 10**-_DECIMALS


def _row(name: str, published: float, here: float | None, tolerance: float) -> dict[str, Any]:
    # A little more than half a unit: the published number was itself rounded in binary.
    agrees = here is not None and abs(here - published) <= 1.001 * tolerance
    return {"quantity": name, "published": published, "here": here, "agrees": agrees}
