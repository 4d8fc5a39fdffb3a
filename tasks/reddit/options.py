"""The options of preparing Reddit."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.common.leaf.partition import PartitionOptions
from tasks.reddit.cleaning import Cleaning
from tasks.reddit.sequences import MAX_LENGTH
from tasks.reddit.vocabulary import Rule

# Options of dumps, which LEAF's JSON has behind it.
DUMP_OPTIONS = (*Cleaning.model_fields, "files", "max_comments")


class Options(PartitionOptions, Cleaning):
    """Options of preparing Reddit, besides those of ``PartitionOptions`` and ``Cleaning``.

    Attributes:
        form: Which form to read; None takes the one that is there.
        files: Which of the folder's files are dumps, such as ``RC_2017-*.zst``; None finds them.
        train_fraction: As in ``PartitionOptions``; 0.6 here. Inside each user the split is in time.
        val_fraction: As in ``PartitionOptions``; 0.2 here.
        min_examples: Users with fewer comments are dropped; 5 for dumps, 0 for LEAF's JSON.
        max_comments: Users with more comments are dropped; None for no limit.
        sequence_length: Tokens of a sequence.
        count_final_padding: Whether the padding after ``<EOS>`` is a target that counts, as LEAF
            has it; it can never be right, as predicted padding is wrong.
        vocabulary: A file with the vocabulary; None makes it of the training comments.
        vocabulary_size: Tokens of one that is made, padding and the unknown among them.
        vocabulary_rule: "paper" fills it, "leaf-code" leaves the last place empty.
    """

    form: Literal["leaf-json", "dump"] | None = None
    files: str | None = None
    train_fraction: float = Field(default=0.6, gt=0, le=1)
    val_fraction: float = Field(default=0.2, ge=0, lt=1)
    min_examples: int = Field(default=5, ge=0)
    max_comments: int | None = Field(default=1000, ge=1)
    min_tokens: int = Field(default=5, ge=1)
    sequence_length: int = Field(default=10, ge=2, le=MAX_LENGTH)
    count_final_padding: bool = True
    vocabulary: str | None = None
    vocabulary_size: int = Field(default=10_000, ge=4, le=1 << 16)
    vocabulary_rule: Rule = "paper"
