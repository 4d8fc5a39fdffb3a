"""Settles what a configuration leaves to "auto": engine, slots and workers.

A run that goes on keeps what it began with. Others take what was measured on a few of the run's
own clients, once for each kind of work on a machine (``timing``), and is kept for later runs
(``cache``). From the times the choice follows by arithmetic (``choice``), so that a command picks
the same as long as they are kept. Runs of seconds are not worth measuring.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pfl_bench
from pfl_bench.client.batched.auto_slots import slots_of
from pfl_bench.client.costs import StepFlops
from pfl_bench.client.machine import cpu_capability, processor_name
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.autotune.cache import TimingCache, cache_folder
from pfl_bench.federated.autotune.choice import (
    SEQUENTIAL,
    Candidate,
    fastest,
    pick_workers,
    workers_of,
)
from pfl_bench.federated.autotune.timing import (
    choose_sample,
    expected_client_seconds,
    expected_probe_seconds,
    time_engines,
)
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.shards import num_shards
from pfl_bench.federated.workers.cores import cores_of_this_run, most_by_memory
from pfl_bench.files import read_json
from pfl_bench.profiling import phase
from pfl_bench.types import LocalTraining

# A run that is expected to train for less is not worth measuring, nor one where that would take
# more than this share of it.
_WORTH_SECONDS, _SHARE = 8.0, 0.03
# What of local training decides its time by more than whether it is there.
_SIZES = ("epochs", "max_steps", "batch_size", "batch_fraction")


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
    return parts.settled(_with_federated(parts.resolved, changes))


def _with_federated(resolved: ResolvedConfig, changes: dict[str, Any]) -> ResolvedConfig:
    federated = resolved.config.federated
    assert federated is not None
    config = resolved.config.model_copy(update={"federated": federated.model_copy(update=changes)})
    tree = {**resolved.tree, "federated": {**resolved.tree["federated"], **changes}}
    return dataclasses.replace(resolved, config=config, tree=tree)


def _recorded(folder: Path) -> tuple[Candidate | None, int | None]:
    """Engine and workers that an unfinished run began with; None for what is not known."""
    environment = read_json(folder / "environment.json")
    if environment is None:
        return None, None
    engine, processes = environment.get("engine"), environment.get("processes", "")
    name = engine.get("name") if isinstance(engine, dict) else None
    return Candidate.of(str(name)) if name else None, workers_of(str(processes))


def _choose(
    parts: FederatedParts,
    step: StepFlops,
    processes: int | None,
    notice: Callable[[str], None],
) -> tuple[Candidate, int, str]:
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
        together = max((c.slots or 1 for c in candidates), default=1)
        together = min(together, -(-options.cohort_size // most))
        sample = choose_sample(parts.split, local, step, together)
        work = _work(parts, sample.local, len(sample.users), candidates)
        cache = TimingCache(cache_folder(), work, notice)
        kept = cache.read()
        if kept is not None:
            seconds, reason = kept, _because(kept, f"kept in {cache.path}", reason)
        elif expected_probe_seconds(sample, candidates) > _SHARE * whole:
            reason = reason or "measuring others would take too much of the run"
        else:
            started = time.perf_counter()
            with phase("timing engines"):
                seconds = time_engines(candidates, sample, parts, notice)
            cache.write(seconds)
            took = f"measured in {time.perf_counter() - started:.1f} s"
            reason = _because(seconds, took, reason)
    candidate = fastest(seconds)
    if processes is None:
        round_seconds = seconds[candidate] * options.cohort_size
        # Sums come back in float64.
        fitting = most_by_memory(8 * model.num_parameters)
        most = most if fitting is None else min(most, fitting)
        processes = pick_workers(round_seconds, options.num_rounds, most)
    return candidate, processes, reason


def _candidates(parts: FederatedParts) -> tuple[list[Candidate], str]:
    """Engines that may train, and the reason why no other may; empty where others may."""
    options = parts.options
    local = parts.algorithm.local_training
    if options.engine == "auto":
        if parts.asks_engine:
            return [SEQUENTIAL], "others do not give the algorithm what it asks of them"
        slots = {1, slots_of(parts.model, parts.forward, parts.split, local)}
        if options.engine_lanes is not None:
            slots = {options.engine_lanes}
        return [SEQUENTIAL, *(Candidate("vectorized", number) for number in sorted(slots))], ""
    if options.engine == "vectorized":
        number = options.engine_lanes or slots_of(parts.model, parts.forward, parts.split, local)
        return [Candidate("vectorized", number)], "named"
    return [Candidate(options.engine)], "named"


def _because(seconds: dict[Candidate, float], how: str, reason: str) -> str:
    each = ", ".join(
        f"{c.description} {1000 * t:.3g}" for c, t in sorted(seconds.items(), key=lambda i: i[1])
    )
    return f"{reason}{': ' if reason else ''}ms a client: {each} ({how})"


def _work(
    parts: FederatedParts,
    local: LocalTraining,
    num_clients: int,
    candidates: Sequence[Candidate],
) -> dict[str, Any]:
    """Properties that decide how long clients take: the name under which times are kept."""
    resolved, model = parts.resolved, parts.model
    shapes = [[list(p.shape), str(p.dtype)] for p in model.parameters]
    described = f"{model.module}{shapes}"
    training = {
        field.name: getattr(local, field.name)
        if field.name in _SIZES
        else bool(getattr(local, field.name))
        for field in dataclasses.fields(local)
    }
    device = {}
    if model.device.type == "cuda":
        device = {"device": torch.cuda.get_device_name(model.device)}
    return device | {
        "pfl_bench": pfl_bench.__version__,
        "torch": torch.__version__,
        "processor": processor_name(),
        "instructions": cpu_capability(),
        "threads": torch.get_num_threads(),
        "task": resolved.tree["task"]["name"],
        "data": parts.task.facts.checksum,
        "model": hashlib.sha256(described.encode()).hexdigest(),
        "num_parameters": model.num_parameters,
        "precision": resolved.config.precision,
        "channels_last": resolved.config.channels_last,
        "local_training": training,
        "clients": num_clients,
        "candidates": [candidate.description for candidate in candidates],
    }


def _most_workers(parts: FederatedParts) -> int:
    """As many as there are cores and clients for."""
    if parts.model.device.type != "cpu" or parts.needs_one_process:
        return 1
    cores = cores_of_this_run() // torch.get_num_threads()
    return max(1, min(cores, num_shards(parts.options.cohort_size)))
