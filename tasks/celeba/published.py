"""What was published of CelebA, and how what was read compares with it."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

# Source: Liu et al. 2015 (CelebA) and the data set's README.
IMAGES, IDENTITIES, NUM_ATTRIBUTES = 202_599, 10_177, 40
# Source: Caldas et al. 2018, LEAF, table 1: celebrities with at least five images.
LEAST_IMAGES = 5
USERS, SAMPLES, MEAN, SD = 9_343, 200_288, 21.44, 7.63
# Sources with fewer images than this share of the published ones are parts of the data.
FULL_SHARE = 0.9
GENERATED_MARK = "GENERATED.txt"
FULL, PARTIAL, GENERATED = "celeba", "celeba-partial", "celeba-generated"


def table1(sizes: Collection[int]) -> dict[str, Any]:
    """LEAF's counts over the celebrities with at least five images.

    Args:
        sizes: Images of each celebrity.

    Returns:
        "table1": users, samples, mean and population standard deviation of a user's samples;
        "differs_from_published": a sentence for each number that differs, None for data that do
        not look like all of CelebA.
    """
    kept = [size for size in sizes if size >= LEAST_IMAGES]
    mean = sum(kept) / len(kept) if kept else 0.0
    sd = math.sqrt(sum((size - mean) ** 2 for size in kept) / len(kept)) if kept else 0.0
    differs: list[str] | None = None
    if looks_full(sum(sizes)):
        compared = (
            ("images", sum(sizes), IMAGES),
            ("celebrities", len(sizes), IDENTITIES),
            ("users", len(kept), USERS),
            ("samples", sum(kept), SAMPLES),
            ("mean", round(mean, 2), MEAN),
            ("sd", round(sd, 2), SD),
        )
        differs = [
            f"{what}: {found:,} here, {published:,} published"
            for what, found, published in compared
            if found != published
        ]
    measured = {"users": len(kept), "samples": sum(kept), "mean": mean, "sd": sd}
    return {"table1": measured, "differs_from_published": differs}


def looks_full(num_images: int) -> bool:
    """Whether so many images look like the whole data, not a part of them."""
    return num_images >= FULL_SHARE * IMAGES
