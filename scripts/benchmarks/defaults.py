"""Defaults of ``pfl-bench run``, end to end, beside hand-set combinations.

Each side is the command itself in a process of its own, with store, ledger and run folder, of a
run of ``--rounds`` rounds; it is interrupted after ``--seconds`` of rounds, as nobody would wait
for all of a network's. Sides take turns, another first in each repetition. PyPI's ``pfl`` is a
process of its own that finds its data in memory, where it is installed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks import femnist, reddit, shakespeare
from benchmarks.common import Machine, in_turn, write_json
from benchmarks.pfl_side import is_installed
from benchmarks.remote import RemoteSide
from benchmarks.sides import tell
from benchmarks.workload import Job, configuration

DEFAULTS = "defaults"
# Workloads by the name of ``--only``, and what writes their stores.
LOADS = {**femnist.FEMNIST, "reddit": reddit.LOAD, "shakespeare": shakespeare.LOAD}
STORES = {"femnist": femnist.make_store, "reddit": reddit.make_store}
STORES["shakespeare"] = shakespeare.make_store
# Rounds that warm up, and the fewest that are timed.
_WARM, _FEWEST = 2, 3
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Times:
    """Of a side, one number a repetition.

    Attributes:
        wall: Seconds a round, from the end of one to the end of the next.
        processor: Processor seconds a round, of all its processes.
        start: Seconds from the command to the end of the first round.
    """

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)


def combinations(processes: int) -> dict[str, dict[str, Any]]:
    """Combinations set by hand: engines, slots (null: by the model's size, and one) and workers."""
    found = {}
    for workers in sorted({1, processes}):
        for engine, slots in (("sequential", None), ("vectorized", None), ("vectorized", 1)):
            name = f"{engine}{', 1 slot' if slots else ''}, {workers} workers"
            found[name] = {"engine": engine, "engine_lanes": slots, "workers": workers}
    return found


def _processes(root: int) -> Iterator[tuple[int, float]]:
    """A process and all below it, with their processor seconds so far."""
    parents: dict[int, list[int]] = defaultdict(list)
    seconds = {}
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        if text:
            fields = text.rpartition(")")[2].split()
            parents[int(fields[1])].append(int(entry.name))
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    waiting = [root]
    while waiting:
        process = waiting.pop()
        yield process, seconds.get(process, 0.0)
        waiting += parents[process]


def _processor_seconds(root: int) -> float:
    return sum(seconds for _, seconds in _processes(root))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def run_command(config: Path, out: Path, seconds: float, times: Times) -> None:
    """Run ``pfl-bench run`` until enough rounds were timed, then interrupt it.

    Raises:
        SystemExit: It ended with an error.
    """
    metrics = out / "metrics.jsonl"
    began = time.perf_counter()
    command = [sys.executable, "-m", "pfl_bench", "run", str(config), "--out", str(out)]
    # Jobs in a shell's background ignore it, and so would the run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with out.with_suffix(".log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    first: tuple[int, float, float] | None = None
    try:
        while child.poll() is None:
            time.sleep(0.02)
            done = _lines(metrics)
            if done and len(times.start) == len(times.wall):
                times.start.append(time.perf_counter() - began)
            now = (done, time.perf_counter(), _processor_seconds(child.pid))
            if first is None and done >= _WARM:
                first = now
            if first is not None and done - first[0] >= _FEWEST and now[1] - first[1] >= seconds:
                break
    finally:
        child.send_signal(signal.SIGINT)
        child.wait()
    if first is None or now[0] == first[0]:
        text = out.with_suffix(".log").read_text(errors="replace")
        raise SystemExit(f"pfl-bench run ended early:\n{text[-3000:]}")
    rounds = now[0] - first[0]
    times.wall.append((now[1] - first[1]) / rounds)
    times.processor.append((now[2] - first[2]) / rounds)


def run_pfl(job: Job, ranks: int, folder: Path, seconds: float, times: Times) -> None:
    """The same of pfl's simulated backend."""
    side = RemoteSide("pfl", job, folder, ranks)
    try:
        times.start.append(side.startup_seconds)
        roots = [child.pid for child in side._children]
        wall = processor = 0.0
        index = 0
        while index < _WARM + _FEWEST or wall < seconds:
            index += 1
            side.prepare(index)
            used, started = sum(map(_processor_seconds, roots)), time.perf_counter()
            side.round(index)
            if index > _WARM:
                wall += time.perf_counter() - started
                processor += sum(map(_processor_seconds, roots)) - used
        times.wall.append(wall / (index - _WARM))
        times.processor.append(processor / (index - _WARM))
    finally:
        side.close()


def measure(job: Job, options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Time all sides of one workload."""
    os.environ["PFL_BENCH_CACHE"] = str(home / "cache")
    sides: dict[str, Any] = {DEFAULTS: {}, **combinations(options.processes)}
    if "pfl" in options.peers and is_installed():
        sides["pfl, threads"] = (replace(job, threads=options.processes), 1)
        sides["pfl, processes"] = (job, options.processes)
    times = {name: Times() for name in sides}
    for repeat in range(options.repeats):
        for name in in_turn(sides, repeat):
            place = home / f"{repeat}-{name.replace(', ', '-').replace(' ', '-')}"
            if name.startswith("pfl"):
                told, ranks = sides[name]
                run_pfl(told, ranks, place, options.seconds, times[name])
                continue
            tree = configuration(job)
            del tree["num_threads"]
            federated = {"engine": "auto", "workers": "auto", **sides[name]}
            tree["federated"] |= {"num_rounds": options.rounds, **federated}
            tree["evaluation"] |= {"splits": [], "every": options.rounds}
            place.with_suffix(".yaml").write_text(yaml.safe_dump(tree))
            run_command(place.with_suffix(".yaml"), place, options.seconds, times[name])
            if name == DEFAULTS and not repeat:
                tell(_picked(place))
        tell(f"repetition {repeat + 1}: " + _short(times))
    load = job.load
    return {
        "workload": f"{load.task} {load.model}, cohort {load.cohort_size}, batch {load.batch_size}",
        "private": job.private,
        "picked": _picked(home / f"0-{DEFAULTS}"),
        "sides": {name: vars(taken) for name, taken in times.items()},
    }


def _picked(folder: Path) -> str:
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    engine, processes = environment["engine"]["name"], environment["processes"]
    return engine if processes in engine else f"{engine}, {processes}"


def _short(times: dict[str, Times]) -> str:
    return ", ".join(f"{name} {taken.wall[-1]:.3f}" for name, taken in times.items())


def _ratio(result: dict[str, Any], side: str | None, clock: str) -> str:
    """Speed of the defaults in multiples of a side's, repetition by repetition."""
    if side is None:
        return "-"
    sides = result["sides"]
    pairs = zip(sides[DEFAULTS][clock], sides[side][clock], strict=True)
    found = [other / own for own, other in pairs]
    return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"


def _best(result: dict[str, Any], family: Sequence[str], clock: str) -> str | None:
    return min(
        (name for name in result["sides"] if name.startswith(tuple(family))),
        key=lambda name: statistics.median(result["sides"][name][clock]),
        default=None,
    )


def table(report: Mapping[str, Any]) -> str:
    """A row per workload, then all sides, in Markdown."""
    header = ["workload", "picked", "s per round", "best by hand", "times its speed"]
    rows = [[*header, "times pfl's speed", "the same, processor time"], ["---"] * 7]
    sides = [["workload", "side", "s per round", "processor s per round"], ["---"] * 4]
    for result in report["results"]:
        hand = _best(result, ("sequential", "vectorized"), "wall")
        what = f"{result['workload']}, {'private' if result['private'] else 'not private'}"
        rows.append(
            [
                what,
                result["picked"],
                f"{statistics.median(result['sides'][DEFAULTS]['wall']):.3f}",
                str(hand),
                _ratio(result, hand, "wall"),
                _ratio(result, _best(result, ("pfl",), "wall"), "wall"),
                _ratio(result, _best(result, ("pfl",), "processor"), "processor"),
            ]
        )
        for name, times in result["sides"].items():
            each = (", ".join(f"{s:.3f}" for s in times[clock]) for clock in ("wall", "processor"))
            sides.append([what, name, *each])
            what = ""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"| {' | '.join(row)} |" for row in sides)])


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=LOADS, help="softmax and cnn if none")
    parser.add_argument("--cohorts", type=int, nargs="+", help="20, and an LSTM's own, if none")
    parser.add_argument("--batches", type=int, nargs="+", help="20, and an LSTM's own, if none")
    parser.add_argument("--users", type=int, default=120, help="of the images")
    parser.add_argument("--rounds", type=int, default=1500, help="of the run that is begun")
    parser.add_argument("--seconds", type=float, default=15.0, help="of rounds that are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--private", choices=("yes", "no", "both"), default="yes")
    parser.add_argument("--peers", nargs="*", choices=("pfl",), default=["pfl"])
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    return parser.parse_args()


def main() -> None:
    """Time all workloads."""
    options = read_options()
    if "pfl" in options.peers and not is_installed():
        tell("pfl is not installed, so there is no comparison with it: see docs/performance.md")
    machine, results = Machine(), []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for model in options.only or ("softmax", "cnn"):
            load = LOADS[model]
            store = Path(folder) / f"{load.task}.h5"
            if not store.exists():
                few = (options.users,) if load.task == "femnist" else ()
                STORES[load.task](store, *few)
            own = (20, 20) if load.task == "femnist" else (load.cohort_size, load.batch_size)
            for cohort, batch, private in itertools.product(
                options.cohorts or own[:1],
                options.batches or own[1:],
                {"yes": [True], "no": [False], "both": [False, True]}[options.private],
            ):
                job = Job(str(store), replace(load, cohort_size=cohort, batch_size=batch), private)
                home = Path(folder) / f"{model}-{cohort}-{batch}-{private}"
                home.mkdir()
                results.append(measure(job, options, home))
                tell(table({"results": results[-1:]}))
    report = {"subject": "defaults", "machine": machine.describe(), "results": results}
    if options.json is not None:
        write_json(options.json, report)
    print(table(report))
