"""FLAIR's published statistics, and how those of a store compare with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.flair.published import COARSE_IMAGES, IMAGES, NUM_COARSE, NUM_FINE, USERS

# apple/ml-flair, explore_labels.ipynb, its outputs.
NOTEBOOK: dict[str, Any] = {
    "images": sum(IMAGES.values()),
    "users": sum(USERS.values()),
    "coarse labels": NUM_COARSE,
    "fine labels": NUM_FINE,
    "coarse": COARSE_IMAGES,
    # The twenty commonest, which are all that is published.
    "fine": {
        "wood_processed": 82336,
        "material": 74807,
        "structure": 61517,
        "grass": 44741,
        "plate": 42392,
        "plant": 42009,
        "blue_sky": 41043,
        "foliage": 40793,
        "cloudy": 36225,
        "tree": 33984,
        "textile": 33709,
        "building": 32349,
        "rocks": 28850,
        "container": 25189,
        "land": 24715,
        "sky": 24669,
        "fence": 24249,
        "food": 23752,
        "interior_room": 23254,
        "vegetation": 23106,
    },
}
# The same notebook: mean, std, min, q25, q50, q75, max.
DESCRIBED: dict[str, tuple[float, ...]] = {
    "coarse labels of an image": (2.785249, 1.149218, 1, 2, 3, 4, 9),
    "fine labels of an image": (4.614781, 2.729608, 1, 3, 4, 6, 36),
    "images of a user": (8.345548, 51.27598, 1, 1, 2, 5, 4151),
    "distinct coarse labels of a user": (4.608647, 2.811109, 1, 3, 4, 6, 17),
    "distinct fine labels of a user": (16.813242, 32.666895, 1, 4, 7, 16, 838),
}
DESCRIPTION = ("mean", "std", "min", "q25", "q50", "q75", "max")
# Song et al. 2022, section 4.2, with half a unit of the last digit printed as tolerance.
PAPER: dict[str, tuple[float, float]] = {
    "largest users with half of the images, share": (0.023, 0.0005),
    "users with structure, share": (0.87, 0.005),
    "users with religion, share": (0.014, 0.0005),
    "fine labels on less than 0.1% of users": (1255, 0),
}
# The notebook prints seven digits, which six decimals of values below ten are.
_DECIMALS = 6


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
