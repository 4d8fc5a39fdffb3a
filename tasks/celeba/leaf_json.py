"""Read which celebrity has which images, and who smiles, from LEAF's JSON; images lie beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.json_files import LeafUser, find_files, read_splits

LABEL = "Smiling"


def read_json(source: Path) -> Iterator[tuple[str, str, list[str], NDArray[np.uint8]]]:
    """Read all files: ``x`` of a user are names of image files, ``y`` 0 or 1.

    Yields:
        Split ("all" if the files are not split), celebrity, names of images, and shape (n,), the
        targets.

    Raises:
        DataError: A file is damaged or contradicts itself, a name is no plain file name, a target
            is another than 0 and 1, or an image comes twice; the message names file and user.

    Source: LEAF's data/celeba/preprocess/metadata_to_json.py, which writes 0.0 and 1.0.
    """
    seen: dict[str, str] = {}
    for split, user, where in read_splits(source, find_files(source)):
        names = _names(user, where)
        for name in names:
            first = seen.setdefault(name, where)
            if first is not where:
                raise DataError(
                    f"{where}: image {name} is in {first} too; an image shows one celebrity and is "
                    "in one split: get the files anew"
                )
        yield split, user.user, names, _targets(user, where)


def _names(user: LeafUser, where: str) -> list[str]:
    for place, name in enumerate(user.x):
        if not isinstance(name, str) or not name or "/" in name or "\\" in name or name[0] == ".":
            raise DataError(
                f"{where}: image {place} of 'x' is {_told(name)}; LEAF's CelebA has names of files "
                "such as '000001.jpg': is this another LEAF data set?"
            )
    if len(set(user.x)) < len(user.x):
        raise DataError(f"{where}: has an image twice in 'x'; get the file anew")
    return user.x


def _targets(user: LeafUser, where: str) -> NDArray[np.uint8]:
    for place, value in enumerate(user.y):
        if isinstance(value, bool) or value not in (0, 1):
            raise DataError(
                f"{where}: target {place} of 'y' is {_told(value)}; it must be 0 (not smiling) or 1"
            )
    return np.array(user.y, dtype=np.uint8)


def _told(value: Any) -> str:
    return repr(value)[:40]
