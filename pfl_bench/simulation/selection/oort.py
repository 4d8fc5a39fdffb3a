r"""Oort: clients that teach much and are quick, with a share for those who were never tried.

In round R, of K wanted clients ceil((1 - e_R) K) are *exploited*, of those who have taken part
before, and the others *explored*, with e_R = max(``exploration`` * ``exploration_decay``^(R - 1),
``exploration_min``).

An exploited client i has the utility

    Util(i) = [ (min(U_i, Q) - m) / (M - m) + sqrt(``staleness`` * ln R / L_i) ] * S(t_i)
    U_i = |B_i| * (mean loss of i when it last took part)
    S(t) = (T / t)^``penalty`` if t > T, else 1

with Q the ``clip_quantile`` of all U, m and M the least and the largest (0.999 m, so that nobody
has 0), L_i the round of the last participation and t_i the seconds that i takes. Admitted are
those with at least ``cut_off`` times the utility of the last who would be needed; among them it is
drawn in proportion to utility. Explored are drawn in proportion to |B_i| * S(t_i) among the best
``exploration_window`` times as many.

The pacer sets T, a percentile of all clients' t: each ``pacer_rounds`` rounds it compares the sums
of the exploited clients' mean U over the last so many rounds and those before. Have they changed
by no more than ``pacer_flat`` of the earlier one, slower clients are let in (the percentile moves
up by ``pacer_step``); by ``pacer_sharp`` or more, it moves down.

Where it departs from its sources: the paper's U has the root of the mean of squared losses of all
examples, of which the mean loss that clients report here is a lower bound; the paper's pacer
moves T by seconds whenever utility falls, and the percentile is the published code's; clients that
do not finish are taken to have the mean utility of those who did, as in the published code. Removal
of clients after some rounds, which the paper describes and its code leaves off by default, is
``federated.max_participations``.

Source: Lai et al. 2021 (Oort), section 4 and algorithm 1, constants in section 7.1; the code
published with FedScale (Lai et al. 2022), thirdparty/oort/oort.py, constants in
fedscale/cloud/config_parser.py. ``Options`` says which of the two each constant follows.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.config.training import PositiveFloat, PositiveInt, Strict
from pfl_bench.simulation.devices.timeline import Outcome
from pfl_bench.simulation.selectors import Feedback, Ids, Selector, Users, draw_by_weight

Share = Annotated[float, Field(ge=0, le=1)]
Percentile = Annotated[float, Field(gt=0, le=100)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SMALLEST_RANGE = 1e-4


class Options(Strict):
    """Constants of Oort: the paper's, and of those that it does not have, the published code's.

    Attributes:
        exploration: Share of new clients in the first round (paper; the code has the same).
        exploration_decay: What it is multiplied by after each round (paper; code: the same).
        exploration_min: Its least value (paper; code: 0.3).
        exploration_window: New clients are drawn among the best so many times as many (code).
        penalty: Exponent of the penalty for slow clients (paper; code: the same).
        staleness: Factor of the bonus for clients that were not seen for long (paper; code: the
            same).
        clip_quantile: Utilities above this quantile of all count as this one (paper; code: 0.9).
        cut_off: Clients with this part of the utility needed are admitted (paper; code: 0.05, and
            at least ten times as many as are needed).
        duration_percentile: Clients slower than this percentile of all are penalised at first;
            100 for none (code; the paper's T is in seconds).
        pacer_rounds: Rounds between two moves of that percentile (paper; code: the same).
        pacer_step: By how much it moves (code; the paper's step is in seconds).
        pacer_flat: Relative change of utility up to which it moves up (code).
        pacer_sharp: Relative change of utility from which it moves down (code).
    """

    exploration: Share = 0.9
    exploration_decay: Share = 0.98
    exploration_min: Share = 0.2
    exploration_window: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 5.0
    penalty: NotNegative = 2.0
    staleness: NotNegative = 0.1
    clip_quantile: Share = 0.95
    cut_off: Share = 0.95
    duration_percentile: Percentile = 30.0
    pacer_rounds: PositiveInt = 20
    pacer_step: Percentile = 5.0
    pacer_flat: NotNegative = 0.1
    pacer_sharp: PositiveFloat = 5.0


class Oort(Selector):
    """The selector; it remembers utility, speed and last round of each user."""

    uses_data = True

    def __init__(self, options: Options, users: Users) -> None:
        self._options = options
        self._users = users
        self._seconds = users.expected_seconds.astype(np.float64)
        self._utility = np.zeros(len(users))
        self._last = np.zeros(len(users), np.int64)
        self._percentile = options.duration_percentile
        self._history: list[float] = []

    def select(self, candidates: Ids, number: int, index: int, rng: np.random.Generator) -> Ids:
        """Choose as the module says."""
        if len(candidates) <= number:
            return candidates
        options = self._options
        is_known = self._last[candidates] > 0
        known, unknown = candidates[is_known], candidates[~is_known]
        share = max(
            options.exploration * options.exploration_decay ** (index - 1), options.exploration_min
        )
        new = min(max(int(number * share), number - len(known)), len(unknown))
        speed = self._speed(candidates)
        exploited = self._exploit(known, speed[is_known], number - new, index, rng)
        explored = self._explore(unknown, speed[~is_known], new, rng)
        return np.concatenate([exploited, explored])

    def report(self, feedback: Feedback) -> None:
        """Take in utilities and speeds of a round's participants."""
        users, counted = feedback.users, feedback.outcomes == Outcome.COUNTED
        # A client that diverged has taught nothing.
        losses = np.where(np.isfinite(feedback.losses), feedback.losses, 0.0)
        utility = feedback.num_examples * np.maximum(losses, 0.0)
        exploited = counted & (self._last[users] > 0)
        self._history.append(_mean(utility[exploited]))
        self._utility[users] = np.where(counted, utility, _mean(utility[counted]))
        late = np.maximum(self._seconds[users], feedback.seconds)
        self._seconds[users] = np.where(counted, feedback.seconds, late)
        self._last[users] = feedback.index
        self._pace(feedback.index)

    def _speed(self, users: Ids) -> NDArray[np.float64]:
        """S of users: 1 for those who are quick enough."""
        if self._percentile >= 100:
            return np.ones(len(users))
        place = int(len(self._seconds) * self._percentile / 100)
        wanted = np.partition(self._seconds, place)[place]
        slower = np.maximum(self._seconds[users], wanted)
        ratio = np.divide(wanted, slower, out=np.ones(len(users)), where=slower > 0)
        speed: NDArray[np.float64] = ratio**self._options.penalty
        return speed

    def _exploit(
        self,
        users: Ids,
        speed: NDArray[np.float64],
        number: int,
        index: int,
        rng: np.random.Generator,
    ) -> Ids:
        if not number:
            return users[:0]
        utility = self._utility[users]
        low = 0.999 * utility.min()
        clipped = np.minimum(utility, np.quantile(utility, self._options.clip_quantile))
        value = (clipped - low) / max(utility.max() - low, _SMALLEST_RANGE)
        bonus = np.sqrt(self._options.staleness * np.log(index) / self._last[users])
        score = (value + bonus) * speed
        needed = np.partition(score, len(score) - number)[len(score) - number]
        admitted = score >= self._options.cut_off * needed
        return draw_by_weight(users[admitted], score[admitted], number, rng)

    def _explore(
        self, users: Ids, speed: NDArray[np.float64], number: int, rng: np.random.Generator
    ) -> Ids:
        if not number:
            return users[:0]
        weight = self._users.num_examples[users] * speed
        window = int(self._options.exploration_window * number)
        if window < len(users):
            best = np.argpartition(weight, len(users) - window)[len(users) - window :]
            users, weight = users[best], weight[best]
        return draw_by_weight(users, weight, number, rng)

    def _pace(self, index: int) -> None:
        options, rounds = self._options, self._options.pacer_rounds
        self._history = self._history[-2 * rounds :]
        if index < 2 * rounds or index % rounds:
            return
        before, now = sum(self._history[:rounds]), sum(self._history[rounds:])
        change = abs(now - before)
        if change <= options.pacer_flat * before:
            self._percentile = min(100.0, self._percentile + options.pacer_step)
        elif change >= options.pacer_sharp * before:
            self._percentile = max(options.pacer_step, self._percentile - options.pacer_step)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else 0.0


build = Oort
