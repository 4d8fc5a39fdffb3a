"""Time of a private round on one device: of the device by operation, of the host by function."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import OurSide, Seconds

# Operations, and functions, that are named.
MOST = 12
# Rounds that are timed before one is profiled; the first of them warms up.
ROUNDS = 4


def profile_rounds(side: OurSide) -> dict[str, Any]:
    """Seconds of rounds; launches and busy time of one; the host's functions in another.

    Args:
        side: Before its first round; closed.
    """
    timed = Seconds()
    for number in range(1, ROUNDS + 1):
        timed.add(partial(side.round, number), side.device)
    clients, steps = (int(side.scalars[f"train/{of}"]) for of in ("cohort_size", "num_steps"))
    found = {"seconds": timed.wall[1:], "clients": clients, "steps": steps}
    found |= _operations(partial(side.round, ROUNDS + 1), side.device)
    found["host"] = _functions(partial(side.round, ROUNDS + 2))
    side.close()
    return found


def _operations(work: Callable[[], None], device: torch.device) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    is_gpu, timed = device.type == "cuda", Seconds()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities, acc_events=True) as trace:
        timed.add(work, device)
    rows = trace.key_averages()
    own = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    most = sorted(rows, key=lambda row: -float(getattr(row, own)))[:MOST]
    # Of a device the kernels alone: an operation's row has the time of those that it launched.
    kernels = [row for row in rows if not is_gpu or str(row.device_type).endswith("CUDA")]
    return {
        "seconds_profiled": timed.wall[0],
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
