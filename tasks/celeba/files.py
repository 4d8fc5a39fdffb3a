"""CelebA's files: the images, the two lists of them, and LEAF's JSON."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import regular
from pfl_bench.types import DataError
from tasks.common.leaf.json_files import LeafUser, find_files, read_splits
from tasks.common.sources import reading

FOLDER, ARCHIVE = "img_align_celeba", "img_align_celeba.zip"
# Where the files lie in the publisher's folders and in LEAF's.
PLACES = ("", "Img", "Anno", "Eval", "celeba", "raw", "data/raw")


def find(source: Path, name: str) -> Path | None:
    """Find a file or folder of CelebA in the places where it may lie."""
    paths = (source / place / name for place in PLACES)
    return next((path for path in paths if path.exists()), None)


class ImageSource:
    """Reads images by name, from the folder or zip in ``source``; a context manager."""

    def __init__(self, source: Path) -> None:
        folder, archive = find(source, FOLDER), find(source, ARCHIVE)
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, str] = {}
        if folder is not None and folder.is_dir():
            # Some mirrors have a folder of the same name inside.
            inner = folder / FOLDER
            self.path = inner if inner.is_dir() else folder
        elif archive is not None:
            self.path = archive
            with reading(archive):
                self._zip = zipfile.ZipFile(regular(archive))
            self._members = {
                name.rpartition("/")[2]: name
                for name in self._zip.namelist()
                if not name.startswith("__MACOSX")
            }
        else:
            raise DataError(f"{source} has neither a folder {FOLDER}/ nor {ARCHIVE}; put one there")

    def read(self, name: str) -> bytes | None:
        """Read an image's bytes; None if there is no such image.

        Raises:
            OSError: It is there but cannot be read.
        """
        if self._zip is None:
            path = self.path / name
            return path.read_bytes() if path.is_file() else None
        if name not in self._members:
            return None
        try:
            return self._zip.read(self._members[name])
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
            raise OSError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._zip is not None:
            self._zip.close()


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
                f"{where}: image {place} of 'x' is {name!r:.40}; LEAF's CelebA has names of files "
                "such as '000001.jpg': is this another LEAF data set?"
            )
    name, times = Counter(user.x).most_common(1)[0]
    if times > 1:
        raise DataError(f"{where}: image {name} is {times} times in 'x'; get the file anew")
    return user.x


def _targets(user: LeafUser, where: str) -> NDArray[np.uint8]:
    for place, value in enumerate(user.y):
        if isinstance(value, bool) or value not in (0, 1):
            raise DataError(
                f"{where}: target {place} of 'y' is {value!r:.40}; it must be 0 (not smiling) or 1"
            )
    return np.array(user.y, dtype=np.uint8)


ATTRIBUTES, IDENTITIES = "list_attr_celeba.txt", "identity_CelebA.txt"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Content of ``list_attr_celeba.txt``.

    Attributes:
        names: The attributes, as published, such as "Smiling".
        rows: Row of each image in ``values``, by the image's file name, in the file's order.
        values: Shape (n, len(names)), uint8: 1 where the file has 1, 0 where it has -1.
    """

    names: tuple[str, ...]
    rows: dict[str, int]
    values: NDArray[np.uint8]


def read_attributes(path: Path) -> Attributes:
    """Read the attributes: a line with the number of images, one with names, one an image."""
    lines = _lines(path)
    announced, names = next(lines, (0, [])), next(lines, (0, []))
    if len(announced[1]) != 1 or not _is_number(announced[1][0]):
        raise DataError(
            f"{path}, line 1: {' '.join(announced[1])[:60]!r} is not a number of images; the "
            "published file begins with it, then names the attributes, then has a line an image"
        )
    if not names[1] or len(set(names[1])) != len(names[1]):
        raise DataError(f"{path}, line 2: needs the attributes' names, none of them twice")
    rows: dict[str, int] = {}
    values = bytearray()
    for number, words in lines:
        where = f"{path}, line {number}"
        image = _image_name(words[0], where)
        if len(words) - 1 != len(names[1]):
            raise DataError(
                f"{where}: {image} has {len(words) - 1} values, but line 2 names {len(names[1])} "
                "attributes; the file is damaged: copy it again"
            )
        wrong = next((word for word in words[1:] if word not in ("1", "-1")), None)
        if wrong is not None:
            raise DataError(f"{where}: {image} has the value {wrong!r}; values are 1 and -1")
        if image in rows:
            raise DataError(f"{where}: {image} comes a second time; an image has one line")
        rows[image] = len(rows)
        values += bytes(word == "1" for word in words[1:])
    if len(rows) != int(announced[1][0]):
        raise DataError(
            f"{path}: line 1 announces {announced[1][0]} images, but {len(rows)} follow; the file "
            "is cut short or damaged: copy it again"
        )
    table = np.frombuffer(bytes(values), dtype=np.uint8).reshape(len(rows), len(names[1]))
    return Attributes(tuple(names[1]), rows, table)


def read_identities(path: Path) -> dict[str, str]:
    """Read each image's celebrity, a number as text, from lines such as "000001.jpg 2880"."""
    identities: dict[str, str] = {}
    for number, words in _lines(path):
        where = f"{path}, line {number}"
        if len(words) != 2 or not _is_number(words[1]):
            raise DataError(
                f"{where}: {' '.join(words)[:60]!r} is not an image's file name and the number of "
                "a celebrity; the file is damaged: copy it again"
            )
        image = _image_name(words[0], where)
        if image in identities:
            raise DataError(f"{where}: {image} comes a second time; an image shows one celebrity")
        identities[image] = str(int(words[1]))  # "07" and "7" are one person
    if not identities:
        raise DataError(f"{path}: holds no line; give the file as published")
    return identities


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbers and words of the lines that are not empty."""
    number = 0
    with (
        reading(path, what=lambda: f"cannot be read after line {number}"),
        path.open(encoding="ascii") as file,
    ):
        for number, line in enumerate(file, 1):
            words = line.split()
            if words:
                yield number, words


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _image_name(word: str, where: str) -> str:
    if "/" in word or "\\" in word or word in (".", ".."):
        raise DataError(f"{where}: {word!r} is not the plain name of an image file")
    return word
