"""Start of the rounds or steps of a run: its data, model, devices, noise and checkpoints."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.central_gradient import private_gradient
from pfl_bench.federated.parts import build_algorithm, build_compression
from pfl_bench.runs.audit_rebuilt import OpenedRun, devices_of
from pfl_bench.runs.checkpoint import load, steps_saved
from pfl_bench.simulation.devices.cohorts import digest_of
from pfl_bench.types import ClientUpload, LocalResult, TransformsBatches, UserInputError
from privacy.audit.inputs import as_number
from privacy.reference.central import Optimizer
from privacy.reference.client import Learner, Trained
from privacy.reference.cohort import SCHEMES
from privacy.reference.devices import SELECTIONS, Devices
from privacy.reference.noise import Gaussian, Setting
from privacy.reference.round import MECHANISMS, Rule, State

# The least noise multiplier (but for 0) and simulated cohort: no powers of them are infinite.
_LEAST = 1e-9


class ImpossibleError(Exception):
    """Nothing can be computed again, for the reason that the message has."""


class Starts:
    """A run whose rounds are to be computed again, from its ledger's lines.

    Attributes:
        checkpoints: By the round after which they were saved.
        initial: The model's parameters before the first round, shape (P,), float32.
        transforms: Of updates that are sent, by name: the algorithm's and compressions.

    Raises:
        ImpossibleError: Lines, seed, data, devices or model are not there, or not the run's.
    """

    def __init__(self, run: OpenedRun, lines: list[dict[str, Any]], seed: int | None) -> None:
        self.resolved, self.lines = run.resolved, lines
        why = _unknown(run.resolved, len(lines)) or ("" if lines else "the ledger has no round")
        if not why and seed is None:
            why = "no file has the seed of cohorts and noise"
        if why or isinstance(run.opened, str):
            raise ImpossibleError(why or str(run.opened))
        assert seed is not None
        self.seed = seed
        self.checkpoints = steps_saved(run.folder / "checkpoints")
        self._task, model = run.opened
        self._split = self._task.split("train")
        if self._task.facts.checksum != lines[0].get("data"):
            raise ImpossibleError("the data are not those of the ledger")
        try:
            self._traces = devices_of(run.resolved, self._task)
        except (UserInputError, OSError) as error:
            raise ImpossibleError(f"the devices cannot be opened ({error})") from None
        begun = run.recorded("private_seed", "parts", "simulated_devices")
        if self._traces is not None and begun != digest_of(self._traces):
            raise ImpossibleError("the devices are not those that the run began with")
        ran_on = str(run.recorded("hardware", "device") or "cpu")
        modules = model.module.modules()
        drops = [m for m in modules if isinstance(m, nn.modules.dropout._DropoutNd)]
        if any(layer.p > 0 for layer in drops) and not ran_on.startswith("cpu"):
            raise ImpossibleError(
                f"dropout was drawn by the generator of another device ({ran_on})"
            )
        self._learner = self._learner_of(model.module)
        weights = [weight.detach() for weight in self._learner.weights]
        self.initial = self._learner.flat(weights).clone()

    def _learner_of(self, module: nn.Module) -> Learner:
        config, task = self.resolved.config, self._task
        assert config.federated is not None
        return Learner(
            module=module,
            read=self._split.read_user,
            loss=task.loss,
            transform=task.transform if isinstance(task, TransformsBatches) else None,
            local=build_algorithm(self.resolved, config.federated).local_training,
            seed=config.seed,
            bfloat16=config.precision == "bfloat16",
            channels_last=config.channels_last,
        )

    def _devices_of(self, algorithm: Any, transforms: Mapping[str, Any]) -> Devices | None:
        """Devices as the run began with them; None where users are drawn."""
        config, length = self.resolved.config, 4.0 * len(self.initial)
        if config.systems is None or self._traces is None:
            return None
        sent = [transform.expected_bytes for transform in transforms.values()]
        return Devices(
            traces=self._traces,
            systems=config.systems,
            options=config.federated,
            local=algorithm.local_training,
            selection=self.resolved.tree["federated"]["selection"]["name"],
            seed=config.seed,
            sizes=np.diff(self._split.offsets),
            num_bytes=(
                len(algorithm.downloads) * length,
                length + sum(size - length for size in sent if size is not None),
            ),
        )

    def _strategy(self) -> Any:
        """Numbers of correlated noise that are on record: of the ledger, or of a checkpoint."""
        recorded = (self.lines[0].get("mechanism_description") or {}).get("strategy")
        if self.lines[0].get("mechanism") != "column_normalized_banded":
            return recorded
        if not self.checkpoints:
            raise ImpossibleError("no checkpoint has the columns that the noise is made by")
        return load(self.checkpoints[max(self.checkpoints)])["trainer"]["mechanism"]["columns"]

    @functools.cached_property
    def _mechanism(self) -> Gaussian:
        """The mechanism as the run begins with it; copies share draws of correlated noise."""
        options, own = self.resolved.config.federated, self.resolved.mechanism_options
        assert options is not None
        assert own is not None
        name = self.resolved.tree["privacy"]["mechanism"]["name"]
        simulated = self.lines[0].get("simulated") or {}
        multiplier, cohort = (
            as_number(simulated.get(key)) for key in ("noise_multiplier", "cohort_size")
        )
        if not (multiplier == 0.0 or _LEAST <= multiplier <= 1.0 / _LEAST) or not cohort >= _LEAST:
            raise ImpossibleError("the ledger has no noise multiplier and cohort that noise has")
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
        resolved = self.resolved
        options = resolved.config.federated
        assert options is not None
        algorithm = build_algorithm(resolved, options)
        algorithm.begin(self._split.num_users, self.initial)
        transforms = {} if algorithm.transform is None else {"algorithm": algorithm.transform}
        transforms |= build_compression(resolved, len(self.initial))
        self.transforms = transforms
        state = State(
            self.initial.clone(),
            copy.copy(self._mechanism),
            Optimizer(options.central_optimizer, len(self.initial)),
            self._devices_of(algorithm, transforms),
        )
        if step:
            saved = load(self.checkpoints[step])["trainer"]
            state.central = saved["central"].clone()
            state.mechanism.bound = float(
                saved["mechanism"].get("clip_norm", state.mechanism.bound)
            )
            load_optimizer(state.optimizer, saved["optimizer"])
            algorithm.load_state_dict(saved["clients"]["algorithm"])
            if state.devices is not None:
                played = saved["clients"]["participants"]
                state.devices.now = float(played["clock"]["now"])
                state.devices.counts = played["limits"]["counts"].numpy().copy()
                state.devices.last = played["limits"]["last"].numpy().copy()
            for key, transform in transforms.items():
                transform.load_state_dict(saved["clients"][f"transform of {key}"])

        def send(user: int, trained: Trained, number: int) -> Tensor:
            loss = torch.tensor(trained.loss)
            result = LocalResult(
                user, trained.update, trained.num_examples, trained.num_steps, loss,
                trained.num_processed,
            )  # fmt: skip
            upload = ClientUpload(trained.update, 1.0, 0.0)
            for transform in transforms.values():
                upload = transform.send(upload, result, number)
            return upload.update

        def gradient(mean: Tensor) -> Tensor:
            out = torch.empty_like(mean)
            private_gradient(algorithm, options.cohort_size, mean, out)
            return out

        users = self._split.num_users
        privacy = resolved.config.privacy
        canaries = None if privacy is None else privacy.audit
        hooks = (algorithm.correction, send, gradient)
        rule = Rule(options, self.seed, users, self._learner, *hooks, canaries)
        return rule, state


def _unknown(resolved: ResolvedConfig, rounds: int) -> str:
    """Reason why a configuration's rounds cannot be computed again; empty if they can."""
    config, options = resolved.config, resolved.config.federated
    if options is None:
        return "steps of example-level DP are not in the ledger"
    if rounds > options.num_rounds:
        return "the ledger has more rounds than were configured"
    name = resolved.tree["privacy"]["mechanism"]["name"]
    if name not in MECHANISMS:
        return f"the reference does not have the mechanism {name}"
    if name == "privunit" and config.precision != "float32":
        return f"coins of privunit's reports follow what {config.precision} rounds away"
    if config.systems is None and options.sampling not in SCHEMES:
        return f"the reference does not have the sampling {options.sampling}"
    if config.systems is not None:
        selection = resolved.tree["federated"]["selection"]["name"]
        if selection not in SELECTIONS:
            return f"the reference does not have the selection {selection}"
    if config.attack is not None:
        return "the reference has no attackers"
    algorithm = build_algorithm(resolved, options)
    if algorithm.local_training.measures_start or algorithm.uploads != ("update",):
        name = resolved.tree["federated"]["algorithm"]["name"]
        return f"clients of {name} send more than an update"
    return ""


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Put the moments that torch's optimizer keeps of its tensors into the reference's, flat."""
    states = list(saved["state"].values())
    optimizer.steps = int(states[0].get("step", 0)) if states else 0

    def kept(*keys: str) -> Tensor | None:
        parts = [
            s[key].double().flatten() for s in states for key in keys if s.get(key) is not None
        ]
        return torch.cat(parts) if parts else None

    for name, found in (
        ("first", kept("momentum_buffer", "exp_avg", "first")),
        ("second", kept("sum", "exp_avg_sq", "second")),
    ):
        if found is not None:
            setattr(optimizer, name, found)


def noise_generator(run: OpenedRun) -> tuple[torch.Generator | None, str]:
    """The generator of the run's noise, not seeded yet; in words, why it is not at hand."""
    part = run.recorded("private_seed", "parts", "arithmetic", "device")
    if part in (None, "cpu"):
        return torch.Generator(), ""
    if torch.cuda.is_available():
        return torch.Generator(device="cuda"), ""
    return (
        None,
        f"the run's noise was drawn on {part}, whose generator this machine does not have",
    )


def random_layer(module: nn.Module) -> str:
    """Reason why no gradient of one example can be computed again; empty if it can."""
    for layer in module.modules():
        chances = (getattr(layer, name, 0.0) for name in ("p", "dropout"))
        if any(isinstance(chance, float) and chance > 0.0 for chance in chances):
            name = type(layer).__name__
            return f"{name} draws random numbers for a whole batch, not for each example"
    return ""
