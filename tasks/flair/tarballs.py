"""FLAIR as its authors publish it: 43 tarballs, streamed, or the folder unpacked from them."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path, PurePosixPath

from pfl_bench.types import DataError
from tasks.common.parquet import DamagedInputError
from tasks.flair.published import NUM_TARBALLS
from tasks.flair.reading import (
    Form,
    Images,
    ImageTable,
    Input,
    Job,
    fingerprint_of,
    read_metadata,
    spool_all,
)
from tasks.flair.spool import MAX_IMAGE_BYTES, NO_IMAGE, Finding, RawImage, examined, too_large

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
FILES_A_STEP = 1000


def read_folder(job: Job) -> Images:
    """Read and check all files; their bytes are read again when the store is written.

    The table's places are suffixes in ``SPELLINGS``.
    """
    folder = job.source / FOLDER
    table = ImageTable(job.catalogue)
    for done, image in enumerate(examined(_scanned(folder), job.side, job.check), start=1):
        data = image.data or b""
        stem, suffix = os.path.splitext(image.image_id)
        place = SPELLINGS.index(suffix) if suffix in SPELLINGS else 0
        table.add(stem, image.finding, (place, 0), len(data), zlib.crc32(data))
        if done % FILES_A_STEP == 0:
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


def _scanned(folder: Path) -> Iterator[RawImage]:
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


FOLDER_FORM = Form(
    name="folder",
    looked_for="unpacked folder: small_images/IMAGE_ID.jpg, with labels_and_metadata.json and "
    "label_relationship.txt",
    source="FLAIR (Song et al. 2022), unpacked small images, JPEG bytes as published",
    is_there=lambda source: (source / FOLDER).is_dir(),
    read_entries=read_metadata,
    read_images=read_folder,
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


def read_images(job: Job) -> Images:
    """Bring the images of all tarballs into the spool."""
    paths = find_tarballs(job.source)
    total = sum(path.stat().st_size for path in paths)
    inputs, before = [], 0
    for path in paths:
        members = partial(_members, path, job, before, total)
        inputs.append(Input(path.name, fingerprint_of(path), members))
        before += path.stat().st_size
    images = spool_all(job, inputs)
    job.progress("reading tarballs (bytes)", total, total)
    return images


def _members(path: Path, job: Job, before: int, total: int) -> Iterator[RawImage]:
    """Stream a tarball's images.

    The decompressor is Python's gzip and not tarfile's own, which leaves the checksum at the
    end unread.
    """
    try:
        with (
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
                    raise DamagedInputError("is an archive of nothing")
            while stream.read(CHUNK_BYTES):
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DamagedInputError(f"{error} ({path.stat().st_size} bytes are there)") from error


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


FORM = Form(
    name="tarballs",
    looked_for="tarballs: small_images-00.tar.gz to small_images-42.tar.gz, not unpacked, with "
    "labels_and_metadata.json and label_relationship.txt",
    source="FLAIR (Song et al. 2022), its published tarballs, JPEG bytes as published",
    is_there=lambda source: bool(find_tarballs(source)),
    read_entries=read_metadata,
    read_images=read_images,
)
