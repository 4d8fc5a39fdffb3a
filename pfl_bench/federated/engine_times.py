"""Times engines on a few of a run's own clients, and keeps the times for later runs.

Timing leaves no trace in the run. The files of kept times are in ``pfl-bench/engines`` below
``$XDG_CACHE_HOME``, or below ``~/.cache``. The variable ``PFL_BENCH_CACHE`` names another folder in
the place of ``pfl-bench``, or is "off". A file that is damaged or cannot be written is said, and
never stops a run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import pfl_bench
from pfl_bench import plugins
from pfl_bench.client.costs import StepFlops, untouched
from pfl_bench.client.machine import cpu_capability, processor_name
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.shards import expected_costs, expected_work
from pfl_bench.files import parse_json, read_text, write_json
from pfl_bench.types import ConfigError, Engine, FederatedSplit, LocalTraining

VARIABLE = "PFL_BENCH_CACHE"
_FORMAT = 1
# Of one core, about: whether a run is worth measuring. Results never depend on them.
_SECONDS_A_STEP, _FLOPS_A_SECOND = 2e-4, 3e10
# Passes over the chosen clients: one warms up, the best of the others counts.
_REPEATS = 3
# Where a pass would take longer, clients take their first steps alone, but three at least.
_PASS_SECONDS, _FEWEST_STEPS = 0.1, 3
_MOST_CLIENTS = 32
# What of local training decides its time by more than whether it is there.
_SIZES = ("epochs", "max_steps", "batch_size", "batch_fraction")
_DESCRIPTION = re.compile(r"(\w+)(?:, (\d+) slots)?(?:, .+)?")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine, and how many clients it trains at once; None for an engine without slots."""

    engine: str
    slots: int | None = None

    @property
    def description(self) -> str:
        """The engine's own description."""
        return self.engine if self.slots is None else f"{self.engine}, {self.slots} slots"

    @property
    def overrides(self) -> str:
        """Settings of a row that ask for it, as a command has them."""
        lanes = "" if self.slots is None else f" federated.engine_lanes={self.slots}"
        return f"federated.engine={self.engine}{lanes}"

    @classmethod
    def of(cls, description: str) -> Candidate | None:
        """Read a description; what follows the slots, such as processes, is left out."""
        found = _DESCRIPTION.fullmatch(description)
        return None if found is None else cls(found[1], int(found[2]) if found[2] else None)


@dataclass(frozen=True)
class Sample:
    """The clients that are timed, and how.

    Attributes:
        users: Indices into the training split, sizes as the population's.
        local: How they train: as in the run, but of the first steps alone where they are long.
        scale: Expected time of the population's mean client, in those of the sample together.
        pass_seconds: What a pass is expected to take, before anything was measured.
    """

    users: NDArray[np.int64]
    local: LocalTraining
    scale: float
    pass_seconds: float

    def measuring_seconds(self, candidates: Sequence[Candidate]) -> float:
        """Expected seconds of ``time_engines``."""
        return self.pass_seconds * len(candidates) * (1 + _REPEATS)


def expected_client_seconds(
    sizes: NDArray[np.int64], local: LocalTraining, step: StepFlops
) -> float:
    """Seconds that the mean client, of n ``sizes``, shape (n,), takes by FLOPs and steps alone."""
    steps, examples = (work.mean() for work in expected_work(sizes, local))
    flops = step.per_step * steps + step.per_example * examples
    return float(steps * _SECONDS_A_STEP + flops / _FLOPS_A_SECOND)


def choose_sample(
    split: FederatedSplit, local: LocalTraining, step: StepFlops, together: int
) -> Sample:
    """Choose the clients to time: as many as an engine has ``together`` at once in a round."""
    sizes = np.diff(split.offsets)
    some = np.flatnonzero(sizes > 0)
    count = min(len(some), _MOST_CLIENTS, together)
    # Evenly from the smallest to the largest.
    places = ((np.arange(count) + 0.5) / count * len(some)).astype(np.int64)
    users = np.sort(some[np.argsort(sizes[some], kind="stable")[places]])
    capped = local
    seconds = count * expected_client_seconds(sizes[users], local, step)
    if seconds > _PASS_SECONDS and local.batch_fraction is None:
        steps = expected_work(sizes[users], local)[0].mean()
        few = max(_FEWEST_STEPS, int(steps * _PASS_SECONDS / seconds))
        capped = replace(local, max_steps=min(few, local.max_steps or few))
        seconds = count * expected_client_seconds(sizes[users], capped, step)
    scale = expected_costs(sizes, local).mean() / expected_costs(sizes[users], capped).sum()
    return Sample(users, capped, float(scale), seconds)


def time_engines(
    candidates: Sequence[Candidate],
    sample: Sample,
    parts: FederatedParts,
    notice: Callable[[str], None],
) -> dict[Candidate, float]:
    """Train the sample's clients by each candidate: seconds of the population's mean client.

    On a CPU the time is the processor's, of the one thread that trains, so that what else the
    machine does hardly counts; with several threads, and on a GPU, it is the clock's. Model and
    random streams are left as they were: clients' draws come from streams by name, and nothing else
    is drawn. What the first candidate cannot train is an error, of others a notice.
    """
    seconds: dict[Candidate, float] = {}
    with untouched(parts.model):
        central = parts.model.vector.clone()
        for candidate in candidates:
            engine = _build(candidate, sample.local, parts)
            try:
                passes = [_time_pass(engine, sample, central) for _ in range(1 + _REPEATS)]
            except (ConfigError, RuntimeError) as error:
                if candidate == candidates[0]:
                    raise
                notice(f"engine: '{candidate.description}' is not taken: {error}")
            else:
                seconds[candidate] = min(passes[1:]) * sample.scale
    return seconds


def _time_pass(engine: Engine, sample: Sample, central: torch.Tensor) -> float:
    def clock() -> float:
        if central.is_cuda:
            torch.cuda.synchronize(central.device)
        elif torch.get_num_threads() == 1:
            return time.thread_time()
        return time.perf_counter()

    started = clock()
    for _ in engine.train(sample.users, 1, central):
        pass
    return clock() - started


def _build(candidate: Candidate, local: LocalTraining, parts: FederatedParts) -> Engine:
    module = plugins.load(plugins.ENGINE, candidate.engine)
    settings = {"data_workers": parts.options.data_workers}
    if candidate.slots is not None:
        settings["slots"] = candidate.slots
    options = module.Options(**settings)
    engine: Engine = module.build(
        options, parts.model, parts.split, parts.forward, local, 0, lambda text: None
    )
    return engine


class TimesFile:
    """Kept times of one kind of work: machine, versions, model, data and local training.

    ``path`` is None where nothing is kept.
    """

    def __init__(
        self,
        work: Mapping[str, Any],
        candidates: Sequence[Candidate],
        notice: Callable[[str], None],
    ) -> None:
        self._work, self._notice = work, notice
        self._candidates = {candidate.description: candidate for candidate in candidates}
        text = json.dumps(work, sort_keys=True)
        folder, name = times_folder(), hashlib.sha256(text.encode()).hexdigest()[:32]
        self.path = None if folder is None else folder / f"{name}.json"

    def read(self) -> dict[Candidate, float] | None:
        """Seconds a client of each candidate; None where nothing usable is kept."""
        if self.path is None or not self.path.exists():
            return None
        try:
            content = parse_json(read_text(self.path))
            seconds = {self._candidates[c]: t for c, t in content["seconds_a_client"].items()}
            times_fit = all(type(t) is float and 0 < t < math.inf for t in seconds.values())
            if content["format"] != _FORMAT or not seconds or not times_fit:
                raise ValueError(f"no times in seconds, or not of format {_FORMAT}")
            return seconds
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._notice(
                f"engine: the kept times in {self.path} cannot be used ({error}); they are "
                "measured again"
            )
            return None

    def write(self, seconds: Mapping[Candidate, float]) -> None:
        """Keep measured times."""
        if self.path is None:
            return
        times = {candidate.description: seconds[candidate] for candidate in seconds}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(
                self.path, {"format": _FORMAT, "seconds_a_client": times, "work": self._work}
            )
        except OSError as error:
            self._notice(
                f"engine: measured times cannot be kept in {self.path} ({error.strerror}), so that "
                f"the next run measures again, and may pick another engine; {VARIABLE} names "
                "another folder"
            )


def times_folder() -> Path | None:
    """The folder of kept times; None if the user wants none, or has no home."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named == "off" else Path(named) / "engines"
    # By its specification a relative path counts as none; "~" stays where there is no home.
    for base in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(base):
            return Path(base) / "pfl-bench" / "engines"
    return None


def work_of(
    parts: FederatedParts, sample: Sample, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """Properties that decide how long clients take: the name under which times are kept."""
    resolved, model, local = parts.resolved, parts.model, sample.local
    shapes = [[list(p.shape), str(p.dtype)] for p in model.parameters]
    values = {field.name: getattr(local, field.name) for field in fields(local)}
    on_cuda = model.device.type == "cuda"
    return {
        **({"device": torch.cuda.get_device_name(model.device)} if on_cuda else {}),
        "pfl_bench": pfl_bench.__version__,
        "torch": torch.__version__,
        "processor": processor_name(),
        "instructions": cpu_capability(),
        "threads": torch.get_num_threads(),
        "task": resolved.tree["task"]["name"],
        "data": parts.task.facts.checksum,
        "model": hashlib.sha256(f"{model.module}{shapes}".encode()).hexdigest(),
        "num_parameters": model.num_parameters,
        "precision": resolved.config.precision,
        "channels_last": resolved.config.channels_last,
        "local_training": {k: v if k in _SIZES else bool(v) for k, v in values.items()},
        "clients": len(sample.users),
        "candidates": [candidate.description for candidate in candidates],
    }
