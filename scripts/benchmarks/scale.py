"""Time and peak memory of private rounds against the cohort, each cohort in its own process.

The sum is running and clients are read when it is their turn: a round's time is to be that of its
clients, and its memory that of one client, whatever their number.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.workload import Job, Workload

REFERENCE, LARGEST = 100, 10_000
COHORTS = (10, REFERENCE, 1000, LARGEST)
# Of the largest cohort's seconds a client and peak memory, to the reference's.
MOST = 1.1
# Clients that a cohort trains at least, over all of its rounds, for a time that means something.
LEAST_CLIENTS = 2000
MEAN_EXAMPLES = 30


def main() -> None:
    """Measure all cohorts, or in a child process one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cohorts", type=int, nargs="+", default=COHORTS)
    parser.add_argument("--engine", choices=("sequential", "vectorized"), default="sequential")
    parser.add_argument("--model", choices=("softmax", "cnn", "leaf_cnn"), default="softmax")
    parser.add_argument("--repeats", type=int, default=3, help="rounds that are timed, at least")
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(_measure_one(Path(options.child[0]), int(options.child[1]))))
        return
    # Only here: a child's memory is to be that of a run.
    from benchmarks.common import Machine, write_json
    from benchmarks.femnist import make_store

    machine = Machine()
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        store = folder / "generated.h5"
        make_store(store, num_users=max(options.cohorts) * 5 // 4, mean_examples=MEAN_EXAMPLES)
        for cohort in options.cohorts:
            load = Workload("femnist", options.model, cohort, 10, 0.1)
            path = folder / f"job-{cohort}.json"
            Job(str(store), load, private=True, engine=options.engine).write(path)
            rounds = max(options.repeats, min(200, LEAST_CLIENTS // cohort))
            found[cohort] = _in_child(path, rounds)
    report = {
        "subject": "scale",
        "machine": machine.describe(),
        "model": options.model,
        "engine": options.engine,
        "cohorts": found,
    }
    if options.json is not None:
        write_json(options.json, report)
    print(table(report))


def _in_child(job: Path, rounds: int) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).parents[1] / "bench.py"), "scale"]
    done = subprocess.run(
        [*command, "--child", str(job), str(rounds)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure_one(path: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds a client of each round, and this process's peak memory in MiB."""
    import torch

    from benchmarks.common import OurSide
    from benchmarks.workload import configuration

    torch.set_num_threads(1)
    clocks: dict[str, list[float]] = {"wall_ms": [], "processor_ms": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        side = OurSide(configuration(Job.read(path)), Path(folder))
        start = _own_peak_mib()
        # The first round warms up.
        for index in range(1, rounds + 2):
            wall, processor = time.perf_counter(), time.process_time()
            side.round(index)
            taken = time.perf_counter() - wall, time.process_time() - processor
            # Poisson cohorts differ in size, and users in examples.
            examples = side.scalars["train/num_examples"]
            if index > 1 and examples:
                for name, seconds in zip(clocks, taken, strict=True):
                    clocks[name].append(1e3 * seconds * MEAN_EXAMPLES / examples)
        side.close()
    return {**clocks, "rounds": rounds, "start_mib": start, "peak_mib": _own_peak_mib()}


def _own_peak_mib() -> float:
    if (peak := peak_mib("self")) is None:
        raise SystemExit("/proc/self/status has no VmHWM: peak memory is only told on Linux")
    return peak


def peak_mib(process: int | str) -> float | None:
    """Peak memory of a process so far, in MiB; None where it is not told, as of one that ended."""
    # Not resource's: that of a child begins with what its parent had when it was forked.
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None


def table(report: Mapping[str, Any]) -> str:
    """The results as Markdown, with whether they are what they are to be."""
    found = {int(cohort): own for cohort, own in report["cohorts"].items()}
    reference = REFERENCE if REFERENCE in found else min(found)
    base = found[reference]
    lines = [
        f"{report['model']}, {report['engine']}, private, one thread; ratios to a cohort of "
        f"{reference}:",
        "",
        "| cohort | rounds | ms a client: median (min-max) | ratio | of processor time | "
        "before the first round (MiB) | peak memory (MiB) | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    holds = []
    for cohort, own in found.items():
        ratios = {
            name: statistics.median(own[name]) / statistics.median(base[name])
            for name in ("wall_ms", "processor_ms")
        }
        memory = own["peak_mib"] / base["peak_mib"]
        wall = own["wall_ms"]
        lines.append(
            f"| {cohort:,} | {own['rounds']} | {statistics.median(wall):.3f} ({min(wall):.3f}-"
            f"{max(wall):.3f}) | {ratios['wall_ms']:.3f} | {ratios['processor_ms']:.3f} "
            f"| {own['start_mib']:.0f} | {own['peak_mib']:.0f} | {memory:.3f} |"
        )
        if cohort == LARGEST:
            verdicts = {"time": ratios["wall_ms"], "memory": memory}
            holds = [
                f"{what} at {LARGEST:,} is at most {MOST} times that at {REFERENCE}: "
                f"{'yes' if value <= MOST else 'no'} ({value:.3f})."
                for what, value in verdicts.items()
            ]
    return "\n".join([*lines, *([""] if holds else []), *holds])
