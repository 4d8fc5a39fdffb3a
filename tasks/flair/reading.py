"""Shared by the readers of FLAIR's public forms: contract, table of images, published metadata."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pfl_bench.types import DataError, Progress
from tasks.common import sources
from tasks.common.sources import DamagedInputError, open_json, reading
from tasks.flair.catalogue import Catalogue
from tasks.flair.published import RELATIONSHIP, read_relationship
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
        folder: Where the images are files of their own, which are read again: they need no room
            in the spool.
    """

    name: str
    fingerprint: Any
    images: Callable[[], Iterator[RawImage]]
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Form(sources.Form):
    """One public form of the data.

    Attributes:
        source: One line for a human that says where the data come from.
        inputs: Finds what holds the images.
    """

    source: str
    read_entries: Callable[[Path, Progress], Catalogue]
    inputs: Callable[[Job], Iterable[Input]]


class ImageTable:
    """Place of each entry's image, and the findings about it, of a job's finished catalogue."""

    def __init__(self, job: Job) -> None:
        self._catalogue = job.catalogue
        self._spool = job.spool
        self._ids = list(job.catalogue.entries)
        # Of each part, the blob or folder, and the suffixes of the files there.
        self._parts: list[tuple[Path, list[str]]] = []
        # Of each entry the number of its part, its first byte (or its row) there, its size and its
        # CRC-32.
        self._images = np.full((len(self._ids), 4), NOWHERE, dtype=np.int64)
        self.findings: dict[int, Finding] = {}
        self.notes: dict[str, list[str]] = {}

    def take(self, part: Part) -> None:
        """Take in the images of a part."""
        place = len(self._parts)
        self._parts.append((part.blob, part.suffixes))
        starts = count() if part.suffixes else accumulate(part.sizes, initial=0)
        for row, (image, start, *content) in enumerate(
            zip(part.ids, starts, part.sizes, part.sums, strict=False)
        ):
            entry, finding = self._catalogue.entries.get(image), part.findings.get(row)
            if finding is not None and NO_IMAGE in finding.kinds:
                self.notes.setdefault(NO_IMAGE, []).append(image)
            elif entry is None:
                self.notes.setdefault("not_in_metadata", []).append(image)
            elif self._images[entry, 0] == NOWHERE:
                self._images[entry] = place, start, *content
                if finding is not None and finding.kinds:
                    self.findings[entry] = finding
            else:
                self.notes.setdefault("repeated_images", []).append(image)
                if self._images[entry, 2:].tolist() != content:
                    self.findings[entry] = Finding(
                        ("contradictory",), "several files of that name, with different content"
                    )

    def read(self, entry: int) -> bytes:
        """Read an entry's encoded image again; a DataError if it is not what it was."""
        place, start, size, checksum = self._images[entry].tolist()
        blob, suffixes = self._parts[int(place)]
        if suffixes:
            path = blob / f"{self._ids[entry]}{suffixes[start]}"
            changed = f"{path}: changed while the store was prepared; run the command again"
            with reading(path, mend="it could be read before"):
                data = path.read_bytes()
        else:
            changed = (
                f"{blob}: temporary data are damaged; remove the folder {blob.parent} and start "
                "again"
            )
            data = self._spool.read(blob, start, size)
        if (len(data), zlib.crc32(data)) != (size, checksum):
            raise DataError(changed)
        return data

    def problems(self) -> tuple[Counter[str], dict[str, list[str]], set[int]]:
        """Counts by kind; by kind, what is to be named of each image; the unusable entries."""
        named = {kind: list(names) for kind, names in self.notes.items()}
        bad: set[int] = set()
        ownerless = set(self._catalogue.without_user)
        for image, entry in self._catalogue.entries.items():
            finding = self.findings.get(entry)
            if image in ownerless:
                finding = Finding(("without_user",))
            elif self._images[entry, 0] == NOWHERE:
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


def read_all(job: Job, inputs: Sequence[Input]) -> ImageTable:
    """Read and check the images of all inputs once, those that are in the spool already excepted.

    Raises:
        DataError: Inputs are damaged: all the others have been read by then, and all of the
            damaged ones are named.
    """
    table, damaged = ImageTable(job), []
    for each in inputs:
        images = examined(each.images(), job.side, job.check)
        try:
            if each.folder is not None:
                part = Part(each.folder)
                part.fill(images, lambda data: None)
            else:
                part = job.spool.load(each.name, each.fingerprint) or job.spool.write(
                    each.name, each.fingerprint, images
                )
            table.take(part)
        except DamagedInputError as error:
            damaged.append(f"\n  - {error}")
    if damaged:
        raise DataError(
            f"{job.source}: {len(damaged)} of {len(inputs)} inputs are damaged:{''.join(damaged)}\n"
            "Get these anew (delete a file, and 'pfl-bench data download flair' fetches it again) "
            "and run the same command: only they will be read."
        )
    return table


def fingerprint_of(path: Path) -> list[int]:
    """Size and time of a file: equal means unchanged."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def read_metadata(source: Path, progress: Progress) -> Catalogue:
    """Read both published files of a folder into a catalogue, which is not yet finished."""
    import ijson

    for name in (METADATA, RELATIONSHIP):
        if not (source / name).is_file():
            raise DataError(
                f"{source}: {name} is missing; it is published beside the images: fetch it with "
                "'pfl-bench data download flair', or put it there"
            )
    path = source / METADATA
    catalogue = Catalogue(read_relationship(source / RELATIONSHIP), str(path))
    total, number = path.stat().st_size, 0
    with open_json(path, lambda: f" after entry {number}") as stream:
        first = stream.read(64).lstrip()[:1]
        if first != b"[":
            raise DataError(
                f"{path}: begins with {first!r}, but a list of entries begins with '['; get the "
                "file anew"
            )
        stream.seek(0)
        for number, entry in enumerate(ijson.items(stream, "item", use_float=True), start=1):
            catalogue.add(entry, f"{path}, entry {number}")
            if number % PROGRESS_EVERY == 0:
                progress(f"reading {METADATA} (bytes)", stream.tell(), total)
        progress(f"reading {METADATA} (bytes)", total, total)
    return catalogue
