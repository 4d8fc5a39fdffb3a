"""From a configuration to the parts of a run, each built once: data, model, what clients do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pfl_bench import plugins
from pfl_bench.client import precision
from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.model_checks import check_forgets, check_weights, mixing_layer
from pfl_bench.client.optimizers import RateSchedule
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.schema import RunConfig
from pfl_bench.config.training import FederatedOptions
from pfl_bench.data import held_task
from pfl_bench.federated.aggregation import Aggregation
from pfl_bench.rng import Purpose, seed_torch
from pfl_bench.types import (
    Algorithm,
    ConfigError,
    Engine,
    FederatedSplit,
    LocalTraining,
    NormalizesByStatistics,
    Participants,
    PluginError,
    ReadsOnDevice,
    Stateful,
    Task,
    UpdateTransform,
    place_of,
)
from privacy.mechanism import Mechanism, NoiseScale

# Before any run has set another number.
_DEFAULT_THREADS = torch.get_num_threads()


def set_threads(config: RunConfig) -> None:
    """Set the threads of torch that a configuration asks for, in this process."""
    # A client's products are too small to be shared out; whole clients are.
    default = _DEFAULT_THREADS if config.federated is None else 1
    torch.set_num_threads(config.num_threads or default)


def build_model(resolved: ResolvedConfig, task: Task, device: torch.device) -> FlatModel:
    """Build the row's model with weights drawn from the run's own stream."""
    seed_torch(resolved.config.seed, Purpose.MODEL_INIT, torch.device("cpu"))
    name = resolved.tree["task"]["name"]
    module = plugins.build(plugins.MODEL, name, resolved.model_options, task.facts)
    privacy = resolved.config.privacy
    if isinstance(module, NormalizesByStatistics) and (not privacy or not privacy.statistics):
        raise ConfigError(
            "model: it normalises by statistics of the training examples' features, which nothing "
            "releases: set privacy.statistics (noise_multiplier, mean_clip_norm, "
            "square_clip_norm) of central training, or choose model.groups=27"
        )
    if resolved.config.is_private:
        _check_private(module, task, resolved.config.central is not None)
    return FlatModel(module, device, resolved.config.channels_last)


def _check_private(module: Any, task: Task, by_example: bool) -> None:
    """Refuse a model by which examples reach what is released, other than by their gradients."""
    check_weights(module)
    forward, split = Forward(module, task, torch.device("cpu")), task.split("train")
    inputs = forward.prepare(split.read_range(0, min(4, split.num_examples)).inputs.cpu(), None)
    if len(inputs) > 1:
        check_forgets(module, inputs)
    if by_example and (
        layer := mixing_layer(module, inputs, True) or mixing_layer(module, inputs, False)
    ):
        raise ConfigError(
            f"model: layer {layer} mixes the examples of a batch, so that the gradient of a single "
            "example cannot be bounded; replace BatchNorm by GroupNorm, and keep examples apart"
        )


def build_task(resolved: ResolvedConfig, device: torch.device) -> Task:
    """Open the row's data, for a model that lives on ``device``."""
    task: Task = plugins.build(plugins.TASK, resolved.tree["task"]["name"], resolved.task_options)
    if isinstance(task, ReadsOnDevice):
        task.use_device(device)
    if resolved.config.attack is not None:
        from pfl_bench.simulation.corrupted_task import CorruptedTask
        from pfl_bench.simulation.poison import build_poison

        build = partial(build_poison, resolved)
        return CorruptedTask(task, resolved.config.attack, build, resolved.config.seed)
    return task


def build_forward(resolved: ResolvedConfig, task: Task, model: FlatModel) -> Forward:
    """Build the forward pass of training and evaluation, in a precision that the device has."""
    config = resolved.config
    precision.use(config.precision, model.device)
    return Forward(model.module, task, model.device, config.precision, config.channels_last)


@dataclass(frozen=True)
class RunParts:
    """Parts of a run of any setting, built once; training works in the model's own memory."""

    resolved: ResolvedConfig
    task: Task
    model: FlatModel
    forward: Forward

    @classmethod
    def build(cls, resolved: ResolvedConfig, task: Task, model: FlatModel) -> RunParts:
        """Build the forward pass of a task and a model."""
        return cls(resolved, task, model, build_forward(resolved, task, model))


def build_run(resolved: ResolvedConfig) -> RunParts:
    """Set this process up and build the parts that a run of any setting has."""
    set_threads(resolved.config)
    device = precision.resolve_device(resolved.config.device, resolved.config.privacy is not None)
    task = build_task(resolved, device)
    return RunParts.build(resolved, task, build_model(resolved, task, device))


@dataclass(frozen=True)
class FederatedParts(RunParts):
    """Parts of a federated run beside its engine, which depends on what "auto" is settled to.

    ``transforms`` are what happens to each client's update before it is sent, in that order, by the
    section of the configuration that asks for them. ``aggregation`` is that of a run without a
    privacy plan.
    """

    options: FederatedOptions
    split: FederatedSplit
    algorithm: Algorithm
    transforms: dict[str, UpdateTransform]
    aggregation: Aggregation

    @classmethod
    def build(cls, resolved: ResolvedConfig, task: Task, model: FlatModel) -> FederatedParts:
        """Build all parts of a federated run of a task and a model; see ``of``."""
        return cls.of(RunParts.build(resolved, task, model))

    @classmethod
    def of(cls, run: RunParts) -> FederatedParts:
        """Build what a federated run has beside what every run has."""
        resolved, options = run.resolved, run.resolved.config.federated
        if options is None:
            raise ConfigError("a federated trainer needs the section 'federated'")
        algorithm = build_algorithm(resolved, options)
        aggregation = build_aggregation(resolved, options, algorithm)
        split = run.task.split("train")
        algorithm.begin(split.num_users, run.model.vector)
        transforms = {} if algorithm.transform is None else {"algorithm": algorithm.transform}
        transforms |= build_compression(resolved, run.model.num_parameters)
        return cls(
            resolved, run.task, run.model, run.forward, options, split, algorithm, transforms,
            aggregation,
        )  # fmt: skip

    def settled(self, resolved: ResolvedConfig) -> FederatedParts:
        """The same parts, under a configuration in which nothing is left to "auto"."""
        assert resolved.config.federated is not None
        return replace(self, resolved=resolved, options=resolved.config.federated)

    @property
    def needs_one_process(self) -> tuple[str, ...]:
        """Parts that keep something of their clients, so that one process must train them all.

        Plug-ins as messages call them, and "task" for one that is in memory.
        """
        own = (self.name_of("aggregation"),) if self.aggregation.keeps_updates else ()
        names = own + self.client_state
        # Its code may be a notebook's, which another process cannot import.
        is_in_memory = self.resolved.tree["task"]["name"] == held_task.NAME
        return (*names, "task") if is_in_memory else names

    @property
    def asks_engine(self) -> bool:
        """Whether the algorithm needs more of an engine than steps of SGD."""
        return self.algorithm.corrects_steps or self.algorithm.local_training.measures_start

    @property
    def client_state(self) -> tuple[str, ...]:
        """Plug-ins that remember clients from round to round, as the configuration calls them."""
        keeping = {key: transform.keeps_state for key, transform in self.transforms.items()}
        # It is asked by user, and the centre's step has the same object at hand.
        if self.algorithm.corrects_steps or self.algorithm.personal_training is not None:
            keeping["algorithm"] = True
        return tuple(self.name_of(key) for key, keeps in keeping.items() if keeps)

    def changing(self, participants: Participants) -> dict[str, Stateful | Participants]:
        """Parts whose state changes from round to round beside the mechanism, as saved."""
        transforms = {f"transform of {key}": part for key, part in self.transforms.items()}
        return {"algorithm": self.algorithm, **transforms, "participants": participants}

    def name_of(self, key: str) -> str:
        """Name of a plug-in of the section ``federated``, as messages have it."""
        return f"federated.{key} '{self.resolved.tree['federated'][key]['name']}'"

    @property
    def download_bytes(self) -> float:
        """Bytes that a client is sent in a round: its algorithm's vectors, not compressed."""
        return float(len(self.algorithm.downloads) * self._dense_bytes)

    @property
    def upload_bytes(self) -> float:
        """Bytes that a client sends in a round, known before it trains."""
        dense = float(self._dense_bytes)
        sizes = [transform.expected_bytes for transform in self.transforms.values()]
        return dense + sum(size - dense for size in sizes if size is not None)

    @property
    def _dense_bytes(self) -> int:
        return self.model.num_parameters * BYTES_PER_PARAMETER


def build_mechanism(name: str, options: Any, noise: NoiseScale) -> Mechanism:
    """Build a mechanism; ``options`` is None for its defaults."""
    module = plugins.load(plugins.MECHANISM, name)
    mechanism: Mechanism = module.build(options or module.Options(), noise)
    return mechanism


def build_algorithm(resolved: ResolvedConfig, options: FederatedOptions) -> Algorithm:
    """Build the algorithm for clients that train as the configuration says."""
    local = LocalTraining(
        epochs=options.local_epochs,
        max_steps=options.local_steps,
        batch_size=options.local_batch_size,
        learning_rate=options.local_learning_rate,
        gradient_clip_norm=options.local_gradient_clip_norm,
        gradient_clip_global_norm=options.local_gradient_clip_global_norm,
        batches_across_epochs=options.local_batches == "across_epochs",
        momentum=options.local_momentum,
        weight_decay=options.local_weight_decay,
        schedule=RateSchedule.of(options.local_schedule, options.num_rounds),
    )
    name = resolved.tree["federated"]["algorithm"]["name"]
    module = plugins.load(plugins.ALGORITHM, name)
    if hasattr(module, "check"):
        module.check(options)
    algorithm = module.build(resolved.algorithm_options, local)
    built = plugins.checked(algorithm, Algorithm, plugins.ALGORITHM, name)
    if type(built).correction is not Algorithm.correction and not built.corrects_steps:
        where = place_of(built, "correction")
        raise PluginError(f"{where} is never asked: set corrects_steps = True, or remove it")
    trains = getattr(built, "local_training", None)
    if not isinstance(trains, LocalTraining):
        raise PluginError(
            f"{place_of(built, 'local_training')} is {trains!r:.60}, but must be a LocalTraining: "
            "keep the one that build() is given, or dataclasses.replace() of it"
        )
    return built


def build_aggregation(
    resolved: ResolvedConfig, options: FederatedOptions, algorithm: Algorithm
) -> Aggregation:
    """Build what the centre makes of the updates of a run without privacy."""
    name = resolved.tree["federated"]["aggregation"]["name"]
    module = plugins.load(plugins.AGGREGATION, name)
    no_noise = NoiseScale(0.0, options.cohort_size, options.cohort_size)
    built = module.build(resolved.federated_options["aggregation"], no_noise)
    aggregation = plugins.checked(built, Aggregation, plugins.AGGREGATION, name)
    if not aggregation.keeps_updates:
        return aggregation
    if options.weighting != "uniform":
        raise ConfigError(
            f"federated.weighting: {options.weighting}, but the aggregation {aggregation.name} "
            "lets each client count alike, or one could claim many examples; set it to uniform"
        )
    more = algorithm.uploads[1:]
    if more:
        raise ConfigError(
            f"federated.aggregation: {aggregation.name} looks at updates alone, but with the "
            f"algorithm {resolved.tree['federated']['algorithm']['name']} each client sends a "
            f"{' and '.join(more)} too, which it would ignore or let through unseen; set it to "
            "mean, or the algorithm to fedavg or fedprox"
        )
    return aggregation


def build_compression(resolved: ResolvedConfig, num_parameters: int) -> dict[str, UpdateTransform]:
    """Build how clients compress their updates, by its key; empty where they do not."""
    options = resolved.federated_options.get("compression")
    if options is None:
        return {}
    name = resolved.tree["federated"]["compression"]["name"]
    module = plugins.load(plugins.COMPRESSION, name)
    built = module.build(options, num_parameters, resolved.config.seed)
    return {"compression": plugins.checked(built, UpdateTransform, plugins.COMPRESSION, name)}


def build_engine(parts: FederatedParts, notice: Callable[[str], None]) -> Engine:
    """Build the engine that the configuration names.

    The runner has named it where it is "auto" (``autotune``); else that is "sequential".
    """
    resolved, options, algorithm = parts.resolved, parts.options, parts.algorithm
    name = "sequential" if options.engine == "auto" else options.engine
    module = plugins.load(plugins.ENGINE, name)
    if parts.asks_engine and not getattr(module, "SERVES_ALGORITHMS", False):
        raise ConfigError(
            f"federated.engine: the engine '{name}' takes plain steps alone, but the algorithm "
            f"{resolved.tree['federated']['algorithm']['name']} corrects each step or needs the "
            "loss before the first; set engine: sequential, or auto"
        )
    settings: dict[str, Any] = {"data_workers": options.data_workers}
    if "slots" in module.Options.model_fields:
        settings["slots"] = options.engine_lanes
        if "keeps_slots" in module.Options.model_fields:
            settings["keeps_slots"] = resolved.config.privacy is not None
    elif options.engine_lanes is not None:
        raise ConfigError(
            f"federated.engine_lanes: {options.engine_lanes}, but the engine '{name}' has no "
            "slots; leave it out, or set engine: vectorized"
        )
    served = {"correction": algorithm.correction} if algorithm.corrects_steps else {}
    engine: Engine = module.build(
        module.Options(**settings),
        parts.model,
        parts.split,
        parts.forward,
        algorithm.local_training,
        resolved.config.seed,
        notice,
        **served,
    )
    attack = resolved.config.attack
    if attack is None:
        return engine
    if attack.boost == "replace" and not algorithm.follows_mean:
        raise ConfigError(
            "attack.boost: replace reckons with a step along the mean of clients' updates, but the "
            f"algorithm {resolved.tree['federated']['algorithm']['name']} takes another; "
            "give boost a number instead"
        )
    from pfl_bench.simulation.attacking_engine import attacking

    return attacking(engine, parts.split, attack, options, notice)
