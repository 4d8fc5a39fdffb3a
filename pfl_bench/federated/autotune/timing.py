"""Times engines on a few of a run's own clients, and leaves no trace of it in the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench import plugins
from pfl_bench.client.costs import StepFlops, untouched
from pfl_bench.federated.autotune.choice import Candidate
from pfl_bench.federated.parts import FederatedParts
from pfl_bench.federated.shards import expected_costs
from pfl_bench.types import ConfigError, Engine, FederatedSplit, LocalTraining

# Of one core, about: whether a run is worth measuring. Results never depend on them.
_SECONDS_A_STEP, _FLOPS_A_SECOND = 2e-4, 3e10
# Passes over the chosen clients: one warms up, the best of the others counts.
_REPEATS = 3
# A pass is not to take longer, where three steps of a client do not.
_PASS_SECONDS = 0.1
_FEWEST_STEPS = 3
_MOST_CLIENTS = 32
# Who is slower than the best by so much after a pass is not looked at again.
_HOPELESS = 1.5
# After so many seconds no other turn begins, however little was expected.
_LONGEST_SECONDS = 2.0


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


def expected_client_seconds(
    sizes: NDArray[np.int64], local: LocalTraining, step: StepFlops
) -> float:
    """Seconds that the mean client, of n ``sizes``, shape (n,), takes by FLOPs and steps alone."""
    return float(_expected_seconds(sizes, local, step).mean())


def _expected_seconds(
    sizes: NDArray[np.int64], local: LocalTraining, step: StepFlops
) -> NDArray[np.float64]:
    if local.batch_fraction is not None:
        steps = np.ones(len(sizes))
        examples = np.maximum(1.0, sizes * local.batch_fraction)
    else:
        examples = sizes.astype(np.float64) * local.epochs
        steps = np.maximum(1.0, np.ceil(examples / local.batch_size))
        if local.max_steps is not None:
            steps = np.minimum(steps, local.max_steps)
            examples = np.minimum(examples, steps * local.batch_size)
    flops = step.per_step * steps + step.per_example * examples
    return np.asarray(steps * _SECONDS_A_STEP + flops / _FLOPS_A_SECOND)


def choose_sample(
    split: FederatedSplit, local: LocalTraining, step: StepFlops, together: int
) -> Sample:
    """Choose the clients to time; an engine has so many ``together`` at once at most in a round."""
    sizes = np.diff(split.offsets)
    mean = expected_client_seconds(sizes, local, step)
    some = np.flatnonzero(sizes > 0)
    count = min(len(some), _MOST_CLIENTS, max(together, min(8, int(_PASS_SECONDS / mean)), 1))
    # Evenly from the smallest to the largest.
    places = ((np.arange(count) + 0.5) / count * len(some)).astype(np.int64)
    users = np.sort(some[np.argsort(sizes[some], kind="stable")[places]])
    capped = local
    expected = _expected_seconds(sizes[users], local, step).sum()
    if expected > _PASS_SECONDS and local.batch_fraction is None:
        steps = np.maximum(1.0, np.ceil(sizes[users] * local.epochs / local.batch_size))
        few = max(_FEWEST_STEPS, int(steps.mean() * _PASS_SECONDS / expected))
        capped = replace(local, max_steps=min(few, local.max_steps or few))
    scale = expected_costs(sizes, local).mean() / expected_costs(sizes[users], capped).sum()
    seconds = _expected_seconds(sizes[users], capped, step).sum()
    return Sample(users, capped, float(scale), float(seconds))


def expected_probe_seconds(sample: Sample, candidates: Sequence[Candidate]) -> float:
    """Expected seconds of measuring."""
    return sample.pass_seconds * len(candidates) * (1 + _REPEATS)


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
    clock = _clock(parts.model.device)
    best: dict[Candidate, float] = {}
    with untouched(parts.model):
        central = parts.model.vector.clone()
        engines = {candidate: _build(candidate, sample.local, parts) for candidate in candidates}
        spent = 0.0
        for turn in range(1 + _REPEATS):
            if turn > 1 and spent > _LONGEST_SECONDS:
                break
            for candidate, engine in list(engines.items()):
                started = clock()
                try:
                    for _ in engine.train(sample.users, 1, central):
                        pass
                except (ConfigError, RuntimeError) as error:
                    if candidate == candidates[0]:
                        raise
                    notice(f"engine: '{candidate.description}' is not taken: {error}")
                    del engines[candidate]
                    best.pop(candidate, None)
                    continue
                seconds = clock() - started
                spent += seconds
                if turn:
                    seconds *= sample.scale
                    best[candidate] = min(seconds, best.get(candidate, seconds))
            if turn:
                limit = _HOPELESS * min(best.values())
                engines = {c: e for c, e in engines.items() if best[c] <= limit}
    return best


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def after_all_launches() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return after_all_launches


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
