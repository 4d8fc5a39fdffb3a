"""The fifth list: bugs of who takes part in a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pfl_bench.federated import sampling, trainer
from pfl_bench.rng import Purpose
from pfl_bench.simulation.devices.limits import Limits
from pfl_bench.simulation.selection import available
from tests.sabotage.fifth_planting import (
    BANDED,
    FifthBug,
    Patch,
    change_stream,
    gaussian_with,
)
from tests.sabotage.paper_planting import registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug)
COHORT = 60
SELECTED = gaussian_with(
    "systems={source: {name: generated, seed: 0}}",
    "federated.sampling=selected",
    "federated.separation=3",
    "federated.max_participations=3",
    "privacy.epsilon=50.0",
    "federated.cohort_size=40",
    "privacy.noise_cohort_size=40",
)
# A draw of a round's users, made of the sampler, the real draw, the round's stream, and its index.
Draw = Callable[[Any, Callable[[], Any], np.random.Generator, int], Any]


def _change_draw(patch: Patch, draw: Draw) -> None:
    def drawing(real: Any) -> Any:
        def changed(self: Any, rng: Any, round_index: int = 1) -> Any:
            return draw(self, lambda: real(self, rng, round_index), rng, round_index)

        return changed

    wrap(patch, sampling.Sampler, "draw", drawing)


@bug("A cohort is drawn again until it has 58 users or more.", shared=True)
def min_cohort(patch: Patch) -> None:
    def draw(sampler: Any, real: Any, rng: Any, index: int) -> Any:
        while True:
            users = real()
            if len(users) >= 58:
                return users

    _change_draw(patch, draw)


@bug("A cohort serves two rounds.")
def cohort_kept_two_rounds(patch: Patch) -> None:
    kept: list[Any] = []

    def draw(sampler: Any, real: Any, rng: Any, index: int) -> Any:
        if index % 2 or not kept:
            kept[:] = [real()]
        return kept[0]

    _change_draw(patch, draw)


@bug("Users are drawn in proportion to their number of examples.", shared=True)
def sampled_by_size(patch: Patch) -> None:
    sizes: list[Any] = []

    def building(real: Any) -> Any:
        def build(parts: Any, *arguments: Any) -> Any:
            sizes[:] = [np.diff(parts.split.offsets)]
            return real(parts, *arguments)

        return build

    def draw(sampler: Any, real: Any, rng: Any, index: int) -> Any:
        users = len(sizes[0])
        number = rng.binomial(users, COHORT / users)
        weights = sizes[0] / sizes[0].sum()
        return np.sort(rng.choice(users, number, replace=False, p=weights)).astype(np.int64)

    wrap(patch, trainer, "build_participants", building)
    _change_draw(patch, draw)


# Of cohorts of 2, with which it was planted, the seed that this code derives has none that is empty
# in 12 rounds, so that nothing was drawn again: that was no bug.
@bug(
    "Empty cohorts are drawn again.",
    settings=gaussian_with("federated.cohort_size=1", "privacy.noise_cohort_size=1"),
)
def empty_cohort_redrawn(patch: Patch) -> None:
    def draw(sampler: Any, real: Any, rng: Any, index: int) -> Any:
        while True:
            users = real()
            if len(users):
                return users

    _change_draw(patch, draw)


@bug("Exactly 60 users are drawn, and accounted as by Poisson sampling.", shared=True)
def fixed_size_as_poisson(patch: Patch) -> None:
    def draw(sampler: Any, real: Any, rng: Any, index: int) -> Any:
        users = sampler.participation.population_size
        return np.sort(rng.choice(users, COHORT, replace=False)).astype(np.int64)

    _change_draw(patch, draw)


@bug(
    "The groups of cyclic sampling are drawn anew each round: no separation under bands.",
    settings=BANDED,
    shared=True,
)
def groups_redrawn(patch: Patch) -> None:
    def draw(sampler: Any, real: Any, rng: Any, index: int) -> Any:
        among = sampler.participation
        groups = rng.integers(3, size=among.population_size)
        return among.scheme.draw(among, rng, index, groups)

    _change_draw(patch, draw)


@bug("Cohorts are drawn from the public seed: the sample is no secret.")
def public_sampling_seed(patch: Patch) -> None:
    change_stream(patch, Purpose.SAMPLING, lambda seed, index: (0, index))


@bug(
    "Simulated devices: users' separation and their most participations are not kept.",
    settings=SELECTED,
    shared=True,
)
def selector_ignores_limits(patch: Patch) -> None:
    patch.setattr(Limits, "allowed", lambda self, index: self._everybody)


@bug(
    "Simulated devices: users are selected by clients' losses, while it says uniformly.",
    settings=SELECTED,
    shared=True,
)
def selected_by_loss(patch: Patch) -> None:
    seen: dict[int, float] = {}

    def report(self: Any, feedback: Any) -> None:
        seen.update(zip(map(int, feedback.users), map(float, feedback.losses), strict=True))

    def select(self: Any, candidates: Any, number: int, index: int, rng: Any) -> Any:
        losses = np.array([seen.get(int(user), 3.0) for user in candidates])
        return candidates[np.argsort(-losses, kind="stable")[:number]]

    patch.setattr(available.Uniform, "report", report)
    patch.setattr(available.Uniform, "select", select)
