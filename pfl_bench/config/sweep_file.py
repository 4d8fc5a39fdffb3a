"""The file of a sweep, and the points of its grid that are run."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from pfl_bench.config.training import Strict
from pfl_bench.types import ConfigError
from privacy.errors import PrivacyError
from privacy.tuning import Trials

Scalar = bool | int | float | str | None
# Draws of a random search for each run that it wants, before it says that the grid has no more.
_MOST_DRAWS = 100
# Runs of a sweep or a table, whose configurations are all checked before the first one begins.
MOST_RUNS = 10_000


class SelectionOptions(Strict):
    """A random number of trials, of which the best alone is released.

    Its guarantee is that of ``privacy.tuning``.

    Attributes:
        distribution: Law of the number of trials.
        mean: Expected number of trials, at least 1.
        eta: Shape of the truncated negative binomial, above -1.
        gamma: Instead of the mean: probability of stopping, in (0, 1]; not of "poisson".
        seed: Seed of the number of trials and of the points that they draw; None for the row's.
    """

    distribution: Literal["poisson", "geometric", "truncated_negative_binomial"]
    mean: float | None = None
    eta: float | None = None
    gamma: float | None = None
    seed: Annotated[int, Field(ge=0)] | None = None

    def trials(self, path: Path) -> Trials:
        """The distribution, if its numbers are right."""
        try:
            return Trials.named(self.distribution, self.mean, self.eta, self.gamma)
        except PrivacyError as error:
            raise ConfigError(f"{path}: selection: {error}") from None


class Range(Strict):
    """Values from ``low`` to ``high``, of which a random search or Optuna draws.

    Numbers have four significant digits; those between whole bounds are whole.

    Attributes:
        low: The least.
        high: The most.
        log: Whether they are uniform on a logarithmic scale.
    """

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if not (math.isfinite(self.low) and self.low < self.high < math.inf):
            raise ValueError(f"low {self.low} must be below high {self.high}, both finite")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low} must be above 0 on a logarithmic scale")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, rng: random.Random) -> int | float:
        """Draw a value."""
        # So that the ends are rounded to as often as what is between them.
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_whole else (self.low, self.high)
        if self.log:
            value = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            value = rng.uniform(low, high)
        return self.rounded(min(max(value, self.low), self.high))

    def rounded(self, value: float) -> int | float:
        """A value of the range as a run has it."""
        return round(value) if self.is_whole else float(f"{value:.4g}")


class RandomOptions(Strict):
    """Random search: so many points of the grid, drawn independently for each key.

    Attributes:
        runs: How many; more of them keep the first ones.
        seed: Of the draws.
    """

    runs: Annotated[int, Field(ge=1, le=MOST_RUNS)]
    seed: Annotated[int, Field(ge=0)] = 0


class OptunaOptions(Strict):
    """Points that a sampler of Optuna proposes by the results of earlier ones.

    Attributes:
        trials: How many points; one that is proposed again is not trained again.
        sampler: Optuna's name of it, its settings being Optuna's own.
        batch: Points that are proposed at once, and run beside each other by ``--launcher``.
        seed: Of the sampler.
    """

    trials: PositiveInt
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    batch: PositiveInt = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class HalvingOptions(Strict):
    """Successive halving: all points for few rounds, the best of them for more.

    Each run begins anew: schedule and noise are those of its own number of rounds.

    Attributes:
        rounds: Of the first runs (central training: epochs), fewer than the row's.
        factor: By how much each step multiplies the rounds and divides the points.

    Source: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
    optimization", figure 3.
    """

    rounds: PositiveInt
    factor: Annotated[int, Field(ge=2)] = 3


class Sweep(Strict):
    """A sweep as its file has it.

    Attributes:
        version: Version of the configuration format.
        row: File of the row, from the folder of the sweep's file; or a bundled row, such as
            demo/federated.yaml.
        metric: What the best model of each run is chosen by, and the best run, such as
            "val/c_ap": higher is better; of losses, perplexities and standard deviations, by
            client or stratum too, lower.
        grid: The values of each dotted key: a list, or with ``random`` or ``optuna`` also a range.
        random: Draws points of the grid; None to run all of them.
        optuna: Proposes points of the grid, one after another; None to run all of them.
        halving: Runs all points for few rounds, and the best for more; None to run each once.
        selection: How many points are drawn from the grid, where the choice is to have a price;
            None to run all of them.
    """

    version: int
    row: str
    metric: Annotated[str, Field(pattern=r"^[^/]+/.+$")]
    grid: Annotated[
        dict[str, Annotated[list[Scalar], Field(min_length=1)] | Range], Field(min_length=1)
    ]
    random: RandomOptions | None = None
    optuna: OptunaOptions | None = None
    halving: HalvingOptions | None = None
    selection: SelectionOptions | None = None


def points_of(
    grid: Mapping[str, list[Scalar] | Range], sweep: Sweep, path: Path
) -> Iterator[dict[str, Scalar]]:
    """The points of a grid that are run: all of them, or those that a random search draws.

    Of Optuna's these are points to check before any run: each value and each end is in one of them.
    """
    if sweep.optuna is not None:
        others = (name for name in ("random", "halving", "selection") if getattr(sweep, name))
        if other := next(others, None):
            raise ConfigError(
                f"{path}: optuna: {other} chooses among points too; leave one of them out"
            )
        ends = {
            key: [values.low, values.high] if isinstance(values, Range) else values
            for key, values in grid.items()
        }
        for place in range(max(map(len, ends.values()))):
            yield {key: values[min(place, len(values) - 1)] for key, values in ends.items()}
        return
    lists = {key: values for key, values in grid.items() if not isinstance(values, Range)}
    if sweep.random is None:
        if len(lists) < len(grid):
            key = next(key for key in grid if key not in lists)
            raise ConfigError(
                f"{path}: grid.{key}: has a range, which only a random search or Optuna draws "
                "from; give a list of values, or add `random: {runs: 20}`"
            )
        if (number := math.prod(map(len, lists.values()))) > MOST_RUNS:
            raise ConfigError(
                f"{path}: grid: has {number:,} combinations, more than {MOST_RUNS:,}; list "
                "fewer values, or draw some of them with `random: {runs: 20}`"
            )
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))
        return
    if sweep.selection is not None:
        raise ConfigError(
            f"{path}: random: a selection draws points of the grid itself; leave one of them out"
        )
    rng, seen = random.Random(sweep.random.seed), set[str]()
    for _ in range(_MOST_DRAWS * sweep.random.runs):
        point = {
            key: values.draw(rng) if isinstance(values, Range) else rng.choice(values)
            for key, values in grid.items()
        }
        if json.dumps(point) not in seen:
            seen.add(json.dumps(point))
            yield point
        if len(seen) == sweep.random.runs:
            return
    raise ConfigError(
        f"{path}: random.runs: {sweep.random.runs} different points are wanted, and "
        f"{_MOST_DRAWS * sweep.random.runs} draws found {len(seen)}; lower it, or widen the grid"
    )
