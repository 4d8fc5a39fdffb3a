"""Time of a private round on one device: of the device by operation, of the host by function."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import OurSide

# Operations, and functions, that are named.
MOST = 12
# Rounds that are timed before one is profiled; the first of them warms up.
ROUNDS = 4


def profile_rounds(side: OurSide, device: str) -> dict[str, Any]:
    """Seconds of rounds; launches and busy time of one; the host's functions in another.

    Args:
        side: Before its first round; closed.
        device: "cpu" or "cuda".
    """
    seconds = []
    for number in range(1, ROUNDS + 1):
        began = time.perf_counter()
        side.round(number)
        _finish(device)
        seconds.append(time.perf_counter() - began)
    clients, steps = (int(side.scalars[f"train/{of}"]) for of in ("cohort_size", "num_steps"))
    found = {"seconds": seconds[1:], "clients": clients, "steps": steps}
    found |= _operations(lambda: side.round(ROUNDS + 1), device)
    found["host"] = _functions(lambda: side.round(ROUNDS + 2))
    side.close()
    return found


def _operations(work: Callable[[], None], device: str) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    began = time.perf_counter()
    with profile(activities=activities, acc_events=True) as trace:
        work()
        _finish(device)
    seconds = time.perf_counter() - began
    rows = trace.key_averages()
    own = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    most = sorted(rows, key=lambda row: -float(getattr(row, own)))[:MOST]
    # Of a device the kernels alone: an operation's row has the time of those that it launched.
    kernels = [row for row in rows if device == "cpu" or str(row.device_type).endswith("CUDA")]
    return {
        "seconds_profiled": seconds,
        "seconds_busy": sum(float(getattr(row, own)) for row in kernels) / 1e6,
        "launches": sum(row.count for row in rows if "LaunchKernel" in row.key),
        "graph_launches": sum(row.count for row in rows if "GraphLaunch" in row.key),
        "most": {row.key[:80]: round(float(getattr(row, own))) for row in most},
    }


def _functions(work: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of the functions that take most themselves."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    stats: Any = pstats.Stats(profiler)
    own = {
        f"{Path(file).name}:{line} {name}": values[2]
        for (file, line, name), values in stats.stats.items()
    }
    most = sorted(own, key=own.__getitem__, reverse=True)[:MOST]
    return {name: round(1e3 * own[name], 2) for name in most}


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
