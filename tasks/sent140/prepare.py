"""Turn the public files of Sent140 into a store."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from pydantic import Field

from pfl_bench.data import regular
from pfl_bench.types import ConfigError, DataError, Progress, SplitBy
from tasks.common.leaf.gathering import UNSPLIT, Gathering, PartitionOptions, write_partition
from tasks.common.leaf.json_files import LOOKED_FOR, find_files, read_splits
from tasks.common.leaf.options import FORM_NAMES
from tasks.common.leaf.table1 import SENT140, compare, looks_full
from tasks.common.sources import Form, choose_form
from tasks.common.text.numbered import FIELDS, NUMBER, WAITING, NumberedWords, Text, gather_texts

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


FORMS = (
    Form(
        "csv",
        "training.1600000.processed.noemoticon.csv (any training*.csv) and perhaps "
        "testdata.manual.2009.06.14.csv (any test*.csv)",
        lambda source: bool(csv_files(source)[0]),
    ),
    Form("leaf-json", LOOKED_FOR, lambda source: bool(find_files(source))),
)
BUILT_SIZE = 10_000


@dataclass(slots=True)
class Tally:
    """Counts what a source holds, before anything is dropped: samples by user, neutral, by hand."""

    counted: str = "tweets, neutral ones too"
    users: Counter[str] = field(default_factory=Counter)
    neutral: int = 0
    manual: int = 0


class Options(PartitionOptions):
    """Options of preparing Sent140, beside those of partitioning.

    Attributes:
        form: Which form to read; None takes the one that is there. ``variant`` is its old name.
        manual: The tweets of the test file, labelled by hand: "pool" puts them among the others
            (LEAF does), "test" makes them the test split and all others train, "leave_out"
            does without.
        neutral: Neutral tweets, which only the test file has: "drop" them, or count them as
            "negative" (LEAF's code does).
        lowercase: Whether words are made lower case first. LEAF does not, although GloVe's are.
        vocabulary: A file with word vectors, whose words are taken; None counts those of train.
        vocabulary_size: Numbers of words in all, padding and unknown among them; None for 10,000
            counted ones, or all of the file's.
    """

    form: Literal["csv", "leaf-json"] | None = Field(default=None, validation_alias=FORM_NAMES)
    manual: Literal["pool", "test", "leave_out"] = "pool"
    neutral: Literal["drop", "negative"] = "drop"
    lowercase: bool = False
    vocabulary: str | None = None
    vocabulary_size: int | None = Field(default=None, ge=3, le=2**32 - 1)


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store; see ``tasks``.

    Memory grows with the users and with the different words, not with the tweets.
    """
    form, tweets = _open(source, options)
    words = NumberedWords(options.lowercase, None, options.vocabulary)
    tally = Tally()
    if options.manual == "leave_out":
        tally.counted += ", without those labelled by hand"
    with Gathering(out, {**WAITING, "tweet": NUMBER}) as gathering:
        gather_texts(gathering, _kept(tweets, tally, options), "tweet", progress)
        if options.manual == "test" and "test" not in gathering.splits:
            raise DataError(
                f"{source}: manual=test, but no tweet of the test file is there; leave the option "
                "out"
            )
        # Whoever wrote a tweet of the test file may have written others.
        published_as: SplitBy | None = "example" if options.manual == "test" else None
        partition = gathering.partition(options, published_as=published_as)
        size = options.vocabulary_size
        is_full = looks_full(tally.users.total(), SENT140.samples)
        words.choose(source, partition, size or BUILT_SIZE, size, progress)
        return write_partition(
            out,
            partition,
            progress,
            words.convert,
            task="sent140",
            variant=f"sent140-{form}" + ("" if is_full else "-partial"),
            source=f"Sent140 ({'published CSV' if form == 'csv' else 'LEAF JSON'}), tweets",
            num_classes=2,
            input_shape=(words.longest,),
            fields=FIELDS,
            extra={
                **compare(tally.users.values(), SENT140, tally.counted),
                **_facts(options, tally, form),
                "vocabulary": words.facts(lowercase=options.lowercase),
                "longest_tweet_words": words.longest,
            },
            names={"vocabulary": words.vocabulary},
        )


def _open(source: Path, options: Options) -> tuple[str, Iterator[Tweet]]:
    """Recognise the form of a folder, and begin to read it."""
    form = choose_form(source, "Sent140", FORMS, options).name
    if form == "leaf-json":
        _check_leaf_options(find_files(source), options)
        return form, read_leaf(source)
    training, tests = csv_files(source)
    if options.manual == "test" and not tests:
        raise DataError(
            f"{source}: manual = 'test' needs the test file (test*.csv), and there is none; put it "
            "beside the training file, or leave the option out"
        )
    if options.manual == "leave_out":
        tests = []
    files = [(path, False) for path in training] + [(path, True) for path in tests]
    return "csv", (tweet for path, manual in files for tweet in read_csv(path, manual))


def _check_leaf_options(files: Mapping[str, list[Path]], options: Options) -> None:
    """Refuse what cannot be done with LEAF's JSON."""
    if "neutral" in options.model_fields_set and options.neutral != "negative":
        raise ConfigError(
            "neutral=drop: LEAF's JSON has neutral tweets among the negative ones, and they cannot "
            "be told apart; leave the option out, or give the CSV files"
        )
    if UNSPLIT not in files and options.manual == "test":
        raise ConfigError(
            "manual=test: the source is split by its publisher; leave the option out, or give data "
            "that are not split"
        )


def _kept(tweets: Iterator[Tweet], tally: Tally, options: Options) -> Iterator[Text]:
    """Give the tweets that are to be kept, and count all."""
    for tweet in tweets:
        if tweet.manual and options.manual == "leave_out":
            continue
        tally.users[tweet.user] += 1
        tally.neutral += tweet.label is None
        tally.manual += tweet.manual
        if tweet.label is None and options.neutral == "drop":
            continue
        split = tweet.split
        if options.manual == "test" and split == UNSPLIT:
            split = "test" if tweet.manual else "train"
        yield Text(split, tweet.user, tweet.text, tweet.label or 0, tweet.number)


def _facts(options: Options, tally: Tally, form: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "manual": {"how": options.manual, "samples": tally.manual},
        "neutral": {"how": options.neutral, "samples": tally.neutral},
    }
    if form == "leaf-json":
        facts["neutral"] = {
            "how": "negative",
            "why": "LEAF's converter made neutral tweets negative; they cannot be told apart",
        }
    return facts
