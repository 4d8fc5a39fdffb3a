"""The Amazon Review task: how many stars does a review give, one client a reviewer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pfl_bench.data import Store, open_store
from pfl_bench.types import DataError
from tasks.common.classification import known_facts
from tasks.common.fedscale.stored import LabelledTask, TaskOptions
from tasks.common.text.models import padded_words

TASK_NAME = "amazon_review"
# Of the store's facts, what a summary repeats.
FACTS_SHOWN = ("split", "vocabulary", "cut_reviews", "generated")


class Options(TaskOptions):
    """Options of the Amazon Review task: those of ``TaskOptions``."""


class AmazonReviewTask(LabelledTask):
    """Five classes, cross entropy; a store without a vocabulary is refused."""

    def __init__(self, store: Store, options: Options) -> None:
        if "vocabulary" not in store.name_lists or "vocabulary" not in store.facts.extra:
            raise DataError(
                f"task amazon_review: {options.data} has no vocabulary; prepare the data again"
            )
        convert = partial(padded_words, width=store.facts.input_shape[0])
        super().__init__(store, ("tokens", "targets"), convert, options)
        # The store says what the numbers mean, for models that load words' vectors.
        extra = known_facts(store, FACTS_SHOWN) | {"store": options.data}
        self.facts = replace(self.facts, extra=extra)


def build(options: Options) -> AmazonReviewTask:
    """Open a prepared store; refused as ``open_store`` says, or if the options do not fit it."""
    return AmazonReviewTask(open_store(options.data, TASK_NAME), options)
