"""The Sent140 task: is a tweet's mood good or bad, one client a Twitter user."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from pfl_bench.data import Store, StoredTask, open_store
from pfl_bench.types import DataError
from tasks.common.classification import CrossEntropy, known_facts
from tasks.common.options import StoredOptions
from tasks.common.text.models import padded_words

TASK_NAME = "sent140"
CLASSES = ("negative", "positive")
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("split", "manual", "neutral", "vocabulary", "table1", "differs_from_published")


class Options(StoredOptions):
    """Options of the Sent140 task, beside those of all tasks on a store.

    Attributes:
        max_words: Words of a tweet that models get to see; None for all, which a bag of words
            needs. (The LSTM reads the first 25 of them by an option of its own.)
    """

    max_words: int | None = Field(default=None, ge=1, le=10_000)


class Sent140Task(CrossEntropy, StoredTask):
    """Two classes, cross entropy; a store without a vocabulary is refused."""

    def __init__(self, store: Store, options: Options) -> None:
        if "vocabulary" not in store.name_lists:
            raise DataError(
                f"task sent140: {options.data} has no vocabulary; prepare the data again"
            )
        width = options.max_words or store.facts.input_shape[0]
        # The store says what the numbers mean, for models that load words' vectors.
        extra = known_facts(store, FACTS_SHOWN) | {"store": options.data}
        super().__init__(
            store,
            ("tokens", "targets"),
            partial(padded_words, width=width),
            options.max_examples_per_user,
            input_shape=(width,),
            class_names=CLASSES,
            extra=extra,
        )


def build(options: Options) -> Sent140Task:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return Sent140Task(open_store(options.data, TASK_NAME), options)
