"""Errors of JSON, in the words of the library that reads it."""

from __future__ import annotations

_SHOWN = 120


def json_reason(error: Exception) -> str:
    """Message of an exception of ``ijson``, in one line; some backends give it in bytes."""
    message = error.args[0] if error.args else str(error)
    if isinstance(message, bytes):
        message = message.decode(errors="replace")
    return " ".join(str(message).split())[:_SHOWN]
