"""Turn the public files of Amazon Review into a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError
from tasks.amazon_review.reading import (
    JSON_LOOKED_FOR,
    MAPPING_LOOKED_FOR,
    Review,
    has_mapping,
    json_files,
    read_fedscale,
    read_json,
)
from tasks.common.fedscale.generating import GENERATED_MARK
from tasks.common.fedscale.layout import published_as
from tasks.common.leaf.forms import choose_form
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

LOOKED_FOR = {"fedscale": MAPPING_LOOKED_FOR, "json": JSON_LOOKED_FOR}
FIELDS = {"tokens": FieldSpec("uint32", ragged=True), "targets": FieldSpec("uint8")}
# Texts wait as bytes: a vocabulary of train is known only when all have been dealt. The review's
# number makes rows of the same text different ones for the deal.
GATHERED = {
    "text": FieldSpec("uint8", ragged=True),
    "targets": FieldSpec("uint8"),
    "review": FieldSpec("int64"),
}
CLASSES = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
ROWS_AT_ONCE = 20_000


class Options(DealOptions):
    """Options of preparing Amazon Review, beside those of dealing.

    Attributes:
        form: Which form to read; None takes the one that is there.
        max_words: Words of a review that are kept, the first ones.
        vocabulary: A file of word vectors, whose words are taken; None counts those of train.
        vocabulary_size: Numbers of words in all, padding and unknown among them: the commonest of
            train, or the file's first.
    """

    form: Literal["fedscale", "json"] | None = None
    max_words: int = Field(default=256, ge=1, le=10_000)
    vocabulary: str | None = None
    vocabulary_size: int = Field(default=30_000, ge=3, le=2**32 - 1)


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store, whole or not at all.

    Memory grows with the reviewers and with the different words, not with the reviews.

    Args:
        source: Folder in one of the forms of the README.
        out: The store to write; an existing one is replaced when all has gone well.
        options: How to split, what to drop, which words are known.
        progress: Called with what is being done, how much is done, and of how much if known.

    Returns:
        Facts for printing.

    Raises:
        DataError: The folder holds neither form or both, or a file is damaged; the message names
            file and line.
        ConfigError: Options of the split were given for data that are split as published.
    """
    source, out = Path(source), Path(out)
    there = {"fedscale": lambda: has_mapping(source), "json": lambda: bool(json_files(source))}
    form = choose_form(
        source, "Amazon Review", LOOKED_FOR, lambda name: there[name](), options.form
    )
    # Before the reviews are read, which takes hours.
    given = None if options.vocabulary is None else read_words(Path(options.vocabulary))
    with Gathering(out, GATHERED) as gathering:
        _gather(_reviews(form, source), gathering, progress)
        dealing = gathering.deal(options, published_as=published_as(gathering))
        counts, longest, cut = _count(dealing, options.max_words, progress)
        vocabulary = _choose(given, counts, options)
        if len(vocabulary) == len(SPECIAL):
            raise DataError(f"{source}: the reviews of train have no word; give data that do")
        ids = {word: number for number, word in enumerate(vocabulary) if number > UNKNOWN_ID}
        extra: dict[str, Any] = {
            "cut_reviews": {"max_words": options.max_words, "reviews": cut},
            "vocabulary": _words_facts(options, counts, ids, len(vocabulary)),
        }
        variant = f"amazon-review-{form}"
        if (source / GENERATED_MARK).exists():
            # A made-up reviewer is nobody: a guarantee for one protects no person.
            variant = "generated"
            extra.update(generated=True, artificial_users=True)
        splits = write_dealt(
            out,
            dealing,
            task="amazon_review",
            variant=variant,
            source=_SOURCES[variant],
            num_classes=len(CLASSES),
            input_shape=(longest,),
            fields=FIELDS,
            extra=extra,
            names={"vocabulary": vocabulary, "targets": CLASSES},
            progress=progress,
            convert=_converter(ids, options.max_words),
        )
    return {"variant": variant, "splits": splits, **dealing.facts, **extra}


_SOURCES = {
    "amazon-review-fedscale": "Amazon Review, FedScale's mapping",
    "amazon-review-json": "Amazon Review, the publisher's JSON lines",
    "generated": "made-up reviews in FedScale's layout, not Amazon Review",
}


def _reviews(form: str, source: Path) -> Iterator[Review]:
    if form == "fedscale":
        return read_fedscale(source)
    return (review for path in json_files(source) for review in read_json(path))


def _gather(reviews: Iterator[Review], gathering: Gathering, progress: Progress) -> None:
    """Put the reviews where they can be dealt, a block of rows at a time."""
    done = 0
    while block := list(islice(reviews, ROWS_AT_ONCE)):
        waiting: dict[tuple[str, str], list[int]] = {}
        for place, review in enumerate(block):
            waiting.setdefault((review.split, review.user), []).append(place)
        for (split, user), places in waiting.items():
            texts = [block[place].text.encode("utf-8", "replace") for place in places]
            gathering.append(
                split,
                user,
                text=[np.frombuffer(text, dtype=np.uint8) for text in texts],
                targets=np.array([block[place].label for place in places], dtype=np.uint8),
                review=np.array([done + place for place in places], dtype=np.int64),
            )
        done += len(block)
        progress("reading reviews", done, None)


def _words(text: np.ndarray[Any, Any]) -> list[str]:
    return split_words(text.tobytes().decode(), lowercase=True)


def _count(
    dealing: Dealing, max_words: int, progress: Progress
) -> tuple[Counter[str], int, dict[str, int]]:
    """Count the words of train, the longest review of all, and what is cut of each split."""
    counts: Counter[str] = Counter()
    longest = 1
    cut: dict[str, int] = {}
    for done, part in enumerate(dealing, 1):
        for text in part.arrays["text"]:
            words = _words(text)
            cut[part.split] = cut.get(part.split, 0) + (len(words) > max_words)
            longest = max(longest, min(len(words), max_words))
            if part.split == "train":
                counts.update(words[:max_words])
        if done % 1000 == 0:
            progress("counting words (users)", done, None)
    return counts, longest, cut


def _choose(given: list[str] | None, counts: Counter[str], options: Options) -> list[str]:
    if given is None:
        return choose_vocabulary(counts, options.vocabulary_size)
    words = (word for word in given if word not in SPECIAL)
    return [*SPECIAL, *islice(words, options.vocabulary_size - len(SPECIAL))]


def _converter(
    ids: Mapping[str, int], max_words: int
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def convert(arrays: Mapping[str, Any]) -> dict[str, Any]:
        tokens = [to_ids(_words(text)[:max_words], ids) for text in arrays["text"]]
        return {"tokens": tokens, "targets": arrays["targets"]}

    return convert


def _words_facts(
    options: Options, counts: Counter[str], ids: Mapping[str, int], size: int
) -> dict[str, Any]:
    occurrences = counts.total()
    unknown = occurrences - sum(count for word, count in counts.items() if word in ids)
    return {
        "from": "train" if options.vocabulary is None else Path(options.vocabulary).name,
        "size": size,
        "pad_id": PAD_ID,
        "unknown_id": UNKNOWN_ID,
        "words_of_train": occurrences,
        "different_words_of_train": len(counts),
        "unknown_share_of_train": round(unknown / occurrences, 4) if occurrences else 0.0,
    }
