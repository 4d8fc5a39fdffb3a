"""Readers of Amazon Review's public forms: FedScale's mapping, and the publisher's JSON lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from pfl_bench.data import parse_json, regular
from pfl_bench.types import DataError
from tasks.common.fedscale.layout import FOLDER, find_mappings, read_mapping
from tasks.common.leaf.json_files import UNSPLIT

MOST_STARS = 5
JSON_LOOKED_FOR = (
    "the publisher's reviews, *.json or *.jsonl, perhaps packed (.gz): an object a line, with "
    "reviewerID, reviewText and overall"
)
MAPPING_LOOKED_FOR = (
    f"FedScale's {FOLDER}/train.csv (and val.csv, test.csv): client_id, the review itself as "
    "data_path, its stars as label_name"
)


class Review(NamedTuple):
    """One review, as published or of the split "all"; its label is its stars less one, 0 to 4."""

    split: str
    user: str
    text: str
    label: int


def json_files(source: Path) -> list[Path]:
    """The publisher's files of a folder, by name."""
    ends = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
    return sorted(p for p in source.iterdir() if not p.is_dir() and p.name.lower().endswith(ends))


def read_fedscale(source: Path) -> Iterator[Review]:
    """Read FedScale's mapping, whose second column holds the reviews themselves.

    Source: FedScale's core/utils/word2vec.py, which reads the columns by position and takes the
        label's name less one for the class.
    """
    for split, path in find_mappings(source).items():
        for row in read_mapping(path):
            where = f"{path}, line {row.line}"
            yield Review(split, row.client_id, row.sample_path, _label(row.label_name, where))


def read_json(path: Path) -> Iterator[Review]:
    """Read a file of the publisher's, a line at a time; blank lines are passed over."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _review(line, f"{path}, line {number}")
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{path}, after line {number}: cannot be read ({error}); the file is cut or damaged: "
            "copy it again"
        ) from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast("IO[bytes]", gzip.open(regular(path), "rb"))
    return regular(path).open("rb")


def _review(line: bytes, where: str) -> Review:
    try:
        found: Any = parse_json(line)
    except ValueError as error:
        raise DataError(
            f"{where}: not a JSON object ({error}); the publisher's reviews have one a line (some "
            "old files are Python literals instead: get the review files, which are JSON)"
        ) from error
    user = found.get("reviewerID") if isinstance(found, dict) else None
    if not isinstance(user, str) or not user:
        raise DataError(f"{where}: no reviewerID; each line is an object with {_KEYS}")
    text = found.get("reviewText", "")
    if not isinstance(text, str):
        raise DataError(f"{where}: reviewText is no text; each line is an object with {_KEYS}")
    return Review(UNSPLIT, user, text, _label(found.get("overall"), where))


_KEYS = "reviewerID, reviewText and overall (1 to 5 stars)"


def _label(stars: object, where: str) -> int:
    """Stars, 1 to 5 (also "4" or 4.0), less one."""
    try:
        number = float(cast("Any", stars))
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(stars, bool) or number not in range(1, MOST_STARS + 1):
        raise DataError(f"{where}: {stars!r:.40} stars; a review gives 1, 2, 3, 4 or 5")
    return int(number) - 1
