"""Stopping a run from outside: a file in its folder, which the run looks for before each round."""

from __future__ import annotations

from pathlib import Path

from pfl_bench.files import read_json, write_json
from pfl_bench.types import StoppedError

STOP_FILE = "stop.json"


def request_stop(folder: Path, reason: str) -> None:
    """Have a run stop before its next round; a reason that is there already stays.

    Args:
        folder: The run's.
        reason: A clause, for a person.

    Raises:
        OSError: The file cannot be written.
    """
    if not (folder / STOP_FILE).exists():
        write_json(folder / STOP_FILE, {"reason": reason})


def check_stop(folder: Path, step: str) -> None:
    """Check that nobody has asked a run to stop.

    Args:
        folder: The run's.
        step: What would come next, such as "round 7".

    Raises:
        StoppedError: Somebody has.
    """
    if not (folder / STOP_FILE).exists():
        return
    document = read_json(folder / STOP_FILE) or {}
    raise StoppedError(
        f"{folder}: stopped before {step}: {document.get('reason', 'no reason is given')}. "
        f"Its checkpoint is kept; delete {STOP_FILE} and give --resume to go on all the same"
    )
