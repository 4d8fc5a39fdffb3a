"""Starts a run again and again and kills it with SIGKILL at random moments, until it is done.

A program of its own, so that it may fork: python -m tests.equivalence.kill_loop FOLDER CASES, where
cases are a JSON list of [setting, rounds from one checkpoint to the next, kills]. Prints one JSON
object a case: how often it killed, how many runs ended, and which did not end like the
uninterrupted one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from pfl_bench.files import read_metrics
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from tests.forking import fork
from tests.helpers import make_config


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on interruptions; times are left out."""
    state = load_latest(folder / "checkpoints")
    assert state is not None
    ledger = folder / "ledger.jsonl"
    rows = [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_metrics(folder / "metrics.jsonl")
    ]
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"]
    return {
        "weights": state["trainer"]["central"].numpy().tobytes().hex(),
        "ledger": ledger.read_text() if ledger.exists() else None,
        "metrics": rows,
        "summary": summary,
    }


def wait_until_free(folder: Path) -> None:
    """Wait until no process holds a folder's lock.

    A killed run may have just started ``git``, which has the run's open files until it executes;
    on a busy machine that outlives the run, whose lock is then refused with EAGAIN.
    """
    if folder.exists():
        with FileLock(folder / ".lock", timeout=60):
            pass


def attempt(config: Any, folder: Path, kill_after: float) -> bool:
    """Run in a child; kill it after so many seconds. Tell whether it was killed."""
    wait_until_free(folder)
    child = fork()
    if child == 0:
        code = 1
        try:
            run(config, folder, resume=True)
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + kill_after
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status != 0:
                raise SystemExit(f"the run itself failed with status {status}")
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> None:
    """See the module."""
    torch.set_num_threads(1)
    for number, (setting, every, kills) in enumerate(json.loads(sys.argv[2])):
        result = kill_and_resume(Path(sys.argv[1]) / str(number), setting, every, kills)
        print(json.dumps(result), flush=True)


def kill_and_resume(root: Path, setting: str, every: int, kills: int) -> dict[str, Any]:
    """Kill runs of a setting so many times, and resume each until it ends."""
    changes: dict[str, Any] = {"checkpoint__every": every, "model__name": "mlp"}
    # Large batches: kills fall between the steps rather than into one of a thousand.
    if "federated" in setting:
        changes.update(federated__num_rounds=15, federated__local_batch_size=16)
    else:
        changes["central__num_epochs"] = 6
    config = make_config(setting, **changes)
    # The first run imports what it needs, which takes longer than the run: a second one is timed.
    run(config, root / "first")
    started = time.monotonic()
    run(config, root / "reference")
    length = time.monotonic() - started
    reference = outcome(root / "reference")
    assert outcome(root / "first") == reference
    moments = random.Random(f"{setting} {every}")
    killed, finished, differing, stalled = 0, 0, [], 0
    while killed < kills:
        folder = root / f"run-{finished}"
        # Mostly early in what is left, now and then late; always longer if nothing moves.
        limit = length * (0.05 + moments.random() ** 2) + 0.02 * stalled
        if attempt(config, folder, limit):
            killed += 1
            stalled += 1
            continue
        stalled = 0
        if outcome(folder) != reference:
            differing.append(str(folder))
        finished += 1
    last = root / f"run-{finished}"
    while attempt(config, last, 600.0):
        pass
    if outcome(last) != reference:
        differing.append(str(last))
    return {"killed": killed, "finished": finished + 1, "differing": differing}


if __name__ == "__main__":
    main()
