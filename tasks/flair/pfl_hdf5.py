"""HDF5 files that pfl-research and ml-flair make of FLAIR: pixels, no longer JPEG bytes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FORMAT, parse_json
from pfl_bench.data.threads import num_workers
from pfl_bench.types import DataError, Progress
from tasks.common.sources import open_hdf5
from tasks.common.vision.pictures import encoded
from tasks.flair.catalogue import Catalogue
from tasks.flair.published import SPLIT_OF_PARTITION, relationship_of
from tasks.flair.reading import Form, Input, Job, fingerprint_of
from tasks.flair.spool import Finding, RawImage

METADATA = "metadata"
SUFFIXES = (".h5", ".hdf5")
USERS_A_PART = 250
IMAGES_A_BLOCK = 64
JPEG_QUALITY = 95
DELIMITER = "|"
# Keys of the two levels in the metadata and in a user's group.
LEVELS = {"labels": "label_mapping", "fine_grained_labels": "fine_grained_label_mapping"}


def find_files(source: Path) -> list[Path]:
    """HDF5 files in a folder that look like pfl-research's or ml-flair's."""
    return [
        path
        for path in sorted(source.iterdir())
        if path.suffix in SUFFIXES and path.is_file() and _is_foreign(path)
    ]


def _is_foreign(path: Path) -> bool:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return METADATA in file and file.attrs.get("format") != FORMAT
    except OSError:
        return False


def read_entries(source: Path, progress: Progress) -> Catalogue:
    """Read users, image ids and labels; the relationship file, if it lies in ``source``."""
    path = _the_file(source)
    catalogue = Catalogue(relationship_of(source), str(path))
    with open_hdf5(path) as file:
        names = {level: _label_names(file, level, path) for level in LEVELS}
        for split in _splits(file):
            users = sorted(file[split])
            for done, user in enumerate(users, start=1):
                where = f"{path}: /{split}/{user}"
                _read_user(file[split][user], split, user, names, catalogue, where)
                progress(f"reading labels of {split} (users)", done, len(users))
    return catalogue


def _the_file(source: Path) -> Path:
    paths = find_files(source)
    if len(paths) != 1:
        raise DataError(
            f"{source}: holds {len(paths)} HDF5 files of FLAIR "
            f"({', '.join(path.name for path in paths)}); leave one there"
        )
    return paths[0]


def _splits(file: Any) -> list[str]:
    import h5py

    found = [name for name in sorted(file) if name != METADATA]
    for name in found:
        if not isinstance(file[name], h5py.Group) or name not in SPLIT_OF_PARTITION:
            raise DataError(
                f"{file.filename}: /{name} is no group of a partition; there may be groups "
                f"{', '.join(SPLIT_OF_PARTITION)} and {METADATA}: is this another file?"
            )
    return found


def _label_names(file: Any, level: str, path: Path) -> list[str]:
    """Names by index; empty if the users' groups hold names themselves (ml-flair)."""
    import h5py

    mapping = file[METADATA].get(LEVELS[level])
    if not isinstance(mapping, h5py.Dataset):
        return []
    try:
        numbers = parse_json(mapping[()])
        names = sorted(numbers, key=numbers.__getitem__)
        consecutive = [numbers[name] for name in names] == list(range(len(names)))
    except (ValueError, TypeError, AttributeError):
        names, consecutive = [], False
    if not consecutive:
        raise DataError(
            f"{path}: /{METADATA}/{LEVELS[level]} must be JSON that numbers the label names from "
            "0 on; make the file anew with pfl-research's benchmarks/dataset/flair"
        )
    return names


def _read_user(
    group: Any, split: str, user: str, names: dict[str, list[str]], catalogue: Catalogue, where: str
) -> None:
    import h5py

    if not isinstance(group, h5py.Group):
        raise DataError(f"{where}: is no group; every user has one: is this another file?")
    if "image" in group:
        raise DataError(
            f"{where}: this file groups images without users (--not_group_data_by_user), so it "
            "cannot be made federated: make it anew without that flag"
        )
    absent = [name for name in ("image_ids", "images") if name not in group]
    if absent:
        raise DataError(f"{where}: has no {absent[0]!r}; it has {sorted(group)[:10]}")
    ids = _texts(group["image_ids"], where)
    labels = {level: _labels(group, level, names[level], len(ids), where) for level in LEVELS}
    for index, image in enumerate(ids):
        entry = {"user_id": user, "image_id": image, "partition": split}
        catalogue.add(entry | {level: labels[level][index] for level in LEVELS}, where)


def _labels(group: Any, level: str, names: list[str], count: int, where: str) -> list[list[str]]:
    """The labels of a user's images, a list each."""
    if level in group:  # ml-flair: names, joined
        texts = _texts(group[level], where)
        if len(texts) != count:
            raise DataError(
                f"{where}: {count} images, but {len(texts)} entries of {level!r}; the file "
                "contradicts itself: make it anew"
            )
        return [text.split(DELIMITER) if text else [] for text in texts]
    absent = [name for name in (f"{level}_row", f"{level}_col") if name not in group]
    if absent or not names:
        raise DataError(
            f"{where}: has no {absent[0] if absent else LEVELS[level]!r}; a user's group of "
            f"pfl-research has {level}_row and {level}_col, and its file has "
            f"/{METADATA}/{LEVELS[level]}"
        )
    rows, columns = group[f"{level}_row"][()].tolist(), group[f"{level}_col"][()].tolist()
    lists: list[list[str]] = [[] for _ in range(count)]
    try:
        for row, column in zip(rows, columns, strict=True):
            if min(row, column) < 0:
                raise IndexError(row, column)
            lists[row].append(names[column])
    except (ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"{where}: {level}_row and {level}_col must be as many numbers each, of images below "
            f"{count} and labels below {len(names)}; the file contradicts itself: make it anew"
        ) from error
    return lists


def _texts(dataset: Any, where: str) -> list[str]:
    values = np.atleast_1d(dataset[()]).tolist()
    if not all(isinstance(value, bytes) for value in values):
        raise DataError(f"{where}: {dataset.name} has {dataset.dtype} values; must be byte strings")
    return [value.decode() for value in values]


def _inputs(job: Job) -> Iterator[Input]:
    """Some users at a time, so that little is encoded again after an interruption."""
    path = _the_file(job.source)
    with open_hdf5(path) as file:
        for split in _splits(file):
            users = sorted(file[split])
            for first in range(0, len(users), USERS_A_PART):
                some = users[first : first + USERS_A_PART]
                yield Input(
                    f"{path.name}: /{split}, users {first} to {first + len(some) - 1}",
                    fingerprint_of(path),
                    partial(_images, path, split, some, job, (first, len(users))),
                )


def _images(
    path: Path, split: str, users: list[str], job: Job, place: tuple[int, int]
) -> Iterator[RawImage]:
    first, total = place
    with open_hdf5(path) as file, ThreadPoolExecutor(max_workers=num_workers()) as threads:
        for done, user in enumerate(users, start=first):
            job.progress(f"encoding pixels of {split} (users)", done, total)
            group = file[split][user]
            ids = _texts(group["image_ids"], f"{path}: /{split}/{user}")
            pixels = group["images"]
            _check_pixels(pixels, len(ids), f"{path}: /{split}/{user}/images")
            height, width = pixels.shape[1:3]
            if (height, width) != (job.side, job.side):
                finding = Finding(("wrong_size",), f"{width} x {height}")
                yield from (RawImage(image, None, finding) for image in ids)
                continue
            for start in range(0, len(ids), IMAGES_A_BLOCK):
                block = pixels[start : start + IMAGES_A_BLOCK]
                encoded = threads.map(partial(encode, pixels_as=job.pixels_as), block)
                for image, data in zip(ids[start:], encoded, strict=False):
                    yield RawImage(image, data, Finding())


def _check_pixels(pixels: Any, count: int, where: str) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[::3] != (count, 3):
        raise DataError(
            f"{where}: {pixels.dtype} of shape {pixels.shape}; must be uint8 of shape ({count}, "
            "height, width, 3): make the file anew"
        )


def encode(pixels: NDArray[np.uint8], pixels_as: Literal["png", "jpeg"]) -> bytes:
    """Encode an image of shape (height, width, 3).

    "png" keeps every pixel; "jpeg" (quality 95, full colour resolution) is smaller.
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    if pixels_as == "png":
        return encoded(image, "PNG", compress_level=1)
    return encoded(image, "JPEG", quality=JPEG_QUALITY, subsampling=0)


FORM = Form(
    name="pfl-hdf5",
    looked_for="HDF5 of pfl-research or ml-flair, by users: *.h5 or *.hdf5 with a group 'metadata'",
    source="FLAIR (Song et al. 2022), pixels from an HDF5 file, encoded anew: not the JPEG bytes "
    "as published",
    is_there=lambda source: bool(find_files(source)),
    read_entries=read_entries,
    inputs=_inputs,
)
