"""Evaluation of a run's model: the splits, whose models, and the metrics it will measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.schema import RunConfig
from pfl_bench.evaluation.fine_tuning import FineTuning
from pfl_bench.evaluation.splits import (
    COUNTS,
    Measured,
    examples_at_once,
    measure,
    measured_names,
)
from pfl_bench.evaluation.strata import Strata
from pfl_bench.metrics import PERSONAL, build_metrics
from pfl_bench.types import (
    ConfigError,
    Evaluate,
    Metric,
    OwnModels,
    PersonalModels,
    SingleProcess,
    Task,
    UserInputError,
    WorkerGroup,
    did_you_mean,
    is_out_of_memory,
)


def families_of(task: Task, config: RunConfig) -> tuple[str, ...]:
    """Names of the families of metrics that a run measures: the task's, then the row's."""
    return tuple(dict.fromkeys([*task.metrics, *config.evaluation.metrics]))


class Evaluator:
    """Evaluates the model that is in memory, or what clients make of it.

    With ``evaluation.adaptation`` each client of a federated run fine-tunes the model first. A
    private run may have that too: clients fine-tune what was released, on their own devices, and
    send nothing. (What is measured of them is outside the statement, as all evaluation is.)

    ``personal`` gives the clients' own models that training makes, None for one model of all; the
    processes of ``group`` evaluate a part each. What comes of the models ``beside`` the central
    one, in a run of one process, has the same names behind "personal_". ConfigError if what is to
    be measured does not fit the data or the training.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        model: FlatModel,
        forward: Forward,
        personal: PersonalModels | None,
        group: WorkerGroup | None = None,
        beside: OwnModels | None = None,
    ) -> None:
        self._options = config.evaluation
        self._expected = config.expected
        self._group = group or SingleProcess()
        self._model = model
        self._task = task
        self._families = families_of(task, config)
        self._forward = forward
        self._adaptation: FineTuning | None = None
        if self._options.adaptation is not None:
            if config.federated is None:
                raise ConfigError(
                    "evaluation.adaptation: clients fine-tune the model of federated training; "
                    f"this run is of the setting '{config.setting}': remove the key"
                )
            self._adaptation = FineTuning(forward, model, self._options.adaptation, config.seed)
        self._personal = self._adaptation or personal
        self._beside = beside
        self._strata()
        self._check_families()
        self._measured: dict[str, tuple[str, ...]] = {}  # names, by split
        self._check_wanted(personal is not None)

    def evaluate(
        self, splits: Sequence[str]
    ) -> tuple[dict[str, float], dict[str, dict[str, dict[str, Any]]]]:
        """Evaluate on some splits; afterwards the model is in memory as it was.

        Gives what was measured, by name; and by split and column, what the examples of each of the
        column's values came to.
        """
        if self._group.size > 1:
            self._group.broadcast(Evaluate(tuple(splits)), self._model.vector)
        own = self.measure(splits, 0, self._group.size)
        others = [self._group.receive(rank)[0] for rank in range(1, self._group.size)]
        scalars: dict[str, float] = {}
        tables = {}
        for place, (name, (measured, strata)) in enumerate(zip(splits, own, strict=True)):
            for parts in others:
                measured.merge(parts[place])
            scalars |= measured.result(self._task.split(name), self._personal is not None)
            tables[name] = strata.tables()
        return scalars | self._measure_beside(splits), tables

    def _measure_beside(self, splits: Sequence[str]) -> dict[str, float]:
        """Metrics of clients' own models; afterwards the model is in memory as it was."""
        if self._beside is None:
            return {}
        scalars: dict[str, float] = {}
        with self._model.kept():
            self._beside.begin()
            for name in splits:
                split, size = self._task.split(name), self._options.batch_size
                found = measure(self._forward, split, self._metrics(), size, personal=self._beside)
                named = found.result(split, is_personal=True)
                scalars |= {_personal(key): value for key, value in named.items()}
        return scalars

    def measure(self, splits: Sequence[str], rank: int, size: int) -> list[tuple[Measured, Strata]]:
        """Evaluate on part ``rank`` of ``size`` of some splits; the model is as before, then.

        Gives what was accumulated of each split, and what tells its examples apart.
        """
        result = []
        # A model may write to its weights as it reads them (an embedding's max_norm): they would
        # tell a selected model's reader which examples were evaluated.
        with self._model.kept():
            if self._adaptation is not None:
                self._adaptation.begin()
            for name in splits:
                strata = self._strata()
                measured = measure(
                    self._forward,
                    self._task.split(name),
                    self._metrics(),
                    self._options.batch_size,
                    self._options.data_workers,
                    strata,
                    self._personal,
                    (rank, size),
                    examples_at_once(self._task.facts.input_shape, self._forward.device),
                )
                result.append((measured, strata))
        return result

    def _strata(self) -> Strata:
        return Strata(self._task, self._options.strata)

    def _metrics(self) -> list[Metric]:
        return build_metrics(self._task, self._families)

    def _check_families(self) -> None:
        """Refuse families that cannot measure the task, or measure what others do."""
        splits = [*self._options.splits, *self._options.final_splits]
        if not splits or (not self._options.metrics and len(self._families) < 2):
            return
        split, taken = self._task.split(splits[0]), dict[str, str]()
        for family in self._families:
            metrics = build_metrics(self._task, [family])
            key = "the task's metrics" if family in self._task.metrics else "evaluation.metrics"
            try:
                names = measured_names(self._forward, split, metrics)
            except (ValueError, RuntimeError, TypeError, IndexError, UserInputError) as error:
                if is_out_of_memory(error):
                    raise
                raise ConfigError(f"{key}: '{family}' cannot measure this task: {error}") from error
            for name in (name.partition("/")[2] for name in names):
                if name in taken and name not in COUNTS:
                    raise ConfigError(
                        f"{key}: '{family}' and '{taken[name]}' both measure '{name}'; leave "
                        "one out, or rename it in a family of your own"
                    )
                taken[name] = family

    def _check_wanted(self, is_trained_by_client: bool) -> None:
        """Refuse, before anything is trained, what rests on values that will not be measured."""
        options = self._options
        if options.select_best is not None:
            if is_trained_by_client:
                raise ConfigError(
                    "evaluation.select_best: each client has a model of its own, so there is none "
                    "to select; remove the key"
                )
            self._check_measured("evaluation.select_best", options.select_best, options.splits)
        for index, target in enumerate(options.budgets):
            key = f"evaluation.budgets.{index}.metric"
            self._check_measured(key, target.metric, options.splits)
        for index, entry in enumerate(self._expected):
            is_best = entry.statistic == "best_over_rounds"
            splits = options.splits if is_best else options.final_splits
            self._check_measured(f"expected.{index}.metric", entry.metric, splits)

    def _check_measured(self, key: str, wanted: str, splits: Sequence[str]) -> None:
        """Refuse (ConfigError) a metric that is not among those of some splits."""
        split = wanted.partition("/")[0]
        names = self.names(split) if split in splits else ()
        if wanted in names:
            return
        names = names or tuple(name for other in splits for name in self.names(other))
        raise ConfigError(
            f"{key}: '{wanted}' is not measured{did_you_mean(wanted, names, '.')} There are: "
            f"{', '.join(sorted(names)) or 'none'}"
        )

    def names(self, split: str) -> tuple[str, ...]:
        """Names of what is measured of a split, found out on one example of it."""
        if split not in self._measured:
            self._measured[split] = measured_names(
                self._forward,
                self._task.split(split),
                self._metrics(),
                self._strata(),
                self._personal is not None,
            )
            if self._beside is not None:
                own = measured_names(
                    self._forward, self._task.split(split), self._metrics(), is_personal=True
                )
                self._measured[split] += tuple(map(_personal, own))
        return self._measured[split]


def names_measured(config: RunConfig, task: Task, model: FlatModel) -> set[str]:
    """Names of all that is measured of a run with one model; ConfigError as ``Evaluator``'s."""
    # In any precision they are the same, and any machine has this one.
    forward = Forward(model.module, task, model.device)
    evaluator, options = Evaluator(config, task, model, forward, None), config.evaluation
    splits = {*options.splits, *options.final_splits}
    return {name for split in splits for name in evaluator.names(split)}


def _personal(name: str) -> str:
    """The name of what was measured of clients' own models."""
    split, _, metric = name.partition("/")
    return f"{split}/{PERSONAL}{metric}"
