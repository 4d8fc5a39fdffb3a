#!/usr/bin/env python
"""Checks and measures pfl-bench on the GPU of this machine, a step at a time.

Each step is a process with a time limit of its own. What it found is added to the JSON file before
the next begins, so that neither a failure nor an interruption loses anything, and a step that fails
goes on to the next. Without a GPU, steps that need one are "skipped".

    bash scripts/gpu_check.sh correctness --out correctness.json
    bash scripts/gpu_check.sh speed --out speed.json
    bash scripts/gpu_check.sh --only environment --only bench-softmax
    bash scripts/gpu_check.sh correctness --jobs 8
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import niid_cells
from benchmarks.gpu_steps import HALVES, STEPS, Step, pick_device, run_step

TAIL = 4000
T = TypeVar("T")


def main() -> int:
    """Run the steps; 0 if none failed."""
    options = _read_options()
    if options.list:
        for name, step in STEPS.items():
            print(f"{name:22} {step.limit_s:4} s{'  GPU' if step.needs_gpu else ''}  {step.what}")
        return 0
    device = pick_device(options.device)
    if options.step:
        found = run_step(options.step, device, Path(options.folder))
        Path(options.folder, "result.json").write_text(json.dumps(found), encoding="utf-8")
        return 0
    names = options.only or HALVES.get(options.half) or list(STEPS)
    report: dict[str, Any] = {"device": device, "started": _now(), "steps": {}}
    ends = time.monotonic() + options.budget

    def take(name: str) -> tuple[str, dict[str, Any]]:
        return name, _outcome(name, STEPS[name], device, ends - time.monotonic())

    with contextlib.closing(_as_they_end(take, names, options.jobs)) as ended:
        for name, outcome in ended:
            report["steps"][name] = outcome
            _write(options.out, report)
            print(f"{name:22} {outcome['status']:8} {outcome.get('why', '')}", flush=True)
    print(f"written to {options.out}")
    return int(any(step["status"] == "failed" for step in report["steps"].values()))


def _as_they_end(
    take: Callable[[str], T], names: Sequence[str], jobs: int
) -> Generator[T, None, None]:
    """Results of steps; an interruption ends the one that runs, of several begins no other."""
    if jobs == 1:
        yield from map(take, names)
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        for done in as_completed([pool.submit(take, name) for name in names]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("half", nargs="?", choices=HALVES, help="these steps; all if left out")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="the JSON file")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", action="append", choices=STEPS, help="these steps; repeatable")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds of all steps together")
    parser.add_argument(
        "--jobs", type=int, default=1, help="steps at a time; more than 1 distorts their times"
    )
    parser.add_argument("--list", action="store_true", help="name the steps and their limits")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: must be at least 1")
    return options


def _outcome(name: str, step: Step, device: str, left: float) -> dict[str, Any]:
    """Run a step in a process group of its own, and say how it ended."""
    if step.needs_gpu and device != "cuda":
        return {"status": "skipped", "why": "no GPU"}
    if left < 1:
        return {"status": "skipped", "why": "the budget of time is spent"}
    limit, began = min(step.limit_s, left), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        command = [sys.executable, __file__, "--step", name, "--device", device]
        with Path(folder, "output.txt").open("w") as output:
            child = subprocess.Popen(
                [*command, "--folder", folder],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, niid_cells.LIMIT: str(limit)},
            )
            why = None
            try:
                code = child.wait(limit)
                why = None if code == 0 else f"exit code {code}"
            except subprocess.TimeoutExpired:
                why = f"not done after {limit:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        seconds = round(time.monotonic() - began, 1)
        if why is not None:
            said = Path(folder, "output.txt").read_text(encoding="utf-8", errors="replace")
            return {"status": "failed", "why": why, "seconds": seconds, "output": said[-TAIL:]}
        found = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    return {"status": "passed", "seconds": seconds, "found": found}


def _write(path: Path, report: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


if __name__ == "__main__":
    sys.exit(main())
