"""The form of values that are written for trackers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested objects and lists into scalars named "prefix/key/index", without nulls."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {} if value is None else {prefix: scalar(value)}
    return {
        name: found
        for key, item in items
        for name, found in flatten(item, f"{prefix}/{key}" if prefix else key).items()
    }


def scalar(value: Any) -> Any:
    """Turn the run folder's texts for non-finite numbers back into numbers."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def is_number(value: Any) -> bool:
    """Whether it is a number to plot; truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """A table of mappings with equal keys."""
    heads = list(lines[0])
    rows = [heads, ["---"] * len(heads), *([_cell(line[head]) for head in heads] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: Any) -> str:
    if is_number(value) and math.isfinite(value):
        return f"{value:.6g}"
    return "-" if value is None else str(value).replace("|", "/").replace("\n", " ")


def one_line(error: BaseException) -> str:
    """The error in at most 200 characters on one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    return text if len(text) <= 200 else text[:197] + "..."
