"""FLAIR unpacked: a folder of JPEG files, read in place."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from pfl_bench.types import DataError
from tasks.flair.checking import MAX_IMAGE_BYTES, NO_IMAGE, Finding, RawImage, examined, too_large
from tasks.flair.reading import Form, Images, ImageTable, Job, read_metadata

FOLDER = "small_images"
SUFFIXES = (".jpg", ".jpeg")
# In small and capital letters: the file is found again by its id and its suffix's place here.
SPELLINGS = tuple(
    dict.fromkeys(
        "".join(letters)
        for suffix in SUFFIXES
        for letters in product(*zip(suffix, suffix.upper(), strict=True))
    )
)
PROGRESS_EVERY = 1000


def read_images(job: Job) -> Images:
    """Read and check all files; their bytes are read again when the store is written.

    The table's places are suffixes in ``SPELLINGS``.
    """
    folder = job.source / FOLDER
    table = ImageTable(job.catalogue)
    for done, image in enumerate(examined(_files(folder), job.side, job.check), start=1):
        data = image.data or b""
        stem, suffix = os.path.splitext(image.image_id)
        place = SPELLINGS.index(suffix) if suffix in SPELLINGS else 0
        table.add(stem, image.finding, (place, 0), len(data), zlib.crc32(data))
        if done % PROGRESS_EVERY == 0:
            job.progress("reading small_images (files)", done, len(job.catalogue))
    ids = list(job.catalogue.entries)

    def path_of(entry: int) -> Path:
        return folder / f"{ids[entry]}{SPELLINGS[table.place[entry]]}"

    def fetch(entry: int) -> bytes:
        path = path_of(entry)
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read any more ({error.strerror})") from error

    def changed(entry: int) -> str:
        return f"{path_of(entry)}: changed while the store was prepared; run the command again"

    return Images(table, fetch, changed)


def _files(folder: Path) -> Iterator[RawImage]:
    """Read the files; ids come with their suffixes."""
    with os.scandir(folder) as files:
        for file in files:
            if file.name.startswith("."):
                continue
            if os.path.splitext(file.name)[1] not in SPELLINGS or not file.is_file():
                yield RawImage(file.name, None, Finding((NO_IMAGE,)))
            elif (size := file.stat().st_size) > MAX_IMAGE_BYTES:
                yield RawImage(file.name, None, too_large(size))
            else:
                try:
                    yield RawImage(file.name, Path(file.path).read_bytes())
                except OSError as error:
                    words = error.strerror or str(error)
                    yield RawImage(file.name, None, Finding(("unreadable",), words))


FORM = Form(
    name="folder",
    looked_for="unpacked folder: small_images/IMAGE_ID.jpg, with labels_and_metadata.json and "
    "label_relationship.txt",
    source="FLAIR (Song et al. 2022), unpacked small images, JPEG bytes as published",
    is_there=lambda source: (source / FOLDER).is_dir(),
    read_entries=read_metadata,
    read_images=read_images,
)
