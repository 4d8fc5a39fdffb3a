"""FLAIR as its authors publish it: 43 tarballs, streamed and never unpacked."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from tasks.common.parquet import DamagedInputError
from tasks.flair.checking import MAX_IMAGE_BYTES, NO_IMAGE, Finding, RawImage, too_large
from tasks.flair.published import NUM_TARBALLS
from tasks.flair.reading import (
    Form,
    Images,
    Input,
    Job,
    fingerprint_of,
    read_metadata,
    spool_all,
)

PATTERNS = ("small_images*.tar.gz", "small_images*.tgz", "small_images*.tar")
SUFFIXES = (".jpg", ".jpeg")
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
