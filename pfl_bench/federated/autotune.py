"""Settles what a configuration leaves to "auto": engine, slots and workers.

A run that goes on keeps what it began with. Others take what was measured on a few of the run's
own clients, once for each kind of work on a machine, and is kept for later runs (``engine_times``).
From the times the choice follows by arithmetic, so that a command picks the same as long as they
are kept. Runs of seconds are not worth measuring.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfl_bench.client.batched.auto_slots import slots_of
from pfl_bench.client.costs import StepFlops
from pfl_bench.federated.engine_times import (
    Candidate,
    TimesFile,
    choose_sample,
    expected_client_seconds,
    time_engines,
    work_of,
)
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.shards import num_shards
from pfl_bench.federated.workers.cores import cores_of_this_run, most_by_memory
from pfl_bench.files import read_json
from pfl_bench.profiling import phase

# A run that is expected to train for less is not worth measuring, nor one where that would take
# more than this share of it.
_WORTH_SECONDS, _SHARE = 8.0, 0.03
# Of two processes beside one another, how fast each is beside one alone: caches and memory are
# shared. An estimate: two workers on two cores were 1.5 to 2.0 times one (docs/performance.md).
_EFFICIENCY = 0.8
# Until worker processes have loaded torch and the data, and what each of them adds to a round.
_START_SECONDS, _START_SECONDS_EACH = 5.0, 0.1
_ROUND_SECONDS_EACH = 5e-4
# What is simpler is taken unless the other is faster by so much.
_MARGIN = 0.03
_PROCESSES = re.compile(r"(\d+) worker processes")

SEQUENTIAL = Candidate("sequential")


def settle(
    parts: FederatedParts,
    step: StepFlops,
    folder: Path,
    processes: int | None,
    notice: Callable[[str], None],
) -> FederatedParts:
    """Settle engine, slots and workers.

    Args:
        parts: What the run is made of; the model is left as it was.
        step: FLOPs of a training step.
        folder: The run's; what it has recorded is kept to.
        processes: Of a run whose processes are there already; None for one that may start some.
        notice: Called with what was picked, and why.

    Returns:
        The parts under a configuration as if the user had named what was picked, so that the run
        has the same bits; as they are, where nothing was left to "auto".
    """
    options = parts.options
    picks_workers = processes is None and options.workers == "auto"
    if options.engine != "auto" and not picks_workers:
        return parts
    candidate, workers = _recorded(folder)
    reason = "as the run began"
    if candidate is None or workers is None:
        chosen, most_fitting, why = _choose(parts, step, processes, notice)
        if candidate is None:
            candidate, reason = chosen, why
        workers = workers or most_fitting
    changes: dict[str, Any] = {}
    if options.engine == "auto":
        notice(f"engine: auto picked '{candidate.description}': {reason}")
        if candidate.slots is None and options.engine_lanes is not None:
            notice(f"engine: engine_lanes={options.engine_lanes} is not used by it")
        changes |= {"engine": candidate.engine, "engine_lanes": candidate.slots}
    if picks_workers:
        if workers > 1:
            notice(f"workers: auto picked {workers}")
        changes |= {"workers": workers}
    resolved = parts.resolved
    federated = options.model_copy(update=changes)
    config = resolved.config.model_copy(update={"federated": federated})
    tree = {**resolved.tree, "federated": {**resolved.tree["federated"], **changes}}
    return parts.settled(dataclasses.replace(resolved, config=config, tree=tree))


def _recorded(folder: Path) -> tuple[Candidate | None, int | None]:
    """Engine and workers that an unfinished run began with; None for what is not known."""
    environment = read_json(folder / "environment.json")
    if environment is None:
        return None, None
    engine = environment.get("engine") or {}
    return Candidate.of(engine.get("name") or ""), workers_of(environment.get("processes", ""))


def workers_of(processes: str) -> int | None:
    """Workers by their description in a run's folder; "" is one, None is no worker processes."""
    found = _PROCESSES.fullmatch(processes)
    if found is not None:
        return int(found[1])
    return None if processes else 1


def _choose(
    parts: FederatedParts,
    step: StepFlops,
    processes: int | None,
    notice: Callable[[str], None],
) -> tuple[Candidate, int, str]:
    """The candidate and the number of workers that are expected to be best, and why."""
    options, model, local = parts.options, parts.model, parts.algorithm.local_training
    if options.workers != "auto":
        processes = processes or options.workers
    most = processes or _most_workers(parts)
    candidates, reason = _candidates(parts)
    expected = expected_client_seconds(np.diff(parts.split.offsets), local, step)
    whole = expected * options.cohort_size * options.num_rounds
    seconds = dict.fromkeys(candidates[:1], expected)
    if model.device.type not in ("cpu", "cuda"):
        reason = f"no other was measured on {model.device.type}"
    elif whole < _WORTH_SECONDS:
        reason = reason or "the run is too short to measure others"
    elif len(candidates) > 1 or most > 1:
        together = min(max(c.slots or 1 for c in candidates), -(-options.cohort_size // most))
        sample = choose_sample(parts.split, local, step, together)
        file = TimesFile(work_of(parts, sample, candidates), candidates, notice)
        kept = file.read()
        if kept is None and sample.measuring_seconds(candidates) > _SHARE * whole:
            reason = reason or "measuring others would take too much of the run"
        else:
            how = f"kept in {file.path}"
            if kept is None:
                started = time.perf_counter()
                with phase("timing engines"):
                    kept = time_engines(candidates, sample, parts, notice)
                file.write(kept)
                how = f"measured in {time.perf_counter() - started:.1f} s"
            seconds = kept
            ordered = sorted(seconds.items(), key=lambda item: item[1])
            each = ", ".join(f"{c.description} {1000 * t:.3g}" for c, t in ordered)
            reason = f"{reason}{': ' if reason else ''}ms a client: {each} ({how})"
    candidate = fastest(seconds)
    if processes is None:
        # Sums come back in float64.
        fitting = most_by_memory(8 * model.num_parameters)
        most = most if fitting is None else min(most, fitting)
        round_seconds = seconds[candidate] * options.cohort_size
        processes = pick_workers(round_seconds, options.num_rounds, most)
    return candidate, processes, reason


def _candidates(parts: FederatedParts) -> tuple[list[Candidate], str]:
    """Engines that may train, and the reason why no other may; empty where others may."""
    options = parts.options
    if options.engine == "auto" and parts.asks_engine:
        return [SEQUENTIAL], "others do not give the algorithm what it asks of them"
    if options.engine not in ("auto", "vectorized"):
        return [Candidate(options.engine)], "named"
    slots = options.engine_lanes or slots_of(
        parts.model, parts.forward, parts.split, parts.algorithm.local_training
    )
    if options.engine == "vectorized":
        return [Candidate("vectorized", slots)], "named"
    numbers = {slots} if options.engine_lanes else {1, slots}
    return [SEQUENTIAL, *(Candidate("vectorized", number) for number in sorted(numbers))], ""


def _most_workers(parts: FederatedParts) -> int:
    """As many as there are cores and clients for."""
    if parts.model.device.type != "cpu" or parts.needs_one_process:
        return 1
    cores = cores_of_this_run() // torch.get_num_threads()
    return max(1, min(cores, num_shards(parts.options.cohort_size)))


def fastest(seconds: Mapping[Candidate, float]) -> Candidate:
    """The fastest candidate by the seconds that a client takes.

    But an engine that trains one client at a time rather than one with slots, and the sequential
    one rather than any other, where they are as fast within a few percent.
    """

    def handicapped(candidate: Candidate) -> float:
        steps = 0 if candidate == SEQUENTIAL else (1 if candidate.slots in (None, 1) else 2)
        return seconds[candidate] * (1 + _MARGIN * steps)

    return min(seconds, key=handicapped)


def pick_workers(round_seconds: float, num_rounds: int, most: int) -> int:
    """The number of processes, ``most`` at most, with which a run is expected to end first.

    ``round_seconds`` are those that the clients of a round take one process.
    """

    def whole(workers: int) -> float:
        if workers == 1:
            return num_rounds * round_seconds
        shared = round_seconds / (1 + (workers - 1) * _EFFICIENCY)
        started = _START_SECONDS + _START_SECONDS_EACH * workers
        return num_rounds * (shared + _ROUND_SECONDS_EACH * workers) + started

    return min(range(1, most + 1), key=whole)
