"""Published counts of FLAIR, and how a prepared store compares with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.common.leaf import table1

SPLITS = ("train", "val", "test")
# The published README says "dev" once where the files say "val".
SPLIT_OF_PARTITION = {"train": "train", "val": "val", "dev": "val", "test": "test"}
IMAGE_SIDE = 256
NUM_TARBALLS = 43
# Source: Song et al. 2022, section 3 and appendix A; the repository apple/ml-flair, README.
USERS = {"train": 41_131, "val": 5_141, "test": 5_142}
IMAGES = {"train": 345_879, "val": 39_239, "test": 43_960}
# "coarse_images" and "fine_images": images of all splits that have each label, the commonest first,
# of fine ones the twenty commonest, which are all that is published; "described": mean, std, min,
# q25, q50, q75 and max (apple/ml-flair, the outputs of explore_labels.ipynb). "paper": numbers of
# Song et al. 2022, section 4.2, with half a unit of the last digit printed as tolerance.
NUMBERS: dict[str, Any] = json.loads(
    Path(__file__).with_name("published.json").read_text(encoding="utf-8")
)
COARSE_IMAGES: dict[str, int] = NUMBERS["coarse_images"]
NUM_COARSE = 17
NUM_FINE = 1_628

FULL, PARTIAL = "flair", "flair-partial"
GENERATED, PIXELS = "flair-generated", "flair-pixels"


def differences(
    counts: Mapping[str, Mapping[str, int]], num_coarse: int, num_fine: int
) -> list[str]:
    """Say of each count that differs from FLAIR's published one what both are.

    ``counts`` has the numbers of "users" and "examples" by split.
    """
    compared = [
        (f"{split} {what}", counts.get(split, {}).get(key, 0), published[split])
        for split in SPLITS
        for what, key, published in (("users", "users", USERS), ("images", "examples", IMAGES))
    ]
    compared += [("coarse labels", num_coarse, NUM_COARSE), ("fine labels", num_fine, NUM_FINE)]
    return table1.differences(compared)


def drawing_line(drawing: int) -> str:
    """The line of the folder's mark that says how the pictures were drawn."""
    return f"drawing {drawing}"


def variant_of(form: str, *, mark: str | None, differs: bool) -> str:
    """Name the variant: what results on the data may be called.

    ``mark`` is what the folder's mark says, None if the data are not generated; ``differs`` tells
    whether counts differ from the published ones.
    """
    if mark is not None:
        drawing = re.search(rf"^{drawing_line(0)[:-1]}(\d+)$", mark, re.MULTILINE)
        return f"{GENERATED}-{drawing[1]}" if drawing else GENERATED
    if form == "pfl-hdf5":
        return PIXELS
    return PARTIAL if differs else FULL
