"""Peak memory of a private round against the cohort, each cohort in a process of its own."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import OurSide
from benchmarks.femnist import make_store
from benchmarks.sides import Workload, configuration

COHORTS = (20, 200, 2000)


def main() -> None:
    """Measure all cohorts, or in a child process one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cohort", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cohort is not None:
        _measure_one(arguments.cohort, Path(arguments.store))
        return
    command = str(Path(__file__).parents[1] / "bench.py")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "generated.h5"
        make_store(store, num_users=2500, mean_examples=30)
        peaks = {}
        for cohort in COHORTS:
            child = [sys.executable, command, "memory", "--cohort", str(cohort)]
            done = subprocess.run(
                [*child, "--store", str(store)], check=True, capture_output=True, text=True
            )
            peaks[cohort] = int(done.stdout)
    print("| cohort | peak memory (MiB) | ratio to cohort 20 |\n|---|---|---|")
    for cohort, peak in peaks.items():
        print(f"| {cohort} | {peak / 1024:.0f} | {peak / peaks[COHORTS[0]]:.3f} |")


def _measure_one(cohort: int, store: Path) -> None:
    load = Workload("femnist", "softmax", cohort, 10, 0.1)
    with tempfile.TemporaryDirectory() as folder:
        side = OurSide(configuration(store, load, private=True), Path(folder))
        side.round(1)
        side.round(2)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
