"""Counts of LEAF's table 1, of a prepared store: users and their comments, not sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import Store, StoreSplit
from pfl_bench.types import DataError, Progress
from tasks.common.leaf.table1 import REDDIT, TITLE, Counts, count
from tasks.common.options import StrictOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERCENTILES = (10, 25, 50, 75, 90)
_FIELDS = ("tokens", "first", "counted", "subreddit")
_BLOCK_EXAMPLES = 1 << 18
_BINS = 40


class Options(StrictOptions):
    """Options of Reddit's statistics.

    Attributes:
        subreddits: How many of the subreddits with most comments are listed.
    """

    subreddits: int = Field(default=10, ge=0, le=10_000)


def statistics(store: Store, options: Options, progress: Progress) -> dict[str, Any]:
    """Compute Reddit's statistics, JSON-serialisable.

    Returns:
        - "notice": what must be said wherever the data are shown; None for real comments;
        - "comments_per_user": of all splits together "users", "comments", "mean", "sd"
          (population), "min", "max", "percentiles" and "histogram" ("edges", "users");
        - "published": the same of LEAF's table 1;
        - "splits": of each "users", "comments", "sequences", "tokens" (inputs that are no
          padding), "unknown_tokens" and "counted_tokens";
        - "subreddits": the number of those that have a comment, and "largest": name to comments.
    """
    missing = [name for name in _FIELDS if name not in store.fields]
    if missing or "subreddit" not in store.name_lists:
        raise DataError(
            f"{store.path}: {', '.join(missing) or 'the names of subreddits'} missing, so this is "
            "no store that `pfl-bench data prepare reddit` wrote; prepare it again"
        )
    names = store.names("subreddit")
    subreddits = np.zeros(len(names), dtype=np.int64)
    totals: Counter[str] = Counter()
    splits: dict[str, dict[str, int]] = {}
    sequences = sum(store.split(name).num_examples for name in store.split_names)
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        progress("reading sequences", done, sequences)

    for split in map(store.split, store.split_names):
        counts, sizes = _count(split, store.facts.extra, subreddits, tell)
        totals.update(dict(zip(split.client_ids(), sizes, strict=True)))
        splits[split.name] = {"users": split.num_users, "comments": sum(sizes), **counts}
    found = int(np.count_nonzero(subreddits))
    largest = np.argsort(-subreddits, kind="stable")[: min(found, options.subreddits)]
    return {
        "notice": "made-up comments, not Reddit" if "generated" in store.facts.extra else None,
        "comments_per_user": _describe(np.fromiter(totals.values(), np.int64, len(totals))),
        "published": _counts(REDDIT),
        "splits": splits,
        "subreddits": {
            "number": found,
            "largest": {names[index]: int(subreddits[index]) for index in largest},
        },
    }


def _count(
    split: StoreSplit,
    extra: Mapping[str, Any],
    subreddits: NDArray[np.int64],
    tell: Callable[[int], None],
) -> tuple[dict[str, int], list[int]]:
    """Count a split's sequences and each user's comments; adds to ``subreddits``, shape (S,)."""
    counts = {"sequences": split.num_examples}
    counts |= dict.fromkeys(("tokens", "unknown_tokens", "counted_tokens"), 0)
    firsts = []
    for start in range(0, split.num_examples, _BLOCK_EXAMPLES):
        stop = min(start + _BLOCK_EXAMPLES, split.num_examples)
        first = split.read("first", start, stop)
        firsts.append(np.flatnonzero(first) + start)
        tokens = split.read("tokens", start, stop)
        counts["tokens"] += int((tokens != extra["pad_id"]).sum())
        counts["unknown_tokens"] += int((tokens == extra["unk_id"]).sum())
        counts["counted_tokens"] += int(np.bitwise_count(split.read("counted", start, stop)).sum())
        mine = split.read("subreddit", start, stop)[first]
        subreddits += np.bincount(mine, minlength=len(subreddits))
        tell(stop - start)
    sizes = np.diff(np.searchsorted(np.concatenate(firsts), split.offsets))
    return counts, sizes.tolist()


def _describe(sizes: NDArray[np.int64]) -> dict[str, Any]:
    top = max(int(sizes.max()), int(sizes.min()) + 1)
    edges = np.unique(np.rint(np.geomspace(max(1, int(sizes.min())), top + 1, _BINS + 1)))
    users, _ = np.histogram(sizes, edges)
    percentiles = np.percentile(sizes, PERCENTILES)
    return {
        **_counts(count(sizes)),
        "min": int(sizes.min()),
        "max": int(sizes.max()),
        "percentiles": {
            str(rank): float(value) for rank, value in zip(PERCENTILES, percentiles, strict=True)
        },
        "histogram": {"edges": edges.astype(int).tolist(), "users": users.tolist()},
    }


def _counts(row: Counts) -> dict[str, float]:
    return {"users": row.users, "comments": row.samples, "mean": row.mean, "sd": row.sd}


def format_statistics(statistics: Mapping[str, Any]) -> str:
    """Lay out what ``statistics`` gives as plain text, without a trailing newline."""
    here, published = statistics["comments_per_user"], statistics["published"]
    lines = [statistics["notice"].upper()] if statistics["notice"] else []
    lines.append(f"{'comments':14}{'here':>16}{TITLE:>16}")
    lines += [f"{key:14}{here[key]:>16,}{published[key]:>16,}" for key in ("users", "comments")]
    for key, name in (("mean", "mean a user"), ("sd", "sd (population)")):
        lines.append(f"{name:15}{here[key]:>15.2f}{published[key]:>16.2f}")
    shown = ", ".join(f"p{rank} {value:g}" for rank, value in here["percentiles"].items())
    lines += [f"comments a user: {here['min']} to {here['max']:,}; {shown}", ""]
    lines.append(f"{'split':8}{'users':>12}{'comments':>14}{'sequences':>14}{'unknown tokens':>18}")
    for name, counts in statistics["splits"].items():
        share = counts["unknown_tokens"] / max(1, counts["tokens"])
        lines.append(
            f"{name:8}{counts['users']:>12,}{counts['comments']:>14,}{counts['sequences']:>14,}"
            f"{share:>18.2%}"
        )
    found = statistics["subreddits"]
    plural = "" if found["number"] == 1 else "s"
    lines += ["", f"{found['number']:,} subreddit{plural}; comments of the largest:"]
    lines += [f"  {name:32} {count:>12,}" for name, count in found["largest"].items()]
    return "\n".join(lines)


def figures(statistics: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw what ``statistics`` gives: "comments_per_user", a histogram."""
    from matplotlib.figure import Figure

    here = statistics["comments_per_user"]
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.add_subplot()
    axes.stairs(here["histogram"]["users"], here["histogram"]["edges"], fill=True)
    axes.set_xscale("log")
    axes.set_title("Comments of a user")
    axes.set_xlabel("comments, all splits together")
    axes.set_ylabel("users")
    return {"comments_per_user": figure}
