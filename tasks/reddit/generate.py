"""Generates Reddit-like comments: in LEAF's JSON form, or a store of any size at once.

Numbers of users and comments and their skew are Reddit's; the words are numbered, the users made
up, and ``GENERATED.txt`` in the folder says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pfl_bench.data import StoreWriter, new_folder
from pfl_bench.types import Progress
from tasks.common.options import StrictOptions
from tasks.common.sources import mark_made_up
from tasks.common.text.drawing import Block, count_comments, draw_blocks
from tasks.reddit.sequences import BOS, EOS, PAD, PAD_ID, UNK, UNK_ID, store_fields, to_masks

STORE = "reddit.h5"
LENGTH = 10
SPLITS = ("train", "val", "test")
_SPECIAL = (PAD, UNK, BOS, EOS)
_BOS_ID, _EOS_ID = 2, 3


class Options(StrictOptions):
    """Options of generating Reddit-like comments.

    Attributes:
        form: "json" writes LEAF's folders train, val and test; "store" writes the store
            ``reddit.h5`` itself, in bounded memory, for measurements at any size.
        users: Number of users.
        comments: Comments of all users, 5 to 1,000 a user; None for 34 a user, LEAF's mean.
        mean_tokens: Mean number of tokens of a comment, 6 to 100.
        vocabulary_size: Different tokens, the four special ones among them.
        subreddits: Number of subreddits, each with a topic of its own.
        seed: Seed of everything that is drawn.
    """

    form: Literal["json", "store"] = "json"
    users: int = Field(default=200, ge=1, le=100_000_000)
    comments: int | None = Field(default=None, ge=1)
    mean_tokens: float = Field(default=20.0, ge=6, le=100)
    vocabulary_size: int = Field(default=10_000, ge=20, le=1 << 16)
    subreddits: int = Field(default=50, ge=1, le=1_000_000)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _comments_fit(self) -> Self:
        count_comments(self.users, self.comments)
        return self


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write generated comments; see ``tasks``.

    "prepare_options" is None where there is a store already.
    """
    out = out.resolve()
    with new_folder(out, "comments") as folder:
        write = write_store if options.form == "store" else _write_json
        target = folder / STORE if options.form == "store" else folder
        sequences = write(target, options, progress)
        what = "These comments are not Reddit's: words, users and subreddits"
        mark_made_up(folder, "reddit", what, options)
    return {
        "what": "made-up comments in LEAF's form, not Reddit",
        "users": options.users,
        "comments": count_comments(options.users, options.comments),
        "sequences": sequences,
        **({"store": str(out / STORE)} if options.form == "store" else {}),
        "prepare_options": None if options.form == "store" else [],
    }


def write_store(path: Path, options: Options, progress: Progress) -> dict[str, int]:
    """Write a store, in memory that does not grow with the comments; its sequences by split."""
    words = [f"w{number}" for number in range(options.vocabulary_size - len(_SPECIAL))]
    width = len(str(options.subreddits - 1))
    sequences = dict.fromkeys(SPLITS, 0)
    with StoreWriter(
        path,
        task="reddit",
        variant="generated",
        source="made-up comments of Reddit's numbers, not Reddit",
        split_by="example",
        num_classes=options.vocabulary_size,
        input_shape=(LENGTH,),
        fields=store_fields(LENGTH),
        extra={
            "pad_id": PAD_ID,
            "unk_id": UNK_ID,
            "sequence_length": LENGTH,
            "count_final_padding": True,
            "generated": options.model_dump(),
            "artificial_users": True,
        },
        names={
            "vocabulary": [*_SPECIAL, *words],
            "subreddit": [f"r{n:0{width}d}" for n in range(options.subreddits)],
        },
    ) as writer:
        comments = dict.fromkeys(SPLITS, 0)
        for block in _blocks(options):
            arrays, firsts = _encode(block)
            for user, ends in _users(block):
                name = _name(user, options)
                for split, start, stop in zip(SPLITS, ends[:-1], ends[1:], strict=True):
                    low, high = firsts[start], firsts[stop]
                    writer.append(split, name, **{k: v[low:high] for k, v in arrays.items()})
                    sequences[split] += high - low
                    comments[split] += stop - start
            progress("writing users", int(block.users[-1]) + 1, options.users)
        writer.set_extra("num_comments", comments)
    return sequences


def _write_json(folder: Path, options: Options, progress: Progress) -> dict[str, int]:
    sequences = dict.fromkeys(SPLITS, 0)
    for split in SPLITS:
        (folder / split).mkdir()
    for number, block in enumerate(_blocks(options)):
        files: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
        counts: dict[str, int] = {}
        bounds = np.concatenate(([0], np.cumsum(block.lengths)))
        words = [f"w{token}" for token in block.tokens.tolist()]
        for user, ends in _users(block):
            name = _name(user, options)
            counts[name] = ends[-1] - ends[0]
            for split, start, stop in zip(SPLITS, ends[:-1], ends[1:], strict=True):
                data: dict[str, list[Any]] = {"x": [], "y": []}
                for comment in range(start, stop):
                    tokens = words[bounds[comment] : bounds[comment + 1]]
                    x, y = _leaf_comment(tokens, block, comment)
                    data["x"].append(x)
                    data["y"].append(y)
                    sequences[split] += len(x)
                files[split][name] = data
        for split, data in files.items():
            # As LEAF's own: each split's file announces the comments of all splits.
            content = {"users": list(counts), "num_samples": list(counts.values())}
            path = folder / split / f"reddit_{number}_{split}.json"
            path.write_text(json.dumps({**content, "user_data": data}), encoding="utf-8")
        progress("writing users", int(block.users[-1]) + 1, options.users)
    return sequences


def _leaf_comment(
    tokens: list[str], block: Block, comment: int
) -> tuple[list[list[str]], dict[str, Any]]:
    """One comment as LEAF has it: inputs, and what is known of it."""
    size = -(-(len(tokens) + 2) // LENGTH) * LENGTH
    inputs = [BOS, *tokens, EOS]
    padding = [PAD] * (size - len(inputs))
    counts = [1.0] * len(inputs) + [0.0] * len(padding)
    known = {
        "subreddit": f"r{block.subreddits[comment]}",
        "created_utc": int(block.created[comment]),
        "score": 1,
        "target_tokens": _rows([*tokens, EOS, PAD, *padding]),
        "count_tokens": _rows(counts),
    }
    return _rows([*inputs, *padding]), known


def _rows(values: list[Any]) -> list[list[Any]]:
    return [values[start : start + LENGTH] for start in range(0, len(values), LENGTH)]


def _blocks(options: Options) -> Iterator[Block]:
    words, subreddits = options.vocabulary_size - len(_SPECIAL), options.subreddits
    return draw_blocks(
        options.users, options.comments, words, subreddits, options.mean_tokens, options.seed
    )


def _name(user: int, options: Options) -> str:
    return f"{user:0{len(str(options.users - 1))}d}"


def _users(block: Block) -> Iterator[tuple[int, list[int]]]:
    """Each user, and where its comments of train, val and test begin and end: 60, 20, 20 %."""
    start = 0
    for user, count in zip(block.users.tolist(), block.counts.tolist(), strict=True):
        ends = [start, start + int(0.6 * count), start + int(0.8 * count), start + count]
        yield user, ends
        start += count


def _encode(block: Block) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """The store's fields of a block, and at which row each comment begins, and the last ends."""
    rows = -(-(block.lengths + 2) // LENGTH)
    firsts = np.concatenate(([0], np.cumsum(rows)))
    tokens = np.full(firsts[-1] * LENGTH + 1, PAD_ID, dtype=np.uint16)
    starts = firsts[:-1] * LENGTH
    within = np.arange(len(block.tokens)) - np.repeat(
        np.cumsum(block.lengths) - block.lengths, block.lengths
    )
    tokens[np.repeat(starts, block.lengths) + within + 1] = block.tokens + len(_SPECIAL)
    tokens[starts] = _BOS_ID
    tokens[starts + block.lengths + 1] = _EOS_ID
    # The targets are the inputs one place further on; no target is <BOS>.
    targets = tokens[1:].copy()
    targets[starts[1:] - 1] = PAD_ID
    inputs = tokens[:-1].reshape(-1, LENGTH)
    first = np.zeros(len(inputs), dtype=np.bool_)
    first[firsts[:-1]] = True
    arrays = {
        "tokens": inputs,
        "targets": targets.reshape(-1, LENGTH),
        "counted": to_masks(inputs != PAD_ID),
        "first": first,
        "subreddit": np.repeat(block.subreddits, rows).astype(np.uint32),
    }
    return arrays, firsts.tolist()
