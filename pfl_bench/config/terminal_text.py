"""Texts for a terminal, whatever names are in them. Only the standard library is imported here."""

from __future__ import annotations

import sys


def visible(text: str) -> str:
    """Write out characters that steer a terminal or turn the direction of a text."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )


def say(text: str) -> None:
    """Tell a person what goes on, at once."""
    print(visible(text), file=sys.stderr, flush=True)
