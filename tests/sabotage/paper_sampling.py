"""Bugs of who takes part.

Sources: Abadi et al. 2016 (Poisson sampling), Choquette-Choo et al. 2023 (groups that take turns),
Chua et al. 2024 (samplers that are not what is accounted).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pfl_bench.federated import round as federated_round
from pfl_bench.rng import Purpose
from pfl_bench.simulation.devices.limits import Limits
from privacy.sampling_scheme import draw_distinct
from privacy.schemes.cyclic_poisson import CyclicPoisson
from privacy.schemes.fixed_size import FixedSize
from privacy.schemes.poisson import Poisson
from tests.sabotage.paper_planting import (
    COHORT,
    SELECTED,
    USERS,
    PaperBug,
    Patch,
    registering,
    wrap,
)
from tests.sabotage.planting import BANDED, FIXED_SIZE

BUGS: list[PaperBug] = []
bug = registering(BUGS)


def _redraw(patch: Patch, scheme: Any, change: Any) -> None:
    """Change what a scheme draws: ``change`` of the users, the generator and the round."""

    def changed(real: Any) -> Any:
        def draw(self: Any, users: Any, rng: Any, index: int, groups: Any) -> Any:
            return np.sort(change(real(self, users, rng, index, groups), rng, index))

        return draw

    wrap(patch, scheme, "draw", changed)


@bug("The first thirty users take part twice as often as others, in cohorts of the right size.")
def sampling_favours_some(patch: Patch) -> None:
    weights = np.where(np.arange(USERS) < 30, 2.0, 1.0)

    def favouring(users: Any, rng: Any, _: int) -> Any:
        return rng.choice(USERS, len(users), replace=False, p=weights / weights.sum())

    _redraw(patch, Poisson, favouring)


@bug("Users are drawn with replacement, and those who come up twice count once.")
def sampling_with_replacement(patch: Patch) -> None:
    _redraw(patch, Poisson, lambda users, rng, _: np.unique(rng.integers(USERS, size=len(users))))


@bug("Users are shuffled once and cut into six cohorts that take turns, accounted as Poisson.")
def sampling_of_fixed_cohorts(patch: Patch) -> None:
    order = np.random.default_rng(5).permutation(USERS).reshape(-1, COHORT)
    _redraw(patch, Poisson, lambda _, __, index: order[(index - 1) % len(order)])


@bug("Every second round has the cohort of the round before.")
def sampling_repeats_cohort(patch: Patch) -> None:
    last: list[Any] = []

    def repeating(users: Any, _: Any, index: int) -> Any:
        if index % 2:
            last[:] = [users]
        return last[0]

    _redraw(patch, Poisson, repeating)


@bug("Ten users of a round must come back in the next one, in the place of others.")
def sampling_keeps_some(patch: Patch) -> None:
    last: list[Any] = []

    def keeping(users: Any, rng: Any, _: int) -> Any:
        if last:
            back = rng.choice(last[0], min(10, len(last[0])), replace=False)
            others = np.setdiff1d(users, back)
            users = np.append(back, others[: max(0, len(users) - len(back))])
        last[:] = [users]
        return users

    _redraw(patch, Poisson, keeping)


@bug("Cohorts have exactly the expected size, accounted as Poisson.")
def sampling_of_fixed_size(patch: Patch) -> None:
    _redraw(patch, Poisson, lambda _, rng, __: draw_distinct(rng, USERS, COHORT))


@bug("Cohorts that are smaller than expected are drawn again.")
def sampling_redraws_small_cohorts(patch: Patch) -> None:
    def insisting(users: Any, rng: Any, _: int) -> Any:
        while len(users) < COHORT:
            size = int(rng.binomial(USERS, COHORT / USERS))
            users = draw_distinct(rng, USERS, size)
        return users

    _redraw(patch, Poisson, insisting)


@bug("The last fifteen users are never drawn: the population is smaller than the accounted one.")
def sampling_leaves_some_out(patch: Patch) -> None:
    few = USERS - 15
    _redraw(patch, Poisson, lambda users, rng, _: draw_distinct(rng, few, len(users)))


@bug("Cohorts are drawn from the configured seed, which is public, though their secrecy counts.")
def sampling_of_public_seed(patch: Patch) -> None:
    def public(real: Any) -> Any:
        def stream(seed: int, purpose: Purpose, *rest: int) -> Any:
            return real(3 if purpose is Purpose.SAMPLING else seed, purpose, *rest)

        return stream

    wrap(patch, federated_round, "stream", public)


@bug("A fixed-size cohort is a run of neighbours that begins anywhere.", changes=FIXED_SIZE)
def sampling_of_neighbours(patch: Patch) -> None:
    def run_of(users: Any, rng: Any, _: int) -> Any:
        return (rng.integers(USERS) + np.arange(len(users))) % USERS

    _redraw(patch, FixedSize, run_of)


@bug("Users are put into groups anew in each cycle, so that two rounds of one can be neighbours.",
     changes=BANDED)  # fmt: skip
def sampling_regroups_each_cycle(patch: Patch) -> None:
    def regrouped(real: Any) -> Any:
        def draw(self: Any, users: Any, rng: Any, index: int, groups: Any) -> Any:
            cycle = (index - 1) // self.min_separation
            fresh = np.random.default_rng(cycle).permutation(groups)
            return real(self, users, rng, index, fresh)

        return draw

    wrap(patch, CyclicPoisson, "draw", regrouped)


@bug("Of the group whose turn it is exactly the expected cohort is drawn, as if no coin mattered.",
     changes=BANDED)  # fmt: skip
def sampling_fills_cohort_of_group(patch: Patch) -> None:
    def filled(real: Any) -> Any:
        def draw(self: Any, users: Any, rng: Any, index: int, groups: Any) -> Any:
            eligible = np.flatnonzero(groups == (index - 1) % self.min_separation)
            return eligible[draw_distinct(rng, len(eligible), min(COHORT, len(eligible)))]

        return draw

    wrap(patch, CyclicPoisson, "draw", filled)


@bug("Selected users keep neither their separation nor their cap.", changes=SELECTED)
def selection_without_limits(patch: Patch) -> None:
    patch.setattr(Limits, "allowed", lambda self, index: self._everybody)
