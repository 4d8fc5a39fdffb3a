"""FLAIR's images as encoded files: published tarballs, the folder unpacked from them, parquet."""

from __future__ import annotations

import gzip
import os
import re
import tarfile
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath

from pfl_bench.types import DataError, Progress
from tasks.common.sources import find_parquet, open_parquet, reading
from tasks.flair.catalogue import FIELDS, Catalogue
from tasks.flair.published import NUM_TARBALLS, SPLIT_OF_PARTITION, relationship_of
from tasks.flair.reading import Form, Input, Job, fingerprint_of, read_metadata
from tasks.flair.spool import MAX_IMAGE_BYTES, NO_IMAGE, Finding, RawImage, too_large

FOLDER = "small_images"
SUFFIXES = (".jpg", ".jpeg")
FILES_A_STEP = 1000


def _folder_input(job: Job) -> list[Input]:
    folder = job.source / FOLDER
    return [Input(FOLDER, None, partial(_scanned, folder, job), folder)]


def _scanned(folder: Path, job: Job) -> Iterator[RawImage]:
    with os.scandir(folder) as files:
        for number, file in enumerate(files):
            if number % FILES_A_STEP == 0:
                job.progress("reading small_images (files)", number, len(job.catalogue))
            image, suffix = os.path.splitext(file.name)
            if file.name.startswith("."):
                continue
            if suffix.lower() not in SUFFIXES or not file.is_file():
                yield RawImage(file.name, None, Finding((NO_IMAGE,)), "")
            elif (size := file.stat().st_size) > MAX_IMAGE_BYTES:
                yield RawImage(image, None, too_large(size), suffix)
            else:
                try:
                    yield RawImage(image, Path(file.path).read_bytes(), None, suffix)
                except OSError as error:
                    words = error.strerror or str(error)
                    yield RawImage(image, None, Finding(("unreadable",), words), suffix)


FOLDER_FORM = Form(
    name="folder",
    looked_for="unpacked folder: small_images/IMAGE_ID.jpg, with labels_and_metadata.json and "
    "label_relationship.txt",
    source="FLAIR (Song et al. 2022), unpacked small images, JPEG bytes as published",
    is_there=lambda source: (source / FOLDER).is_dir(),
    read_entries=read_metadata,
    inputs=_folder_input,
)


PATTERNS = ("small_images*.tar.gz", "small_images*.tgz", "small_images*.tar")
CHUNK_BYTES = 1 << 20
PROGRESS_EVERY = 100


def find_tarballs(source: Path) -> list[Path]:
    """The tarballs of a folder, by name."""
    return sorted(path for name in PATTERNS for path in source.glob(name) if path.is_file())


def absent_tarballs(source: Path) -> list[str]:
    """Names of published tarballs that a folder does not have."""
    published = (f"small_images-{number:02d}.tar.gz" for number in range(NUM_TARBALLS))
    return [name for name in published if not (source / name).is_file()]


def _tarball_inputs(job: Job) -> Iterator[Input]:
    paths = find_tarballs(job.source)
    sizes = [path.stat().st_size for path in paths]
    for path, before in zip(paths, accumulate(sizes, initial=0), strict=False):
        members = partial(_members, path, job, before, sum(sizes))
        yield Input(path.name, fingerprint_of(path), members)


def _members(path: Path, job: Job, before: int, total: int) -> Iterator[RawImage]:
    """Stream a tarball's images.

    The decompressor is Python's gzip and not tarfile's own, which leaves the checksum at the
    end unread.
    """
    with (
        reading(path, what=lambda: f"cannot be read; it has {path.stat().st_size} bytes"),
        path.open("rb") as raw,
        raw if path.suffix == ".tar" else gzip.GzipFile(fileobj=raw) as stream,
    ):
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            number = 0
            for number, member in enumerate(iter(archive.next, None), start=1):
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                image = _image(archive, member)
                if image is not None:
                    yield image
                if number % PROGRESS_EVERY == 1:
                    job.progress("reading tarballs (bytes)", before + raw.tell(), total)
            if number == 0:  # a file of zeros passes for an archive
                raise EOFError("an archive of nothing")
        while stream.read(CHUNK_BYTES):
            pass


def _image(archive: tarfile.TarFile, member: tarfile.TarInfo) -> RawImage | None:
    name = PurePosixPath(member.name)
    if member.isdir() or name.name.startswith("._"):  # macOS puts such notes into its archives
        return None
    if not member.isreg() or name.suffix.lower() not in SUFFIXES:
        return RawImage(member.name, None, Finding((NO_IMAGE,)))
    if member.size > MAX_IMAGE_BYTES:
        return RawImage(name.stem, None, too_large(member.size))
    content = archive.extractfile(member)
    assert content is not None  # a regular file has content
    return RawImage(name.stem, content.read())


TARBALL_FORM = Form(
    name="tarballs",
    looked_for="tarballs: small_images-00.tar.gz to small_images-42.tar.gz, not unpacked, with "
    "labels_and_metadata.json and label_relationship.txt",
    source="FLAIR (Song et al. 2022), its published tarballs, JPEG bytes as published",
    is_there=lambda source: bool(find_tarballs(source)),
    read_entries=read_metadata,
    inputs=_tarball_inputs,
)


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


def _parquet_inputs(job: Job) -> Iterator[Input]:
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


PARQUET_FORM = Form(
    name="parquet",
    looked_for="parquet files of the data set apple/flair: *.parquet, directly or in folders",
    source="FLAIR (Song et al. 2022), parquet files of apple/flair, image bytes as in them",
    is_there=lambda source: bool(find_parquet(source)),
    read_entries=read_entries,
    inputs=_parquet_inputs,
)
