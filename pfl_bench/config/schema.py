"""The typed, strict configuration of a run: one complete YAML file a row, no inheritance.

Unknown, missing and wrong-typed keys are errors. Sections that belong to a plug-in (``task``,
``model``, ``federated.algorithm``, ``privacy.mechanism``, those of ``logging``) are checked against
the plug-in's own ``Options`` by ``pfl_bench.config.loading``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pfl_bench.config.sections import (
    ATTACK_SPLIT,
    OF_CLIENTS,
    AttackOptions,
    EvaluationOptions,
    LoggingOptions,
    PrivacyOptions,
    SystemsOptions,
)
from pfl_bench.config.training import (
    CentralOptions,
    FederatedOptions,
    LocalOptions,
    MultitaskOptions,
    PositiveInt,
    Strict,
)
from pfl_bench.types import SplitBy

CONFIG_VERSION = 1
Statistic = Literal["last", "best_over_rounds"]
Setting = Literal["central", "central_dp", "federated", "private_federated", "local", "multitask"]


class CheckpointOptions(Strict):
    """Settings of checkpoints, from which a run can be resumed.

    Attributes:
        every: Save each so many rounds (central training: epochs), and at the end.
        keep: Checkpoints that are kept.
    """

    every: PositiveInt = 50
    keep: PositiveInt = 2


class Expected(Strict):
    """A published or expected number that the run is compared with.

    A run is compared if it is of the row as its file stands: other seeds, devices, processes, paths
    of files, logging and evaluation beside the published metrics are the row's; any other override
    is not. A run whose training diverged (``pfl_bench.runs.divergence``) is not compared either.

    Attributes:
        metric: Name in the summary, such as "test/accuracy".
        value: The published value.
        tolerance: The margin: largest absolute difference that does not matter. A number is
            reproduced if the 95 % interval of the difference lies within it
            (``pfl_bench.runs.equivalence``). docs/commands.md has the reason of each table's.
        source: Paper, table, cell; or the command that measured it.
        sd: Standard deviation of the published value over its seeds (ddof 1), in the metric's
            unit; null where only the value is published. Give ``seeds`` too.
        seeds: Over how many seeds ``value`` is a mean and ``sd`` a deviation; null as ``sd``.
        statistic: Which number of a run is compared: "last" is the final evaluation's;
            "best_over_rounds" is the best of the evaluations during training, by the metric's own
            direction, as some papers report. Its split has to be in ``evaluation.splits``.
        measured_here: Whether the value was measured with this toolkit, by the command in
            ``source``. Runs that agree are then "as measured before", not "reproduced".
        variants: Variants of the data that the value holds for; null for any.
        split_by: How the data have to be split for it; null for any way.
        num_users: Users of the training split that it is of, give or take a tenth of them; null
            for any number.
        diverged: Whether the published training failed, so that its number, such as an accuracy at
            chance, is also compared with that of a run which diverged.
    """

    metric: str
    value: float
    tolerance: Annotated[float, Field(ge=0)]
    source: str
    sd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    seeds: Annotated[int, Field(ge=2)] | None = None
    statistic: Statistic = "last"
    measured_here: bool = False
    variants: list[str] | None = None
    split_by: SplitBy | None = None
    num_users: Annotated[int, Field(ge=1)] | None = None
    diverged: bool = False

    @model_validator(mode="after")
    def _deviation_of_seeds(self) -> Expected:
        if (self.sd is None) != (self.seeds is None):
            given, lacking = ("sd", "seeds") if self.seeds is None else ("seeds", "sd")
            raise ValueError(
                f"{given} is given without {lacking}: a test needs the published standard "
                "deviation and the number of seeds that it is over; give both or neither"
            )
        return self


# The sections of trainers, and the key that says how long each trains.
TRAINERS = {
    "federated": "num_rounds",
    "central": "num_epochs",
    "local": "num_epochs",
    "multitask": "num_rounds",
}
_PRIVATE: dict[str, Setting] = {"federated": "private_federated", "central": "central_dp"}


def setting_of(sections: Mapping[str, Any], mechanism: Mapping[str, Any] | None) -> Setting:
    """The setting of a run with these sections; the mechanism "none" is no privacy, as None is."""
    trainer: Any = next((name for name in TRAINERS if sections.get(name)), "federated")
    is_private = mechanism is not None and mechanism.get("name") != "none"
    return _PRIVATE[trainer] if is_private and trainer in _PRIVATE else trainer


# Why no mechanism covers what a trainer does.
_NOT_PRIVATE = {
    "local": "local models never leave their clients, so there is no release to noise",
    "multitask": (
        "Mocha's clients send models of their own, and its relationship matrix tells which of "
        "them are alike: neither is a clipped sum, so no mechanism here bounds what it reveals"
    ),
}


class RunConfig(Strict):
    """A whole run. Exactly one of the sections of trainers is present.

    Attributes:
        version: Version of this format.
        name: Name of the row.
        seed: Names all random streams.
        device: "auto" takes CUDA, then MPS, then the CPU.
        num_threads: Threads of torch on the CPU, in each process; null for one in federated
            training (its cores are for ``federated.workers``), else for torch's default.
        precision: "float32", which "auto" comes to; "tf32" for products and convolutions on an
            NVIDIA GPU; or "bfloat16" for mixed precision (torch.autocast): parameters, updates,
            losses and noise stay float32.
        channels_last: Lay out batches of images with their channels last, which convolutions are
            often faster on.
        plugins: Folders of the user's plug-ins, relative to the file's own folder.
        task: Plug-in name and options.
        model: Name of one of the task's models and its options.
        federated: Federated training.
        central: Central training.
        local: Local models.
        multitask: Federated multi-task learning.
        systems: Simulated devices, which decide who takes part; of federated training.
        attack: Corrupted clients, of federated training: plug-in and options.
        privacy: The privacy claim.
        evaluation: When and on what to evaluate.
        checkpoint: How often to save.
        logging: Trackers, by their names.
        expected: Numbers to compare with.
    """

    version: int
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    # Far more than cores there are; a system that cannot start as many ends the process.
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    precision: Annotated[
        Literal["auto", "float32", "tf32", "bfloat16"],
        # Here and nowhere else: a row that says auto is the one that says nothing.
        AfterValidator(lambda given: "float32" if given == "auto" else given),
    ] = "float32"
    channels_last: bool = False
    plugins: list[str] = Field(default_factory=list)
    task: dict[str, Any]
    model: dict[str, Any]
    federated: FederatedOptions | None = None
    central: CentralOptions | None = None
    local: LocalOptions | None = None
    multitask: MultitaskOptions | None = None
    systems: SystemsOptions | None = None
    attack: AttackOptions | None = None
    privacy: PrivacyOptions | None = None
    evaluation: EvaluationOptions = EvaluationOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    logging: LoggingOptions = LoggingOptions()
    expected: list[Expected] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_trainer(self) -> RunConfig:
        given = [name for name in TRAINERS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of the sections {', '.join(map(repr, TRAINERS))}; given: "
                f"{', '.join(map(repr, given)) or 'none'}"
            )
        if self.privacy is not None and given[0] in _NOT_PRIVATE:
            raise ValueError(f"privacy: {_NOT_PRIVATE[given[0]]}; remove the section 'privacy'")
        if self.central is not None and self.privacy is None and self.central.sampling != "poisson":
            raise ValueError(
                f"central.sampling is '{self.central.sampling}', but says how batches are drawn "
                "under the section 'privacy' alone (without it they are always shuffled); remove it"
            )
        if self.federated is not None and self.privacy is not None:
            if self.privacy.statistics is not None:
                raise ValueError(
                    "privacy.statistics is of central training, whose unit is an example; remove it"
                )
            if self.privacy.population_size is None:
                raise ValueError(
                    "privacy.population_size is required and has no default: the number of users "
                    "of the deployment, or training_users for those of the data"
                )
        elif (
            self.setting == "central_dp"
            and self.central is not None
            and (
                self.precision != "float32"
                or self.central.gradient_clip_norm
                or self.central.gradient_clip_global_norm
            )
        ):
            raise ValueError(
                "example-level DP bounds each example's gradient in float32: remove "
                "central.gradient_clip_norm and central.gradient_clip_global_norm, and set "
                "precision to float32"
            )
        elif self.privacy is not None and (
            foreign := [name for name in OF_CLIENTS if getattr(self.privacy, name)]
        ):
            allowed = [name for name in PrivacyOptions.model_fields if name not in OF_CLIENTS]
            raise ValueError(
                "privacy: central training protects examples, whose number the data give, and has "
                f"no clients, so that these settings do not exist here: {', '.join(foreign)}. "
                f"Remove them. Allowed here: {', '.join(allowed)}."
            )
        return self

    @model_validator(mode="after")
    def _who_takes_part(self) -> RunConfig:
        federated = self.federated
        if self.systems is None:
            for key in ("selection", "max_participations"):
                if federated is not None and getattr(federated, key) is not None:
                    raise ValueError(
                        f"federated.{key} is of runs with simulated devices: add the section "
                        "'systems', such as {source: {name: generated}}, or remove it"
                    )
            if federated is not None and not federated.scheme.is_drawn:
                raise ValueError(
                    "federated.sampling is 'selected', but without the section 'systems' nothing "
                    "selects: add it, such as {source: {name: generated}}, or set poisson"
                )
        elif federated is None:
            raise ValueError(
                "systems: devices are simulated in federated training alone; remove the section"
            )
        elif federated.scheme.is_drawn and federated.sampling != "poisson":
            raise ValueError(
                f"federated.sampling is '{federated.sampling}', but with the section 'systems' "
                "devices and federated.selection decide who takes part: set sampling to selected, "
                "and federated.selection, such as {name: uniform}"
            )
        return self

    @model_validator(mode="after")
    def _attack_and_defence(self) -> RunConfig:
        federated, attack = self.federated, self.attack
        name = "mean" if federated is None else federated.aggregation.get("name")
        if self.privacy is not None and name != "mean":
            raise ValueError(
                f"federated.aggregation: {name} is no sum of clipped updates, so that no mechanism "
                "covers it, and it would not be used: remove it, or the section 'privacy' (of "
                "which mechanism gaussian with noise_multiplier 0 bounds norms and claims nothing)"
            )
        evaluated = [*self.evaluation.splits, *self.evaluation.final_splits]
        if attack is None:
            return self
        if federated is None:
            raise ValueError("attack: clients attack federated training; remove the section")
        if ATTACK_SPLIT in evaluated and self.evaluation.adaptation is not None:
            raise ValueError(
                f"evaluation.adaptation: clients would fine-tune on attacked examples; take "
                f"'{ATTACK_SPLIT}' out of the splits, or adaptation out of evaluation"
            )
        if attack.boost == "replace" and (
            federated.central_optimizer.name != "sgd"
            or federated.central_optimizer.momentum > 0
            or federated.central_schedule.warmup > 0
            or federated.central_schedule.decay != "constant"
            or federated.weighting != "uniform"
        ):
            raise ValueError(
                "attack.boost: replace reckons with a central step along the plain mean (sgd "
                "without momentum, at a constant rate, weighting uniform); give boost a number "
                "instead"
            )
        return self

    @model_validator(mode="after")
    def _best_is_of_rounds(self) -> RunConfig:
        for index, entry in enumerate(self.expected):
            is_best = entry.statistic == "best_over_rounds"
            if is_best and entry.metric.partition("/")[0] not in self.evaluation.splits:
                raise ValueError(
                    f"expected.{index}: statistic best_over_rounds of '{entry.metric}', whose "
                    f"split is not in evaluation.splits: {self.evaluation.splits}; the best is "
                    "taken over what is evaluated during training: add the split there, or compare "
                    "the last"
                )
        return self

    @property
    def setting(self) -> Setting:
        """The run's setting."""
        sections = {name: getattr(self, name) for name in TRAINERS}
        return setting_of(sections, None if self.privacy is None else self.privacy.mechanism)

    @property
    def is_private(self) -> bool:
        """Whether the run claims a guarantee."""
        return self.setting in _PRIVATE.values()
