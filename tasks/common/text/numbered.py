"""Texts of a source as numbered words: the vocabulary chosen, counted and applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError, Progress
from tasks.common.leaf.gathering import Gathering, Partition
from tasks.common.text.words import (
    PAD_ID,
    SPECIAL,
    UNKNOWN_ID,
    choose_vocabulary,
    read_words,
    split_words,
    to_ids,
)

# Of a store of texts, and of texts that wait to be partitioned: a vocabulary of train is known only
# at the end, and a number makes rows of the same text different ones.
FIELDS = {"tokens": FieldSpec("uint32", ragged=True), "targets": FieldSpec("uint8")}
WAITING = {"text": FieldSpec("uint8", ragged=True), "targets": FieldSpec("uint8")}
NUMBER = FieldSpec("int64")
TEXTS_AT_ONCE = 20_000


class Text(NamedTuple):
    """A text with its label and a number of its own, as published or of the split "all"."""

    split: str
    user: str
    text: str
    label: int
    number: int


def gather_texts(
    gathering: Gathering, texts: Iterator[Text], number: str, progress: Progress
) -> None:
    """Gather texts as bytes, in the fields ``WAITING`` and ``number``, a block at a time."""
    done = 0
    while block := list(islice(texts, TEXTS_AT_ONCE)):
        done += len(block)
        by_user: dict[tuple[str, str], list[Text]] = {}
        for text in block:
            by_user.setdefault((text.split, text.user), []).append(text)
        for (split, user), own in by_user.items():
            gathering.append(
                split,
                user,
                text=[np.frombuffer(t.text.encode("utf-8", "replace"), np.uint8) for t in own],
                targets=np.array([t.label for t in own], dtype=np.uint8),
                **{number: np.array([t.number for t in own], dtype=np.int64)},
            )
        progress(f"reading {number}s", done, None)


@dataclass(slots=True)
class NumberedWords:
    """Words of texts and their numbers.

    Attributes:
        lowercase: Whether words are made lower case first.
        max_words: Words of a text that are kept, the first ones; None for all.
        file: A file of word vectors, whose words are taken; None counts those of train.
        counts: How often each word occurs in train.
        longest: Words of the longest text that is kept, at least 1.
        cut: Texts of each split with more words than are kept.
        vocabulary: The word of each number.
        ids: Number of each word, those of padding and the unknown excepted.
    """

    lowercase: bool
    max_words: int | None
    file: str | None
    counts: Counter[str] = field(default_factory=Counter)
    longest: int = 1
    cut: Counter[str] = field(default_factory=Counter)
    vocabulary: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    _given: list[str] | None = None

    def __post_init__(self) -> None:
        # Before the texts are read, which takes minutes or hours.
        self._given = None if self.file is None else read_words(Path(self.file))

    def choose(
        self,
        source: Path,
        partition: Partition,
        counted: int,
        given: int | None,
        progress: Progress,
    ) -> None:
        """Choose the vocabulary, which must have a word, and count what texts have of it.

        It has ``counted`` numbers in all if the words of train are counted, ``given`` if they are a
        file's, None for all of them. Messages name the ``source``.
        """
        for done, part in enumerate(partition, 1):
            for text in part.arrays["text"]:
                words = self._split(text)
                kept = words[: self.max_words]
                self.cut[part.split] += len(words) > len(kept)
                self.longest = max(self.longest, len(kept))
                if part.split == "train":
                    self.counts.update(kept)
            if done % 1000 == 0:
                progress("counting words (users)", done, None)
        if self._given is None:
            self.vocabulary = choose_vocabulary(self.counts, counted)
        else:
            known = [word for word in self._given if word not in SPECIAL]
            self.vocabulary = [*SPECIAL, *known][:given]
        self.ids = {w: number for number, w in enumerate(self.vocabulary) if number > UNKNOWN_ID}
        if not self.ids:
            if self._given is not None:
                raise DataError(f"{self.file}: has no word but {', '.join(SPECIAL)}; give words")
            raise DataError(f"{source}: the texts of train have no word; give texts that do")

    def convert(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Number the words of gathered texts: the store's fields "tokens" and "targets"."""
        texts = (self._split(text)[: self.max_words] for text in arrays["text"])
        return {
            "tokens": [to_ids(words, self.ids) for words in texts],
            "targets": arrays["targets"],
        }

    def facts(self, **further: Any) -> dict[str, Any]:
        """For the store: where the vocabulary comes from, and what of train it knows."""
        occurrences = self.counts.total()
        unknown = occurrences - sum(n for word, n in self.counts.items() if word in self.ids)
        return {
            "from": "train" if self.file is None else Path(self.file).name,
            "size": len(self.vocabulary),
            "pad_id": PAD_ID,
            "unknown_id": UNKNOWN_ID,
            **further,
            "words_of_train": occurrences,
            "different_words_of_train": len(self.counts),
            "unknown_share_of_train": round(unknown / occurrences, 4) if occurrences else 0.0,
        }

    def _split(self, text: NDArray[np.uint8]) -> list[str]:
        return split_words(text.tobytes().decode(), self.lowercase)
