"""Points of a sweep that Optuna proposes, by its ask and tell.

No file holds the study: from its seed and the results of finished runs, the sampler proposes the
same points again, so that a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pfl_bench.config.sweep_file import OptunaOptions, Range, Scalar
from pfl_bench.types import ConfigError

if TYPE_CHECKING:
    from optuna.trial import Trial


class Proposals:
    """The trials of a study; ConfigError without Optuna."""

    def __init__(self, options: OptunaOptions, grid: Mapping[str, list[Scalar] | Range]) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError(
                "optuna: the package optuna is not installed; install the extra: "
                "pip install 'pfl-bench[optuna]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed, samplers = options.seed, optuna.samplers
        if options.sampler == "tpe":
            # Points of a batch keep away from one another.
            sampler = samplers.TPESampler(seed=seed, constant_liar=options.batch > 1)
        elif options.sampler == "gp":
            sampler = samplers.GPSampler(seed=seed)
        else:
            sampler = samplers.RandomSampler(seed=seed)
        self._study = optuna.create_study(sampler=sampler)
        # What has no number is worse than all that have one, to the samplers that ask for it.
        self._without_value = optuna.trial.TrialState.PRUNED
        self._grid = grid
        self._asked: list[Trial] = []

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """The next points, by the results that were told."""
        self._asked = [self._study.ask() for _ in range(count)]
        return [
            {key: _suggested(trial, key, values) for key, values in self._grid.items()}
            for trial in self._asked
        ]

    def tell(self, values: Sequence[float]) -> None:
        """Give the results of the points that were asked for: lower is better, NaN is no result."""
        for trial, value in zip(self._asked, values, strict=True):
            if math.isnan(value):
                self._study.tell(trial, state=self._without_value)
            else:
                self._study.tell(trial, value)


def _suggested(trial: Trial, key: str, values: list[Scalar] | Range) -> Scalar:
    if not isinstance(values, Range):
        chosen: Scalar = trial.suggest_categorical(key, values)
        return chosen
    if values.is_whole:
        whole: int = trial.suggest_int(key, int(values.low), int(values.high), log=values.log)
        return whole
    return values.rounded(trial.suggest_float(key, values.low, values.high, log=values.log))
