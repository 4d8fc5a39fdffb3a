"""The smaller sections of a configuration: attack, systems, evaluation, logging and privacy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, model_validator

from pfl_bench.config.training import Distinct, PositiveFloat, PositiveInt, Strict, Workers
from privacy.empirical.canary_options import CanaryOptions

ATTACK_SPLIT = "attack"


class AttackOptions(Strict):
    """Corrupted clients, which train on poisoned examples or forge what they send.

    The other keys of the section are the plug-in's own (``pfl_bench.simulation.attacks``).

    Attributes:
        kind: Name of the plug-in, such as "label_flip" or "backdoor".
        corrupted_fraction: Share of the training users who are corrupted, drawn once from the
            run's seed; the nearest whole number of them. 0 for a run to compare with, whose attack
            is measured too.
        every: Corrupted clients attack in each so many rounds, and train honestly in the others.
        boost: Factor on what a corrupted client sends in a round of attack; "replace" is the one
            that makes the expected attackers of a round replace the model by theirs:
            cohort_size / (max(1, corrupted_fraction * cohort_size) * central_learning_rate).

    Source: Sun et al. 2019, "Can you really backdoor federated learning?", sections 3 and 4
    (boosting, frequency of attacks); Bagdasaryan et al. 2020, "How to backdoor federated
    learning" (model replacement).
    """

    # Keys of the plug-in, which its own type checks (``config.loading``).
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    kind: str
    corrupted_fraction: Annotated[float, Field(ge=0, le=1)]
    every: PositiveInt = 1
    boost: Annotated[float, Field(ge=1, allow_inf_nan=False)] | Literal["replace"] = 1.0

    @property
    def own(self) -> dict[str, Any]:
        """The keys that are the plug-in's."""
        return dict(self.model_extra or {})

    @property
    def shared(self) -> dict[str, Any]:
        """The keys that every attack has."""
        return self.model_dump(mode="json", include=set(type(self).model_fields))


# Six days: the period of FedScale's published trace.
PERIOD_S = 518_400


class SystemsOptions(Strict):
    """Client systems: whose devices they are, and when a round ends.

    Attributes:
        source: Plug-in name and options of where the devices are from, such as {name: generated,
            seed: 0}.
        overcommitment: For N wanted participants, ceil(overcommitment * N) are selected, and the
            first N to finish count.
        deadline_s: Simulated seconds after which a round ends at the latest; null for none.
    """

    source: dict[str, Any]
    overcommitment: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.3
    deadline_s: PositiveFloat | None = None


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


class WandbOptions(Strict):
    """Settings of logging to Weights & Biases.

    Attributes:
        mode: "disabled" (wandb is not even imported), "offline" (files under the run folder, to be
            uploaded by ``wandb sync``) or "online".
        project: W&B project.
        entity: W&B user or team; None for the login's default.
        group: W&B group; None for table and row, which the seeds of a row share.
        tags: W&B tags, beside the row's table, task and setting.
    """

    mode: Literal["disabled", "offline", "online"] = "disabled"
    project: str = Field(default="pfl-bench", min_length=1)
    entity: str | None = None
    group: str | None = None
    # YAML has lists only, which strict validation of a tuple refuses.
    tags: tuple[str, ...] = Field(default=(), strict=False)


class TensorboardOptions(Strict):
    """Settings of logging for TensorBoard.

    Attributes:
        enabled: Whether event files are written, in ``tensorboard/`` of the run folder.
    """

    enabled: bool = False


class MlflowOptions(Strict):
    """Settings of logging to MLflow.

    Attributes:
        enabled: Whether it is.
        uri: Tracking store, such as http://server:5000 or sqlite:////data/mlflow.db; None for the
            file ``mlflow.db`` of the run folder.
        experiment: MLflow experiment, which is made if it does not exist.
    """

    enabled: bool = False
    uri: str | None = Field(default=None, min_length=1)
    experiment: str = Field(default="pfl-bench", min_length=1)


class LoggingOptions(Strict):
    """Trackers: places to which metrics go beside the run's folder.

    The other keys are names of your own plug-ins, with their options (``pfl_bench.runs.tracker``).

    Attributes:
        wandb: Weights & Biases.
        tensorboard: TensorBoard.
        mlflow: MLflow.
    """

    # Sections of plug-ins, which their own types check (``config.loading``).
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    wandb: WandbOptions = WandbOptions()
    tensorboard: TensorboardOptions = TensorboardOptions()
    mlflow: MlflowOptions = MlflowOptions()


class StatisticsOptions(Strict):
    """Statistics of the training examples' features, released before the first step.

    Attributes:
        noise_multiplier: Standard deviation of the noise on either sum, in multiples of its bound.
        mean_clip_norm: L2 bound of an example's channel means. Nobody may take it from the data.
        square_clip_norm: L2 bound of an example's channel mean squares, likewise.
    """

    noise_multiplier: PositiveFloat
    mean_clip_norm: PositiveFloat
    square_clip_norm: PositiveFloat


class PrivacyOptions(Strict):
    """The run's privacy claim; without this section a run claims none.

    Attributes:
        mechanism: Plug-in name and options, such as {name: gaussian, clip_norm: 0.1}.
        population_size: Users of the deployment whose privacy is computed (federated: required, no
            default); "training_users" says that they are those of the data, however many.
        hypothetical_population: Must be true when ``population_size`` is not the number of users
            in the data; the statement then says so.
        noise_cohort_size: Cohort whose noise is simulated; null for ``cohort_size`` itself.
        epsilon: Target of the simulated deployment; with ``noise_multiplier``, a budget.
        noise_multiplier: Effective z that the accountant sees: standard deviation of the noise in
            multiples of clip_norm; null to calibrate it to epsilon.
        delta: null for N^-1.1.
        nonce: Pins the noise and the cohorts, where they have to stay while code, versions or
            machine change: all runs of one nonce and seed share them, and no two of those have a
            joint guarantee. null: they are this run's own.
        accountant: "rdp" (moments accountant), "pld" or "prv".
        audit: Canary clients that measure a lower bound of epsilon; null for none.
        statistics: Noise and bounds of the statistics of the features that a model of central
            training normalises by, such as {noise_multiplier: 8, mean_clip_norm: 1,
            square_clip_norm: 0.1}; the epsilon counts them. null for a model without.
    """

    mechanism: dict[str, Any]
    population_size: PositiveInt | Literal["training_users"] | None = None
    hypothetical_population: bool = False
    noise_cohort_size: PositiveInt | None = None
    epsilon: PositiveFloat | None = None
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    accountant: Literal["rdp", "pld", "prv"] = "rdp"
    nonce: NonNegativeInt | Annotated[str, Field(min_length=1, max_length=100)] | None = None
    audit: CanaryOptions | None = None
    statistics: StatisticsOptions | None = None

    @model_validator(mode="after")
    def _noise_is_determined(self) -> PrivacyOptions:
        unset = self.epsilon is None and self.noise_multiplier is None
        if unset and self.mechanism.get("name") != "none":
            raise ValueError(
                "give epsilon (the noise is calibrated to it), noise_multiplier, or both (epsilon "
                "is then a budget that stops the run)"
            )
        return self


# Settings of a deployment of clients, and of canaries, which are clients.
OF_CLIENTS = ("population_size", "hypothetical_population", "noise_cohort_size", "audit")
