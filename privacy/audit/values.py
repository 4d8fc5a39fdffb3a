"""Values of a ledger's lines, refused if they are of the wrong kind.

Guarantee: none of its own. Nothing is corrected. ``where`` names round and member in the message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from privacy.audit.inputs import as_number
from privacy.errors import LedgerError


def number(value: Any, where: str) -> float:
    """A finite number; NaN for null."""
    found = as_number(value)
    if value is not None and not math.isfinite(found):
        raise LedgerError(f"{where} is {value!r}, but must be a finite number or null")
    return found


def numbers(values: Any, length: int, where: str) -> list[float]:
    """At most so many numbers, NaN for those that are missing."""
    if not isinstance(values, list) or len(values) > length:
        raise LedgerError(f"{where} is {values!r}, but must be a list of at most {length}")
    return [number(value, where) for value in values] + [math.nan] * (length - len(values))


def counts(values: list[Any], where: str) -> list[int]:
    """Counts of a list."""
    if any(type(count) is not int or not 0 <= count < 2**62 for count in values):
        raise LedgerError(f"{where} is {values!r}, but must be {len(values)} counts")
    return values


def member(record: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """An object within an object; empty if it is null or missing."""
    value = record.get(key)
    if not (value is None or isinstance(value, Mapping)):
        raise LedgerError(f"{where} is {value!r}, but must be an object")
    return value or {}


def digest(value: Any, where: str, digits: int = 64) -> bytes:
    """Bytes of a SHA-256, or its first ones, of so many hexadecimal digits."""
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        found = b""
    if 2 * len(found) != digits:
        raise LedgerError(f"{where} is {value!r}, but must be a SHA-256 in {digits} hex digits")
    return found


def unnamed(value: Any, form: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Dotted names of an object's members that its form does not name.

    A form has the form of each member, or None where anything may stand.
    """
    for key, part in value.items() if isinstance(value, Mapping) else ():
        if key not in form:
            yield f"{above}{key}"
        elif form[key] is not None:
            yield from unnamed(part, form[key], f"{above}{key}.")
