"""FedScale's generic layout: ``client_data_mapping/{train,val,test}.csv`` beside the samples.

Each row says which client has which sample, under which label::

    client_id,sample_path,label_name,label_id
    0,000002b66c9c498e.jpg,Tree,531

A sample of train lies at ``train/<sample_path>``. The columns are FedScale's own: its code reads
them by position, and one published file calls the second ``data_path``.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from pfl_bench.data import regular
from pfl_bench.types import DataError, SplitBy
from tasks.common.damage import reading
from tasks.common.leaf.gathering import Gathering
from tasks.common.leaf.json_files import UNSPLIT

FOLDER = "client_data_mapping"
COLUMNS = ("client_id", "sample_path", "label_name", "label_id")
SPLITS = ("train", "val", "test")
# What a split's file and folder may be called.
SPELLINGS = {"train": ("train",), "val": ("val", "validation"), "test": ("test",)}
NO_LABEL = -1
_SECOND = ("sample_path", "data_path")
# Stores keep targets in 16 bits, and a model has an output for each number up to the largest.
_LARGEST_LABEL = 2**16 - 1


class Row(NamedTuple):
    """One row of a mapping.

    Attributes:
        sample_path: Where the sample is, below the folder of its split.
        label_name: What its label is called; empty where the file names none.
        label_id: Number of the label, from 0; ``NO_LABEL`` where the file has -1 or nothing.
        line: Line of the file on which the row ends, from 1 (the header's).
    """

    client_id: str
    sample_path: str
    label_name: str
    label_id: int
    line: int


def find_mappings(source: Path) -> dict[str, Path]:
    """Find the mapping of each split, "train" among them, in the order of ``SPLITS``."""
    folder = source / FOLDER
    if not folder.is_dir():
        raise DataError(
            f"{source} has no folder {FOLDER}/, which FedScale's layout needs: {FOLDER}/train.csv "
            f"(and val.csv, test.csv) with the columns {','.join(COLUMNS)}; --source takes the "
            "folder that holds it"
        )
    found: dict[str, Path] = {}
    for split, names in SPELLINGS.items():
        there = [folder / f"{name}.csv" for name in names if (folder / f"{name}.csv").exists()]
        if len(there) > 1:
            raise DataError(
                f"{folder} has both {there[0].name} and {there[1].name}, which are both the "
                f"mapping of split {split!r}; remove one of them"
            )
        if there:
            found[split] = there[0]
    if "train" not in found:
        listed = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        raise DataError(
            f"{folder} has no train.csv, without which there are no training clients; it has: "
            f"{listed}"
        )
    return found


def sample_folder(source: Path, split: str) -> Path:
    """Folder of a split's samples; refused if there is none."""
    for name in SPELLINGS[split]:
        if (source / name).is_dir():
            return source / name
    wanted = " or ".join(f"{name}/" for name in SPELLINGS[split])
    raise DataError(
        f"{source} has no folder {wanted} with the samples that {FOLDER}/ lists for split "
        f"{split!r}; put the samples there, or remove that split's mapping"
    )


def read_mapping(path: Path) -> Iterator[Row]:
    """Read a mapping row by row; memory does not grow with the file.

    It is a CSV file with a header, UTF-8; blank lines are passed over.
    """
    # utf-8-sig: what spreadsheets write begins with a byte order mark.
    with reading(path), regular(path).open(encoding="utf-8-sig", newline="") as file:
        yield from _rows(path, file)


def _rows(path: Path, file: TextIO) -> Iterator[Row]:
    reader = csv.reader(file, strict=True)
    try:
        header = next(reader, None)
        _check_header(path, header)
        for fields in reader:
            if fields:
                yield _row(path, reader.line_num, fields)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: not CSV ({error}); each line is "
            f"{','.join(COLUMNS)}, and a field with a comma stands in double quotes"
        ) from error


def _check_header(path: Path, header: list[str] | None) -> None:
    names = [name.strip() for name in header or []]
    right = len(names) == len(COLUMNS) and names[1] in _SECOND
    if not right or [names[0], *names[2:]] != [COLUMNS[0], *COLUMNS[2:]]:
        shown = ",".join(names) if names else "an empty file"
        raise DataError(
            f"{path}, line 1: the header is {shown[:200]!r}; it must be {','.join(COLUMNS)}"
        )


def _row(path: Path, line: int, fields: list[str]) -> Row:
    if len(fields) != len(COLUMNS):
        raise DataError(
            f"{path}, line {line}: {len(fields)} fields instead of {len(COLUMNS)} "
            f"({','.join(COLUMNS)}); the line is cut, or a comma in a field needs double quotes"
        )
    client_id, sample_path, label_name, label = (field.strip() for field in fields)
    for name, value in zip(COLUMNS, (client_id, sample_path), strict=False):
        if not value or "\0" in value:
            what = "is empty" if not value else "has a NUL character"
            raise DataError(f"{path}, line {line}: {name} {what}; every row needs one")
    return Row(client_id, sample_path, label_name, _label_id(path, line, label), line)


def _label_id(path: Path, line: int, text: str) -> int:
    if text == "":
        return NO_LABEL
    # int() would take "1_0", and digits of other scripts.
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 11:
        number = int(text)
        if NO_LABEL <= number <= _LARGEST_LABEL:
            return number
    raise DataError(
        f"{path}, line {line}: label_id is {text[:40]!r}; it must be a whole number from 0 to "
        f"{_LARGEST_LABEL} (or -1 for no label)"
    )


def published_as(gathering: Gathering) -> SplitBy | None:
    """Whether FedScale's splits divide clients, as its paper says, or some client is in several."""
    if UNSPLIT in gathering.splits:
        return None
    return split_by_of(gathering.clients(split) for split in gathering.splits)


def split_by_of(clients: Iterable[Collection[str]]) -> SplitBy:
    """Whether splits, given the clients of each, divide clients, or some client is in several."""
    seen: set[str] = set()
    for own in clients:
        if not seen.isdisjoint(own):
            return "example"
        seen.update(own)
    return "user"
