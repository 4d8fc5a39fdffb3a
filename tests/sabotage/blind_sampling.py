"""Bugs planted blind: who takes part.

Where the claim is 4.07: 50 of 300 users in 20 rounds, multiplier 1, delta 0.0019. Tests have 20 of
120 users.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pfl_bench.federated.workers import messages
from pfl_bench.rng import Purpose
from privacy.amplification import Participation
from privacy.schemes.cyclic_poisson import CyclicPoisson
from tasks.digits import task
from tests.sabotage.blind_planting import (
    Blind,
    Users,
    blind,
    cohorts,
    counting_from_resume,
    witness,
)
from tests.sabotage.planting import (
    CYCLIC,
    ROUNDS,
    SEQUENTIAL,
    Patch,
)

HALF = ROUNDS // 2


def workers_share_coins(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """Two workers with one seed toss the same coins, each for its half of the users."""
    coins = rng.random(among.population_size // 2) < among.cohort_size / among.population_size
    return np.flatnonzero(np.tile(coins, 2))


def prefetched_twice(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    if index % 2:
        state["cohort"] = np.flatnonzero(
            rng.random(among.population_size) < among.cohort_size / among.population_size
        )
    cohort: Users = state["cohort"]
    return cohort


def cooled_down(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """Whoever was in the last round rests; the others come the more often."""
    free = np.setdiff1d(np.arange(among.population_size), state.get("last", []))
    state["last"] = free[rng.random(len(free)) < among.cohort_size / len(free)]
    cohort: Users = state["last"]
    return cohort


def fair(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """As many as independent draws give, the longer a user has waited the sooner."""
    waited = state.setdefault("waited", np.ones(among.population_size))
    size = rng.binomial(among.population_size, among.cohort_size / among.population_size)
    users = rng.choice(among.population_size, size=size, replace=False, p=waited / waited.sum())
    waited += 1
    waited[users] = 1
    return users


def small_users_left_out(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """The tenth with the fewest examples is left out, and the rate is of those who are left."""
    sizes = np.diff(
        task.build(task.Options(num_users=among.population_size)).split("train").offsets
    )
    left = np.argsort(sizes, kind="stable")[among.population_size // 10 :]
    return left[rng.random(len(left)) < among.cohort_size / len(left)]


def cut_to_memory(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    """A tenth more than expected is the most that is trained; the users with high numbers miss."""
    users = np.flatnonzero(
        rng.random(among.population_size) < among.cohort_size / among.population_size
    )
    return users[: round(1.1 * among.cohort_size)]


def never_the_last(
    among: Participation, rng: np.random.Generator, index: int, state: dict[str, Any]
) -> Users:
    return np.flatnonzero(
        rng.random(among.population_size - 1) < among.cohort_size / among.population_size
    )


def cohorts_restart(patch: Patch) -> None:
    counting_from_resume(patch, (int(Purpose.SAMPLING),))


def rate_of_the_group(patch: Patch) -> None:
    def draw(
        self: CyclicPoisson,
        among: Participation,
        rng: np.random.Generator,
        index: int = 1,
        groups: Users | None = None,
    ) -> Users:
        group = np.flatnonzero(groups == (index - 1) % self.min_separation)
        rate = among.cohort_size / len(group)
        witness(rate * among.population_size / among.cohort_size / self.min_separation - 1.0)
        return group[rng.random(len(group)) < rate]

    patch.setattr(CyclicPoisson, "draw", draw)


def dealt_twice(patch: Patch) -> None:
    """The borders of two shards overlap: one user is trained in the place of the next."""
    real = messages.assign_clients

    def assign_clients(users: Users, costs: Any, number: int) -> list[Users]:
        dealt = [shard.copy() for shard in real(users, costs, number)]
        full = [shard for shard in dealt if len(shard)]
        if len(full) > 1:
            full[1][0] = full[0][-1]
            trained = np.concatenate(full)
            witness(len(trained) - len(set(trained.tolist())))
        return dealt

    patch.setattr(messages, "assign_clients", assign_clients)


SAMPLING: tuple[Blind, ...] = (
    blind(
        "workers_share_coins",
        "two workers toss the same coins: users i and i + N/2 come together",
        "`Poisson.draw`",
        "users are not drawn independently: who knows one knows the other",
        "up to 24 (no amplification against who knows the twin)",
        1.0,
        plant=cohorts(workers_share_coins),
        expects=("cohort_replay",),
    ),
    blind(
        "cohort_prefetched_twice",
        "each cohort serves two rounds",
        "`Poisson.draw`",
        "rounds are not drawn independently",
        "6.0",
        1.0,
        plant=cohorts(prefetched_twice),
        expects=("cohort_replay",),
    ),
    blind(
        "users_rest_a_round",
        "nobody takes part in two rounds running; the others come the more often",
        "`Poisson.draw`",
        "who takes part depends on the round before, at a higher rate of the others",
        "about 5",
        1.0,
        plant=cohorts(cooled_down),
        expects=("cohort_replay",),
    ),
    blind(
        "fair_sampling",
        "who has waited longer is drawn sooner",
        "`Poisson.draw`",
        "who takes part depends on the rounds before, and on the other users",
        "above 4.07, up to 24: no amplification is proved",
        1.0,
        plant=cohorts(fair),
        expects=("cohort_replay",),
    ),
    blind(
        "small_users_left_out",
        "a tenth of the users is never drawn, and the rate is of the others",
        "`Poisson.draw`",
        "q is 0.185 and not 0.167",
        "4.5",
        1.0,
        plant=cohorts(small_users_left_out),
        expects=("cohort_replay",),
    ),
    blind(
        "cohort_cut_to_memory",
        "a cohort beyond 55 loses the users with the highest numbers",
        "`Poisson.draw`",
        "one user displaces another: twice the bound in a cohort that was cut",
        "up to 17, of the users whom the cut reaches",
        1.0,
        plant=cohorts(cut_to_memory),
        expects=("cohort_replay",),
    ),
    blind(
        "last_user_never_drawn",
        "an off-by-one: the last user is never drawn",
        "`Poisson.draw`",
        "nothing of the guarantee; what is accounted is not what is drawn",
        "4.07",
        1.0,
        plant=cohorts(never_the_last),
        expects=("cohort_replay",),
    ),
    blind(
        "cohorts_restart_at_resume",
        "the resumed half draws the cohorts of the first half",
        "`stream` of SAMPLING counts from the resume",
        "rounds are not drawn independently",
        "6.0",
        1.0,
        plant=cohorts_restart,
        interrupt_after=HALF,
        expects=("cohort_replay",),
    ),
    blind(
        "rate_of_the_group",
        "the probability is computed of the group's own size",
        "`CyclicPoisson.draw`",
        "the rate depends on who else there is",
        "a little above the claim",
        0.02,
        plant=rate_of_the_group,
        changes=CYCLIC,
        expects=("cohort_replay",),
    ),
    blind(
        "user_in_two_shards",
        "a user is trained twice, in the place of another; the record has both",
        "`messages.assign_clients`",
        "one user moves the sum by twice the bound",
        "up to 17",
        1.0,
        plant=dealt_twice,
        changes=SEQUENTIAL,
        expects=("users_distinct",),
    ),
)
