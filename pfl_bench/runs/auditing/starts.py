"""Start of the rounds or steps of a run: its data, model, devices, noise and checkpoints."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_bench.client.forward import Forward
from pfl_bench.client.optimizers import RateSchedule
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.schema import RunConfig
from pfl_bench.federated.central_gradient import has_own_gradient, private_gradient
from pfl_bench.federated.parts import build_algorithm
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.auditing.kept_state import SeenCanaries, load_optimizer
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.checkpoint import load, restoring, steps_saved
from pfl_bench.simulation.attacking_engine import boost_of
from pfl_bench.simulation.corrupted_task import CorruptedSplit
from pfl_bench.simulation.devices.cohorts import digest_of
from pfl_bench.types import (
    Algorithm,
    ClientUpload,
    Examples,
    FederatedSplit,
    LocalResult,
    NormalizesByStatistics,
    RunFolderError,
    TransformsBatches,
    UserInputError,
    is_of_user,
)
from privacy.audit.evidence import SkippedError
from privacy.audit.inputs import as_number
from privacy.reference.central import Optimizer
from privacy.reference.client import Learner, Trained
from privacy.reference.cohort import SCHEMES
from privacy.reference.devices import SELECTIONS, Devices
from privacy.reference.dp_sgd import noised_mean
from privacy.reference.noise import Gaussian, Setting
from privacy.reference.round import MECHANISMS, Rule, State

# The least noise multiplier (but for 0) and simulated cohort: no powers of them are infinite.
_LEAST = 1e-9
# Examples that are read at once.
_BLOCK = 1024


class Starts:
    """A run whose rounds are to be computed again, from its ledger's lines.

    Attributes:
        checkpoints: By the round after which they were saved.
        initial: The model's parameters before the first round, shape (P,), float32.
        sizes: Examples of each user of the training split, shape (U,).
        transforms: Of updates that are sent, by name: the algorithm's and compressions.
        canaries: Those of a run that has them.

    Raises:
        SkippedError: Lines, seed, data, devices or model are not there, or not the run's.
    """

    def __init__(self, run: OpenedRun, lines: list[dict[str, Any]], seed: int | None) -> None:
        self.resolved, self.lines = run.resolved, lines
        why = _unknown(run.resolved, len(lines)) or ("" if lines else "the ledger has no round")
        if not why and seed is None:
            why = "no file has the seed of cohorts and noise"
        why = why or run.other_reading
        if why or isinstance(run.opened, str):
            raise SkippedError(why or str(run.opened))
        assert seed is not None
        self.seed = seed
        self.checkpoints = steps_saved(run.folder / "checkpoints")
        self._run, self._parts = run, run.parts()
        if self._parts.task.facts.checksum != lines[0].get("data"):
            raise SkippedError("the data are not those of the ledger")
        try:
            traces = run.devices
        except (UserInputError, OSError) as error:
            raise SkippedError(f"the devices cannot be opened ({error})") from None
        begun = run.recorded("private_seed", "parts", "simulated_devices")
        if traces is not None and begun != digest_of(traces):
            raise SkippedError("the devices are not those that the run began with")
        modules = self._parts.model.module.modules()
        drops = [m for m in modules if isinstance(m, nn.modules.dropout._DropoutNd)]
        if any(layer.p > 0 for layer in drops) and not run.ran_on.startswith("cpu"):
            raise SkippedError(
                f"dropout was drawn by the generator of another device ({run.ran_on})"
            )
        config, task = run.resolved.config, self._parts.task
        self._learner = Learner(
            module=self._parts.model.module,
            read=self._read,
            loss=task.loss,
            transform=task.transform if isinstance(task, TransformsBatches) else None,
            local=self._parts.algorithm.local_training,
            seed=config.seed,
            bfloat16=config.precision == "bfloat16",
            channels_last=config.channels_last,
        )
        self.initial = self._parts.model.vector.clone()
        self.sizes = np.diff(self._parts.split.offsets)

    def _read(self, user: int, number: int, rng: np.random.Generator) -> Examples:
        """A user's examples in a round; an attacker's are poisoned."""
        split, attack = self._parts.split, self.resolved.config.attack
        if attack is not None:
            assert isinstance(split, CorruptedSplit)
            split.is_attacked = number % attack.every == 0
        return split.read_user(user, rng)

    def _forged(self, update: Tensor, user: int, number: int) -> Tensor:
        """The update that a client sends on, shape (P,): its own, unless it attacks."""
        split, attack = self._parts.split, self.resolved.config.attack
        if attack is None or number % attack.every:
            return update
        assert isinstance(split, CorruptedSplit)
        if user not in split.corrupted:
            return update
        return split.poison.forge(update, user, number) * boost_of(attack, self._parts.options)

    def _strategy(self) -> Any:
        """Numbers of correlated noise that are on record: of the ledger, or of a checkpoint."""
        recorded = (self.lines[0].get("mechanism_description") or {}).get("strategy")
        if self.lines[0].get("mechanism") != "column_normalized_banded":
            return recorded
        if not self.checkpoints:
            raise SkippedError("no checkpoint has the columns that the noise is made by")
        return load(self.checkpoints[max(self.checkpoints)])["trainer"]["mechanism"]["columns"]

    @functools.cached_property
    def _mechanism(self) -> Gaussian:
        """The mechanism as the run begins with it; copies share draws of correlated noise."""
        options, own = self._parts.options, self.resolved.mechanism_options
        assert own is not None
        name = self.resolved.tree["privacy"]["mechanism"]["name"]
        simulated = self.lines[0].get("simulated") or {}
        multiplier, cohort = (
            as_number(simulated.get(key)) for key in ("noise_multiplier", "cohort_size")
        )
        if not (multiplier == 0.0 or _LEAST <= multiplier <= 1.0 / _LEAST) or not cohort >= _LEAST:
            raise SkippedError("the ledger has no noise multiplier and cohort that noise has")
        setting = Setting(
            name=name,
            options=own.model_dump(),
            multiplier=multiplier,
            cohort_size=float(options.cohort_size),
            noise_cohort_size=cohort,
            length=len(self.initial),
            seed=self.seed,
            num_rounds=options.num_rounds,
            strategy=self._strategy(),
        )
        return MECHANISMS[name](setting)

    def at(self, step: int) -> tuple[Rule, State]:
        """Start of the round after so many rounds."""
        parts = self._run.parts()
        options, algorithm = parts.options, parts.algorithm
        self.transforms = transforms = parts.transforms
        config = self.resolved.config
        canaries = None if config.privacy is None else config.privacy.audit
        self.canaries = None
        if canaries is not None:
            self.canaries = SeenCanaries(self._run, canaries, self.seed, self.initial)
        counts, last = np.zeros((2, len(self.sizes)), dtype=np.int64)
        optimizer = Optimizer(options.central_optimizer, len(self.initial))
        mechanism, devices = copy.copy(self._mechanism), None
        if self._run.devices is not None:
            devices = Devices(
                traces=self._run.devices,
                systems=config.systems,
                options=options,
                local=algorithm.local_training,
                selection=self.resolved.tree["federated"]["selection"]["name"],
                seed=config.seed,
                sizes=self.sizes,
                num_bytes=(parts.download_bytes, parts.upload_bytes),
            )
        state = State(self.initial.clone(), mechanism, optimizer, counts, last, devices)
        if step:
            saved = self.saved(step)
            with restoring(self.checkpoints[step], {"trainer": {}}, {}):
                self._restore(saved, state, algorithm)

        def send(user: int, trained: Trained, number: int) -> Tensor:
            loss = torch.tensor(trained.loss)
            update = self._forged(trained.update, user, number)
            result = LocalResult(
                user, update, trained.num_examples, trained.num_steps, loss, trained.num_processed
            )
            upload = ClientUpload(update, 1.0, 0.0)
            for transform in transforms.values():
                upload = transform.send(upload, result, number)
            return upload.update

        def gradient(mean: Tensor, of: Algorithm = algorithm) -> Tensor:
            out = torch.empty_like(mean)
            private_gradient(of, options.cohort_size, mean, out)
            return out

        def trial(mean: Tensor) -> Tensor:
            return gradient(mean, copy.deepcopy(algorithm))

        users = parts.split.num_users
        tried = trial if has_own_gradient(algorithm) else None
        hooks = (algorithm.correction, send, gradient, tried)
        schedule: Callable[[int], float] | None = None
        given = RateSchedule.of(options.local_schedule, options.num_rounds)
        local = algorithm.local_training
        # The row's is computed by the reference, whoever is to follow it.
        if is_of_user(type(algorithm)) and local.schedule != given:
            schedule = local.schedule or (lambda number: 1.0)
        rule = Rule(options, self.seed, users, self._learner, *hooks, canaries, schedule)
        return rule, state

    def saved(self, step: int) -> Mapping[str, Any]:
        """The trainer's state after so many rounds; RunFolderError if it is of another model."""
        path = self.checkpoints[step]
        trainer = load(path).get("trainer")
        central = trainer.get("central") if isinstance(trainer, Mapping) else None
        form = (self.initial.shape, self.initial.dtype)
        if not isinstance(central, Tensor) or (central.shape, central.dtype) != form:
            raise RunFolderError(
                f"{path}: holds no parameters of shape {tuple(form[0])} and type {form[1]}, as the "
                "configuration's model has them; restore the file, or delete it"
            )
        assert isinstance(trainer, Mapping)
        return trainer

    def _restore(self, saved: Mapping[str, Any], state: State, algorithm: Algorithm) -> None:
        """Put a trainer's saved state into the reference's, the algorithm and the transforms."""
        state.central = saved["central"].clone()
        bound = saved["mechanism"].get("clip_norm", state.mechanism.bound)
        state.mechanism.bound = float(bound)
        load_optimizer(state.optimizer, saved["optimizer"])
        history = saved["private"]["history"]
        state.counts, state.last = (history[key].numpy().copy() for key in ("counts", "last"))
        algorithm.load_state_dict(saved["clients"]["algorithm"])
        if state.devices is not None:
            clock = saved["clients"]["participants"]["clock"]
            state.devices.now, state.devices.totals = float(clock["now"]), dict(clock["totals"])
        if self.canaries is not None:
            self.canaries.load(saved["private"]["canaries"])
        for key, transform in self.transforms.items():
            transform.load_state_dict(saved["clients"][f"transform of {key}"])


def _unknown(resolved: ResolvedConfig, rounds: int) -> str:
    """Reason why a configuration's rounds cannot be computed again; empty if they can."""
    config, options = resolved.config, resolved.config.federated
    assert options is not None
    if rounds > options.num_rounds:
        return "the ledger has more rounds than were configured"
    name = resolved.tree["privacy"]["mechanism"]["name"]
    if name not in MECHANISMS:
        return f"the reference does not have the mechanism {name}"
    if config.systems is None and options.sampling not in SCHEMES:
        return f"the reference does not have the sampling {options.sampling}"
    if config.systems is not None:
        selection = resolved.tree["federated"]["selection"]["name"]
        if selection not in SELECTIONS:
            return f"the reference does not have the selection {selection}"
    algorithm = build_algorithm(resolved, options)
    if algorithm.local_training.measures_start or algorithm.uploads != ("update",):
        name = resolved.tree["federated"]["algorithm"]["name"]
        return f"clients of {name} send more than an update"
    return ""


def noise_generator(run: OpenedRun) -> tuple[torch.Generator | None, str]:
    """The generator of the run's noise, not seeded yet; in words, why it is not at hand."""
    if run.ran_on == "cpu":
        return torch.Generator(), ""
    # Large tensors' normals depend on how many threads a GPU runs at once: another has others.
    accelerator = run.recorded("private_seed", "parts", "arithmetic", "accelerator")
    is_here = run.ran_on == "cuda" and torch.cuda.is_available()
    if is_here and accelerator in (None, torch.cuda.get_device_name()):
        return torch.Generator(device="cuda"), ""
    return (
        None,
        f"the run's noise was drawn on {accelerator or run.ran_on}, whose generator this machine "
        "does not have: audit it on one that has",
    )


def random_layer(module: nn.Module) -> str:
    """Reason why no gradient of one example can be computed again; empty if it can."""
    for layer in module.modules():
        chances = (getattr(layer, name, 0.0) for name in ("p", "dropout"))
        if any(isinstance(chance, float) and chance > 0.0 for chance in chances):
            name = type(layer).__name__
            return f"{name} draws random numbers for a whole batch, not for each example"
    return ""


def release_statistics(
    config: RunConfig, split: FederatedSplit, forward: Forward, seed: int
) -> dict[str, dict[str, float]]:
    """Release the statistics of features that a model normalises by again, where there are such.

    Gives what the ledger has of their noise, in multiples of its standard deviation, by their name.
    """
    asked = None if config.privacy is None else config.privacy.statistics
    module, moments = forward.module, []
    if asked is None or not isinstance(module, NormalizesByStatistics):
        return {}
    for block in np.split(np.arange(split.num_examples), range(_BLOCK, split.num_examples, _BLOCK)):
        examples = split.read_examples(block, np.random.default_rng(0))
        with torch.no_grad():
            moments.append(module.moments(forward.prepare(examples.inputs, None)))
    rng = stream(seed, Purpose.STATISTICS)
    bounds = (asked.mean_clip_norm, asked.square_clip_norm)
    (mean, of_mean), (square, of_square) = (
        noised_mean(torch.cat(vectors).double().numpy(), bound, asked.noise_multiplier, rng)
        for vectors, bound in zip(zip(*moments, strict=True), bounds, strict=True)
    )
    variance = np.maximum(square - mean**2, 0.0)
    module.set_statistics(torch.from_numpy(mean), torch.from_numpy(variance))
    return {
        name: {"count": len(noise), "sum_squares": float(noise @ noise)}
        for name, noise in (("mean", of_mean), ("square", of_square))
    }
