"""From a configuration to the parts of a run: device, data, model, what clients do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pfl_bench import plugins
from pfl_bench.client import precision
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.optimizers import rate_factor
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.schema import RunConfig
from pfl_bench.config.training import FederatedOptions, ScheduleOptions
from pfl_bench.rng import Purpose, seed_torch
from pfl_bench.types import (
    Algorithm,
    ConfigError,
    CorrectsSteps,
    Engine,
    FederatedSplit,
    HasUpdateTransform,
    LocalTraining,
    ReadsOnDevice,
    Task,
    UpdateTransform,
)
from privacy.mechanism import Mechanism, NoiseScale

# Before any run has set another number.
_DEFAULT_THREADS = torch.get_num_threads()


def resolve_device(name: str) -> torch.device:
    """Find the device that a configuration asks for.

    Raises:
        ConfigError: It is not there; nothing falls back in silence.
    """
    mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else ("mps" if mps else "cpu")
    if (name == "cuda" and not torch.cuda.is_available()) or (name == "mps" and not mps):
        raise ConfigError(
            f"device: '{name}' is not available on this machine; use device=cpu or device=auto"
        )
    if name == "cuda":
        # Reruns are to be bit-identical.
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device(name)


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
    return FlatModel(module, device, resolved.config.channels_last)


def build_task(resolved: ResolvedConfig, device: torch.device) -> Task:
    """Open the row's data, for a model that lives on ``device``."""
    task: Task = plugins.build(plugins.TASK, resolved.tree["task"]["name"], resolved.task_options)
    if isinstance(task, ReadsOnDevice):
        task.use_device(device)
    if resolved.config.attack is not None:
        from pfl_bench.simulation.attacks.corrupted_task import CorruptedTask

        return CorruptedTask(task, resolved.config.attack, resolved.config.seed)
    return task


def build_forward(resolved: ResolvedConfig, task: Task, model: FlatModel) -> Forward:
    """Build the forward pass of training and evaluation, in the row's precision.

    Raises:
        ConfigError: The device does not have it.
    """
    config = resolved.config
    precision.use(config.precision, model.device)
    return Forward(model.module, task, model.device, config.precision, config.channels_last)


def build_mechanism(name: str, options: Any, noise: NoiseScale) -> Mechanism:
    """Build a mechanism; ``options`` is None for its defaults."""
    module = plugins.load(plugins.MECHANISM, name)
    mechanism: Mechanism = module.build(options or module.Options(), noise)
    return mechanism


def build_algorithm(resolved: ResolvedConfig, options: FederatedOptions) -> Algorithm:
    """Build the algorithm for clients that train as the configuration says.

    Raises:
        ConfigError: The section has what the algorithm's ``check``, if it has one, refuses.
    """
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
    )
    if options.local_schedule != ScheduleOptions():
        factor = partial(rate_factor, options.local_schedule, total=options.num_rounds)
        local = replace(local, schedule=factor)
    name = resolved.tree["federated"]["algorithm"]["name"]
    module = plugins.load(plugins.ALGORITHM, name)
    if hasattr(module, "check"):
        module.check(options)
    algorithm: Algorithm = module.build(resolved.algorithm_options, local)
    return algorithm


def build_aggregation(resolved: ResolvedConfig, options: FederatedOptions) -> Mechanism:
    """Build what the centre makes of the updates of a run without privacy.

    Raises:
        ConfigError: It looks at updates alone, but more decides what each of them counts for.
    """
    module = plugins.load(plugins.AGGREGATION, resolved.tree["federated"]["aggregation"]["name"])
    no_noise = NoiseScale(0.0, options.cohort_size, options.cohort_size)
    aggregation: Mechanism = module.build(resolved.federated_options["aggregation"], no_noise)
    if not _keeps_updates(aggregation):
        return aggregation
    if options.weighting != "uniform":
        raise ConfigError(
            f"federated.weighting: {options.weighting}, but the aggregation {aggregation.name} "
            "lets each client count alike, or one could claim many examples; set it to uniform"
        )
    more = build_algorithm(resolved, options).uploads[1:]
    if more:
        raise ConfigError(
            f"federated.aggregation: {aggregation.name} looks at updates alone, but with the "
            f"algorithm {resolved.tree['federated']['algorithm']['name']} each client sends a "
            f"{' and '.join(more)} too, which it would ignore or let through unseen; set it to "
            "mean, or the algorithm to fedavg or fedprox"
        )
    return aggregation


def _keeps_updates(aggregation: Mechanism) -> bool:
    """Whether it keeps each update of a round; a mechanism, whose sum is none, need not say so."""
    return bool(getattr(aggregation, "keeps_updates", False))


def build_transforms(
    resolved: ResolvedConfig, algorithm: Algorithm, model: FlatModel
) -> list[UpdateTransform]:
    """Build what happens to each client's update before it is sent, in its order."""
    transforms: list[UpdateTransform] = []
    if isinstance(algorithm, HasUpdateTransform):
        transforms.append(algorithm.transform)
    transforms += _build_compression(resolved, model.num_parameters)
    return transforms


def _build_compression(resolved: ResolvedConfig, num_parameters: int) -> list[UpdateTransform]:
    options = resolved.federated_options.get("compression")
    if options is None:
        return []
    name = resolved.tree["federated"]["compression"]["name"]
    module = plugins.load(plugins.COMPRESSION, name)
    return [module.build(options, num_parameters, resolved.config.seed)]


def needs_one_process(resolved: ResolvedConfig, options: FederatedOptions) -> bool:
    """Whether a run keeps something of its clients, so that one process must train them all."""
    if _keeps_updates(build_aggregation(resolved, options)):
        return True
    algorithm = build_algorithm(resolved, options)
    # Whether it keeps a state does not depend on the model's size.
    transforms = _build_compression(resolved, 1)
    if isinstance(algorithm, HasUpdateTransform):
        transforms.append(algorithm.transform)
    return any(transform.keeps_state for transform in transforms)


def asks_engine(algorithm: Algorithm) -> bool:
    """Whether an algorithm needs more of an engine than steps of SGD."""
    return isinstance(algorithm, CorrectsSteps) or algorithm.local_training.measures_start


def build_engine(
    resolved: ResolvedConfig,
    options: FederatedOptions,
    task: Task,
    model: FlatModel,
    algorithm: Algorithm,
    notice: Callable[[str], None],
) -> Engine:
    """Build the engine that the configuration names.

    The runner has named it where it is "auto" (``autotune.settle``); else that is "sequential".
    """
    name = "sequential" if options.engine == "auto" else options.engine
    module = plugins.load(plugins.ENGINE, name)
    if asks_engine(algorithm) and not getattr(module, "SERVES_ALGORITHMS", False):
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
    split = task.split("train")
    served: dict[str, Any] = {}
    if isinstance(algorithm, CorrectsSteps):
        algorithm.begin(split.num_users, model.vector)
        served["correction"] = algorithm.correction
    engine: Engine = module.build(
        module.Options(**settings),
        model,
        split,
        build_forward(resolved, task, model),
        algorithm.local_training,
        resolved.config.seed,
        notice,
        **served,
    )
    return _with_attack(resolved, options, engine, split, algorithm, notice)


def _with_attack(
    resolved: ResolvedConfig,
    options: FederatedOptions,
    engine: Engine,
    split: FederatedSplit,
    algorithm: Algorithm,
    notice: Callable[[str], None],
) -> Engine:
    """The engine, or one whose corrupted clients attack, if the configuration has some."""
    attack = resolved.config.attack
    if attack is None:
        return engine
    from pfl_bench.simulation.attacks.attacking_engine import AttackingEngine, boost_of
    from pfl_bench.simulation.attacks.corrupted_task import CorruptedSplit

    assert isinstance(split, CorruptedSplit)  # build_task gives no other
    if attack.boost == "replace" and "weight" in algorithm.uploads:
        raise ConfigError(
            "attack.boost: replace reckons with the plain mean, but the algorithm "
            f"{resolved.tree['federated']['algorithm']['name']} weighs clients by what they send; "
            "give boost a number instead"
        )
    boost = boost_of(attack, options)
    every = "each round" if attack.every == 1 else f"one round in {attack.every}"
    notice(
        f"attack: {attack.kind} by {len(split.corrupted)} of {split.num_users} training users in "
        f"{every}, what they send times {boost:g}"
    )
    return AttackingEngine(engine, split, attack.every, boost)
