"""How many cores and how much memory there are to use; told without loading torch."""

from __future__ import annotations

import os
from pathlib import Path

# What a worker may need beyond the most that this process has had so far.
_MARGIN = 1.25

# Of the cores, what a command that has several runs at once leaves to this one.
_limit: int | None = None


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1


def limit_cores(cores: int) -> None:
    """Let "auto" take so many cores at most in this process."""
    global _limit
    _limit = cores


def cores_of_this_run() -> int:
    """Cores that "auto" may take."""
    return _limit or usable_cores()


def most_by_memory(bytes_more: int) -> int | None:
    """Processes like this one that fit into memory, this one among them; None if nobody tells.

    Args:
        bytes_more: What each of the others needs beside what this one has had at most.
    """
    free, peak = _kilobytes("meminfo", "MemAvailable"), _kilobytes("self/status", "VmHWM")
    if free is None or peak is None:
        return None
    return 1 + int(free * 1024 / (_MARGIN * peak * 1024 + bytes_more))


def _kilobytes(file: str, wanted: str) -> int | None:
    """A line of one of the system's files on memory."""
    try:
        lines = Path("/proc", file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == wanted:
            return int(rest.split()[0])
    return None
