"""The file that an audit leaves in a run folder, for whoever writes or reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

AUDIT_VERSION = 1
AUDIT_FILE = "audit.json"
# The words of a pass without a round or step that was computed again.
ON_RECORDS = "passed on records alone"
LEDGER_FILE = "ledger.jsonl"
# Begins what the verdict says of files in the folder that no run writes.
NOT_LOOKED_AT = "not looked at: "
_NAMED = 3


def files_left_out(names: Sequence[str]) -> str:
    """Files in a run's folder that an audit has not looked at, in words; empty for none."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{NOT_LOOKED_AT}{', '.join(names[:_NAMED])}{more}" if names else ""


def ledger_begins(folder: Path) -> dict[str, Any]:
    """Bytes that a run's ledger has now, and their SHA-256; empty where it has none.

    A resumed run writes it into ``environment.json``: no line of it may be replaced later.
    """
    path = folder / LEDGER_FILE
    size = path.stat().st_size if path.is_file() else 0
    return {"ledger": {"bytes": size, "sha256": ledger_digest(folder)}} if size else {}


def ledger_digest(folder: Path, size: int | None = None) -> str:
    """SHA-256 of a run's ledger in hexadecimal, empty without one: audits of others are stale.

    Of its first ``size`` bytes, or of all of them.
    """
    path = folder / LEDGER_FILE
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        if size is not None:
            return hashlib.sha256(file.read(size)).hexdigest()
        return hashlib.file_digest(file, "sha256").hexdigest()
