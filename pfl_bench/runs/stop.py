"""A run seen from outside: whether a process works on it, and having it stop by a file.

The run looks for the file in its folder before each round.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from pfl_bench.files import read_json, write_json
from pfl_bench.types import StoppedError

STOP_FILE = "stop.json"


def is_busy(folder: Path) -> bool:
    """Whether a process works in a run's folder."""
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


def request_stop(folder: Path, reason: str) -> None:
    """Have a run stop before its next round, for a reason; one that is there already stays."""
    if not (folder / STOP_FILE).exists():
        write_json(folder / STOP_FILE, {"reason": reason})


def check_stop(folder: Path, step: str) -> None:
    """Raise StoppedError if somebody has asked a run to stop before ``step``, such as "round 7"."""
    if not (folder / STOP_FILE).exists():
        return
    document = read_json(folder / STOP_FILE) or {}
    raise StoppedError(
        f"{folder}: stopped before {step}: {document.get('reason', 'no reason is given')}. "
        f"Its checkpoint is kept; delete {STOP_FILE} and give --resume to go on all the same"
    )
