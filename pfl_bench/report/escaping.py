"""Texts that come from anybody's run folder, made safe for what they are written into."""

from __future__ import annotations

import re
from typing import Any

from pfl_bench.config.terminal_text import visible

_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)
# What begins an element or ends the text of a link.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|\](?=\()")
# What a spreadsheet takes for a formula, and numbers, which begin alike.
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBERS = re.compile(r"[-+\d.,;eE infa]*")


def one_line(text: str) -> str:
    """A visible text in one line of Markdown, without elements and links of its own."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(visible(text).split()))


def latex_escape(text: str) -> str:
    """Make a text safe outside math mode."""
    return visible(text).translate(_LATEX)


def csv_value(value: Any) -> Any:
    """A cell's value that no spreadsheet runs: a quote stands before a text like a formula."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBERS.fullmatch(value):
        return f"'{value}"
    return value
