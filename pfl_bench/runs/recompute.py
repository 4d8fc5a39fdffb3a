"""Opens the data, the model and the checkpoints of a run, and computes its rounds again.

What is computed, and how it is compared, stands in ``privacy.reference`` and in
``privacy.audit.recomputed``; here is which rounds, and from which parameters.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pfl_bench import plugins
from pfl_bench.client import machine
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.central_gradient import private_gradient
from pfl_bench.federated.parts import (
    build_algorithm,
    build_compression,
    build_model,
    build_task,
)
from pfl_bench.files import read_metrics
from pfl_bench.runs.audit_inputs import METRICS_FILE, read_environment
from pfl_bench.runs.checkpoint import load, steps_saved
from pfl_bench.simulation.devices.cohorts import digest_of
from pfl_bench.simulation.devices.sources import open_devices
from pfl_bench.threads import one_thread
from pfl_bench.types import (
    ClientUpload,
    ConfigError,
    LocalResult,
    Task,
    TransformsBatches,
    UserInputError,
)
from privacy.audit.check import Check
from privacy.audit.recomputed import (
    MOST,
    ROUNDING,
    Allowed,
    Sketch,
    carry_on,
    compare,
    shares,
    undecided,
)
from privacy.errors import LedgerError
from privacy.ledger import read_ledger
from privacy.reference.central import Optimizer
from privacy.reference.client import Learner, Trained
from privacy.reference.cohort import SCHEMES
from privacy.reference.devices import SELECTIONS, Devices
from privacy.reference.noise import Setting
from privacy.reference.round import MECHANISMS, Round, Rule, State, recompute

Mode = Literal["none", "first", "sample", "all"]
MODES: tuple[Mode, ...] = ("none", "first", "sample", "all")
# Of one core, by default.
SECONDS = 8.0
_CLAIM = "Rounds that are computed again, by a plain loop from their start, come to the same."


@dataclass
class Recomputation:
    """What was computed again.

    Attributes:
        mode: Which rounds were asked for.
        of: Rounds that the ledger has.
        rounds: Rounds that were computed again, in the order in which they were.
        problems: What differs, by round.
        reasons: Why not all of those that were asked for, a clause each.
        compared: Checkpoints that were compared element by element.
        far: The largest distance of central parameters from a checkpoint's.
        seconds: It took.
        code: Digests of the code that ran (empty if unknown) and of the code that audits.
        unit: What is counted: "rounds", or "steps" of DP-SGD.
    """

    mode: Mode
    of: int = 0
    rounds: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)
    far: float = 0.0
    seconds: float = 0.0
    code: dict[str, str] = field(default_factory=dict)
    unit: str = "rounds"

    def to_json_dict(self) -> dict[str, Any]:
        """As ``audit.json`` has it."""
        return {
            "mode": self.mode,
            "rounds": len(self.rounds),
            "of": self.of,
            "unit": self.unit,
            "which": sorted(self.rounds) if self.unit == "rounds" else [],
            "problems": self.problems,
            "not_recomputed": self.reasons,
            "checkpoints": self.compared,
            "seconds": round(self.seconds, 2),
            "code": {**self.code, "same": len(set(self.code.values())) == 1},
        }

    def to_check(self) -> Check:
        """The recomputation as a check of an audit: skipped where no round was computed."""
        why = f"; not all: {'; '.join(self.reasons)}" if self.reasons else ""
        if self.problems:
            return Check("recomputation", "failed", _CLAIM, "; ".join(self.problems[:6]))
        if not self.rounds:
            return Check("recomputation", "skipped", _CLAIM, f"not recomputed{why[9:]}")
        text = f"{len(self.rounds)} of {self.of} rounds computed again in {self.seconds:.1f} s"
        if self.compared:
            named = ", ".join(map(str, self.compared))
            text += f"; parameters after round {named} within {self.far:.2g}, element by element"
        return Check("recomputation", "passed", _CLAIM, text + why)


class _ImpossibleError(Exception):
    """Nothing can be computed again, for the reason that the message has."""


class _OutOfTimeError(Exception):
    """The time is up."""


@one_thread()
def recompute_run(
    folder: Path,
    resolved: ResolvedConfig,
    seed: int | None,
    mode: Mode = "sample",
    seconds: float = SECONDS,
) -> Recomputation:
    """Compute rounds of a federated run again.

    Args:
        folder: The run's.
        resolved: Its configuration.
        seed: Its private seed; None where no file has it.
        mode: "none": no round; "first": round 1; "sample": from the first round on, and from
            checkpoints in an order drawn by the seed, as long as the time allows; "all": all
            rounds.
        seconds: Time that a sample may take.

    Raises:
        ConfigError: The time is not allowed.
    """
    if not 0.0 < seconds < float("inf"):
        raise ConfigError(f"--recompute-seconds {seconds:g}: must be above 0, such as 8")
    started, done = time.monotonic(), Recomputation(mode)
    environment = read_environment(folder)
    parts = (environment.get("private_seed") or {}).get("parts") or {}
    done.code = {"run": str(parts.get("code", "")), "audit": machine.code_digest()}
    if mode == "none":
        return done
    try:
        work = _Work(folder, resolved, seed, environment, done)
        work.go(started + seconds if mode == "sample" else float("inf"))
    except _ImpossibleError as error:
        done.reasons.append(str(error))
    done.seconds = time.monotonic() - started
    return done


class _Work:
    """The rounds of one run."""

    def __init__(
        self,
        folder: Path,
        resolved: ResolvedConfig,
        seed: int | None,
        environment: Mapping[str, Any],
        done: Recomputation,
    ) -> None:
        self._resolved, self._done = resolved, done
        try:
            self._lines = read_ledger(folder / "ledger.jsonl")
        except LedgerError as error:
            raise _ImpossibleError(f"the ledger is not sound ({error})") from None
        done.of = len(self._lines)
        why = _unknown(resolved) or ("" if self._lines else "the ledger has no round")
        why = why or ("" if seed is not None else "no file has the seed of cohorts and noise")
        if why:
            raise _ImpossibleError(why)
        assert seed is not None
        self._seed = seed
        metrics = folder / METRICS_FILE
        rows = read_metrics(metrics) if metrics.is_file() else []
        self._metrics = {row["round"]: row for row in rows}
        self._checkpoints = steps_saved(folder / "checkpoints")
        self._open(environment)

    def _open(self, environment: Mapping[str, Any]) -> None:
        resolved, device = self._resolved, torch.device("cpu")
        try:
            self._task: Task = build_task(resolved, device)
            self._split = self._task.split("train")
        except (UserInputError, OSError) as error:
            raise _ImpossibleError(
                f"the data cannot be opened ({error}); --data names the file"
            ) from None
        if self._task.facts.checksum != self._lines[0].get("data"):
            raise _ImpossibleError("the data are not those of the ledger")
        systems = resolved.config.systems
        if systems is not None:
            try:
                self._traces = open_devices(systems.source, self._split.num_users)
            except (UserInputError, OSError) as error:
                raise _ImpossibleError(f"the devices cannot be opened ({error})") from None
            parts = (environment.get("private_seed") or {}).get("parts") or {}
            if parts.get("simulated_devices") != digest_of(self._traces):
                raise _ImpossibleError("the devices are not those that the run began with")
        try:
            module = build_model(resolved, self._task, device).module
        except (UserInputError, OSError, ValueError) as error:
            raise _ImpossibleError(f"the model cannot be built ({error})") from None
        ran_on = str((environment.get("hardware") or {}).get("device", "cpu"))
        drops = [m for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        if any(layer.p > 0 for layer in drops) and not ran_on.startswith("cpu"):
            raise _ImpossibleError(
                f"dropout was drawn by the generator of another device ({ran_on})"
            )
        self._learner = self._learner_of(module)
        weights = [weight.detach() for weight in self._learner.weights]
        self._initial = self._learner.flat(weights).clone()

    def _learner_of(self, module: nn.Module) -> Learner:
        config, task = self._resolved.config, self._task
        assert config.federated is not None
        return Learner(
            module=module,
            read=self._split.read_user,
            loss=task.loss,
            transform=task.transform if isinstance(task, TransformsBatches) else None,
            local=build_algorithm(self._resolved, config.federated).local_training,
            seed=config.seed,
            bfloat16=config.precision == "bfloat16",
            channels_last=config.channels_last,
        )

    def go(self, deadline: float) -> None:
        """Compute what was asked for, until the deadline."""
        done = self._done
        starts: list[int] = [0] if self._knows_start() else []
        now = time.monotonic()
        try:
            if done.mode == "first":
                if starts:
                    self._chain(0, 1, float("inf"))
                return
            has_others = any(step < done.of for step in self._checkpoints)
            if starts:
                self._chain(0, done.of, now + (deadline - now) / (2.0 if has_others else 1.0))
            order = sorted(self._checkpoints)
            np.random.default_rng(self._seed).shuffle(order)
            for step in order:
                if step < done.of and step + 1 not in done.rounds:
                    self._chain(step, done.of, deadline)
        finally:
            self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        done = self._done
        wanted = 1 if done.mode == "first" else done.of
        if len(done.rounds) < wanted and not done.problems and not done.reasons:
            done.reasons.append("the time was too short, see --recompute-seconds")

    def _knows_start(self) -> bool:
        recorded = self._lines[0].get("central") or {}
        if recorded.get("sha256") == _sha256(self._initial):
            return True
        self._done.reasons.append(
            "the model that the run began with is not the one that is built here today"
        )
        return False

    def _chain(self, start: int, stop: int, deadline: float) -> None:
        """Compute rounds one after another from a known start, until one differs."""
        rule, state = self._at(start)
        try:
            flaw = state.mechanism.flaw()
        except (TypeError, ValueError, KeyError, IndexError):
            flaw = "the recorded strategy of the noise has not the form of one"
        if flaw:
            self._done.problems.append(f"round {start + 1}: {flaw}")
            return
        sketch = Sketch(len(self._initial))
        allowed = Allowed(ROUNDING[self._resolved.config.precision], state.optimizer)

        def go_on() -> None:
            if time.monotonic() > deadline:
                raise _OutOfTimeError

        for number in range(start + 1, stop + 1):
            if number in self._done.rounds:
                return
            allowed.begin()
            before = _copied(state)
            try:
                made = recompute(number, rule, state, sketch, go_on)
            except _OutOfTimeError:
                return
            if made.margin <= allowed.relative / 64.0:
                self._done.reasons.append(f"round {number}: rounding decides a client's coin")
                return
            line = self._lines[number - 1]
            after = self._lines[number] if number < len(self._lines) else {}
            saved = None
            if number in self._checkpoints:
                saved = load(self._checkpoints[number])["trainer"]["central"]
            records = (line, after.get("central"), self._metrics.get(number, {}), saved)
            found = list(compare(*records, made, sketch, allowed))
            if found:
                # Whether local training makes so much of rounding.
                disturbed = [
                    self._disturbed(number, rule, before, allowed, place) for place in range(2)
                ]
                allowed.measure(made, disturbed)
                found = list(compare(*records, made, sketch, allowed))
            if not found and shares(made, allowed) > MOST:
                self._done.reasons.append(
                    f"from round {number} on, what local training makes of rounding could hide a "
                    "difference"
                )
                return
            carry_on(line, made, allowed)
            problems = [f"round {number}: {problem}" for problem in found]
            if undecided(made, allowed.relative) and after and made.fraction is not None:
                state.mechanism.bound = float(after["clip_norm"])
            self._done.rounds.append(number)
            if saved is not None:
                apart = float((saved.double() - state.central.double()).abs().max())
                self._done.far = max(self._done.far, apart)
                self._done.compared.append(number)
                if not problems and number < stop:
                    rule, state = self._at(number)
                    allowed = Allowed(allowed.each, state.optimizer)
            self._done.problems += problems
            if problems:
                return

    def _disturbed(
        self, number: int, rule: Rule, before: State, allowed: Allowed, place: int
    ) -> Round:
        """The round from central parameters that are disturbed; what clients keep stays."""
        state = _copied(before)
        state.central = allowed.disturbed(before.central, place)
        kept = {key: copy.deepcopy(one.state_dict()) for key, one in self._transforms.items()}
        made = recompute(number, rule, state, lambda vector: np.zeros(0), lambda: None)
        for key, one in self._transforms.items():
            one.load_state_dict(kept[key])
        return made

    def _devices_of(self, algorithm: Any, transforms: Mapping[str, Any]) -> Devices | None:
        """Devices as the run began with them; None where users are drawn."""
        config, length = self._resolved.config, 4.0 * len(self._initial)
        if config.systems is None:
            return None
        sent = [transform.expected_bytes for transform in transforms.values()]
        return Devices(
            traces=self._traces,
            systems=config.systems,
            options=config.federated,
            local=algorithm.local_training,
            selection=self._resolved.tree["federated"]["selection"]["name"],
            seed=config.seed,
            sizes=np.diff(self._split.offsets),
            num_bytes=(
                len(algorithm.downloads) * length,
                length + sum(size - length for size in sent if size is not None),
            ),
        )

    def _strategy(self) -> Any:
        """Numbers of correlated noise that are on record: of the ledger, or of a checkpoint."""
        recorded = (self._lines[0].get("mechanism_description") or {}).get("strategy")
        if self._lines[0].get("mechanism") != "column_normalized_banded":
            return recorded
        if not self._checkpoints:
            raise _ImpossibleError("no checkpoint has the columns that the noise is made by")
        return load(self._checkpoints[max(self._checkpoints)])["trainer"]["mechanism"]["columns"]

    def _at(self, step: int) -> tuple[Rule, State]:
        """What a round after so many rounds starts from."""
        resolved, line = self._resolved, self._lines[0]
        options = resolved.config.federated
        assert options is not None
        mechanism_options = resolved.mechanism_options
        name = resolved.tree["privacy"]["mechanism"]["name"]
        if mechanism_options is None:
            mechanism_options = plugins.load(plugins.MECHANISM, name).Options()
        setting = Setting(
            name=name,
            options=mechanism_options.model_dump(),
            multiplier=float(line["simulated"]["noise_multiplier"]),
            cohort_size=float(options.cohort_size),
            noise_cohort_size=float(line["simulated"]["cohort_size"]),
            length=len(self._initial),
            seed=self._seed,
            num_rounds=options.num_rounds,
            strategy=self._strategy(),
        )
        algorithm = build_algorithm(resolved, options)
        algorithm.begin(self._split.num_users, self._initial)
        transforms = {} if algorithm.transform is None else {"algorithm": algorithm.transform}
        transforms |= build_compression(resolved, len(self._initial))
        self._transforms = transforms
        state = State(
            self._initial.clone(),
            MECHANISMS[name](setting),
            Optimizer(options.central_optimizer, len(self._initial)),
            self._devices_of(algorithm, transforms),
        )
        if step:
            saved = load(self._checkpoints[step])["trainer"]
            state.central = saved["central"].clone()
            state.mechanism.bound = float(
                saved["mechanism"].get("clip_norm", state.mechanism.bound)
            )
            _load_optimizer(state.optimizer, saved["optimizer"])
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
        rule = Rule(options, self._seed, users, self._learner, *hooks, canaries)
        return rule, state


def _unknown(resolved: ResolvedConfig) -> str:
    """Why a configuration's rounds cannot be computed again; empty if they can."""
    config, options = resolved.config, resolved.config.federated
    if options is None:
        return "steps of example-level DP are not in the ledger"
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


def _copied(state: State) -> State:
    """A state that may move on by itself; what devices are stays shared."""
    devices = copy.copy(state.devices)
    if devices is not None:
        devices.counts, devices.last = devices.counts.copy(), devices.last.copy()
    return State(state.central, copy.copy(state.mechanism), copy.copy(state.optimizer), devices)


def _load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Put the moments that torch's optimizer keeps into the reference's."""
    state = saved["state"].get(0, {})
    optimizer.steps = int(state.get("step", 0))
    for key in ("momentum_buffer", "exp_avg", "first"):
        if state.get(key) is not None:
            optimizer.first = state[key].double()
    for key in ("sum", "exp_avg_sq", "second"):
        if state.get(key) is not None:
            optimizer.second = state[key].double()


def _sha256(vector: Tensor) -> str:
    return hashlib.sha256(vector.contiguous().numpy().data).hexdigest()
