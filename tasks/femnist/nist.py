"""Read FEMNIST's raw source, NIST Special Database 19: PNGs by writer, their classes by content.

``by_write`` says who wrote an image but not what it shows, ``by_class`` says what it shows but not
who wrote it: the same file is in both, so its MD5 joins them, as LEAF does.
"""

from __future__ import annotations

import hashlib
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import regular
from pfl_bench.types import DataError, Progress
from tasks.common.fedscale.layout import FOLDER
from tasks.common.leaf.gathering import UNSPLIT, Gathering
from tasks.common.sources import reading
from tasks.common.vision.pictures import PictureError, opened
from tasks.femnist.forms import CODES, SIDE, Form, Reading

SEARCH_DEPTH = 3
RAW_SIDE = 128
AMBIGUOUS = -1
EXAMPLES_REPORTED = 10
PROGRESS_EVERY = 1000
PROBLEMS = ("unmatched", "ambiguous", "unreadable", "wrong_size")


def find_folder(source: Path, name: str) -> Path | None:
    """Find the folder ``name``, which has hsf_* folders within, at most three levels down."""
    level = [source]
    for _ in range(SEARCH_DEPTH + 1):
        for folder in level:
            inner = folder / name
            if any(p.is_dir() for p in (*inner.glob("hsf_*"), *inner.glob("*/hsf_*"))):
                return inner
        level = [
            child
            for folder in level
            for child in _folders(folder)
            if not child.name.startswith("hsf_")
        ]
    return None


def class_of_code(code: str) -> int | None:
    """Class of a hexadecimal ASCII code, as in ``CODES``; None for that of another character."""
    return CODES.index(code.lower()) if code.lower() in CODES else None


def read(source: Path, gathering: Gathering, progress: Progress) -> Reading:
    """Read all images that have a class; ``by_write`` and ``by_class`` are at most 3 levels down.

    Images without a class, of two classes, unreadable or not 128 x 128 are left out, counted and
    named in the facts.
    """
    by_write, by_class = (find_folder(source, name) for name in ("by_write", "by_class"))
    if by_write is None or by_class is None:
        missing = "by_write" if by_write is None else "by_class"
        raise DataError(
            f"{source}: NIST's folder {missing} (with hsf_* folders in it) is not there. Both are "
            "needed: by_write says who wrote an image, and only the same file in by_class says "
            "which character it is; unpack both archives side by side"
        )
    classes, num_class_files = _classes_by_digest(by_class, progress)
    left_out: dict[str, list[str]] = {problem: [] for problem in PROBLEMS}
    done = 0
    for folder in chain.from_iterable(map(_folders, _hsf_folders(by_write))):
        paths = [image for kind in _folders(folder) for image in _images(kind)]
        images, labels = [], []
        for path in paths:
            loaded = _load(path, classes)
            if isinstance(loaded, str):
                left_out[loaded].append(str(path.relative_to(by_write)))
            else:
                images.append(loaded[0])
                labels.append(loaded[1])
        if images:
            targets = np.array(labels, dtype=np.uint8)
            gathering.append(UNSPLIT, folder.name, inputs=np.stack(images), targets=targets)
        done += len(paths)
        progress("reading NIST by_write (images)", done, None)
    counts = {problem: len(names) for problem, names in left_out.items()}
    if not gathering.clients(UNSPLIT):
        raise DataError(
            f"{by_write}: none of {done} images can be used ({counts}); by_class has "
            f"{num_class_files} images: do the two folders come from the same release?"
        )
    return Reading(
        source="NIST Special Database 19 by_write, classes from by_class, 28 x 28 by Lanczos",
        extra={
            "by_write_images": done,
            "by_class_images": num_class_files,
            "left_out": counts,
            "left_out_examples": {k: v[:EXAMPLES_REPORTED] for k, v in left_out.items() if v},
        },
    )


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")


def _hsf_folders(folder: Path) -> list[Path]:
    # NIST's *.mit are lists beside the images, unpacked by some tools as folders.
    return [p for p in _folders(folder) if p.name.startswith("hsf_") and "mit" not in p.name]


def _digest(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _classes_by_digest(by_class: Path, progress: Progress) -> tuple[dict[bytes, int], int]:
    """Class of every image of by_class by its MD5; ``AMBIGUOUS`` if it is filed under two."""
    classes: dict[bytes, int] = {}
    done = 0
    for folder in _folders(by_class):
        label = class_of_code(folder.name)
        if label is None:
            raise DataError(
                f"{folder}: the folders of by_class must be named by hexadecimal ASCII codes of "
                "digits and letters (30..39, 41..5a, 61..7a); move this one elsewhere"
            )
        for hsf in _hsf_folders(folder):
            for path in _images(hsf):
                with reading(path):
                    digest = _digest(regular(path).read_bytes())
                if classes.setdefault(digest, label) != label:
                    classes[digest] = AMBIGUOUS
                done += 1
                if done % PROGRESS_EVERY == 0:
                    progress("reading NIST by_class (images)", done, None)
    return classes, done


def _load(path: Path, classes: dict[bytes, int]) -> tuple[NDArray[np.uint8], int] | str:
    """Load one image; returns it with its class, or which of ``PROBLEMS`` it has."""
    try:
        data = regular(path).read_bytes()
    except (OSError, DataError):
        return "unreadable"
    label = classes.get(_digest(data))
    if label is None or label == AMBIGUOUS:
        return "unmatched" if label is None else "ambiguous"
    try:
        with opened(data) as image:
            if image.size != (RAW_SIDE, RAW_SIDE):
                return "wrong_size"
            return to_grey(image), label
    except PictureError:
        return "unreadable"


def to_grey(image: Any) -> NDArray[np.uint8]:
    """Grey levels of a Pillow image, shape (28, 28), by Lanczos; that size keeps its pixels."""
    from PIL import Image

    small: Any = image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(small, dtype=np.uint8)


def is_there(source: Path) -> bool:
    """Whether one of the folders is there, and not as part of FedScale's layout."""
    if (source / FOLDER).is_dir():
        return False
    return any(find_folder(source, name) for name in ("by_write", "by_class"))


FORM = Form(
    name="nist",
    looked_for="NIST SD 19: by_write/hsf_*/<writer>/<type>/*.png with by_class/<hex>/hsf_*/*.png",
    is_there=is_there,
    read=read,
    is_leafs=True,
)
