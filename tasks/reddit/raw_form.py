"""From raw dumps to users and their comments: cleaned, counted and split in time, as LEAF does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.types import ConfigError, DataError
from tasks.common.leaf.gathering import Gathering, Partition
from tasks.common.leaf.json_files import UNSPLIT
from tasks.common.progress import Progress
from tasks.reddit.buckets import AuthorBuckets, Cleaned
from tasks.reddit.cleaning import Cleaner, Cleaning, Options, tokenizer_name
from tasks.reddit.dumps import LOOKED_FOR, read_comments
from tasks.reddit.sequences import cut, pack_tokens

_SHOWN = 3


def gather(
    paths: Sequence[Path],
    options: Options,
    gathering: Gathering,
    subreddits: dict[str, int],
    progress: Progress,
) -> dict[str, Any]:
    """Clean dumps and gather their comments by author; without the authors who have too many.

    A comment that is in two dumps (by its "id") is taken once. ``subreddits``, the number of each,
    grows. Returns facts for the store: what was read, and what became of it.
    """
    if options.max_comments is not None and options.max_comments < options.min_examples:
        raise ConfigError(
            f"max_comments {options.max_comments} is below min_examples {options.min_examples}, so "
            "that no user could be kept; raise max_comments or lower min_examples"
        )
    cleaner = Cleaner(options)
    facts: Counter[str] = Counter()
    incomplete: list[str] = []
    total, done = sum(path.stat().st_size for path in paths), 0
    with AuthorBuckets(gathering.path.absolute().parent) as buckets:
        numbers: dict[str, int] = {}
        for path in paths:

            def tell(position: int, before: int = done) -> None:
                progress("reading dumps (bytes)", before + position, total)

            incomplete += _clean_dump(path, cleaner, buckets, numbers, facts, tell)
            done += path.stat().st_size
        _keep(buckets, list(numbers), options, gathering, subreddits, facts)
    if not gathering.splits:
        counts = ", ".join(f"{name}: {count}" for name, count in facts.items())
        raise DataError(
            f"{paths[0].parent}: no comment is left ({counts}); lower min_tokens, raise "
            "max_comments, or give more dumps"
        )
    return {
        "files": [path.name for path in paths],
        **facts,
        "incomplete_comments": {"count": facts["incomplete_comments"], "first": incomplete},
        "max_comments": options.max_comments,
        "cleaning": {name: getattr(options, name) for name in Cleaning.model_fields},
        "tokenizer": tokenizer_name(options),
    }


def partition(gathering: Gathering, options: Options) -> Partition:
    """Drop, sample and, unless it is done, split; refuses a seed on which nothing would depend."""
    if options.split_by == "user":
        return gathering.partition(options)
    # The split has been made, by LEAF's rounding; what is left to do does not ask how.
    return gathering.partition_divided(options, "created", options.min_examples)


def _clean_dump(
    path: Path,
    cleaner: Cleaner,
    buckets: AuthorBuckets,
    numbers: dict[str, int],
    facts: Counter[str],
    tell: Callable[[int], None],
) -> list[str]:
    """Clean a dump's comments; returns the first of those that lack something."""
    incomplete: list[str] = []
    whole = 0
    for comment in read_comments(path, tell):
        if isinstance(comment, str):
            facts["incomplete_comments"] += 1
            incomplete.append(f"{path.name}, {comment}")
            del incomplete[_SHOWN:]
            continue
        whole += 1
        if cleaner.is_left_out(comment.author, comment.subreddit):
            facts["comments_of_left_out_authors_or_subreddits"] += 1
            continue
        tokens = cleaner.clean(comment.body)
        if not tokens:
            facts["comments_left_out_by_text"] += 1
            continue
        number = numbers.setdefault(comment.subreddit, len(numbers))
        text = " ".join(tokens)
        buckets.add(comment.author, Cleaned(comment.created, number, comment.identifier, text))
    facts["comments_read"] += whole
    if not whole:
        what = f"no comment; the first thing in it: {incomplete[0]}" if incomplete else "empty"
        raise DataError(f"{path}: {what}. Looked for: {LOOKED_FOR}")
    return incomplete


def _keep(
    buckets: AuthorBuckets,
    names: Sequence[str],
    options: Options,
    gathering: Gathering,
    subreddits: dict[str, int],
    facts: Counter[str],
) -> None:
    """Gather the comments of the authors who have not too many."""
    for author, comments, repeated in buckets.authors():
        facts["repeated_comments"] += repeated
        if options.max_comments is not None and len(comments) > options.max_comments:
            facts["users_with_too_many_comments"] += 1
            continue
        for split, part in _split(comments, options):
            texts, masks, numbers = [], [], []
            for comment in part:
                tokens, mask = cut(comment.text.split(" "), options.sequence_length)
                texts.append(pack_tokens(tokens, f"author {author!r}"))
                masks.append(mask)
                name = names[comment.subreddit]
                numbers.append(subreddits.setdefault(name, len(subreddits)))
            gathering.append(
                split,
                author,
                text=texts,
                counted=masks,
                created=np.array([comment.created for comment in part], dtype=np.int64),
                subreddit=np.array(numbers, dtype=np.uint32),
            )


def _split(comments: list[Cleaned], options: Options) -> Iterator[tuple[str, list[Cleaned]]]:
    """Divide a user's comments in time, at the places where LEAF does; no part is empty."""
    if options.split_by == "user":
        yield UNSPLIT, comments
        return
    first = max(1, int(options.train_fraction * len(comments)))
    # A hair above the product: 0.6 + 0.3 is a little less than 0.9 in binary.
    second = int((options.train_fraction + options.val_fraction) * len(comments) + 1e-9)
    second = max(first, second)
    parts = {"train": comments[:first], "val": comments[first:second], "test": comments[second:]}
    yield from ((name, part) for name, part in parts.items() if part)
