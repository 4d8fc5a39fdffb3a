"""Planted bugs of who takes part: users are not drawn as is accounted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.federated import sampling
from pfl_bench.federated.sampling import Sampler
from pfl_bench.simulation.devices.limits import Limits
from privacy.amplification import Participation
from privacy.noise import clipped_sum
from privacy.plan import plan
from privacy.sampling_scheme import SamplingScheme
from privacy.schemes import poisson
from privacy.schemes.cyclic_poisson import CyclicPoisson
from privacy.schemes.fixed_size import FixedSize
from privacy.schemes.poisson import Poisson
from tasks.digits import task
from tests.sabotage.planting import (
    CYCLIC,
    DEVICES,
    SELECTED,
    SELECTED_BANDED,
    Bug,
    Patch,
    Plant,
    nothing,
)

Users = NDArray[np.int64]


def with_replacement(patch: Patch) -> None:
    def draw(rng: np.random.Generator, population: int, size: int) -> Users:
        return np.sort(rng.choice(population, size=size, replace=True))

    patch.setattr(poisson, "draw_distinct", draw)


def fixed_size(patch: Patch) -> None:
    def build(scheme: Any, num_users: int, cohort_size: int, *_: Any) -> Sampler:
        return Sampler(Participation(FixedSize(), num_users, cohort_size))

    patch.setattr(sampling, "build_sampler", build)


class Shuffled:
    """Passes over a shuffled list of the users, a slice a round."""

    def __init__(self, num_users: int, cohort_size: int) -> None:
        self._num_users = num_users
        self._cohort_size = cohort_size
        self._left = np.empty(0, dtype=np.int64)

    def draw(self, rng: np.random.Generator, round_index: int) -> Users:
        if len(self._left) < self._cohort_size:
            self._left = rng.permutation(self._num_users)
        drawn, self._left = np.split(self._left, [self._cohort_size])
        return np.sort(drawn)


def shuffled_passes(patch: Patch) -> None:
    def build(scheme: Any, num_users: int, cohort_size: int, *_: Any) -> Shuffled:
        return Shuffled(num_users, cohort_size)

    patch.setattr(sampling, "build_sampler", build)


def drawing(
    scheme: type[SamplingScheme],
    wrong: Callable[[Participation, np.random.Generator, int, Callable[..., Users]], Users],
) -> Plant:
    """Plant another draw into a scheme; ``wrong`` is given the real one."""

    def plant(patch: Patch) -> None:
        real = scheme.draw

        def draw(
            self: SamplingScheme,
            among: Participation,
            rng: np.random.Generator,
            round_index: int = 1,
            groups: Users | None = None,
        ) -> Users:
            def honest(rng: np.random.Generator, index: int) -> Users:
                return real(self, among, rng, index, groups)

            return wrong(among, rng, round_index, honest)

        patch.setattr(scheme, "draw", draw)

    return plant


def rate_half_more(among: Participation, rng: np.random.Generator, index: int, real: Any) -> Users:
    return np.flatnonzero(
        rng.random(among.population_size) < 1.5 * among.cohort_size / among.population_size
    )


def drawn_until_enough(
    among: Participation, rng: np.random.Generator, index: int, real: Any
) -> Users:
    users: Users = real(rng, index)
    while len(users) < 1.1 * among.cohort_size:
        users = real(rng, index)
    return users


def always_the_same(among: Participation, rng: np.random.Generator, index: int, real: Any) -> Users:
    """As many as independent draws give, the first of one list."""
    size = rng.binomial(among.population_size, among.cohort_size / among.population_size)
    return np.sort(np.random.default_rng(1).permutation(among.population_size)[:size])


def by_examples(among: Participation, rng: np.random.Generator, index: int, real: Any) -> Users:
    """As many as independent draws give, each user as often as its examples are many."""
    offsets = task.build(task.Options(num_users=among.population_size)).split("train").offsets
    sizes = np.diff(offsets).astype(np.float64)
    size = rng.binomial(among.population_size, among.cohort_size / among.population_size)
    return np.sort(
        rng.choice(among.population_size, size=size, replace=False, p=sizes / sizes.sum())
    )


def any_group(among: Participation, rng: np.random.Generator, index: int, real: Any) -> Users:
    return np.flatnonzero(
        rng.random(among.population_size) < among.cohort_size / among.population_size
    )


def first_group(among: Participation, rng: np.random.Generator, index: int, real: Any) -> Users:
    users: Users = real(rng, 1)
    return users


def forgetting_the_cap(patch: Patch) -> None:
    real = Limits.allowed

    def allowed(self: Limits, index: int) -> Users:
        self._counts[:] = 0
        return real(self, index)

    patch.setattr(Limits, "allowed", allowed)


def forgetting_the_distance(patch: Patch) -> None:
    real = Limits.allowed

    def allowed(self: Limits, index: int) -> Users:
        self._last[:] = 0
        return real(self, index)

    patch.setattr(Limits, "allowed", allowed)


def unplanned(patch: Patch) -> None:
    patch.setattr(plan, "check_participation", nothing)


def one_round_a_user(patch: Patch) -> None:
    real = clipped_sum.sampled_gaussian

    def composed(participation: Any, noise_multiplier: float, rounds: int) -> Any:
        return real(participation, noise_multiplier, min(rounds, 1))

    patch.setattr(clipped_sum, "sampled_gaussian", composed)


SAMPLING_BUGS = (
    Bug(
        "user_drawn_twice",
        "users are drawn with replacement",
        "`poisson.draw_distinct`",
        expects=("users_distinct",),
        plant=with_replacement,
    ),
    Bug(
        "fixed_size_as_poisson",
        "cohorts of a fixed size, accounted as Poisson",
        "`build_sampler` draws by `FixedSize`",
        expects=("cohort_replay",),
        plant=fixed_size,
    ),
    Bug(
        "shuffled_as_poisson",
        "passes over shuffled users, accounted as Poisson",
        "`build_sampler` builds one that shuffles",
        expects=("cohort_replay",),
        plant=shuffled_passes,
    ),
    Bug(
        "rate_half_more",
        "users are drawn half as often again as accounted",
        "`Poisson.draw`",
        expects=("cohort_replay",),
        plant=drawing(Poisson, rate_half_more),
    ),
    Bug(
        "drawn_until_enough",
        "cohorts are drawn again until they are a tenth larger than expected",
        "`Poisson.draw`",
        expects=("cohort_replay",),
        plant=drawing(Poisson, drawn_until_enough),
    ),
    Bug(
        "always_the_same",
        "cohorts of random sizes, but always the same users first",
        "`Poisson.draw`",
        expects=("cohort_replay",),
        plant=drawing(Poisson, always_the_same),
    ),
    Bug(
        "drawn_by_examples",
        "users are drawn the more often the more examples they have",
        "`Poisson.draw`",
        expects=("cohort_replay",),
        plant=drawing(Poisson, by_examples),
    ),
    Bug(
        "separation_not_kept",
        "the groups are forgotten: any user in any round",
        "`CyclicPoisson.draw`",
        expects=("participation",),
        plant=drawing(CyclicPoisson, any_group),
        changes=CYCLIC,
    ),
    Bug(
        "group_not_moved_on",
        "the first group takes part in every round",
        "`CyclicPoisson.draw` always takes round 1's group",
        expects=("participation",),
        plant=drawing(CyclicPoisson, first_group),
        changes=CYCLIC,
    ),
    Bug(
        "cap_not_kept",
        "selected users come more often than their cap",
        "`Limits.allowed` forgets who was there how often",
        expects=("participation",),
        plant=forgetting_the_cap,
        changes=SELECTED,
    ),
    Bug(
        "distance_not_kept",
        "selected users come again too soon",
        "`Limits.allowed` forgets who was there when",
        expects=("participation",),
        plant=forgetting_the_distance,
        changes=SELECTED_BANDED,
    ),
    Bug(
        "cap_paid_once",
        "a user's first round is accounted, not all that the cap allows",
        "`Gaussian.composition` is that of one round",
        expects=("epsilon_simulated", "epsilon_actual"),
        plant=one_round_a_user,
        changes=SELECTED,
    ),
    Bug(
        "devices_as_poisson",
        "who is there at night is accounted as drawn by coins",
        "configured: `systems` with `federated.sampling: poisson`",
        words="poisson sampling is accounted, but who takes part rests on",
        changes=DEVICES,
    ),
    Bug(
        "devices_as_poisson_unplanned",
        "the same, the plan's check forgotten",
        "`plan.check_participation` does nothing",
        expects=("cohort_replay",),
        plant=unplanned,
        changes=DEVICES,
    ),
    Bug(
        "losses_select",
        "users are selected by their losses",
        "configured: `federated.selection: oort`",
        words="who takes part would disclose it without noise",
        changes={**SELECTED, "federated__selection": {"name": "oort"}},
    ),
    Bug(
        "error_feedback",
        "clients keep what compression has left out, for a later round",
        "configured: `federated.compression: top_k` with error feedback",
        words="remembers clients from round to round",
        changes={
            "federated__compression": {"name": "top_k", "fraction": 0.1, "error_feedback": True}
        },
    ),
)
