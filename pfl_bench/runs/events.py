"""Events of a run that callbacks are given.

Guarantee: of a private run, a callback is given only what the run releases, and what the evaluation
measures on users outside of training. Released are the central model after a round, which is
computed from noised sums alone, and the scalars of ``RELEASED``, which are computed from those sums
and the configuration. Nothing else of a round is passed on: neither losses, nor realised cohorts,
nor counts of clipped clients, nor times, nor a scalar that a plug-in adds. So what a callback
computes from them (stopping early, too) is post-processing, which costs no privacy. Unit,
adjacency and sampling are those of the run's statement.

Metrics of the evaluation are measured without noise. Those of the training split are withheld. The
users of the other splits are not those whom the statement covers (``not_covered`` says so). Where
the splits divide each user's examples, they are the same users, and ``on_evaluation`` is refused.

A callback is given copies. What it does to them, and to the random generators, changes no bit of
the run. This is no protection against code that searches the process for more.

A run without privacy passes all its scalars on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from pfl_bench.config.schema import RunConfig
from pfl_bench.types import ConfigError, DataFacts

if TYPE_CHECKING:
    from torch import Tensor

# Functions of releases and of the configuration.
RELEASED = frozenset((
    "privacy/clip_norm", "privacy/epsilon_actual", "privacy/epsilon_simulated",
    "privacy/noisy_fraction_unclipped", "privacy/update_noise_stddev",
    "train/central_learning_rate", "train/local_learning_rate", "train/update_norm",
))  # fmt: skip


@dataclass(frozen=True)
class RoundEnd:
    """A round that is over, and saved where checkpoints are due.

    Attributes:
        index: The round, 1-based.
        total: Rounds of the run.
        scalars: The round's scalars by name; of a private run those of ``RELEASED``.
        model: Parameters and buffers of the central model after the round by name, on the CPU;
            copies.
    """

    index: int
    total: int
    scalars: Mapping[str, float]
    model: Mapping[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of the central model.

    Attributes:
        index: The round, 1-based, after which it was.
        metrics: What was measured by name, such as "val/accuracy"; of a private run without the
            training split.
    """

    index: int
    metrics: Mapping[str, float]


def released_splits(config: RunConfig, facts: DataFacts) -> set[str] | None:
    """Splits whose metrics a private run passes on beside ``RELEASED``; None without privacy."""
    if not config.is_private:
        return None
    if config.setting == "private_federated" and facts.split_by == "example":
        return set()
    return {*config.evaluation.splits, *config.evaluation.final_splits} - {"train"}


OnRoundEnd = Callable[[RoundEnd], None]
OnEvaluation = Callable[[Evaluation], None]


class Callbacks:
    """Tells callbacks of rounds, within the guarantee of this module.

    ``on_evaluation`` is called after each evaluation, before ``on_round_end``. ConfigError if the
    run is not federated, or a callback is none.
    """

    def __init__(
        self,
        config: RunConfig,
        on_round_end: OnRoundEnd | None = None,
        on_evaluation: OnEvaluation | None = None,
    ) -> None:
        if config.federated is None:
            raise ConfigError(
                "FederatedTrainer trains rows of federated training, and this row is of the "
                f"setting '{config.setting}'; run it by run_row"
            )
        given = {"on_round_end": on_round_end, "on_evaluation": on_evaluation}
        for name, callback in given.items():
            if callback is not None and not callable(callback):
                raise ConfigError(f"{name}: {callback!r:.60} cannot be called; give a function")
        self._is_private = config.setting == "private_federated"
        withheld = {"train"} if self._is_private else set()
        self._splits = set(config.evaluation.splits) - withheld
        self._total = config.federated.num_rounds
        self._on_round_end, self._on_evaluation = on_round_end, on_evaluation

    def check(self, facts: DataFacts) -> None:
        """Refuse (ConfigError) an evaluation that would show training users' data without noise."""
        if self._is_private and self._on_evaluation is not None and facts.split_by == "example":
            raise ConfigError(
                "on_evaluation: the splits of these data divide each user's examples, so that the "
                "evaluation's metrics would show a callback data of the users whom this private "
                "run protects, without noise; leave on_evaluation out (metrics.jsonl has the "
                "metrics, outside of the guarantee), or prepare the data with split_by=user"
            )

    def tell(
        self,
        index: int,
        scalars: Mapping[str, float],
        measured: Mapping[str, float] | None,
        model: dict[str, Tensor],
    ) -> RoundEnd:
        """Call them of round ``index``, 1-based; gives what ``on_round_end`` was given.

        Of all scalars of the round those of its evaluation are ``measured``, None without one. The
        central model's parameters and buffers are passed on as they are.
        """
        if measured is not None and self._on_evaluation is not None:
            metrics = {
                name: float(value)
                for name, value in measured.items()
                if name.partition("/")[0] in self._splits
            }
            self._on_evaluation(Evaluation(index, MappingProxyType(metrics)))
        shown = {
            name: float(value)
            for name, value in scalars.items()
            if not self._is_private or name in RELEASED
        }
        end = RoundEnd(index, self._total, MappingProxyType(shown), MappingProxyType(model))
        if self._on_round_end is not None:
            self._on_round_end(end)
        return end
