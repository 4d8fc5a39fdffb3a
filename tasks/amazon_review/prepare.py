"""Turn the public files of Amazon Review into a store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pfl_bench.types import DataError
from tasks.amazon_review.reading import (
    JSON_LOOKED_FOR,
    MAPPING_LOOKED_FOR,
    Review,
    json_files,
    read_fedscale,
    read_json,
)
from tasks.common.description import StoreDescription
from tasks.common.fedscale.layout import FOLDER, published_as
from tasks.common.forms import Form, choose_form
from tasks.common.generated import GENERATED_FACTS, is_generated
from tasks.common.leaf.partition import Gathering, PartitionOptions, write_partition
from tasks.common.progress import Progress
from tasks.common.text.numbered import FIELDS, NUMBER, WAITING, NumberedWords, gather_texts

FORMS = (
    Form("fedscale", MAPPING_LOOKED_FOR, lambda source: (source / FOLDER).is_dir()),
    Form("json", JSON_LOOKED_FOR, lambda source: bool(json_files(source))),
)
CLASSES = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
ROWS_AT_ONCE = 20_000
SOURCES = {
    "amazon-review-fedscale": "Amazon Review, FedScale's mapping",
    "amazon-review-json": "Amazon Review, the publisher's JSON lines",
    "generated": "made-up reviews in FedScale's layout, not Amazon Review",
}


class Options(PartitionOptions):
    """Options of preparing Amazon Review, beside those of partitioning.

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
    """Read a folder of public files and write a store; see ``tasks``.

    Memory grows with the reviewers and with the different words, not with the reviews.
    """
    source, out = Path(source), Path(out)
    form = choose_form(source, "Amazon Review", FORMS, options.form).name
    words = NumberedWords(True, options.max_words, options.vocabulary)
    with Gathering(out, {**WAITING, "review": NUMBER}) as gathering:
        _gather(_reviews(form, source), gathering, progress)
        partition = gathering.partition(options, published_as=published_as(gathering))
        words.count(partition, progress)
        if not words.choose(options.vocabulary_size, options.vocabulary_size):
            raise DataError(f"{source}: the reviews of train have no word; give data that do")
        extra: dict[str, Any] = {
            "cut_reviews": {"max_words": options.max_words, "reviews": dict(words.cut)},
            "vocabulary": words.facts(),
        }
        variant = f"amazon-review-{form}"
        if is_generated(source):
            variant = "generated"
            extra |= GENERATED_FACTS
        description = StoreDescription(
            task="amazon_review",
            variant=variant,
            source=SOURCES[variant],
            num_classes=len(CLASSES),
            input_shape=(words.longest,),
            fields=FIELDS,
            extra=extra,
            names={"vocabulary": words.vocabulary, "targets": CLASSES},
        )
        splits = write_partition(out, partition, description, progress, words.convert)
    return {"variant": variant, "splits": splits, **partition.facts, **extra}


def _reviews(form: str, source: Path) -> Iterator[Review]:
    if form == "fedscale":
        return read_fedscale(source)
    return (review for path in json_files(source) for review in read_json(path))


def _gather(reviews: Iterator[Review], gathering: Gathering, progress: Progress) -> None:
    """Put the reviews where they can be partitioned, a block of rows at a time."""
    done = 0
    while block := list(islice(reviews, ROWS_AT_ONCE)):
        waiting: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
        for number, review in enumerate(block, done):
            rows = waiting.setdefault((review.split, review.user), [])
            rows.append((review.text, review.label, number))
        gather_texts(gathering, waiting, "review")
        done += len(block)
        progress("reading reviews", done, None)
