"""A store of LEAF's Reddit in full size: seconds to open, time of a cohort, memory added."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

USERS, COMMENTS = 1_660_820, 56_587_343
COHORT = 1000
TARGETS = {"open_seconds": 1.0, "draw_and_read_ms": 100.0, "memory_mib": 200e6 / 2**20}


def main() -> None:
    """Make the store unless one is given, and measure it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", help="a store that exists; else one is generated")
    parser.add_argument("--folder", help="where the generated one goes for the while (15 GB)")
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--comments", type=int, default=COMMENTS)
    parser.add_argument("--cohort", type=int, default=COHORT)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cold", action="store_true", help="drop the file's cached pages first")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path = Path(arguments.store)
        print(json.dumps(measure(path, arguments.cohort, arguments.rounds, arguments.cold)))
        return
    if arguments.store:
        _report(Path(arguments.store), arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        from tasks.reddit.generate import Options, write_store

        path = Path(folder) / "reddit.h5"
        start = time.perf_counter()
        options = Options(form="store", users=arguments.users, comments=arguments.comments)
        sequences = write_store(path, options, _tell)
        seconds = time.perf_counter() - start
        size = path.stat().st_size / 1e9
        print(f"generated {sum(sequences.values()):,} sequences, {size:.2f} GB, in {seconds:.0f} s")
        _report(path, arguments)


def _tell(what: str, done: int, total: int | None) -> None:
    if done == total or done % (1 << 17) == 0:
        print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)


def _report(path: Path, arguments: argparse.Namespace) -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "bench.py"), "reddit-scale"]
    command += ["--child", "--store", str(path), "--cohort", str(arguments.cohort)]
    command += ["--rounds", str(arguments.rounds), *["--cold"] * arguments.cold]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    print(f"{found['users']:,} users of train, {found['sequences']:,} sequences of all splits")
    print("| quantity | measured | target | holds |\n|---|---|---|---|")
    for name, target in TARGETS.items():
        holds = "yes" if found[name] <= target else "no"
        print(f"| {name} | {found[name]:.3f} | {target:.3f} | {holds} |")
    for name in ("draw_ms", "first_round_ms", "slowest_round_ms", "cohort_mib"):
        print(f"| {name} | {found[name]:.3f} | | |")


def measure(path: Path, cohort: int, rounds: int, cold: bool) -> dict[str, Any]:
    """Measure a store in this process, which has not opened one before.

    Args:
        path: The store.
        cohort: Expected users a round, drawn by Poisson sampling.
        rounds: Rounds that are drawn and read.
        cold: Whether the operating system is first asked to forget the file's content, in which
            case the first round tells what the disk costs.

    Returns:
        Seconds of opening the task; milliseconds of drawing a cohort, of drawing it and reading
        all of its users' examples (median, first, slowest); MiB that opening and reading added to
        the process, and that a cohort's examples take where they are kept.
    """
    from pfl_bench.federated.sampling import build_sampler
    from privacy.schemes.poisson import Poisson
    from tasks.reddit.task import Options, build

    if cold:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    before = _resident_mib()
    start = time.perf_counter()
    task = build(Options(data=str(path)))
    train = task.split("train")
    opened = time.perf_counter() - start
    sampler = build_sampler(Poisson(), train.num_users, cohort)
    draws, whole, kept = [], [], 0
    peak = _resident_mib()
    for index in range(rounds):
        rng = np.random.default_rng([7, index])
        start = time.perf_counter()
        users = sampler.draw(rng)
        draws.append(time.perf_counter() - start)
        examples = [train.read_user(user, rng) for user in users.tolist()]
        whole.append(time.perf_counter() - start)
        kept = sum(2 * part.inputs.numel() * 8 for part in examples)
        peak = max(peak, _resident_mib())
    return {
        "users": train.num_users,
        "sequences": sum(task.split(name).num_examples for name in task.split_names),
        "open_seconds": opened,
        "draw_ms": 1e3 * statistics.median(draws),
        "draw_and_read_ms": 1e3 * statistics.median(whole),
        "first_round_ms": 1e3 * whole[0],
        "slowest_round_ms": 1e3 * max(whole),
        "memory_mib": peak - before,
        "cohort_mib": kept / 2**20,
    }


def _resident_mib() -> float:
    # Linux only; resource's peak would count what the libraries needed while they were loaded.
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
