"""Turn the public files of Amazon Review into a store."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, cast

from pydantic import Field

from pfl_bench.data import parse_json, regular
from pfl_bench.types import DataError, Progress
from tasks.common.fedscale.layout import FOLDER, find_mappings, read_mapping
from tasks.common.leaf.gathering import UNSPLIT, Gathering, PartitionOptions, write_partition
from tasks.common.sources import GENERATED_FACTS, Form, choose_form, is_generated, reading
from tasks.common.text.numbered import FIELDS, NUMBER, WAITING, NumberedWords, Text, gather_texts

MOST_STARS = 5
JSON_LOOKED_FOR = (
    "the publisher's reviews, *.json or *.jsonl, perhaps packed (.gz): an object a line, with "
    "reviewerID, reviewText and overall"
)
MAPPING_LOOKED_FOR = (
    f"FedScale's {FOLDER}/train.csv (and val.csv, test.csv): client_id, the review itself as "
    "data_path, its stars as label_name"
)


def json_files(source: Path) -> list[Path]:
    """The publisher's files of a folder, by name."""
    ends = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
    return sorted(p for p in source.iterdir() if not p.is_dir() and p.name.lower().endswith(ends))


def read_fedscale(source: Path) -> Iterator[Text]:
    """Read FedScale's mapping, whose second column holds the reviews; a label is stars less one.

    Source: FedScale's core/utils/word2vec.py, which reads the columns by position and takes the
        label's name less one for the class.
    """
    for split, path in find_mappings(source).items():
        for row in read_mapping(path):
            where = f"{path}, line {row.line}"
            label = _label(row.label_name, where)
            yield Text(split, row.client_id, row.sample_path, label, 0)


def read_json(path: Path) -> Iterator[Text]:
    """Read a file of the publisher's, a line at a time; blank lines are passed over."""
    number = 0
    with reading(path, what=lambda: f"cannot be read after line {number}"), _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _review(line, f"{path}, line {number}")


def _open(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast("IO[bytes]", gzip.open(regular(path), "rb"))
    return regular(path).open("rb")


def _review(line: bytes, where: str) -> Text:
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
    return Text(UNSPLIT, user, text, _label(found.get("overall"), where), 0)


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


FORMS = (
    Form("fedscale", MAPPING_LOOKED_FOR, lambda source: (source / FOLDER).is_dir()),
    Form("json", JSON_LOOKED_FOR, lambda source: bool(json_files(source))),
)
CLASSES = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
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
    form = choose_form(source, "Amazon Review", FORMS, options).name
    words = NumberedWords(True, options.max_words, options.vocabulary)
    with Gathering(out, {**WAITING, "review": NUMBER}) as gathering:
        reviews = (one._replace(number=place) for place, one in enumerate(_reviews(form, source)))
        gather_texts(gathering, reviews, "review", progress)
        partition = gathering.partition(options, published_as=gathering.published_as())
        size = options.vocabulary_size
        words.choose(source, partition, size, size, progress)
        extra: dict[str, Any] = {
            "cut_reviews": {"max_words": options.max_words, "reviews": dict(words.cut)},
            "vocabulary": words.facts(),
        }
        variant = f"amazon-review-{form}"
        if is_generated(source):
            variant = "generated"
            extra |= GENERATED_FACTS
        return write_partition(
            out,
            partition,
            progress,
            words.convert,
            task="amazon_review",
            variant=variant,
            source=SOURCES[variant],
            num_classes=len(CLASSES),
            input_shape=(words.longest,),
            fields=FIELDS,
            extra=extra,
            names={"vocabulary": words.vocabulary, "targets": CLASSES},
        )


def _reviews(form: str, source: Path) -> Iterator[Text]:
    if form == "fedscale":
        return read_fedscale(source)
    return (review for path in json_files(source) for review in read_json(path))
