"""Turn a data set, as the Hugging Face Hub has it, into a store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pfl_bench.data import FieldSpec
from pfl_bench.types import ConfigError, DataError, HubDataset, Progress, SplitBy
from tasks.common.leaf.gathering import UNSPLIT, Gathering, PartitionOptions, write_partition
from tasks.common.options import StrictOptions
from tasks.common.sources import files_below
from tasks.common.text.words import SPECIAL
from tasks.hub.reading import InputOptions, Rows, Tokens, read_inputs, read_rows

MOST_CLASSES = 65_536
ENDINGS = (".parquet", ".csv", ".jsonl")
_CONVERSIONS = (
    "JSON by `pandas.read_json('a.json').to_parquet('a.parquet')`; packed CSV by "
    "`pandas.read_csv('a.csv.gz').to_parquet('a.parquet')`; images in folders of their labels by "
    "`pandas.DataFrame([(p.read_bytes(), p.parent.name) for p in Path().glob('*/*.*')], "
    "columns=['image', 'label']).to_parquet('a.parquet')`"
)
# The Hub's names of splits, in names of files and folders.
_SPLIT_WORD = re.compile(
    r"(?<![a-z])(?:(?P<train>train(?:ing)?)|(?P<val>validation|valid|val|dev)"
    r"|(?P<test>test(?:ing)?|eval(?:uation)?))(?![a-z])"
)
_OF_USERS = ("min_examples", "user_fraction", "num_users", "data_fraction", "partition", "split_by")


class Download(StrictOptions):
    """Options of downloading a data set.

    Attributes:
        dataset: Its name on the Hub, OWNER/NAME.
        kind: Ending of the files that are fetched.
    """

    dataset: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    kind: Literal["parquet", "csv", "jsonl"] = "parquet"

    def dataset_on_hub(self) -> HubDataset:
        """The repository."""
        note = f"These are files of {self.dataset} on the Hugging Face Hub, whose page has terms."
        return HubDataset(self.dataset, f"*.{self.kind}", None, note)


class Options(InputOptions, PartitionOptions):
    """Options of preparing a data set, beside those of its inputs and of partitioning.

    Attributes:
        input: Column of the inputs: images, lists of numbers, or text.
        label: Column of the labels: whole numbers or text.
        user: Column that says whose an example is; null makes a store without users, for
            artificial clients.
        train: Files of train, by their paths below the source ("data/train-*"); null with the two
            others to go by the Hub's names of splits.
        val: Files of val.
        test: Files of test.
        split_by: As of other tasks, but "user", whole users, unless it is set.
    """

    input: str
    label: str
    user: str | None = None
    train: str | None = None
    val: str | None = None
    test: str | None = None
    split_by: SplitBy = "user"

    @model_validator(mode="after")
    def _users_are_known(self) -> Self:
        changed = self.changed(*_OF_USERS)
        if self.user is None and changed:
            raise ValueError(f"{changed[0]}: is about users; name their column by user=COLUMN")
        return self


class Labels:
    """Labels, numbered by their first appearance until all classes are known.

    Attributes:
        numbers: Number of each value.
        class_names: The Hub's names of values, if the files have them.
    """

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.class_names: tuple[str, ...] | None = None

    def read(self, rows: Rows) -> NDArray[np.int32]:
        """Number the labels of n rows, shape (n,)."""
        self.class_names = names = rows.class_names
        values = rows.columns["label"].to_pylist()
        for row, value in enumerate(values):
            if self.numbers.setdefault(value, len(self.numbers)) >= MOST_CLASSES:
                raise rows.refused(
                    row,
                    "label",
                    f"is one of more than {MOST_CLASSES:,} classes, as many as a store can number; "
                    "give a column of classes by label=COLUMN",
                )
            if value == "" or (isinstance(value, int) and value < 0):
                raise rows.refused(row, "label", f"is {value!r}, no class; leave such rows out")
            if names is not None and value not in range(len(names)):
                raise rows.refused(
                    row, "label", f"is {value!r:.40}, but has {len(names)} classes, from 0"
                )
        return np.array([self.numbers[value] for value in values], np.int32)

    def classes(self) -> tuple[tuple[str, ...], NDArray[np.uint16]]:
        """Names of all classes, and the class of each number, shape (values,).

        They are the Hub's, where the files have them, else the sorted values.
        """
        ordered = range(len(self.class_names)) if self.class_names else sorted(self.numbers)
        places = {value: place for place, value in enumerate(ordered)}
        class_of = np.array([places[value] for value in self.numbers], np.uint16)
        return self.class_names or tuple(map(str, ordered)), class_of


def find_files(source: Path, patterns: Mapping[str, str | None]) -> list[tuple[str, Path]]:
    """Splits and paths of the files below a folder, of the first of ``ENDINGS`` that is there.

    ``patterns`` says which files a split has, by their paths in the folder ("data/a-*"); where all
    are None, the last word for a split in a path decides, and without one it is train.
    """
    every = files_below(source)
    paths: list[Path] = []
    for ending in ENDINGS:
        paths = paths or [path for path in every if path.suffix.lower() == ending]
    if not paths:
        names = ", ".join(path.name for path in every[:5]) or "nothing"
        raise DataError(
            f"{source}: has no file {', '.join('*' + ending for ending in ENDINGS)}; it has {names}"
            ". Get the data set by `pfl-bench data download hub dataset=OWNER/NAME`, or convert "
            f"it in Python, after `from pathlib import Path; import pandas`: {_CONVERSIONS}"
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


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of a data set's files and write a store; see ``tasks``.

    Memory grows with the users and batches of rows, not with the examples. A wrong row is refused.
    """
    labels, done = Labels(), 0
    columns = {"input": options.input, "label": options.label}
    columns |= {} if options.user is None else {"user": options.user}
    files = find_files(source, {name: getattr(options, name) for name in ("train", "val", "test")})
    # A data set of one split is split here.
    is_split = {split for split, _ in files} != {"train"}
    rows = read_rows(files, columns)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source}: its {len(files)} files hold no row; get them anew")
    kind, tokens = first.kinds["input"], None
    if options.tokenizer is not None:
        if kind != "text" or options.changed("buckets"):
            raise ConfigError(f"tokenizer: of text, not of {kind}, and in place of buckets")
        tokens = Tokens(options.tokenizer, options.max_words)
    start = read_inputs(first, options, tokens, None)
    shape = start.shape[1:]
    fields = {"inputs": FieldSpec(start.dtype.name, shape), "targets": FieldSpec("int32")}
    with Gathering(out, fields) as gathering:
        for part in chain([first], rows):
            arrays = {"inputs": read_inputs(part, options, tokens, shape)}
            arrays["targets"] = labels.read(part)
            owners = part.columns["user"].to_pylist() if options.user else [part.split]
            if "" in owners:
                raise part.refused(owners.index(""), "user", "is empty; each row needs its user")
            users = np.array([str(owner) for owner in owners], np.object_)
            users = np.resize(users, len(arrays["targets"]))
            for user in dict.fromkeys(users):
                own = {name: values[users == user] for name, values in arrays.items()}
                gathering.append(part.split if is_split else UNSPLIT, user, **own)
            done += len(users)
            progress("reading the data set (rows)", done, None)
        if not options.user and not is_split:
            options = options.model_copy(update={"split_by": "example"})
        partition = gathering.partition(options, published_as=gathering.published_as())
        classes, class_of = labels.classes()
        extra: dict[str, Any] = {"kind": kind, "columns": columns, "files": len(files)}
        if kind == "text":
            hashed = {"from": "hashes", "size": options.buckets + len(SPECIAL)}
            extra["vocabulary"] = tokens.facts if tokens else hashed
        if not options.user:
            extra["artificial_users"] = True

        def convert(arrays: dict[str, Any]) -> dict[str, Any]:
            return {**arrays, "targets": class_of[arrays["targets"]]}

        facts = write_partition(
            out,
            partition,
            progress,
            convert,
            task="hub",
            variant=f"hub-{kind}",
            source=f"{source.resolve().name}, a data set of the Hugging Face Hub",
            num_classes=len(classes),
            input_shape=shape,
            fields={**fields, "targets": FieldSpec("uint16")},
            extra=extra,
            names={"targets": classes},
        )
    return {**facts, "classes": len(classes)}
