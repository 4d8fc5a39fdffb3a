"""The section of a configuration that says when, on what and how a model is evaluated."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pfl_bench.config.training import Distinct, PositiveFloat, PositiveInt, Strict, Workers


class AdaptationOptions(Strict):
    """Fine-tune the model on a part of each evaluated client's examples; test it on the rest.

    Attributes:
        num_steps: Mini-batches of local SGD, drawn by passes over the part.
        batch_size: Examples a step.
        learning_rate: Rate of local SGD.
        fraction: Fraction of each client's examples that it adapts on (drawn once from the seed),
            at least one; clients with one example are not adapted.
    """

    num_steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5


class BudgetTarget(Strict):
    """A value of a metric whose price in computation and communication is wanted.

    Attributes:
        metric: Name such as "test/accuracy", of a split that is evaluated during training.
        value: The value to reach: at most, of losses, perplexities and standard deviations (by
            client or stratum too), of everything else at least.
    """

    metric: str
    value: Annotated[float, Field(allow_inf_nan=False)]


class EvaluationOptions(Strict):
    """Settings of the evaluation: its rounds and its splits.

    Attributes:
        every: Evaluate ``splits`` each so many rounds (central training: epochs).
        splits: Splits evaluated during training, such as [val]. With train among them, train/loss
            is the evaluated loss, and that of the local steps is logged as train/step_loss.
        final_splits: Splits evaluated once, after training.
        batch_size: Examples a forward pass. On a CPU large pictures go through the model in parts
            of a batch, which changes no metric.
        select_best: A metric such as "val/accuracy" by whose best value (higher is better; of
            losses, perplexities and standard deviations, by client or stratum too, lower) the
            final model is chosen; null takes the last model.
        data_workers: Threads that read batches ahead of the model; 0 reads in line.
        metrics: Families of metrics that are measured beside the task's own, by name: bundled ones
            and plug-ins, with their default options.
        strata: Columns of the data, such as [play], by whose values results are told apart.
        adaptation: Fine-tune on a part of each client's examples first; null evaluates the model
            as it is.
        budgets: Values whose price is reported: at which round, FLOPs and bytes each was reached.
    """

    every: PositiveInt = 10
    splits: Distinct[str] = Field(default_factory=list)
    final_splits: Distinct[str] = Field(default_factory=lambda: ["test"])
    batch_size: PositiveInt = 512
    select_best: str | None = None
    data_workers: Workers = 0
    metrics: Distinct[str] = Field(default_factory=list)
    strata: Distinct[str] = Field(default_factory=list)
    adaptation: AdaptationOptions | None = None
    budgets: list[BudgetTarget] = Field(default_factory=list)

    @model_validator(mode="after")
    def _selection_is_measured(self) -> EvaluationOptions:
        if self.select_best and self.select_best.partition("/")[0] not in self.splits:
            raise ValueError(
                f"select_best '{self.select_best}' names a split that is not in splits: "
                f"{self.splits}; selection uses what is evaluated during training"
            )
        for target in self.budgets:
            if target.metric.partition("/")[0] not in self.splits:
                raise ValueError(
                    f"budgets: '{target.metric}' names a split that is not in splits: "
                    f"{self.splits}; when a value was reached is seen during training"
                )
        return self
