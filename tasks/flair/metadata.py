"""Read ``labels_and_metadata.json``, streaming, with the relationship file beside it."""

from __future__ import annotations

from pathlib import Path

from pfl_bench.types import DataError
from tasks.common.json_text import json_reason
from tasks.common.progress import Progress
from tasks.flair.catalogue import Catalogue
from tasks.flair.labels import RELATIONSHIP, read_relationship

METADATA = "labels_and_metadata.json"
PROGRESS_EVERY = 1000


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
