"""Cost of clock and selection: a round of 10,000 participants among 500,000 users with devices."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

USERS, COHORT = 500_000, 10_000
# Of the time of a round's training.
MOST = 0.05
MEAN_EXAMPLES = 30
SELECTIONS = ("uniform", "available", "oort")


def main() -> None:
    """Time a round of softmax regression, and then who takes part in such a round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--cohort", type=int, default=COHORT)
    parser.add_argument("--rounds", type=int, default=10, help="of each selection")
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = {name: _train(name, options.cohort) for name in ("sequential", "vectorized")}
    fastest = min(training, key=lambda name: training[name])
    seconds = ", ".join(f"{value:.2f} s {name}" for name, value in training.items())
    print(f"processor time of {options.cohort:,} clients' softmax regression: {seconds}")
    print(
        f"\n| selection | ms a round: median (min-max) | of the round ({fastest}) "
        f"| at most {MOST:.0%} |\n| --- | --- | --- | --- |"
    )
    for selection in SELECTIONS:
        times = [1e3 * value for value in _select(selection, options)]
        share = statistics.median(times) / (1e3 * training[fastest])
        print(
            f"| {selection} | {statistics.median(times):.0f} ({min(times):.0f}-{max(times):.0f}) "
            f"| {share:.1%} | {'yes' if share <= MOST else 'no'} |"
        )


def _train(engine: str, cohort: int) -> float:
    """Processor seconds of the faster of two rounds that train, after one that warms up."""
    from benchmarks.common import OurSide
    from benchmarks.femnist import make_store
    from benchmarks.workload import Job, Workload, configuration

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        store = Path(name) / "generated.h5"
        make_store(store, num_users=cohort * 5 // 4, mean_examples=MEAN_EXAMPLES)
        load = Workload("femnist", "softmax", cohort, 10, 0.1)
        side = OurSide(configuration(Job(str(store), load, False, engine=engine)), Path(name))
        times = []
        for index in (1, 2, 3):
            start = time.process_time()
            side.round(index)
            times.append(time.process_time() - start)
        side.close()
    return min(times[1:])


class _Split:
    """The sizes of so many users, as far as participants look."""

    def __init__(self, num_users: int) -> None:
        rng = np.random.default_rng(0)
        sizes = 1 + rng.geometric(1.0 / MEAN_EXAMPLES, num_users)
        self.num_users = num_users
        self.offsets = np.append(0, np.cumsum(sizes))


def _select(selection: str, options: argparse.Namespace) -> list[float]:
    """Processor seconds that each round takes but for its training; losses are drawn."""
    from pfl_bench.config.loading import resolve
    from pfl_bench.rng import Purpose, stream
    from pfl_bench.simulation.devices.cohorts import SimulatedParticipants, open_devices
    from pfl_bench.types import LocalTraining, RoundStatistics

    tree = {
        "version": 1,
        "name": "bench",
        "task": {"name": "digits"},
        "model": {"name": "softmax"},
        "systems": {"source": {"name": "generated"}},
        "federated": {
            "num_rounds": 1000,
            "cohort_size": options.cohort,
            "local_batch_size": 10,
            "local_learning_rate": 0.1,
            "selection": {"name": selection},
        },
    }
    resolved = resolve(tree, Path("bench"), ())
    devices = open_devices(resolved, options.users)
    split: Any = _Split(options.users)
    size = 4.0 * 48_670
    times = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        participants = SimulatedParticipants(
            resolved, devices, split, LocalTraining(1, 10, 0.1), size, size, Path(folder)
        )
        participants.begin(0)
        for index in range(1, options.rounds + 1):
            start = time.process_time()
            users = participants.draw(index, stream(0, Purpose.SAMPLING, index))
            drawn = time.process_time() - start
            losses = np.random.default_rng(index).exponential(size=len(users))
            clients = list(zip(users.tolist(), losses.tolist(), [1] * len(users), strict=True))
            start = time.process_time()
            participants.finish(index, users, RoundStatistics(clients=clients))
            times.append(drawn + time.process_time() - start)
    return times
