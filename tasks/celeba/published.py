"""Published counts of CelebA, and how what was read compares with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tasks.common.leaf import table1 as leaf

# Source: Liu et al. 2015 (CelebA) and the data set's README.
IMAGES, IDENTITIES, NUM_ATTRIBUTES = 202_599, 10_177, 40
# LEAF's table 1 has celebrities with at least so many images.
LEAST_IMAGES = 5
FULL, PARTIAL, GENERATED = "celeba", "celeba-partial", "celeba-generated"


def table1(sizes: Collection[int]) -> dict[str, Any]:
    """LEAF's counts over the celebrities with at least five images.

    As ``tasks.common.leaf.table1.compare``, of the images of each celebrity; the sentences are also
    of all images and celebrities.
    """
    num_images = sum(sizes)
    return leaf.compare(
        [size for size in sizes if size >= LEAST_IMAGES],
        leaf.CELEBA,
        f"images of celebrities with at least {LEAST_IMAGES}",
        full=looks_full(num_images),
        more=(("images", num_images, IMAGES), ("celebrities", len(sizes), IDENTITIES)),
    )


def looks_full(num_images: int) -> bool:
    """Whether so many images look like the whole data, not a part of them."""
    return leaf.looks_full(num_images, IMAGES)
