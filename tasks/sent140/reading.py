"""Readers of Sent140's public forms: the published CSV files, and LEAF's JSON."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from pfl_bench.data import regular
from pfl_bench.types import DataError
from tasks.common.leaf.json_files import UNSPLIT, find_files, read_splits

NUM_COLUMNS = 6
COLUMNS = "polarity, id, date, query, user, text"
NEGATIVE, NEUTRAL, POSITIVE = "0", "2", "4"
LARGEST_TWEET_ID = 2**63 - 1
# Of LEAF's rows, which are those of the CSV without the polarity, and "training" or "test".
JSON_ID, JSON_USER, JSON_TEXT, JSON_ORIGIN = 0, 3, 4, 5


class Tweet(NamedTuple):
    """One row of a source.

    Attributes:
        split: "train", "val" or "test" as published, or "all" where nothing is split.
        user: Name of the user.
        number: The tweet's identifier.
        text: What it says.
        label: 0 negative, 1 positive; None neutral.
        manual: Whether it is of the test file, labelled by hand.
    """

    split: str
    user: str
    number: int
    text: str
    label: int | None
    manual: bool


def csv_files(source: Path) -> tuple[list[Path], list[Path]]:
    """Find the training files and the test files of a folder, each sorted by name."""
    files = sorted(p for p in source.iterdir() if not p.is_dir() and p.suffix.lower() == ".csv")
    training = [path for path in files if path.name.lower().startswith("train")]
    return training, [path for path in files if path.name.lower().startswith("test")]


def read_csv(path: Path, manual: bool) -> Iterator[Tweet]:
    """Read a published CSV file (Latin-1, no header), a row at a time; the test file is ``manual``.

    A damaged row is a DataError that names the file and the line.
    """
    quotes, unclosed = 0, False

    def lines(file: TextIO) -> Iterator[str]:
        nonlocal quotes
        for line in file:
            quotes += line.count('"')
            yield line

    # Every byte is a character of Latin-1: wrong encodings show in what the rows say.
    with regular(path).open(encoding="latin-1", newline="") as file:
        rows = csv.reader(lines(file))
        try:
            for row in rows:
                unclosed, quotes = quotes % 2 == 1, 0
                yield _tweet(row, f"{path}, line {rows.line_num}", manual)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {rows.line_num}: {error}; the file is damaged: an unclosed "
                "quotation mark, or not a CSV file; copy it again"
            ) from error
        if unclosed:  # the reader takes the end of the file for the end of a quotation
            raise DataError(
                f"{path}, line {rows.line_num}: an unclosed quotation mark in the last row; the "
                "file is cut or damaged: copy it again"
            )


def _tweet(row: list[str], where: str, manual: bool) -> Tweet:
    if len(row) != NUM_COLUMNS:
        raise DataError(
            f"{where}: {len(row)} columns, but Sent140 has {NUM_COLUMNS} ({COLUMNS}); the file is "
            "damaged or another one: copy it again"
        )
    polarity, number, _, _, user, text = row
    if polarity not in (NEGATIVE, NEUTRAL, POSITIVE):
        raise DataError(
            f"{where}: polarity is {polarity[:20]!r}, but it is 0 (negative), 2 (neutral) or 4 "
            "(positive), in a file in Latin-1 without a header"
        )
    if any("\0" in column for column in row):
        raise DataError(
            f"{where}: holds a NUL character, so it is not text in Latin-1 (UTF-16?) or damaged; "
            "give the file as published"
        )
    label = None if polarity == NEUTRAL else int(polarity == POSITIVE)
    return Tweet(UNSPLIT, _user(user, where), _number(number, where), text, label, manual)


def read_leaf(source: Path) -> Iterator[Tweet]:
    """Read LEAF's JSON: ``all_data`` files, or the folders of a split.

    LEAF's converter makes neutral tweets negative; they cannot be told apart here.
    """
    for split, found, where in read_splits(source, find_files(source)):
        for place, (row, label) in enumerate(zip(found.x, found.y, strict=True)):
            yield _leaf_tweet(split, found.user, row, label, f"{where}, sample {place}")


def _leaf_tweet(split: str, user: str, row: object, label: object, where: str) -> Tweet:
    if not (
        isinstance(row, list)
        and len(row) in (JSON_ORIGIN, JSON_ORIGIN + 1)
        and all(isinstance(value, str) for value in row)
    ):
        raise DataError(
            f"{where}: x is not a list of 5 or 6 texts (id, date, query, user, text and perhaps "
            "'training' or 'test'), as LEAF's data/sent140 writes them: is this another data set?"
        )
    if isinstance(label, bool) or label not in (0, 1):
        raise DataError(f"{where}: y is {label!r}, but it is 0 (negative) or 1 (positive)")
    if row[JSON_USER] != user:
        raise DataError(
            f"{where}: the tweet is by {row[JSON_USER][:60]!r}, but stands among another user's; "
            "the file contradicts itself, get it anew"
        )
    manual = len(row) > JSON_ORIGIN and row[JSON_ORIGIN] == "test"
    number = _number(row[JSON_ID], where)
    return Tweet(split, _user(user, where), number, row[JSON_TEXT], int(label == 1), manual)


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= LARGEST_TWEET_ID):
        raise DataError(f"{where}: the tweet's id is {text[:20]!r}, which is no whole number")
    return int(text)


def _user(name: str, where: str) -> str:
    if not name:
        raise DataError(f"{where}: the user has no name; the columns are {COLUMNS}")
    return name
