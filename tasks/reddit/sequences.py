"""Comments as sequences of a few tokens: the form of LEAF, and how it waits on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import FieldSpec
from pfl_bench.types import DataError

PAD, UNK, BOS, EOS = "<PAD>", "<UNK>", "<BOS>", "<EOS>"
PAD_ID, UNK_ID = 0, 1
# Bits of "counted".
MAX_LENGTH = 16
# What a comment has while it waits to be partitioned: its sequences as text (``pack``), a mask of
# each, seconds since 1970, and a number of its subreddit.
COMMENT_FIELDS = {
    "text": FieldSpec("uint8", ragged=True),
    "counted": FieldSpec("uint16", ragged=True),
    "created": FieldSpec("int64"),
    "subreddit": FieldSpec("uint32"),
}
Waiting = tuple[NDArray[np.uint8], NDArray[np.uint16], int, int]
"""One comment's values of ``COMMENT_FIELDS``."""


def comment_columns(comments: Sequence[Waiting]) -> dict[str, Any]:
    """Comments, at least one, as the columns of ``COMMENT_FIELDS``."""
    return dict(zip(COMMENT_FIELDS, zip(*comments, strict=True), strict=True))


def store_fields(length: int) -> dict[str, FieldSpec]:
    """Fields of a sequence of so many tokens in the store."""
    return {
        "tokens": FieldSpec("uint16", (length,)),
        "targets": FieldSpec("uint16", (length,)),
        "counted": FieldSpec("uint16"),
        "first": FieldSpec("bool"),
        "subreddit": FieldSpec("uint32"),
    }


def to_masks(flags: NDArray[Any]) -> NDArray[np.uint16]:
    """Flags of k sequences, shape (k, length), as masks of shape (k,): bit i is set for flag i."""
    return (flags @ np.left_shift(1, np.arange(flags.shape[1]))).astype(np.uint16)


def cut(tokens: Sequence[str], length: int) -> tuple[list[str], NDArray[np.uint16]]:
    """Cut a comment into sequences of ``length`` tokens, as LEAF does.

    The inputs are ``<BOS>``, the tokens and ``<EOS>``, the targets one place further on, both
    padded. The targets of all inputs that are no padding count, also that of ``<EOS>``, which is
    ``<PAD>``.

    Returns the first input and then all targets, without the padding at the end; and the mask of
    each sequence, shape (k,): bit i is set if target i counts.

    Source: LEAF's data/reddit/source/preprocess.py, ``create_seqs``.
    """
    counted = len(tokens) + 2
    full = (1 << length) - 1
    masks = [full] * (counted // length)
    if counted % length:
        masks.append((1 << counted % length) - 1)
    return [BOS, *tokens, EOS], np.array(masks, dtype=np.uint16)


def pack(inputs: Sequence[str], targets: Sequence[str], where: str) -> NDArray[np.uint8]:
    """Write the inputs and targets of a comment, k * length tokens each, as text of shape (b,).

    Targets that are the inputs one place further on, as mostly, are not repeated.
    """
    if inputs[1:] == targets[:-1]:
        everything = [inputs[0], *targets]
        while len(everything) > 1 and everything[-1] == PAD:
            everything.pop()
    else:
        everything = [*inputs, *targets]
    return pack_tokens(everything, where)


def pack_tokens(tokens: Sequence[str], where: str) -> NDArray[np.uint8]:
    """Write tokens as text of b bytes, a line each; shape (b,)."""
    text = "\n".join(tokens)
    if text.count("\n") != len(tokens) - 1 or "" in tokens:
        raise DataError(f"{where}: a token is empty or has a line feed in it; tokens are words")
    try:
        return np.frombuffer(text.encode(), dtype=np.uint8)
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: a token is not valid Unicode ({error.reason})") from error


def unpack(text: NDArray[np.uint8], size: int) -> tuple[list[str], list[str]]:
    """Read ``size`` inputs and as many targets of what ``pack`` wrote: ``text`` of shape (b,)."""
    tokens = text.tobytes().decode().split("\n")
    if len(tokens) > size + 1:
        return tokens[:size], tokens[size:]
    tokens += [PAD] * (size + 1 - len(tokens))
    return tokens[:-1], tokens[1:]


class Encoder:
    """Turns comments into what the store has of their sequences, and counts input tokens.

    Args:
        ids: Number of each token of the vocabulary; others are unknown.
        length: Tokens of a sequence.
        subreddits: Number that each number of a subreddit has in the store.
        count_final_padding: Whether the target ``<PAD>`` of ``<EOS>`` counts, as LEAF has it.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        length: int,
        subreddits: NDArray[np.uint32],
        count_final_padding: bool,
    ) -> None:
        self._ids = ids
        self._length = length
        self._subreddits = subreddits
        self._count_padding = count_final_padding
        self.num_tokens = 0
        self.num_unknown = 0

    def __call__(self, comments: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the ``COMMENT_FIELDS`` of comments into the ``store_fields`` of their sequences."""
        lengths = np.array([len(masks) for masks in comments["counted"]])
        inputs: list[int] = []
        targets: list[int] = []
        get = self._ids.get
        for text, count in zip(comments["text"], lengths, strict=True):
            x, y = unpack(text, int(count) * self._length)
            inputs += [get(token, UNK_ID) for token in x]
            targets += [get(token, UNK_ID) for token in y]
        tokens = np.array(inputs, dtype=np.uint16).reshape(-1, self._length)
        wanted = np.array(targets, dtype=np.uint16).reshape(-1, self._length)
        self.num_tokens += int((tokens != PAD_ID).sum())
        self.num_unknown += int((tokens == UNK_ID).sum())
        counted = np.concatenate(comments["counted"])
        if not self._count_padding:
            counted &= to_masks(wanted != PAD_ID)
        first = np.zeros(len(tokens), dtype=np.bool_)
        first[np.cumsum(lengths) - lengths] = True
        subreddit = self._subreddits[np.asarray(comments["subreddit"])]
        return {
            "tokens": tokens,
            "targets": wanted,
            "counted": counted,
            "first": first,
            "subreddit": np.repeat(subreddit, lengths),
        }
