"""Contents of a store's source before any choice, beside what was published of it.

A task that knows both says so by one fact of the store's ``extra``, under a name of its own:
"counted", what one sample is, for a human; "users", "samples", "mean" and "sd" (population) of a
user's samples; and "published", the same four numbers and "title", where they were published.
"differs_from_published" in ``extra`` has a sentence for each number that differs; None for data
that are only a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl_bench.report.table import Table

_DIFFERS = "differs_from_published"
_ROWS = (
    ("users", "users", ",.0f"),
    ("samples", "samples", ",.0f"),
    ("mean", "mean a user", ",.2f"),
    ("sd", "sd (population)", ",.2f"),
)


def source_lines(extra: Mapping[str, Any]) -> list[str]:
    """Lay out what the source held, and how that differs; no line if the store is silent."""
    source = next((fact for fact in extra.values() if _is_comparison(fact)), None)
    if source is None:
        return []
    published = source["published"]
    rows = [
        [name, *(format(own[key], how) for own in (source, published))] for key, name, how in _ROWS
    ]
    return [
        "",
        f"the source before any choice: {source['counted']}",
        Table.of(("", "here", published["title"]), rows).to_text(),
        *(_differences(extra[_DIFFERS]) if _DIFFERS in extra else ()),
    ]


def _differences(sentences: Any) -> list[str]:
    if not isinstance(sentences, list):
        return ["too few samples to be all that was published: differences are not listed"]
    if not sentences:
        return ["nothing differs from what was published"]
    return ["differs from what was published:", *(f"  {sentence}" for sentence in sentences)]


def _is_comparison(fact: Any) -> bool:
    """Whether a fact has the shape above; stores of older versions have others."""
    if not isinstance(fact, Mapping) or not isinstance(fact.get("counted"), str):
        return False
    published = fact.get("published")
    return (
        isinstance(published, Mapping)
        and isinstance(published.get("title"), str)
        and all(
            isinstance(own.get(key), int | float) for own in (fact, published) for key, *_ in _ROWS
        )
    )
