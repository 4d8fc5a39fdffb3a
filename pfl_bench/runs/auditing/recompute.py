"""Computes rounds of a run again, chains of them from its start and its checkpoints.

What is computed, and how it is compared, stands in ``privacy.reference`` and in
``privacy.audit.recomputed``; here is which rounds, and from which parameters.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from pfl_bench.client import machine
from pfl_bench.files import read_metrics
from pfl_bench.profiling import one_thread
from pfl_bench.runs.auditing.inputs import METRICS_FILE
from pfl_bench.runs.auditing.kept_state import CLOCK, other_state
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.auditing.starts import Starts
from pfl_bench.runs.checkpoint import restoring
from pfl_bench.types import ConfigError
from pfl_bench.types.results import STEP_NAMES
from privacy.audit import recomputed
from privacy.audit.check import Check, Finding, conclude
from privacy.audit.evidence import SkippedError
from privacy.audit.inputs import as_number
from privacy.audit.recomputed_noise import recorded_number
from privacy.audit.rounding import FINE, ROUNDING, Allowed
from privacy.ledger import read_ledger
from privacy.plan.plan import tensor_digest
from privacy.reference.devices import Devices
from privacy.reference.round import Round, Rule, State, recompute

Mode = Literal["none", "first", "sample", "all"]
MODES: tuple[Mode, ...] = ("none", "first", "sample", "all")
# Of one core, by default.
SECONDS = 30.0
_CLAIM = "Rounds that are computed again, by a plain loop from their start, come to the same."
_TRIALS = 12
# Of what a round recorded: another number of steps is compared, far more of them have no end.
_FAR_MORE = 10.0


@dataclass
class Recomputation:
    """Rounds that were computed again, and the differences found.

    Attributes:
        of: Rounds that the ledger has.
        rounds: Rounds that were computed again, in the order in which they were.
        problems: What differs, by round.
        reasons: Why not all of those that were asked for, a clause each.
        compared: Checkpoints that were compared element by element.
        far: The largest distance of central parameters from a checkpoint's.
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
        if not (self.rounds or self.problems):
            return Check("recomputation", "skipped", _CLAIM, f"not recomputed{why[9:]}")
        text = f"{len(self.rounds)} of {self.of} rounds computed again in {self.seconds:.1f} s"
        if self.compared:
            named = ", ".join(map(str, self.compared))
            text += f"; parameters after round {named} within {self.far:.2g}, element by element"
        return conclude("recomputation", _CLAIM, Finding(self.problems, text=text + why))


class _GivenUpError(Exception):
    """A round is not computed to its end: its problems; none where the time is up."""


@one_thread()
def recompute_run(
    run: OpenedRun, seed: int | None, mode: Mode = "sample", seconds: float = SECONDS
) -> Recomputation:
    """Compute rounds of a federated run again, by the plain reference.

    Mode "none": no round; "first": round 1; "sample": from checkpoints, in an order drawn by the
    seed, and from the first round on, for so many seconds; "all": all rounds. The private seed is
    None where no file has it. ConfigError if the time is not allowed, LedgerError if the ledger is
    not sound.
    """
    if not 0.0 < seconds < float("inf"):
        raise ConfigError(f"--recompute-seconds {seconds:g}: must be above 0 and finite, say 30")
    started, done = time.monotonic(), Recomputation(mode)
    code = run.recorded("private_seed", "parts", "code") or ""
    done.code = {"run": str(code), "audit": machine.code_digest()}
    if mode == "none":
        return done
    machine.keep_freed_memory()
    try:
        work = _Work(run, seed, done)
        work.go(started + seconds if mode == "sample" else float("inf"))
    except SkippedError as error:
        done.reasons.append(str(error))
    done.seconds = time.monotonic() - started
    return done


class _Work:
    """The rounds of one run."""

    def __init__(self, run: OpenedRun, seed: int | None, done: Recomputation) -> None:
        self._done = done
        # Seconds that the last round took. Records could say anything of the next one's work.
        self._took, self._deadline = 0.0, math.inf
        lines = read_ledger(run.folder / "ledger.jsonl")
        done.of = len(lines)
        self._run = Starts(run, lines, seed)
        # Where the training users are evaluated, what the steps gave has names of its own.
        steps = STEP_NAMES.items()
        self._metrics = {
            row["round"]: row | {own: row[given] for own, given in steps if given in row}
            for row in read_metrics(run.folder / METRICS_FILE)
        }

    def go(self, deadline: float) -> None:
        """Compute what was asked for, until the deadline."""
        done, self._deadline = self._done, deadline
        starts: list[int] = [0] if self._knows_start() else []
        try:
            if done.mode == "first":
                for step in starts:
                    self._chain(step, 1, deadline)
                return
            order = [step for step in sorted(self._run.checkpoints) if step < done.of]
            np.random.default_rng(self._run.seed).shuffle(order)
            # From the start on for what checkpoints leave of the time, half of it at least.
            half = (time.monotonic() + deadline) / 2.0 if starts else deadline
            chains = [*((step, half) for step in order), *((step, deadline) for step in starts)]
            for step, limit in chains if deadline < math.inf else reversed(chains):
                if step + 1 not in done.rounds:
                    self._chain(step, done.of, limit)
        finally:
            wanted = 1 if done.mode == "first" else done.of
            if len(done.rounds) < wanted and not done.problems and not done.reasons:
                done.reasons.append("the time was too short, see --recompute-seconds")

    def _knows_start(self) -> bool:
        recorded = self._run.lines[0].get("central") or {}
        if recorded.get("sha256") == tensor_digest(self._run.initial):
            return True
        self._done.reasons.append(
            "the model that the run began with is not the one that is built here today"
        )
        return False

    def _chain(self, start: int, stop: int, deadline: float) -> None:
        """Compute rounds one after another from a known start, until one differs.

        No round is begun that would hardly end by the deadline; the first of all has all the time.
        """
        rule, state = self._run.at(start)
        try:
            flaw = state.mechanism.flaw()
        except (TypeError, ValueError, KeyError, IndexError):
            flaw = "the recorded strategy of the noise has not the form of one"
        if flaw:
            self._done.problems.append(f"round {start + 1}: {flaw}")
            return
        sketch = recomputed.Sketch(len(self._run.initial))
        allowed = Allowed(ROUNDING[self._run.resolved.config.precision], state.optimizer)

        left = 0.0

        def go_on() -> None:
            nonlocal left
            left -= 1.0
            if left < 0.0:
                raise _GivenUpError(f"clients take more local steps than {METRICS_FILE} has")
            if time.monotonic() > (deadline if self._done.rounds else self._deadline):
                raise _GivenUpError

        for number in range(start + 1, stop + 1):
            began = time.monotonic()
            if number in self._done.rounds or began + self._took > deadline:
                return
            left = self._most_steps(number)
            if not left < math.inf and deadline == math.inf:
                why = f"round {number}: {METRICS_FILE} does not say how many steps it took"
                self._done.reasons.append(why)
                return
            allowed.begin()
            before = _copied(state)
            try:
                made = recompute(number, rule, state, sketch, go_on)
                if (canaries := self._run.canaries) is not None:
                    canaries.see(number, made)
            except _GivenUpError as error:
                self._done.problems += (f"round {number}: {problem}" for problem in error.args)
                return
            self._took = time.monotonic() - began
            # A coin of privunit that is this near to its chance.
            if made.mechanism.margin <= allowed.relative / (64.0 if allowed.each < FINE else 8.0):
                self._done.reasons.append(f"round {number}: rounding decides a client's coin")
                return
            line = self._run.lines[number - 1]
            after = self._run.lines[number] if number < len(self._run.lines) else {}
            saved, trainer = None, dict[str, Any]()
            if number in self._run.checkpoints:
                trainer = dict(self._run.saved(number))
                saved = trainer["central"]
            row = self._metrics.get(number, {})
            records = recomputed.Records(line, after.get("central"), row, saved)
            differing = functools.partial(recomputed.compare, records, made, sketch)
            found, trials = list(differing(allowed)), 0
            # No trial explains what differs in a cohort, a bound or noise.
            if found and not list(differing(allowed.at_most())):
                trials = _TRIALS
            # Whether local training makes so much of rounding. A ReLU that rounding turned over
            # does so in a trial with probability 1/2.
            for place in range(trials):
                allowed.measure(made, self._disturbed(number, rule, before, allowed, place))
                found = list(differing(allowed))
                if not found:
                    break
            is_unclear = found and not list(differing(allowed.widened()))
            if is_unclear or (not found and recomputed.shares(made, allowed) > recomputed.MOST):
                self._done.reasons.append(
                    f"from round {number} on, what local training makes of rounding could hide a "
                    "difference"
                )
                return
            if not found and recomputed.could_hide(records, made, sketch, before, allowed):
                self._done.reasons.append(
                    f"from round {number} on, more differs than a quarter of what one client may "
                    "contribute, or of the noise: rounding explains it, but could hide either"
                )
                return
            recomputed.carry_on(records, made, sketch, allowed)
            if state.devices is not None:
                found += self._other_devices(number, state.devices)
            if canaries is not None:
                canaries.allow(recomputed.shares(made, allowed), allowed.central)
                found += [] if after else canaries.others_on_file(number)
            problems = [f"round {number}: {problem}" for problem in [*self._beyond(made), *found]]
            taken = after or trainer.get("mechanism")
            is_open = recomputed.undecided(made, allowed.relative) and made.fraction is not None
            if is_open and taken:
                state.mechanism.bound = float(taken["clip_norm"])
            self._done.rounds.append(number)
            if saved is not None:
                apart = float((saved.double() - state.central.double()).abs().max())
                self._done.far = max(self._done.far, apart)
                self._done.compared.append(number)
                with restoring(self._run.checkpoints[number], {"trainer": {}}, {}):
                    others = list(other_state(state, trainer, allowed.of_moment))
                    if canaries is not None:
                        others += canaries.others(trainer["private"]["canaries"])
                problems += [f"round {number}: {problem}" for problem in others]
                if not problems and number < stop:
                    rule, state = self._run.at(number)
                    allowed = Allowed(allowed.each, state.optimizer)
            self._done.problems += problems
            if problems:
                return

    def _beyond(self, made: Round) -> Iterator[str]:
        """Problems of users who train on more examples than the data have of them."""
        for one in made.contributions:
            if one.trained is None:
                continue  # a canary
            most = int(self._run.sizes[one.user])
            if one.trained.num_examples > most:
                yield (
                    f"user {one.user} trains on {one.trained.num_examples} examples, where the "
                    f"data have {most} of that user"
                )

    def _other_devices(self, number: int, devices: Devices) -> Iterator[str]:
        """Numbers on record of a round of devices that are not those of the round as played."""
        record = self._run.lines[number - 1] | self._metrics.get(number, {})
        for key, own in devices.played.items():
            near = CLOCK * devices.now if key.endswith("seconds") else 0.0
            what = key.rpartition("/")[2].replace("_", " ")
            yield from recorded_number(what, record, key, own, near)

    def _most_steps(self, number: int) -> float:
        """Far more than the steps and clients that are recorded of a round; NaN of nothing."""
        row, line = self._metrics.get(number, {}), self._run.lines[number - 1]
        steps = as_number(row.get("systems/steps", row.get("train/num_steps")))
        return _FAR_MORE * (steps + as_number(line.get("realised_cohort")) + 1.0)

    def _disturbed(
        self, number: int, rule: Rule, before: State, allowed: Allowed, place: int
    ) -> Round:
        """The round from central parameters that are disturbed; what clients keep stays."""
        state = _copied(before)
        state.central = allowed.disturbed(before.central, place)
        # Its central step is not compared, and must not move the algorithm on.
        rule = replace(rule, gradient=torch.neg, trial=None)
        kept = {key: copy.deepcopy(one.state_dict()) for key, one in self._run.transforms.items()}
        made = recompute(number, rule, state, lambda vector: np.zeros(0), lambda: None)
        for key, one in self._run.transforms.items():
            one.load_state_dict(kept[key])
        return made


def _copied(state: State) -> State:
    """A state that may move on by itself; what devices are stays shared."""
    moved = copy.copy(state)
    moved.mechanism, moved.optimizer = copy.copy(state.mechanism), copy.copy(state.optimizer)
    moved.counts, moved.last = state.counts.copy(), state.last.copy()
    moved.devices = copy.copy(state.devices)
    return moved
