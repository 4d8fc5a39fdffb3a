"""Time and peak memory of audits that compute rounds again, beside the runs that they audit.

Each is the command itself, in a process of its own: a private run of the sequential engine without
workers, and its audit with `--recompute none`, `sample` and `all`. What `all` takes beyond `none`,
divided by the rounds, is the cost of computing a round again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import Machine, write_json
from benchmarks.femnist import make_store
from benchmarks.scale import MEAN_EXAMPLES, peak_mib
from benchmarks.sides import tell
from benchmarks.workload import Job, Workload, configuration

MODES = ("none", "sample", "all")
DEMO = "demo/private_federated.yaml"
LEAF_CNN_COHORTS = (10, 100)


def main() -> None:
    """Measure all runs and their audits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="of LEAF's CNN")
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    options = parser.parse_args()
    machine, runs = Machine(), {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        os.environ["PFL_BENCH_CACHE"] = str(folder / "cache")
        runs["demo's private row, cohort 60"] = _measure(DEMO, folder / "demo", options.repeats)
        store = folder / "generated.h5"
        make_store(store, num_users=max(LEAF_CNN_COHORTS) * 5 // 4, mean_examples=MEAN_EXAMPLES)
        for cohort in LEAF_CNN_COHORTS:
            job = Job(str(store), Workload("femnist", "leaf_cnn", cohort, 10, 0.05), private=True)
            tree = configuration(job)
            tree["federated"]["num_rounds"] = options.rounds
            path = folder / f"cohort-{cohort}.yaml"
            path.write_text(yaml.safe_dump(tree), encoding="utf-8")
            what = f"LEAF's CNN, cohort {cohort}"
            runs[what] = _measure(str(path), path.with_suffix(""), options.repeats)
    report = {"subject": "audit", "machine": machine.describe(), "runs": runs}
    if options.json is not None:
        write_json(options.json, report)
    print(table(report))


def _measure(row: str, out: Path, repeats: int) -> dict[str, Any]:
    """A run, and its audits in turn: seconds and peak memory of each repetition."""
    found: dict[str, Any] = {"seconds": {mode: [] for mode in MODES}}
    peaks: dict[str, list[float]] = {mode: [] for mode in MODES}
    settings = ["federated.engine=sequential", "federated.workers=1"]
    _, found["run_mib"] = _command("run", row, *settings, "--out", str(out))
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found["round_seconds"] = [json.loads(line)["time/round_seconds"] for line in lines]
    for repeat in range(repeats):
        for mode in MODES:
            seconds, peak = _command("audit", str(out), "--recompute", mode)
            found["seconds"][mode].append(seconds)
            peaks[mode].append(peak)
            report = json.loads((out / "audit.json").read_text(encoding="utf-8"))
            found[mode] = report["words"]
        tell(f"{out.name}, repetition {repeat + 1}: {found['seconds']}")
    return {**found, "audit_mib": {mode: max(each) for mode, each in peaks.items()}}


def _command(*arguments: str) -> tuple[float, float]:
    """Seconds of ``pfl-bench`` with these arguments, and its peak memory in MiB."""
    peak, began = 0.0, time.perf_counter()
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "pfl_bench", *arguments]
        with subprocess.Popen(command, stdout=log, stderr=log) as child:
            while child.poll() is None:
                peak = peak_mib(child.pid) or peak
                time.sleep(0.02)
        if child.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read().decode()[-3000:]}")
    return time.perf_counter() - began, peak


def table(report: Mapping[str, Any]) -> str:
    """The results as Markdown: medians of the repetitions."""
    lines = [
        "| run | s per round | s per round computed again | ratio | s of an audit: `none` "
        "| `sample` | what `sample` says | `all` | peak MiB: run | `none` | `all` |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in report["runs"].items():
        rounds = len(run["round_seconds"])
        # The first round warms up.
        trained = statistics.median(run["round_seconds"][1:])
        pairs = zip(run["seconds"]["none"], run["seconds"]["all"], strict=True)
        again = statistics.median((whole - none) / rounds for none, whole in pairs)
        none, sample, whole = (statistics.median(run["seconds"][mode]) for mode in MODES)
        cells = [
            name,
            f"{trained:.3f}",
            f"{again:.3f}",
            f"{again / trained:.2f}",
            f"{none:.1f}",
            f"{sample:.1f}",
            run["sample"],
            f"{whole:.1f}",
            f"{run['run_mib']:.0f}",
            f"{run['audit_mib']['none']:.0f}",
            f"{run['audit_mib']['all']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
