"""FLAIR's parquet files (the data set apple/flair), streamed by batches of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pfl_bench.types import DataError
from tasks.common.parquet import find_parquet, open_parquet
from tasks.common.progress import Progress
from tasks.flair.catalogue import FIELDS, Catalogue
from tasks.flair.labels import relationship_of
from tasks.flair.published import SPLIT_OF_PARTITION
from tasks.flair.reading import Form, Input, Job, fingerprint_of
from tasks.flair.spool import MAX_IMAGE_BYTES, RawImage, too_large

ROWS_OF_ENTRIES = 4096
ROWS_OF_IMAGES = 64
IMAGE = "image"

_SPLIT_IN_NAME = re.compile(r"[A-Za-z]+")


def split_of_path(path: Path) -> str | None:
    """The partition that a file's name begins with, or its folder's name; None if neither says."""
    for name in (path.name, path.parent.name):
        word = _SPLIT_IN_NAME.match(name)
        if word and word[0] in SPLIT_OF_PARTITION:
            return word[0]
    return None


def read_entries(source: Path, progress: Progress) -> Catalogue:
    """Read all columns but the images.

    The relationship file is no part of this form; it is read if it lies in ``source``.
    """
    catalogue = Catalogue(relationship_of(source), str(source))
    paths = find_parquet(source)
    for done, path in enumerate(paths):
        progress("reading parquet labels (files)", done, len(paths))
        _read_file(path, catalogue)
    progress("reading parquet labels (files)", len(paths), len(paths))
    return catalogue


def _read_file(path: Path, catalogue: Catalogue) -> None:
    with open_parquet(path) as file:
        there = file.schema_arrow.names
        columns = [name for name in FIELDS if name in there]
        split = split_of_path(path)
        missing = [name for name in (*FIELDS, IMAGE) if name not in there]
        if missing and not (missing == ["partition"] and split):
            mend = ""
            if missing == ["partition"]:
                mend = " (the file's name does not say it either: name it train-..., val-...)"
            raise DataError(
                f"{path}: has no column {missing[0]!r}{mend}; it has {', '.join(there)}. FLAIR's "
                f"files have {', '.join(FIELDS)} and {IMAGE}"
            )
        row = 0
        for batch in file.iter_batches(ROWS_OF_ENTRIES, columns=columns, use_threads=False):
            for entry in batch.to_pylist():
                row += 1
                catalogue.add({"partition": split, **entry}, f"{path}, row {row}")


def _inputs(job: Job) -> Iterator[Input]:
    paths = find_parquet(job.source)
    for done, path in enumerate(paths):
        name = path.relative_to(job.source).as_posix()
        yield Input(name, fingerprint_of(path), partial(_images, path, job, done, len(paths)))


def _images(path: Path, job: Job, done: int, total: int) -> Iterator[RawImage]:
    with open_parquet(path) as file:
        for batch in file.iter_batches(
            ROWS_OF_IMAGES, columns=["image_id", IMAGE], use_threads=False
        ):
            job.progress("reading parquet images (files)", done, total)
            for image_id, value in zip(*(column.to_pylist() for column in batch), strict=True):
                data = value.get("bytes") if isinstance(value, dict) else value
                if not isinstance(data, bytes):
                    continue  # found missing later
                too_much = too_large(len(data)) if len(data) > MAX_IMAGE_BYTES else None
                yield RawImage(str(image_id), None if too_much else data, too_much)


FORM = Form(
    name="parquet",
    looked_for="parquet files of the data set apple/flair: *.parquet, directly or in folders",
    source="FLAIR (Song et al. 2022), parquet files of apple/flair, image bytes as in them",
    is_there=lambda source: bool(find_parquet(source)),
    read_entries=read_entries,
    inputs=_inputs,
)
