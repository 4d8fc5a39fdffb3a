"""Published cells of NIID-Bench on MNIST, a step of ``scripts/gpu_check.py``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

# The store of MNIST that cells train on, where their runs are kept, and the step's own limit.
DATA, RUNS, LIMIT = "NIID_BENCH_DATA", "NIID_BENCH_RUNS", "GPU_CHECK_SECONDS"
LIMIT_S, MARGIN_S = 460, 60
# The algorithms on skewed clients first: they differ most.
ROWS = [
    f"{partition}-{algorithm}"
    for partition in ("labels2", "dirichlet", "labels3", "labels1", "iid")
    for algorithm in ("fedavg", "scaffold", "fedprox", "fednova")
]


def run_cells(device: str, folder: Path) -> dict[str, Any]:
    """Run one cell after another, while one as long as the longest so far would end in time.

    A finished cell is not run again where ``NIID_BENCH_RUNS`` names a folder that stays.
    """
    from pfl_bench.api import load_row, run_row

    data = os.environ.get(DATA)
    if data is None:
        return {"cells": {}, "why": f"{DATA} names no prepared MNIST (mnist.h5)"}
    kept = Path(os.environ.get(RUNS, folder))
    ends = time.monotonic() + float(os.environ.get(LIMIT, LIMIT_S)) - MARGIN_S
    longest, cells = 0.0, {}
    for row in ROWS:
        began = time.monotonic()
        if began + longest > ends:
            break
        loaded = load_row(f"niid_bench/mnist-{row}.yaml", device=device, task__data=data)
        result = run_row(loaded, kept / row, resume=(kept / row).exists())
        longest = max(longest, time.monotonic() - began)
        cells[row] = {"metrics": result.metrics, "expected": result.expected}
    return {"cells": cells}
