"""Shared by the readers of FLAIR's public forms: contract, table of images, published metadata."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pfl_bench.types import DataError
from tasks.common import forms
from tasks.common.leaf.json_files import json_reason
from tasks.common.parquet import DamagedInputError
from tasks.common.progress import Progress
from tasks.flair.catalogue import Catalogue
from tasks.flair.labels import RELATIONSHIP, read_relationship
from tasks.flair.spool import NO_IMAGE, Check, Finding, ImageSpool, Part, RawImage, examined

NOWHERE = -1
METADATA = "labels_and_metadata.json"
PROGRESS_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """Inputs of a reader of images.

    Attributes:
        catalogue: The metadata, finished.
        side: Pixels that every image must have in width and height.
        pixels_as: How pixels without a file are encoded.
    """

    source: Path
    catalogue: Catalogue
    side: int
    check: Check
    pixels_as: Literal["png", "jpeg"]
    spool: ImageSpool
    progress: Progress


@dataclass(frozen=True, slots=True)
class Input:
    """One input whose images are spooled together.

    Attributes:
        name: Name, unique among the inputs.
        fingerprint: Changes when the content does.
        images: Reads them; raises ``DamagedInputError`` if that cannot be done to the end.
    """

    name: str
    fingerprint: Any
    images: Callable[[], Iterator[RawImage]]


@dataclass(frozen=True, slots=True)
class Images:
    """Images of a source that have been read and checked once.

    Attributes:
        table: Table of the known images.
        fetch: Reads an entry's encoded image again.
        changed: Says of an entry whose image is no longer what was checked what to do.
    """

    table: ImageTable
    fetch: Callable[[int], bytes]
    changed: Callable[[int], str]

    def read(self, entry: int) -> bytes:
        """Read an entry's encoded image; a DataError if it is not what it was."""
        data = self.fetch(entry)
        expected = (int(self.table.size[entry]), int(self.table.checksum[entry]))
        if (len(data), zlib.crc32(data)) != expected:
            raise DataError(self.changed(entry))
        return data


@dataclass(frozen=True, slots=True)
class Form(forms.Form):
    """One public form of the data.

    Attributes:
        source: One line for a human that says where the data come from.
    """

    source: str
    read_entries: Callable[[Path, Progress], Catalogue]
    read_images: Callable[[Job], Images]


class ImageTable:
    """Place of each entry's image, and the findings about it, of a finished catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        count = len(catalogue)
        self.place = np.full(count, NOWHERE, dtype=np.int64)
        self.start = np.zeros(count, dtype=np.int64)
        self.size = np.zeros(count, dtype=np.int64)
        self.checksum = np.zeros(count, dtype=np.int64)
        self.findings: dict[int, Finding] = {}
        self.notes: dict[str, list[str]] = {}

    def take(self, part: Part, place: int) -> None:
        """Take in the images of a part; ``place``, at least 0, is the reader's number for it."""
        starts = accumulate(part.sizes, initial=0)
        for row, (image, start, *content) in enumerate(
            zip(part.ids, starts, part.sizes, part.sums, strict=False)
        ):
            self.add(image, part.findings.get(row), (place, start), *content)

    def add(
        self, image: str, finding: Finding | None, where: tuple[int, int], size: int, checksum: int
    ) -> None:
        """Take in an image: at its place, and from which byte on."""
        entry = self._catalogue.entries.get(image)
        if finding is not None and NO_IMAGE in finding.kinds:
            self.notes.setdefault(NO_IMAGE, []).append(image)
        elif entry is None:
            self.notes.setdefault("not_in_metadata", []).append(image)
        elif self.place[entry] == NOWHERE:
            self.place[entry], self.start[entry] = where
            self.size[entry], self.checksum[entry] = size, checksum
            if finding is not None and finding.kinds:
                self.findings[entry] = finding
        else:
            self.notes.setdefault("repeated_images", []).append(image)
            if (self.size[entry], self.checksum[entry]) != (size, checksum):
                self.findings[entry] = Finding(
                    ("contradictory",), "several files of that name, with different content"
                )

    def problems(self) -> tuple[Counter[str], dict[str, list[str]], set[int]]:
        """Counts by kind; by kind, what is to be named of each image; the unusable entries."""
        named = {kind: list(names) for kind, names in self.notes.items()}
        bad: set[int] = set()
        ownerless = set(self._catalogue.without_user)
        for image, entry in self._catalogue.entries.items():
            finding = self.findings.get(entry)
            if image in ownerless:
                finding = Finding(("without_user",))
            elif self.place[entry] == NOWHERE:
                finding = Finding(("missing",))
            if finding is None:
                continue
            for kind in finding.kinds:
                named.setdefault(kind, []).append(
                    f"{image} ({finding.detail})" if finding.detail else image
                )
            if finding.is_bad:
                bad.add(entry)
        counts = Counter({kind: len(names) for kind, names in named.items()})
        counts.update(self._catalogue.notes)
        return +counts, named, bad


def spool_all(job: Job, inputs: Sequence[Input]) -> Images:
    """Bring the images of all inputs into the spool, those that are there already excepted.

    Raises:
        DataError: Inputs are damaged: all the others have been read by then, and all of the
            damaged ones are named.
    """
    table = ImageTable(job.catalogue)
    blobs, damaged = [], []
    for place, each in enumerate(inputs):
        part = job.spool.load(each.name, each.fingerprint)
        if part is None:
            try:
                images = examined(each.images(), job.side, job.check)
                part = job.spool.write(each.name, each.fingerprint, images)
            except DamagedInputError as error:
                damaged.append(f"\n  - {each.name}: {error}")
                part = Part(Path())
        blobs.append(part.blob)
        table.take(part, place)
    if damaged:
        raise DataError(
            f"{job.source}: {len(damaged)} of {len(inputs)} inputs are damaged:{''.join(damaged)}\n"
            "Get these anew (delete a file, and 'pfl-bench data download flair' fetches it again) "
            "and run the same command: only they will be read."
        )

    def fetch(entry: int) -> bytes:
        start, size = int(table.start[entry]), int(table.size[entry])
        return job.spool.read(blobs[table.place[entry]], start, size)

    def changed(entry: int) -> str:
        blob = blobs[table.place[entry]]
        return (
            f"{blob}: temporary data are damaged; remove the folder {blob.parent} and start again"
        )

    return Images(table, fetch, changed)


def fingerprint_of(path: Path) -> list[int]:
    """Size and time of a file: equal means unchanged."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def read_metadata(source: Path, progress: Progress) -> Catalogue:
    """Read both published files of a folder into a catalogue, which is not yet finished."""
    for name in (METADATA, RELATIONSHIP):
        if not (source / name).is_file():
            raise DataError(
                f"{source}: {name} is missing; it is published beside the images: fetch it with "
                "'pfl-bench data download flair', or put it there"
            )
    path = source / METADATA
    catalogue = Catalogue(read_relationship(source / RELATIONSHIP), str(path))
    _read_entries(path, catalogue, progress)
    return catalogue


def _read_entries(path: Path, catalogue: Catalogue, progress: Progress) -> None:
    import ijson

    total = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(64).lstrip()[:1]
        if first != b"[":
            raise DataError(
                f"{path}: begins with {first!r}, but a list of entries begins with '['; get the "
                "file anew"
            )
        stream.seek(0)
        number = 0
        try:
            for number, entry in enumerate(ijson.items(stream, "item", use_float=True), start=1):
                catalogue.add(entry, f"{path}, entry {number}")
                if number % PROGRESS_EVERY == 0:
                    progress(f"reading {METADATA} (bytes)", stream.tell(), total)
        except (ijson.JSONError, UnicodeDecodeError, OverflowError) as error:
            raise DataError(
                f"{path}: not valid JSON after entry {number}, at or shortly before byte "
                f"{stream.tell()} of {total} ({json_reason(error)}); the file is damaged or cut: "
                "get it anew"
            ) from error
        progress(f"reading {METADATA} (bytes)", total, total)
