"""Turn LEAF's Reddit JSON, or raw comment dumps, into a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, Progress
from tasks.common.leaf.gathering import UNSPLIT, Gathering, Partition, write_partition
from tasks.common.leaf.json_files import LOOKED_FOR as JSON_LOOKED_FOR
from tasks.common.leaf.json_files import LeafUser, find_files, read_splits
from tasks.common.options import refuse
from tasks.common.sources import GENERATED_FACTS, Form, choose_form, is_generated
from tasks.reddit import dumps, sequences
from tasks.reddit.buckets import OverlapFinder
from tasks.reddit.cleaning import DUMP_OPTIONS, Options
from tasks.reddit.vocabulary import TokenCounter, Vocabulary, counted_vocabulary, read_vocabulary

_KEYS = ("target_tokens", "count_tokens", "subreddit", "created_utc")


def _comments(
    leaf: LeafUser, length: int, subreddits: dict[str, int], where: str
) -> dict[str, Any]:
    comments: list[sequences.Waiting] = []
    for index, (x, y) in enumerate(zip(leaf.x, leaf.y, strict=True)):
        here = f"{where}, comment {index}"
        if not isinstance(y, dict) or any(y.get(key) is None for key in _KEYS):
            raise DataError(
                f"{here}: 'y' must have {', '.join(_KEYS)}, as LEAF's Reddit has; is this another "
                "LEAF data set?"
            )
        text, mask = _sequences(x, y, length, here)
        try:
            created = dumps.to_seconds(y["created_utc"])
        except ValueError as error:
            raise DataError(
                f"{here}: created_utc is {str(y['created_utc'])[:40]!r}; it must be whole seconds "
                "since 1970"
            ) from error
        name = y["subreddit"]
        if not isinstance(name, str) or not name:
            raise DataError(f"{here}: subreddit is {name!r:.40}; it must be a name, as text")
        number = subreddits.setdefault(name, len(subreddits))
        comments.append((text, mask, created, number))
    return sequences.comment_columns(comments)


def _sequences(
    x: Any, y: dict[str, Any], length: int, here: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Check a comment's sequences, and give their text and masks."""
    inputs = _flat(x, length, "x", here)
    targets = _flat(y["target_tokens"], length, "target_tokens", here)
    counts = _flat(y["count_tokens"], length, "count_tokens", here)
    if not len(inputs) == len(targets) == len(counts):
        raise DataError(
            f"{here}: {len(inputs) // length} sequences of inputs, {len(targets) // length} of "
            f"target_tokens and {len(counts) // length} of count_tokens; they must be as many"
        )
    for key, tokens in (("x", inputs), ("target_tokens", targets)):
        if not all(isinstance(token, str) for token in tokens):
            raise DataError(f"{here}: {key} has a token that is no text")
    if not all(count in (0, 1) for count in counts):
        raise DataError(f"{here}: count_tokens must be 0 or 1")
    flags = np.array(counts, dtype=np.uint16).reshape(-1, length)
    return sequences.pack(inputs, targets, here), sequences.to_masks(flags)


def _flat(value: Any, length: int, key: str, here: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{here}: {key} must be a list of sequences, at least one")
    flat: list[Any] = []
    for number, row in enumerate(value):
        if not isinstance(row, list) or len(row) != length:
            found = f"{len(row)} tokens" if isinstance(row, list) else type(row).__name__
            raise DataError(
                f"{here}: sequence {number} of {key} has {found}; sequences have {length} tokens "
                "here: set sequence_length if all files have another length"
            )
        flat += row
    return flat


SOURCES = {
    "leaf-json": "Reddit comments in LEAF's JSON form",
    "dump": "Reddit comments of raw dumps, cleaned as LEAF does",
    "generated": "made-up comments in LEAF's JSON form, not Reddit",
}


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store; see ``tasks``.

    Memory does not grow with the comments: it holds about a kilobyte of each user, one user of a
    JSON file or a 256th part of a dump's comments, and two million distinct tokens. Beside ``out``
    there must be room for the text three times.
    """
    forms = (
        Form("leaf-json", JSON_LOOKED_FOR, lambda source: bool(find_files(source))),
        Form(
            "dump", dumps.LOOKED_FOR, lambda source: bool(dumps.find_dumps(source, options.files))
        ),
    )
    form = choose_form(source, "Reddit", forms, options).name
    _check_options(form, options)
    given = read_vocabulary(Path(options.vocabulary)) if options.vocabulary else None
    with Gathering(out, sequences.COMMENT_FIELDS) as gathering:
        read = _read_json if form == "leaf-json" else _read_dumps
        found = read(source, options, gathering, progress)
        if is_generated(source):
            form = "generated"
            found.facts.update(GENERATED_FACTS)
        _check_disjoint(found, source, out, progress)
        return _write(out, form, options, found, given, progress)


@dataclass(frozen=True, slots=True)
class _Found:
    """Contents that were read; ``to_check`` is None unless they are split as published."""

    partition: Partition
    to_check: Partition | None
    subreddits: NDArray[np.object_]
    facts: dict[str, Any]


def _read_json(source: Path, options: Options, gathering: Gathering, progress: Progress) -> _Found:
    """Read LEAF's JSON; refused if it is damaged, contradicts itself, or has other sequences."""
    files = find_files(source)
    subreddits: dict[str, int] = {}
    for split, leaf, where in read_splits(source, files, progress, counts_all_splits=True):
        comments = _comments(leaf, options.sequence_length, subreddits, where)
        gathering.append(split, leaf.user, **comments)
    facts = {"files": sum(map(len, files.values()))}
    if "min_examples" not in options.model_fields_set:
        options = options.model_copy(update={"min_examples": 0})
    names = np.array(list(subreddits), dtype=np.object_)
    if UNSPLIT in files:
        return _Found(gathering.partition(options, "created"), None, names, facts)
    partition = natural = gathering.partition(options)
    if partition.artificial_users:
        # A comment that two splits share goes to two artificial users: ask those who wrote it.
        natural = gathering.partition(_by_author(options))
    return _Found(partition, natural, names, facts)


def _by_author(options: Options) -> Options:
    """The options without those of artificial users."""
    left_out = {"partition", "iid_users"}
    if not options.samples_users:
        left_out.add("split_seed")
    return Options(**options.model_dump(include=options.model_fields_set - left_out))


def _read_dumps(source: Path, options: Options, gathering: Gathering, progress: Progress) -> _Found:
    subreddits: dict[str, int] = {}
    files = dumps.find_dumps(source, options.files)
    facts = dumps.gather(files, options, gathering, subreddits, progress)
    names = np.array(list(subreddits), dtype=np.object_)
    if options.split_by == "user":
        return _Found(gathering.partition(options), None, names, facts)
    # The split has been made, by LEAF's rounding; what is left to do does not ask how.
    partition = gathering.partition_divided(options, "created", options.min_examples)
    return _Found(partition, None, names, facts)


def _check_options(form: str, options: Options) -> None:
    if form == "leaf-json":
        why = "LEAF's JSON is cleaned already; leave these options out, or give raw dumps"
        refuse(options.given(*DUMP_OPTIONS), why)
    if options.vocabulary:
        made = options.given("vocabulary_size", "vocabulary_rule")
        given = f"vocabulary={options.vocabulary} is given, so none is made"
        refuse(made, f"{given}; leave the one or the other out")


def _check_disjoint(found: _Found, source: Path, out: Path, progress: Progress) -> None:
    if found.to_check is None:
        return
    with OverlapFinder(out.absolute().parent) as finder:
        for done, part in enumerate(found.to_check, start=1):
            finder.add(part, found.subreddits)
            progress("comparing splits (users by split)", done, found.to_check.num_parts)
        finder.check(found.to_check, found.subreddits, source)


def _count(
    found: _Found, out: Path, options: Options, given: Vocabulary | None, progress: Progress
) -> tuple[Counter[str], NDArray[np.bool_], Vocabulary]:
    """Count what was partitioned, and the tokens of train unless a vocabulary is given.

    Returns the comments by split; which of the n subreddits have a comment that is kept, shape
    (n,); and the vocabulary.
    """
    partition = found.partition
    comments: Counter[str] = Counter()
    occurring = np.zeros(len(found.subreddits), np.bool_)
    with TokenCounter(out.absolute().parent) as counter:
        for done, part in enumerate(partition, start=1):
            comments[part.split] += len(part.arrays["text"])
            occurring[part.arrays["subreddit"]] = True
            if given is None and part.split == "train":
                for text, masks in zip(part.arrays["text"], part.arrays["counted"], strict=True):
                    inputs, _ = sequences.unpack(text, len(masks) * options.sequence_length)
                    counter.update(inputs)
            progress("counting (users by split)", done, partition.num_parts)
        size, rule = options.vocabulary_size, options.vocabulary_rule
        return comments, occurring, given or counted_vocabulary(counter, size, rule)


def _write(
    out: Path,
    form: str,
    options: Options,
    found: _Found,
    given: Vocabulary | None,
    progress: Progress,
) -> dict[str, Any]:
    """Count, encode and write; returns facts for printing."""
    comments, occurring, vocabulary = _count(found, out, options, given, progress)
    order, names = _sorted(found.subreddits, occurring)
    length, padding = options.sequence_length, options.count_final_padding
    encoder = sequences.Encoder(vocabulary.ids(), length, order, padding)
    checked = found.to_check is not None
    extra = {
        "pad_id": sequences.PAD_ID,
        "unk_id": sequences.UNK_ID,
        "num_comments": dict(comments),
        "num_subreddits": len(names),
        "sequence_length": options.sequence_length,
        "count_final_padding": options.count_final_padding,
        "vocabulary": dict(vocabulary.facts),
        "splits_disjoint": "every comment looked up" if checked else "each comment dealt once",
        **found.facts,
    }
    return {
        **write_partition(
            out,
            found.partition,
            progress,
            encoder,
            task="reddit",
            variant=form,
            source=SOURCES[form],
            num_classes=len(vocabulary.tokens),
            input_shape=(options.sequence_length,),
            fields=sequences.store_fields(options.sequence_length),
            extra=extra,
            names={"vocabulary": vocabulary.tokens, "subreddit": names},
        ),
        "tokens": encoder.num_tokens,
        "unknown_tokens": encoder.num_unknown,
    }


def _sorted(
    names: NDArray[np.object_], occurring: NDArray[np.bool_]
) -> tuple[NDArray[np.uint32], list[str]]:
    """Number the names that occur in their own order, so that it does not matter which came first.

    Returns the new number of each, shape (n,), 0 for those that do not occur; and those that do.
    """
    ascending = sorted(np.flatnonzero(occurring).tolist(), key=names.tolist().__getitem__)
    order = np.zeros(len(names), dtype=np.uint32)
    order[ascending] = np.arange(len(ascending), dtype=np.uint32)
    return order, [names[index] for index in ascending]
