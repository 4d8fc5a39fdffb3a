"""JSON as a run's files have it: no NaN, no infinity, and each key of an object once.

Guarantee: what parses says the same to every reader.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn


def parse(text: str | bytes) -> Any:
    """Parse JSON; ValueError if it is none.

    Of a key that is there twice, readers take the one or the other: a file could state two
    epsilons, or hold what no check looks at.
    """
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        again = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {again!r:.80} is there twice")
    return found
