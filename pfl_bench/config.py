"""The typed, strict configuration of a run: one complete YAML file a row, no inheritance.

Unknown, missing and wrong-typed keys are errors. Sections that belong to a plug-in (``task``,
``model``, ``federated.algorithm``, ``privacy.mechanism``) are checked against the plug-in's own
``Options`` by ``pfl_bench.config_file``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfl_bench.wandb_log import WandbOptions

CONFIG_VERSION = 1
Setting = Literal["central", "central_dp", "federated", "private_federated"]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Workers = Annotated[int, Field(ge=0, le=64)]


class Strict(BaseModel):
    """Base of all sections: no unknown keys, no coercion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OptimizerOptions(Strict):
    """A central optimizer (the literature's server optimizer) and its constants.

    Attributes:
        name: "sgd", "adam", "adamw", "adagrad" or "yogi".
        momentum: For sgd.
        beta1: For adam, adamw, yogi.
        beta2: For adam, adamw, yogi.
        epsilon: Added to the denominator by all but sgd.
        epsilon_hat: For adam: epsilon is the one that Kingma and Ba (2015, section 2) call epsilon
            hat, as in Keras: added before the second moment's bias is corrected. Steps where it
            rules are then smaller at first, in round t by sqrt(1 - beta2^t).
        weight_decay: L2 penalty (adamw: decoupled).
    """

    name: Literal["sgd", "adam", "adamw", "adagrad", "yogi"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    epsilon_hat: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _epsilon_hat_is_adam_s(self) -> OptimizerOptions:
        if self.epsilon_hat and self.name != "adam":
            raise ValueError(f"epsilon_hat is for adam alone, not for {self.name}; remove it")
        return self


class ScheduleOptions(Strict):
    """How a learning rate moves over rounds (central training: over optimizer steps).

    Attributes:
        warmup: Linear warm-up over so many rounds, from rate/warmup to the full rate.
        decay: Shape after the warm-up.
        final_fraction: Fraction of the rate that linear, cosine and exponential decay end at.
        step_every: For "step": multiply by ``step_factor`` every so many rounds.
        step_factor: See ``step_every``.
    """

    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["constant", "linear", "cosine", "exponential", "step"] = "constant"
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    step_every: PositiveInt = 100
    step_factor: PositiveFloat = 0.1

    @model_validator(mode="after")
    def _exponential_needs_an_end(self) -> ScheduleOptions:
        if self.decay == "exponential" and self.final_fraction == 0:
            raise ValueError("exponential decay needs final_fraction > 0, such as 0.01")
        return self


class FederatedOptions(Strict):
    """Federated training, private or not.

    Attributes:
        num_rounds: Central steps.
        cohort_size: Expected users a round.
        sampling: "poisson" (the only one that DP amplification is fully accounted for),
            "fixed_size" without replacement, or "full".
        weighting: Clients count alike ("uniform", required under DP) or by their examples.
        local_epochs: Passes over a client's examples.
        local_steps: Stop a client after so many steps; null for no limit.
        local_batch_size: Examples a local step.
        local_batches: "per_epoch" starts each epoch with a new batch, so its last one may be
            smaller; "across_epochs" fills batches over the ends of epochs, as TensorFlow's
            ``repeat(epochs).batch(size)`` does: small clients take fewer, fuller steps.
        local_learning_rate: Rate of local SGD.
        local_gradient_clip_norm: Bound of the L2 norm of each weight tensor's gradient in a local
            step (Keras calls it clipnorm); null for none. No part of privacy.
        algorithm: Plug-in name and options, such as {name: fedprox, proximal_weight: 0.1}.
        central_optimizer: Optimizer of the central step.
        central_learning_rate: Rate of the central step (the literature's server rate).
        central_schedule: How the central rate moves over rounds.
        engine: "auto" or the name of an engine.
        data_workers: Threads that read clients ahead of training; 0 reads in line.
    """

    num_rounds: PositiveInt
    cohort_size: PositiveInt
    sampling: Literal["poisson", "fixed_size", "full"] = "poisson"
    weighting: Literal["uniform", "examples"] = "uniform"
    local_epochs: PositiveInt = 1
    local_steps: PositiveInt | None = None
    local_batch_size: PositiveInt
    local_batches: Literal["per_epoch", "across_epochs"] = "per_epoch"
    local_learning_rate: PositiveFloat
    local_gradient_clip_norm: PositiveFloat | None = None
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "fedavg"})
    central_optimizer: OptimizerOptions = OptimizerOptions()
    central_learning_rate: PositiveFloat = 1.0
    central_schedule: ScheduleOptions = ScheduleOptions()
    engine: str = "auto"
    data_workers: Workers = 0


class CentralOptions(Strict):
    """Central training on the pooled training split.

    Attributes:
        num_epochs: Passes over the pooled examples (example-level DP: expected passes).
        batch_size: Examples a step (example-level DP: expected, drawn by Poisson sampling).
        learning_rate: Rate of the optimizer.
        optimizer: Optimizer and its constants.
        schedule: How the rate moves over steps.
        gradient_clip_norm: Bound of the L2 norm of each weight tensor's gradient (Keras calls it
            clipnorm); null for none. Not for example-level DP, which clips by example.
        physical_batch_size: Under DP, gradients of at most so many examples are in memory.
        data_workers: Threads that read batches ahead of training; 0 reads in line.
    """

    num_epochs: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    optimizer: OptimizerOptions = OptimizerOptions()
    schedule: ScheduleOptions = ScheduleOptions()
    gradient_clip_norm: PositiveFloat | None = None
    physical_batch_size: PositiveInt = 256
    data_workers: Workers = 0


class PrivacyOptions(Strict):
    """What privacy the run claims; without this section a run claims none.

    Attributes:
        mechanism: Plug-in name and options, such as {name: gaussian, clip_norm: 0.1}.
        population_size: Users of the deployment whose privacy is computed (federated: required, no
            default); "training_users" says that they are those of the data, however many.
        hypothetical_population: Must be true when ``population_size`` is not the number of users
            in the data; the statement then says so.
        noise_cohort_size: Cohort whose noise is simulated; null for ``cohort_size`` itself.
        epsilon: Target of the simulated deployment; with ``noise_multiplier``, a budget.
        noise_multiplier: Effective z that the accountant sees; null to calibrate it to epsilon.
        delta: null for N^-1.1.
        accountant: "rdp" (moments accountant), "pld" or "prv".
    """

    mechanism: dict[str, Any]
    population_size: PositiveInt | Literal["training_users"] | None = None
    hypothetical_population: bool = False
    noise_cohort_size: PositiveInt | None = None
    epsilon: PositiveFloat | None = None
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    accountant: Literal["rdp", "pld", "prv"] = "rdp"

    @model_validator(mode="after")
    def _noise_is_determined(self) -> PrivacyOptions:
        unset = self.epsilon is None and self.noise_multiplier is None
        if unset and self.mechanism.get("name") != "none":
            raise ValueError(
                "give epsilon (the noise is calibrated to it), noise_multiplier, or both (epsilon "
                "is then a budget that stops the run)"
            )
        return self


class EvaluationOptions(Strict):
    """When and on what the model is evaluated.

    Attributes:
        every: Evaluate ``splits`` each so many rounds (central training: epochs).
        splits: Splits evaluated during training, such as [val].
        final_splits: Splits evaluated once, after training.
        batch_size: Examples a forward pass.
        select_best: A metric such as "val/accuracy" by whose best value (higher is better, for
            names that end in "loss" lower) the final model is chosen; null takes the last model.
        data_workers: Threads that read batches ahead of the model; 0 reads in line.
    """

    every: PositiveInt = 10
    splits: list[str] = Field(default_factory=list)
    final_splits: list[str] = Field(default_factory=lambda: ["test"])
    batch_size: PositiveInt = 512
    select_best: str | None = None
    data_workers: Workers = 0

    @model_validator(mode="after")
    def _selection_is_measured(self) -> EvaluationOptions:
        if self.select_best and self.select_best.partition("/")[0] not in self.splits:
            raise ValueError(
                f"select_best '{self.select_best}' names a split that is not in splits: "
                f"{self.splits}; selection uses what is evaluated during training"
            )
        return self


class CheckpointOptions(Strict):
    """How often a run can be resumed from.

    Attributes:
        every: Save each so many rounds (central training: epochs), and at the end.
        keep: Checkpoints that are kept.
    """

    every: PositiveInt = 50
    keep: PositiveInt = 2


class LoggingOptions(Strict):
    """Where else the metrics go."""

    wandb: WandbOptions = WandbOptions()


class Expected(Strict):
    """A published or expected number that the run is compared with.

    Attributes:
        metric: Name in the summary, such as "test/accuracy".
        value: The published value.
        tolerance: Largest absolute difference that counts as reproduced.
        source: Paper, table, cell; or the command that measured it.
        variants: Variants of the data that the value holds for; null for any.
    """

    metric: str
    value: float
    tolerance: Annotated[float, Field(ge=0)]
    source: str
    variants: list[str] | None = None


class RunConfig(Strict):
    """A whole run. Exactly one of ``federated`` and ``central`` is present.

    Attributes:
        version: Version of this format.
        name: Name of the row.
        seed: Names all random streams.
        device: "auto" takes CUDA, then MPS, then the CPU.
        num_threads: Threads of torch on the CPU; null for torch's default.
        precision: "bfloat16" runs the model in mixed precision (torch.autocast); parameters,
            updates, losses and noise stay float32.
        channels_last: Lay out batches of images with their channels last, which convolutions are
            often faster on.
        task: Plug-in name and options.
        model: Name of one of the task's models and its options.
        federated: Federated training.
        central: Central training.
        privacy: The privacy claim.
        evaluation: When and on what to evaluate.
        checkpoint: How often to save.
        logging: Weights & Biases.
        expected: Numbers to compare with.
    """

    version: int
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    num_threads: PositiveInt | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = False
    task: dict[str, Any]
    model: dict[str, Any]
    federated: FederatedOptions | None = None
    central: CentralOptions | None = None
    privacy: PrivacyOptions | None = None
    evaluation: EvaluationOptions = EvaluationOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    logging: LoggingOptions = LoggingOptions()
    expected: list[Expected] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_trainer(self) -> RunConfig:
        if (self.federated is None) == (self.central is None):
            raise ValueError("give exactly one of the sections 'federated' and 'central'")
        if self.federated is not None and self.privacy is not None:
            if self.privacy.population_size is None:
                raise ValueError(
                    "privacy.population_size is required and has no default: the number of users "
                    "of the deployment, or training_users for those of the data"
                )
        elif self.setting == "central_dp" and (
            self.precision != "float32" or (self.central and self.central.gradient_clip_norm)
        ):
            raise ValueError(
                "example-level DP bounds each example's gradient in float32: remove "
                "central.gradient_clip_norm, and set precision to float32"
            )
        elif self.privacy is not None and (
            self.privacy.population_size is not None
            or self.privacy.noise_cohort_size is not None
            or self.privacy.hypothetical_population
        ):
            raise ValueError(
                "central training protects examples, whose number the data give: remove "
                "population_size, hypothetical_population and noise_cohort_size from 'privacy'"
            )
        return self

    @property
    def setting(self) -> Setting:
        """Which of the settings this run is; the mechanism "none" is no privacy."""
        private = self.privacy is not None and self.privacy.mechanism.get("name") != "none"
        if self.central is not None:
            return "central_dp" if private else "central"
        return "private_federated" if private else "federated"
