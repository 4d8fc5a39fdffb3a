"""Names that a user may have mistyped."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """End of a sentence about an unknown name: the nearest known one, or a full stop."""
    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
