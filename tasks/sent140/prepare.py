"""Turn the public files of Sent140 into a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from pfl_bench.data import FieldSpec
from pfl_bench.types import ConfigError, DataError, SplitBy
from tasks.common.leaf.forms import choose_form
from tasks.common.leaf.json_files import LOOKED_FOR as JSON_LOOKED_FOR
from tasks.common.leaf.json_files import UNSPLIT, find_files
from tasks.common.leaf.options import FORM_NAMES
from tasks.common.leaf.partition import Dealing, DealOptions, Gathering, Progress, write_dealt
from tasks.common.text.embeddings import read_words
from tasks.common.text.words import (
    PAD_ID,
    SPECIAL,
    UNKNOWN_ID,
    choose_vocabulary,
    split_words,
    to_ids,
)
from tasks.sent140.published import Tally
from tasks.sent140.reading import Tweet, csv_files, read_csv, read_leaf

LOOKED_FOR = {
    "csv": "training.1600000.processed.noemoticon.csv (any training*.csv) and perhaps "
    "testdata.manual.2009.06.14.csv (any test*.csv)",
    "leaf-json": JSON_LOOKED_FOR,
}
FIELDS = {"tokens": FieldSpec("uint32", ragged=True), "targets": FieldSpec("uint8")}
# Texts wait as bytes: a vocabulary of train is known only when all have been dealt. The tweet's
# number makes rows of the same text different ones for the deal.
GATHERED = {
    "text": FieldSpec("uint8", ragged=True),
    "targets": FieldSpec("uint8"),
    "tweet": FieldSpec("int64"),
}
BUILT_SIZE = 10_000
ROWS_AT_ONCE = 50_000


class Options(DealOptions):
    """Options of preparing Sent140, beside those of dealing.

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
    """Read a folder of public files and write a store, whole or not at all.

    Memory grows with the users and with the different words, not with the tweets.

    Args:
        source: Folder with the CSV files, or with LEAF's JSON.
        out: The store to write; an existing one is replaced when all has gone well.
        options: How to split, what to drop, which words are known.
        progress: Called with what is being done, how much is done, and of how much if known.

    Returns:
        Facts for printing: variant, source, splits with their counts, what was dropped, and how
        the counts compare with the published ones.

    Raises:
        DataError: The folder holds neither form or both, or a file is damaged; the message names
            file and line.
        ConfigError: Options of the split were given for data that are split as published.
    """
    source, out = Path(source), Path(out)
    form, tweets = _open(source, options)
    # Before the tweets are read, which takes minutes.
    given = None if options.vocabulary is None else read_words(Path(options.vocabulary))
    tally = Tally()
    if options.manual == "leave_out":
        tally.counted += ", without those labelled by hand"
    with Gathering(out, GATHERED) as gathering:
        _gather(tweets, gathering, tally, options, progress)
        if options.manual == "test" and "test" not in gathering.splits:
            raise DataError(
                f"{source}: manual=test, but no tweet of the test file is there; leave the option "
                "out"
            )
        # Whoever wrote a tweet of the test file may have written others.
        published_as: SplitBy | None = "example" if options.manual == "test" else None
        dealing = gathering.deal(options, published_as=published_as)
        counts, longest = _count(dealing, options.lowercase, progress)
        if given is None:
            vocabulary = choose_vocabulary(counts, options.vocabulary_size or BUILT_SIZE)
        else:
            words = [word for word in given if word not in SPECIAL]
            vocabulary = [*SPECIAL, *words][: options.vocabulary_size]
        if len(vocabulary) == len(SPECIAL):
            raise DataError(f"{source}: the tweets of train have no word; give data that do")
        ids = {word: number for number, word in enumerate(vocabulary) if number > UNKNOWN_ID}
        variant = f"sent140-{form}" + ("" if tally.looks_full() else "-partial")
        extra = {
            **tally.facts(),
            **_facts(options, tally, form),
            **dealing.facts,
            **_words_facts(options, counts, ids, vocabulary),
            "longest_tweet_words": longest,
        }
        splits = write_dealt(
            out,
            dealing,
            task="sent140",
            variant=variant,
            source=f"Sent140 ({'published CSV' if form == 'csv' else 'LEAF JSON'}), tweets",
            num_classes=2,
            input_shape=(longest,),
            fields=FIELDS,
            extra=extra,
            names={"vocabulary": vocabulary},
            progress=progress,
            convert=_converter(ids, options.lowercase),
        )
    return {"variant": variant, "splits": splits, **extra}


def _open(source: Path, options: Options) -> tuple[str, Iterator[Tweet]]:
    """Recognise the form of a folder, and begin to read it."""
    there = {
        "csv": lambda: bool(csv_files(source)[0]),
        "leaf-json": lambda: bool(find_files(source)),
    }
    form = choose_form(source, "Sent140", LOOKED_FOR, lambda name: there[name](), options.form)
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


def _gather(
    tweets: Iterator[Tweet],
    gathering: Gathering,
    tally: Tally,
    options: Options,
    progress: Progress,
) -> None:
    """Put what is to be kept where it can be dealt, a block of rows at a time."""
    waiting: dict[tuple[str, str], list[Tweet]] = {}
    kept = 0
    for count, tweet in enumerate(tweets, 1):
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
        waiting.setdefault((split, tweet.user), []).append(tweet)
        kept += 1
        if kept % ROWS_AT_ONCE == 0:
            _flush(waiting, gathering)
        if count % 1000 == 0:
            progress("reading tweets", count, None)
    _flush(waiting, gathering)


def _flush(waiting: dict[tuple[str, str], list[Tweet]], gathering: Gathering) -> None:
    for (split, user), rows in waiting.items():
        gathering.append(
            split,
            user,
            text=[np.frombuffer(row.text.encode(), dtype=np.uint8) for row in rows],
            targets=np.array([row.label or 0 for row in rows], dtype=np.uint8),
            tweet=np.array([row.number for row in rows], dtype=np.int64),
        )
    waiting.clear()


def _count(dealing: Dealing, lowercase: bool, progress: Progress) -> tuple[Counter[str], int]:
    """Count the words of train, and find the longest tweet of all."""
    counts: Counter[str] = Counter()
    longest = 1
    for done, part in enumerate(dealing, 1):
        for text in part.arrays["text"]:
            words = split_words(text.tobytes().decode(), lowercase)
            longest = max(longest, len(words))
            if part.split == "train":
                counts.update(words)
        if done % 1000 == 0:
            progress("counting words (users)", done, None)
    return counts, longest


def _converter(
    ids: Mapping[str, int], lowercase: bool
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def convert(arrays: Mapping[str, Any]) -> dict[str, Any]:
        texts = (text.tobytes().decode() for text in arrays["text"])
        tokens = [to_ids(split_words(text, lowercase), ids) for text in texts]
        return {"tokens": tokens, "targets": arrays["targets"]}

    return convert


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


def _words_facts(
    options: Options, counts: Counter[str], ids: Mapping[str, int], vocabulary: list[str]
) -> dict[str, Any]:
    occurrences = counts.total()
    unknown = occurrences - sum(count for word, count in counts.items() if word in ids)
    return {
        "vocabulary": {
            "from": "train" if options.vocabulary is None else Path(options.vocabulary).name,
            "size": len(vocabulary),
            "pad_id": PAD_ID,
            "unknown_id": UNKNOWN_ID,
            "lowercase": options.lowercase,
            "words_of_train": occurrences,
            "different_words_of_train": len(counts),
            "unknown_share_of_train": round(unknown / occurrences, 4) if occurrences else 0.0,
        }
    }
