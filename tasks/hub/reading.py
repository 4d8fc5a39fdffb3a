"""Read the files of a data set of the Hugging Face Hub, some rows at a time, and their inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import parse_json, regular
from pfl_bench.types import ConfigError, DataError, did_you_mean
from tasks.common.options import StrictOptions
from tasks.common.sources import reading, reason
from tasks.common.text.words import PAD_ID, SPECIAL, import_transformers, split_words
from tasks.common.vision.pictures import PictureError, opened

ROWS_AT_ONCE = 512
_MEND = "get it anew if it is cut; CSV and JSON are UTF-8, a column of one type, a JSON row 1 MiB"
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

    # Not binary where text is no UTF-8, which is refused below.
    texts = csv.ParseOptions(newlines_in_values=True), None, csv.ConvertOptions(check_utf8=False)
    formats = {".csv": dataset.CsvFileFormat(*texts), ".jsonl": "json"}
    with reading(path, pyarrow.ArrowException, mend=_MEND):
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
            batch.validate(full=True)
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
        features = parse_json(schema.metadata[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    return None


# Of a tokenizer's files.
_ENDINGS = (".json", ".model", ".txt")


class Tokens:
    """The first tokens of texts, ``width`` with special ones, by the tokenizer of a folder.

    It may be a name of the Hub that is in the Hub's cache. ``facts`` say what the tokenizer was.
    """

    def __init__(self, name: str, width: int) -> None:
        transformers = import_transformers("hub", "transformers")
        from huggingface_hub import snapshot_download

        try:
            is_here = Path(name).is_dir()
            folder = Path(name if is_here else snapshot_download(name, local_files_only=True))
            # Code in the folder is not run.
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            files = [path for path in sorted(folder.iterdir()) if path.suffix in _ENDINGS]
            contents = [[path.name, hashlib.sha256(path.read_bytes()).digest()] for path in files]
        # What a damaged file raises is the choice of whichever library reads it.
        except Exception as error:
            raise DataError(
                f"tokenizer={name}: cannot be loaded ({reason(error)}); nothing is downloaded: "
                "name a folder with a tokenizer's files, or get them by `hf download NAME`"
            ) from error
        if self._tokenizer.pad_token_id is None:
            raise DataError(
                f"tokenizer={name}: has no padding; set pad_token in its tokenizer_config.json"
            )
        if width <= (special := self._tokenizer.num_special_tokens_to_add()):
            raise ConfigError(f"max_words: {width}, but the tokenizer alone adds {special} tokens")
        self._width = width
        self.facts = {
            "from": "tokenizer",
            "tokenizer": folder.resolve().name if is_here else name,
            "files": f"sha256:{hashlib.sha256(repr(contents).encode()).hexdigest()}",
            "size": max(self._tokenizer.get_vocab().values()) + 1,
            "pad_id": self._tokenizer.pad_token_id,
        }

    def __call__(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Numbers of n texts, shape (n, width), padded at their ends."""
        options = {"padding": "max_length", "padding_side": "right", "truncation": True}
        found = self._tokenizer(list(texts), max_length=self._width, **options)
        return np.array(found["input_ids"], np.uint32)


Shape = tuple[int, ...]


class InputOptions(StrictOptions):
    """Options of inputs.

    Attributes:
        size: Of images: height and width to which all are resized, without regard to their
            proportions; null if all have one size.
        channels: Of images: 1 for grey, 3 for colours; null for what the first one has.
        max_words: Of text: words that are kept, the first ones; with a tokenizer, tokens.
        buckets: Of text: numbers that words are hashed to. Nothing of the data decides them.
        tokenizer: Of text: tokenizer of ``transformers`` in place of hashed words, by its folder
            or by a name of the Hub that is in the Hub's cache.
    """

    size: int | None = Field(default=None, ge=1, le=4096)
    channels: Literal[1, 3] | None = None
    max_words: int = Field(default=64, ge=1, le=10_000)
    buckets: int = Field(default=10_000, ge=1, le=2**31)
    tokenizer: str | None = None


def read_inputs(
    rows: Rows, options: InputOptions, tokens: Tokens | None, shape: Shape | None
) -> NDArray[np.generic]:
    """Inputs of n rows, shape (n, ...); ``shape`` is that of the first of all, None if it is here.

    Images are uint8, shape (n, channels, side, side); vectors float32, shape (n, length); texts
    numbered words, or tokens, uint32, shape (n, max_words).
    """
    kind = rows.kinds["input"]
    if kind == "images":
        return _pictures(rows, options, shape)
    if kind == "vectors":
        return _vectors(rows, shape)
    numbers = tokens(rows.columns["input"].to_pylist()) if tokens else _texts(rows, options)
    padding = tokens.facts["pad_id"] if tokens else PAD_ID
    empty = np.flatnonzero((numbers == padding).all(axis=1))
    if len(empty):
        among = f"it is one of {len(empty)} in {len(numbers)} rows from row {rows.first} on"
        raise rows.refused(int(empty[0]), "input", f"has no word ({among}); leave such rows out")
    return numbers


def _pictures(rows: Rows, options: InputOptions, shape: Shape | None) -> NDArray[np.uint8]:
    pictures = []
    for row, value in enumerate(rows.columns["input"].to_pylist()):
        content = value["bytes"] if isinstance(value, dict) else value
        if not content:
            raise rows.refused(row, "input", "has no bytes; a path alone does not tell the picture")
        try:
            pixels = _decode(content, options, None if shape is None else shape[0])
        except PictureError as error:
            raise rows.refused(row, "input", f"the image cannot be used: {error}") from error
        shape = shape or pixels.shape
        if pixels.shape != shape or shape[1] != shape[2]:
            sizes = " x ".join(map(str, pixels.shape[:0:-1]))
            fault = f"the image has {sizes} pixels; all must be squares of the first one's size: "
            raise rows.refused(row, "input", fault + "resize them by size=N, such as size=32")
        pictures.append(pixels)
    return np.stack(pictures)


def _decode(content: bytes, options: InputOptions, channels: int | None) -> NDArray[np.uint8]:
    """Decode an image to shape (channels, height, width)."""
    with opened(content) as picture:
        is_grey = picture.mode in ("1", "L", "LA")
        if picture.mode.startswith(("I", "F")):
            raise PictureError(
                f"its pixels have not 8 bits (Pillow's mode {picture.mode}); convert it to 8 bits"
            )
        if channels == 1 and options.channels is None and not is_grey:
            raise PictureError("it has colours, and the first one is grey; set channels=3 or 1")
        grey = (options.channels or channels or (1 if is_grey else 3)) == 1
        image = picture.convert("L" if grey else "RGB")
        if options.size is not None:
            image = image.resize((options.size, options.size))
        pixels = np.asarray(image)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _vectors(rows: Rows, shape: Shape | None) -> NDArray[np.float32]:
    from pyarrow import compute

    column = rows.columns["input"]
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    length = shape[0] if shape else int(lengths[0])
    wrong = np.flatnonzero((lengths != length) | (lengths == 0))
    if len(wrong):
        row = int(wrong[0])
        raise rows.refused(
            row, "input", f"has {lengths[row]} numbers, the first row {length}; all need as many"
        )
    # A null in a list becomes NaN.
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        numbers = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    vectors: NDArray[np.float32] = numbers.reshape(-1, length)
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        raise rows.refused(
            int(wrong[0]),
            "input",
            "has a number that is missing or not finite; leave it out",
        )
    return vectors


def _texts(rows: Rows, options: InputOptions) -> NDArray[np.uint32]:
    texts = rows.columns["input"].to_pylist()
    numbers = np.full((len(texts), options.max_words), PAD_ID, np.uint32)
    for own, text in zip(numbers, texts, strict=True):
        words = split_words(text, lowercase=True)[: options.max_words]
        own[: len(words)] = [len(SPECIAL) + crc32(w.encode()) % options.buckets for w in words]
    return numbers
