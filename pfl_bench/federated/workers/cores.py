"""Cores and memory that may be used, found without loading torch."""

from __future__ import annotations

import os
from pathlib import Path

# What a worker may need beyond the most that this process has had so far.
_MARGIN = 1.25

# What limits a container, where there are control groups of version 2.
_CONTAINER = Path("/sys/fs/cgroup")

# Of the cores, what a command that has several runs at once leaves to this one.
_limit: int | None = None


def usable_cores() -> int:
    """Cores that this process may use, whole ones of what a container has been given."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        cores = os.cpu_count() or 1
    quota = _lines(_CONTAINER / "cpu.max")
    if quota and not quota[0].startswith("max"):
        given, period = map(int, quota[0].split())
        cores = min(cores, max(1, given // period))
    return cores


def limit_cores(cores: int) -> None:
    """Let "auto" take so many cores at most in this process."""
    global _limit
    _limit = cores


def cores_of_this_run() -> int:
    """Cores that "auto" may take."""
    return _limit or usable_cores()


def most_by_memory(bytes_more: int) -> int | None:
    """Processes like this one that fit into memory, this one among them; None if nobody tells.

    Each of the others needs ``bytes_more`` beside what this one has had at most.
    """
    free = _number_of(Path("/proc/meminfo"), "MemAvailable")
    peak = _number_of(Path("/proc/self/status"), "VmHWM")
    if free is None or peak is None:
        return None
    free *= 1024
    limit, used = _lines(_CONTAINER / "memory.max"), _number_of(_CONTAINER / "memory.stat", "anon")
    if limit and limit[0] != "max" and used is not None:
        free = min(free, max(0, int(limit[0]) - used))
    return 1 + int(free / (_MARGIN * peak * 1024 + bytes_more))


def _number_of(file: Path, wanted: str) -> int | None:
    """The number behind a name in one of the system's files."""
    for line in _lines(file):
        name, _, rest = line.partition(" ") if ":" not in line else line.partition(":")
        if name == wanted:
            return int(rest.split()[0])
    return None


def _lines(file: Path) -> list[str]:
    """Lines of one of the system's files; none where it does not exist."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
