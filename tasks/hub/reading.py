"""Read the files of a data set of the Hugging Face Hub, some rows at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pfl_bench.data import regular
from pfl_bench.types import ConfigError, DataError, did_you_mean
from tasks.common.damage import reading

ROWS_AT_ONCE = 512
ENDINGS = (".parquet", ".csv", ".jsonl")
# The Hub's names of splits, in names of files and folders.
_SPLIT_WORD = re.compile(
    r"(?<![a-z])(?:(?P<train>train(?:ing)?)|(?P<val>validation|valid|val|dev)"
    r"|(?P<test>test(?:ing)?|eval(?:uation)?))(?![a-z])"
)
_OF_INPUT = "images (bytes, or the Hub's struct of bytes and path), lists of numbers, or text"


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a file.

    Attributes:
        split: "train", "val" or "test".
        first: Number of the first row in the file, from 1.
        names: Of each purpose ("user", "input", "label"), the column's name.
        kinds: Of each purpose, the column's kind.
        columns: Of each purpose, the column as an Arrow array without nulls.
        class_names: Names of the labels' numbers, if the file has them.
    """

    path: Path
    split: str
    first: int
    names: Mapping[str, str]
    kinds: Mapping[str, str]
    columns: Mapping[str, Any]
    class_names: tuple[str, ...] | None

    def refused(self, row: int, purpose: str, reason: str) -> DataError:
        """Refusal of a row, counted in these rows from 0."""
        return DataError(
            f"{self.path}, row {self.first + row}, column '{self.names[purpose]}': {reason}"
        )


def find_files(source: Path, patterns: Mapping[str, str | None]) -> list[tuple[str, Path]]:
    """Splits and paths of the files below a folder, of the first of ``ENDINGS`` that is there.

    ``patterns`` says which files a split has, by their paths in the folder ("data/a-*"); where all
    are None, the last word for a split in a path decides, and without one it is train.
    """
    every = sorted(path for path in source.rglob("*") if not path.is_dir())
    paths: list[Path] = []
    for ending in ENDINGS:
        paths = paths or [path for path in every if path.suffix.lower() == ending]
    if not paths:
        names = ", ".join(path.name for path in every[:5]) or "nothing"
        raise DataError(
            f"{source}: has no file {', '.join('*' + ending for ending in ENDINGS)}; it has {names}"
            ". Download the data set by `pfl-bench data download hub dataset=OWNER/NAME`"
        )
    places = {path.relative_to(source).as_posix(): path for path in paths}
    if not any(patterns.values()):
        return [(_split_of(place.lower()), path) for place, path in places.items()]
    found = []
    for split, pattern in patterns.items():
        own = [path for place, path in places.items() if pattern and fnmatch(place, pattern)]
        if pattern and not own:
            raise ConfigError(
                f"{split}={pattern}: {source} has no such file; it has {', '.join([*places][:10])}"
            )
        found += [(split, path) for path in own]
    return found


def _split_of(place: str) -> str:
    found = [str(match.lastgroup) for match in _SPLIT_WORD.finditer(place)]
    return found[-1] if found else "train"


def read_rows(files: Sequence[tuple[str, Path]], names: Mapping[str, str]) -> Iterator[Rows]:
    """Read the named columns of all files; a file unlike the first one is refused."""
    alike: tuple[Mapping[str, str], tuple[str, ...] | None] | None = None
    for split, path in files:
        # Each column once, were it of two purposes.
        for first, schema, batch in _batches(path, list(dict.fromkeys(names.values()))):
            kinds = {use: _kind(path, schema, use, column) for use, column in names.items()}
            classes = _class_names(schema, names["label"])
            alike = alike or (kinds, classes)
            if alike != (kinds, classes):
                raise DataError(
                    f"{path}: its columns are not those of {files[0][1]}: {kinds} with the classes "
                    f"{classes}, there {alike[0]} with {alike[1]}; name the files of one data set "
                    "by train=, val= and test="
                )
            columns = {use: batch.column(column) for use, column in names.items()}
            rows = Rows(path, split, first, names, kinds, columns, classes)
            for use, column in columns.items():
                if column.null_count:
                    row = column.is_null().to_pylist().index(True)
                    raise rows.refused(row, use, f"has no value; each row needs its {use}")
            yield rows


def _batches(path: Path, columns: list[str]) -> Iterator[tuple[int, Any, Any]]:
    """Number of the first row, schema of the file, and rows."""
    import pyarrow
    from pyarrow import csv, dataset

    texts = csv.ParseOptions(newlines_in_values=True)
    formats = {".csv": dataset.CsvFileFormat(texts), ".jsonl": "json"}
    with reading(path, pyarrow.ArrowException):
        file = dataset.dataset(regular(path), format=formats.get(path.suffix.lower(), "parquet"))
        there = file.schema.names
        for column in columns:
            if there.count(column) != 1:
                fault = "has several columns" if column in there else "has no column"
                raise DataError(
                    f"{path}: {fault} '{column}'{did_you_mean(column, there, '.')} Its "
                    f"columns are {', '.join(there)}"
                )
        first = 1
        scanner = file.scanner(
            columns=columns, batch_size=ROWS_AT_ONCE, batch_readahead=1, use_threads=False
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield first, file.schema, batch
            first += batch.num_rows


def _kind(path: Path, schema: Any, use: str, column: str) -> str:
    """Kind of a column by its Arrow type; refused if it is not for the purpose."""
    from pyarrow import types

    declared = kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    item = kind.value_type if is_list else kind
    is_whole = types.is_integer(item) or types.is_boolean(item)
    is_struct = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    found = "other"
    if is_whole or (is_list and types.is_floating(item)):
        found = "vectors" if is_list else "integers"
    elif types.is_string(kind) or types.is_large_string(kind):
        found = "text"
    elif types.is_binary(kind) or types.is_large_binary(kind) or is_struct:
        found = "images"
    if found not in (("images", "vectors", "text") if use == "input" else ("integers", "text")):
        raise DataError(
            f"{path}, column '{column}': holds {declared}, and cannot be the {use}, which is "
            f"{_OF_INPUT if use == 'input' else 'whole numbers or text'}; the columns are "
            f"{', '.join(schema.names)}"
        )
    return found


def _class_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """Names of a label's classes in the Hub's own entry of a file's metadata, if it is there."""
    with suppress(KeyError, TypeError, ValueError):
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    return None
