"""The statistics of a store as a plain text table.

A task that knows what its source held before any choice, and what was published of it, says both
by one fact of the store's ``extra``, under a name of its own: "counted", what one sample is, for a
human; "users", "samples", "mean" and "sd" (population) of a user's samples; and "published", the
same four numbers and "title", where they were published. "differs_from_published" in ``extra`` has
a sentence for each number that differs; None for data that are only a part.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pfl_bench.report.statistics.store import PERCENTILES
from pfl_bench.report.table import Table

_TABLE_LABELS = 20
_TABLE_VALUES = 5
_ALL = "all"
_DIFFERS = "differs_from_published"
_UNDIVIDED = "each split is one user: a row's task.partition makes clients of data that have none"
_ROWS = (
    ("users", "users", ",.0f"),
    ("samples", "samples", ",.0f"),
    ("mean", "mean a user", ",.2f"),
    ("sd", "sd (population)", ",.2f"),
)


def format_statistics(statistics: Mapping[str, Any]) -> str:
    """Lay out what ``store_statistics`` gives as a plain text table, without a trailing newline.

    A row "all" has all splits together where there are several; of labels and skew, where these are
    of different users.
    """
    facts = statistics["facts"]
    parts = parts_of(statistics, _ALL)
    sizes = dict(statistics["splits"])
    is_undivided = all(part["users"] == 1 for part in sizes.values())
    if len(sizes) > 1:
        sizes[_ALL] = statistics["all_users"]
    lines = [
        f"file      {statistics['path']}",
        f"task      {statistics['task']} ({facts['variant']}, {facts['num_classes']} classes, "
        f"split by {facts['split_by']})",
        f"source    {facts['source']}",
        f"checksum  {facts['checksum']}",
        "",
        "examples per user (sd: population)",
        *_table(
            ["split", "users", "examples", "mean", "sd", "min"]
            + [f"p{rank}" for rank in PERCENTILES]
            + ["max", "skewness"],
            [_size_row(name, part) for name, part in sizes.items()],
        ),
        *([_UNDIVIDED] if is_undivided else []),
        *_source_lines(facts["extra"]),
        "",
        "users by number of examples",
        *_histogram(statistics["size_histogram"]),
        "",
        "quantity skew: the largest users who hold as many examples as all others",
        *_table(
            ["split", "largest users", "share of users"],
            [
                [name, f"{skew['largest_users']:,}", f"{skew['largest_share']:.1%}"]
                for name, skew in ((name, part["quantity_skew"]) for name, part in parts.items())
            ],
        ),
    ]
    return "\n".join([*lines, *_labels(parts), *_columns(statistics)])


def parts_of(statistics: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Statistics of the splits and, as ``name``, of all together where these can be told."""
    together = statistics["all_splits"]
    has_all = together is not None and len(statistics["splits"]) > 1
    return {**statistics["splits"], **({name: together} if has_all else {})}


def _source_lines(extra: Mapping[str, Any]) -> list[str]:
    """Lay out what the source held, and how that differs; no line if the store is silent."""
    for fact in extra.values():
        # Stores have facts of other shapes, too.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            both = (fact, fact["published"])
            rows = [[name, *(format(own[key], how) for own in both)] for key, name, how in _ROWS]
            return [
                "",
                f"the source before any choice: {fact['counted']}",
                Table.of(("", "here", fact["published"]["title"]), rows).to_text(),
                *(_differences(extra[_DIFFERS]) if _DIFFERS in extra else ()),
            ]
    return []


def _differences(sentences: Any) -> list[str]:
    if not isinstance(sentences, list):
        return ["too few samples to be all that was published: differences are not listed"]
    if not sentences:
        return ["nothing differs from what was published"]
    return ["differs from what was published:", *(f"  {sentence}" for sentence in sentences)]


def _labels(parts: Mapping[str, Any]) -> list[str]:
    labelled = {name: part["labels"] for name, part in parts.items() if part["labels"]}
    if not labelled:
        return []
    return [
        "",
        "labels (TV: mean total-variation distance of a user's labels from the split's)",
        *_table(
            ["split", "labels", "classes", "distinct/user", "TV", "commonest class:count"],
            [_label_row(name, labels) for name, labels in labelled.items()],
        ),
        "",
        "share of users who have a class",
        *_table(
            ["split", "lowest", "highest", "most widespread class:share"],
            [_share_row(name, labels) for name, labels in labelled.items()],
        ),
    ]


def _histogram(histogram: Mapping[str, Any]) -> list[str]:
    edges, users = histogram["edges"], histogram["users"]
    rows = []
    for place, (low, high) in enumerate(pairwise(edges)):
        counts = [own[place] for own in users.values()]
        if any(counts):
            bin_name = f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}"
            rows.append([bin_name, *(f"{count:,}" for count in counts)])
    return _table(["examples", *users], rows)


def _columns(statistics: Mapping[str, Any]) -> list[str]:
    columns, lists = statistics["columns"], statistics["name_lists"]
    lines: list[str] = []
    if columns:
        splits = list(statistics["splits"])
        header = ["column", "names", *splits, "commonest value:examples, all splits"]
        rows = [_column_row(name, column) for name, column in columns.items()]
        lines += ["", "columns: how many values occur in each split", *_table(header, rows)]
    others = [name for name in lists if name not in columns]
    if others:
        lines += ["", *(f"{name}: {lists[name]:,} names" for name in others)]
    return lines


def _column_row(name: str, column: Mapping[str, Any]) -> list[str]:
    counts: Counter[str] = Counter()
    for split in column["splits"].values():
        counts.update(split["counts"])
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    commonest = _first([f"{value}:{count}" for value, count in ordered], _TABLE_VALUES)
    named = "-" if column["named"] is None else f"{column['named']:,}"
    distinct = (f"{split['distinct']:,}" for split in column["splits"].values())
    return [name, named, *distinct, commonest]


def _size_row(name: str, split: Mapping[str, Any]) -> list[str]:
    sizes = split["examples_per_user"]
    counts = [f"{split[key]:,}" for key in ("users", "examples")]
    mean, sd, skewness = (_decimal(sizes[key]) for key in ("mean", "sd", "skewness"))
    percentiles = [f"{sizes['percentiles'][str(rank)]:g}" for rank in PERCENTILES]
    least, most = str(sizes["min"]), str(sizes["max"])
    return [name, *counts, mean, sd, least, *percentiles, most, skewness]


def _label_row(name: str, labels: Mapping[str, Any]) -> list[str]:
    counts: dict[str, int] = labels["counts"]
    means = ("mean_distinct_per_user", "mean_total_variation")
    commonest = _highest({label: (count, f"{count}") for label, count in counts.items()})
    total, distinct = f"{sum(counts.values()):,}", str(len(counts))
    return [name, total, distinct, *(_decimal(labels[key]) for key in means), commonest]


def _share_row(name: str, labels: Mapping[str, Any]) -> list[str]:
    shares: dict[str, float] = labels["share_of_users"]
    if not shares:
        return [name, "-", "-", "-"]
    widespread = _highest({label: (share, f"{share:.1%}") for label, share in shares.items()})
    return [name, f"{min(shares.values()):.1%}", f"{max(shares.values()):.1%}", widespread]


def _highest(values: Mapping[str, tuple[float, str]]) -> str:
    order = sorted(values, key=lambda label: (-values[label][0], int(label)))
    return _first([f"{label}:{values[label][1]}" for label in order], _TABLE_LABELS)


def _first(texts: list[str], most: int) -> str:
    more = len(texts) - most
    return " ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:z.3f}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Aligned columns; the first and a last wordy one flush left."""
    wordy = {0} | ({len(header) - 1} if any(":" in row[-1] for row in rows) else set())
    return Table.of(header, rows, to_left=wordy).to_text().splitlines()
