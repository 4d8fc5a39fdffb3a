"""FLAIR's published counts and its two levels of labels, with the file that joins them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_bench.types import DataError
from tasks.common.leaf import table1
from tasks.common.sources import reading

SPLITS = ("train", "val", "test")
# The published README also says "dev" where the files say "val".
SPLIT_OF_PARTITION = {"train": "train", "val": "val", "dev": "val", "test": "test"}
IMAGE_SIDE = 256
NUM_TARBALLS = 43
# Source: the repository apple/ml-flair, README; images also Song et al. 2022, section 4.2.
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


RELATIONSHIP = "label_relationship.txt"
UNKNOWN = -1

_SEPARATORS = ("->", "\t", ",")
_COLUMN_NAME = re.compile(r"((fine|coarse)[\w -]*)?labels?")
_CLOSING = {"(": ")", "[": "]"}
_QUOTES = "'\""


@dataclass(frozen=True, slots=True)
class Relationship:
    """Coarse labels that each fine label belongs to (published: one), in the order of the file."""

    coarse_of: dict[str, tuple[str, ...]]
    coarse: frozenset[str]

    def of(self, fine: str) -> tuple[str, ...]:
        """Coarse labels of a fine one; a coarse label's name as fine label is its own, else ()."""
        return self.coarse_of.get(fine) or ((fine,) if fine in self.coarse else ())


@dataclass(frozen=True, slots=True)
class Labels:
    """Sorted lists of labels, in which a label's place is its index in a store.

    ``fine_to_coarse`` has the index of each fine label's coarse label; ``UNKNOWN`` where no file
    says it.
    """

    coarse: list[str]
    fine: list[str]
    fine_to_coarse: list[int]


def read_relationship(path: Path) -> Relationship:
    """Read pairs of a fine and a coarse label, a line each.

    The two are separated by "->", a tab or the last comma (a fine label's name may have commas);
    brackets and quotes around a whole line or name are dropped; blank lines, and a first line that
    only names the columns, are passed over.
    """
    pairs: dict[str, list[str]] = {}
    with reading(path):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = _cells(line)
        if len(cells) != 2 or not all(cells):
            raise DataError(
                f"{path}, line {number}: {line.strip()[:80]!r} is not a pair of a fine and a "
                "coarse label such as 'bag -> equipment' (also with a tab or a comma)"
            )
        if number == 1 and all(_COLUMN_NAME.fullmatch(cell.lower()) for cell in cells):
            continue
        known = pairs.setdefault(cells[0], [])
        if cells[1] not in known:
            known.append(cells[1])
    if not pairs:
        raise DataError(f"{path}: holds no pair of labels; get the file anew")
    coarse_of = {fine: tuple(coarse) for fine, coarse in pairs.items()}
    return Relationship(coarse_of, frozenset(name for names in pairs.values() for name in names))


def relationship_of(source: Path) -> Relationship | None:
    """Read the file of a folder; None if it has none."""
    path = source / RELATIONSHIP
    return read_relationship(path) if path.is_file() else None


def _cells(line: str) -> list[str]:
    """Names on a line; not two, or an empty one, if it is no pair."""
    line = _bare(line)
    separator = next((sign for sign in _SEPARATORS if sign in line), None)
    if separator is None:
        return []
    cells = line.rsplit(separator, 1) if separator == "," else line.split(separator)
    return [_bare(cell) for cell in cells]


def _bare(text: str) -> str:
    """Drop white space, and brackets and quotes that enclose all the rest."""
    text = text.strip()
    while _is_enclosed(text):
        text = text[1:-1].strip()
    return text


def _is_enclosed(text: str) -> bool:
    if len(text) < 2:
        return False
    first, inner = text[0], text[1:-1]
    if first in _QUOTES:
        return text[-1] == first and first not in inner
    if _CLOSING.get(first) != text[-1]:
        return False
    depth = 1  # "(a) b (c)" begins and ends with brackets, but not with one pair
    for sign in inner:
        depth += (sign == first) - (sign == text[-1])
        if depth == 0:
            return False
    return depth == 1


def make_labels(
    coarse: Iterable[str], fine: Iterable[str], relationship: Relationship | None
) -> Labels:
    """Sort the labels and join the two levels.

    Without a relationship only fine labels that have a coarse label's name are joined; the rest is
    ``UNKNOWN``.
    """
    coarse_names, fine_names = sorted(set(coarse)), sorted(set(fine))
    if relationship is None:
        relationship = Relationship({}, frozenset(coarse_names))
    index = {name: place for place, name in enumerate(coarse_names)}
    joined = [
        next((index[name] for name in relationship.of(label) if name in index), UNKNOWN)
        for label in fine_names
    ]
    return Labels(coarse_names, fine_names, joined)
