"""Drives a run from configuration to summary: the parts that all trainers share."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pfl_bench.client.costs import CostMeter
from pfl_bench.client.machine import code_digest
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.row_differences import experiment, settings_digest, tree_differences
from pfl_bench.config.terminal_text import say
from pfl_bench.files import read_metrics, to_json_value, write_json
from pfl_bench.profiling import Overhead, Profile, phase
from pfl_bench.runs.audit_file import ledger_begins
from pfl_bench.runs.best_model import BestModel
from pfl_bench.runs.checkpoint import load_latest, newest, restoring, save_checkpoint
from pfl_bench.runs.divergence import USUAL_MENDS, DivergenceWatch, describe_divergence
from pfl_bench.runs.events import Callbacks, RoundEnd, released_splits
from pfl_bench.runs.folder import SUMMARY_VERSION, RunFolder
from pfl_bench.runs.links import refuse_links
from pfl_bench.runs.log import Notices, RunLog, headline_of
from pfl_bench.runs.preparing import prepare
from pfl_bench.runs.published import best_over_rounds, with_comparison
from pfl_bench.runs.stop import check_stop
from pfl_bench.runs.trackers import Trackers, tracked_of
from pfl_bench.types import RunFolderError, WorkerError, WorkerGroup
from pfl_bench.types.results import CANARIES_IN_SUMMARY, STEP_NAMES
from privacy.errors import BudgetExceededError
from privacy.plan.plan import tensor_digest


def run(
    resolved: ResolvedConfig,
    out: Path,
    resume: bool = False,
    group: WorkerGroup | None = None,
    profile: Profile | None = None,
) -> dict[str, Any]:
    """Run a configuration in a folder, or return what a finished run there has left: its summary.

    Args:
        resolved: The configuration.
        out: The run's folder.
        resume: Go on with an unfinished run of the same configuration.
        group: Processes that wait for orders; None for those that the configuration asks for.
        profile: Collects where the time goes; written into the folder at the end.

    Raises:
        UserInputError: Configuration, data or folder do not fit.
        privacy.errors.PrivacyError: The privacy claim could not be made truthfully.
        WorkerError: One of the processes has died; the folder can be resumed from.
        OSError: The disk is full or went away; likewise.
    """
    running = rounds(resolved, out, resume, group, profile)
    while True:
        try:
            next(running)
        except StopIteration as end:
            summary: dict[str, Any] = end.value
            return summary


def rounds(
    resolved: ResolvedConfig,
    out: Path,
    resume: bool = False,
    group: WorkerGroup | None = None,
    profile: Profile | None = None,
    callbacks: Callbacks | None = None,
) -> Generator[RoundEnd | None, None, dict[str, Any]]:
    """As ``run``, but the caller asks for one round after another, and is given what callbacks are.

    Without callbacks, whose guarantee is in ``pfl_bench.runs.events``, that is None. A caller who
    asks for no further round closes the generator, which leaves an unfinished run.
    """
    with ExitStack() as stack:
        if group is not None:
            stack.callback(group.close)
        folder = stack.enter_context(RunFolder(out))
        finished = folder.prepare(resolved, resume)
        if finished is not None:
            return finished
        refuse_links(out.iterdir())
        if profile is not None:
            stack.enter_context(profile)
        running = _Run(resolved, folder, group, stack, profile, callbacks)
        return (yield from running.execute())


class _Run:
    def __init__(
        self,
        resolved: ResolvedConfig,
        folder: RunFolder,
        group: WorkerGroup | None,
        stack: ExitStack,
        profile: Profile | None,
        callbacks: Callbacks | None,
    ) -> None:
        self._resolved, self._config, self._folder = resolved, resolved.config, folder
        self._profile, self._callbacks = profile, callbacks
        self._notices = Notices()
        if resolved.config.privacy is not None:
            code_digest()  # of the files as they are loaded, not as they are minutes later
        prepared = prepare(resolved, folder.path, group, stack, self._notices.add)
        self._parts, self._trainer = prepared.parts, prepared.trainer
        self._evaluator, self._environment = prepared.evaluator, prepared.environment
        self._departure, self._directions = prepared.departure, prepared.directions
        self._costs = CostMeter(prepared.step, self._config.evaluation.budgets, self._directions)
        if callbacks is not None:
            callbacks.check(prepared.parts.task.facts)
        self._divergence = DivergenceWatch(prepared.initial_loss, self._trainer.unit)
        model = self._parts.model
        self._best = BestModel(self._config.evaluation.select_best, model, self._directions)
        self._strata: dict[str, Any] = {}
        self._is_over = False
        self._started, self._seconds_before = time.monotonic(), 0.0

    def execute(self) -> Generator[RoundEnd | None, None, dict[str, Any]]:
        trainer, path = self._trainer, self._folder.path
        # Only now, when nothing of it was refused: a mended row may use the same folder.
        for text in self._folder.record(self._resolved):
            self._notices.add(text)
        now = self._environment()
        for text in self._folder.check_environment(now):
            self._notices.add(text)
        done = self._restore()
        self._folder.check_metrics(done)
        trainer.begin(done)
        self._folder.write_environment(now | ledger_begins(path), done)
        # Until the run has ended, its folder states the most that it will have spent.
        self._write_statement(None)
        with RunLog(path, self._config.name, trainer.total, done) as log:
            self._notices.send_to(log.notice)
            tracked = tracked_of(self._resolved, path, done, self._central)
            splits = released_splits(self._config, self._parts.task.facts)
            options = self._resolved.tracker_options
            trackers = Trackers.start(options, tracked, log.notice, splits)
            done, status = yield from self._train(done, log, trackers)
            with phase("checkpoint"):
                self._save(done)
            summary = self._summarise(done, status)
            statement = self._write_statement(done)
            if self._config.evaluation.strata:
                write_json(path / "strata.json", self._strata)
            # First: sending the rest to a tracker may wait for a network.
            write_json(path / "summary.json", summary)
            row = {key: summary[key] for key in ("name", "setting", "systems")}
            trackers.conclude(statement, row | summary["metrics"], summary["expected"])
        if self._profile is not None:
            say(self._profile.write(path))
        return summary

    def _train(
        self, done: int, log: RunLog, trackers: Trackers
    ) -> Generator[RoundEnd | None, None, tuple[int, str]]:
        trainer, config = self._trainer, self._config
        started = time.perf_counter()
        every = {"evaluation": config.evaluation.every, "checkpoint": config.checkpoint.every}
        overhead = Overhead({name: (f"{name}.every", rounds) for name, rounds in every.items()})
        for index in range(done + 1, trainer.total + 1):
            if self._profile is not None:
                self._profile.begin_step(index)
            try:
                check_stop(self._folder.path, f"{trainer.unit} {index}")
                with phase("training"):
                    begun = time.perf_counter()
                    scalars = trainer.advance(index)
                    scalars["time/round_seconds"] = time.perf_counter() - begun
            except WorkerError:
                # The round has changed nothing yet: its sums come together before its release.
                self._save(index - 1)
                raise
            except BudgetExceededError as error:
                log.notice(f"stopped before {trainer.unit} {index}: {error}")
                return index - 1, "budget_exhausted"
            self._look(index, scalars)
            scalars |= self._costs.add(scalars)
            if "train" in config.evaluation.splits:
                scalars = {STEP_NAMES.get(name, name): value for name, value in scalars.items()}
            headline, measured = "", None
            if index % config.evaluation.every == 0 or index == trainer.last:
                scalars |= trainer.epsilons(index)
                trainer.load_central()
                evaluate = partial(self._evaluator.evaluate, config.evaluation.splits)
                measured = overhead.run("evaluation", evaluate)[0]
                self._look(index, measured)
                scalars |= measured
                self._best.look(index, scalars)
                self._costs.watch(index, scalars)
                headline = headline_of(scalars, self._directions.headlines)
            with phase("logging"):
                log.metrics(index, scalars, headline)
                trackers.log(scalars, index, measured or ())
            if index % config.checkpoint.every == 0:
                overhead.run("checkpoint", partial(self._save, index))
            yield self._tell(index, scalars, measured)
        for text in overhead.warnings(time.perf_counter() - started):
            log.notice(text)
        return trainer.total, "finished"

    def _tell(
        self, index: int, scalars: dict[str, float], measured: dict[str, float] | None
    ) -> RoundEnd | None:
        if self._callbacks is None:
            return None
        return self._callbacks.tell(index, scalars, measured, self._central())

    def _central(self) -> dict[str, Tensor]:
        """Copies of the central model, on the CPU; empty where clients have models of their own."""
        if self._config.setting in ("local", "multitask"):
            return {}
        self._load()
        state = self._parts.model.module.state_dict()
        return {name: value.detach().cpu().clone() for name, value in state.items()}

    def _load(self) -> None:
        self._trainer.load_central()
        if self._is_over:
            self._best.load()

    def _look(self, index: int, scalars: dict[str, float]) -> None:
        """Say at once when training has diverged."""
        if self._divergence.look(index, scalars):
            self._notices.add(
                f"{describe_divergence(self._divergence.found)}; what usually mends it: "
                f"{USUAL_MENDS[self._config.setting]}"
            )

    def _state(self) -> dict[str, Any]:
        return {
            "trainer": self._trainer.state_dict(),
            "best": self._best.state_dict(),
            "costs": self._costs.state_dict(),
            "divergence": self._divergence.state_dict(),
        }

    def _save(self, done: int) -> None:
        self._folder.flush_metrics()
        keep = self._config.checkpoint.keep
        state = self._state() | {"settings": self._settings(), "seconds": self._seconds()}
        save_checkpoint(self._folder.checkpoints, done, state, keep)

    def _seconds(self) -> float:
        """Seconds of the run so far, with those of the processes that it goes on from."""
        return self._seconds_before + time.monotonic() - self._started

    def _settings(self) -> str:
        """The settings as text: a digest would not say which of them have changed."""
        return json.dumps([self._config.seed, experiment(self._resolved.tree)])

    def _check_settings(self, saved: str) -> None:
        """Refuse to go on under other settings than the checkpoint's: config.yaml may be edited."""
        (old_seed, old), (seed, new) = json.loads(saved), json.loads(self._settings())
        changed = tree_differences(
            {"seed": old_seed, **json.loads(old)}, {"seed": seed, **json.loads(new)}
        )
        if changed:
            named = ", ".join(f"{key} ({was!r} -> {now!r})" for key, was, now in changed)
            raise RunFolderError(
                f"{self._folder.path}: its checkpoints are of another configuration than its "
                f"config.yaml has now; these differ: {named}. Undo the difference in config.yaml, "
                "or start in a new folder with --out"
            )

    def _restore(self) -> int:
        state = load_latest(self._folder.checkpoints)
        if state is None:
            return 0
        fresh = self._state() | {"trainer": self._trainer.state_form()}
        fresh["best"] = self._best.form_of(state.get("best"))
        with restoring(newest(self._folder.checkpoints), state, fresh):
            self._check_settings(state.get("settings", self._settings()))
            self._trainer.load_state_dict(state["trainer"])
            self._costs.load_state_dict(state["costs"])
            self._divergence.load_state_dict(state["divergence"])
            self._seconds_before = float(state.get("seconds", 0.0))
        self._best.load_state_dict(state["best"])
        done = int(state["step"])
        self._notices.add(f"resumed after {self._trainer.unit} {done}")
        return done

    def _write_statement(self, done: int | None) -> dict[str, Any] | None:
        statement = self._trainer.statement(done)
        if statement is not None:
            write_json(self._folder.path / "privacy.json", statement)
        return statement

    def _summarise(self, done: int, status: str) -> dict[str, Any]:
        trainer, parts = self._trainer, self._parts
        self._is_over = True
        self._load()
        ledger = trainer.ledger_digest(done)
        model_digest = None if ledger is None else tensor_digest(parts.model.vector)
        with phase("evaluation"):
            metrics, self._strata = self._evaluator.evaluate(self._config.evaluation.final_splits)
        self._look(done, metrics)
        facts = parts.task.facts
        # In full in a file of its own.
        canaries = trainer.canary_result(done)
        if canaries is not None:
            write_json(self._folder.path / "canaries.json", canaries)
            canaries = {key: canaries[key] for key in CANARIES_IN_SUMMARY}
        summary = {
            "format_version": SUMMARY_VERSION,
            "name": self._config.name,
            "setting": self._config.setting,
            "task": self._resolved.tree["task"]["name"],
            "variant": facts.variant,
            "seed": self._config.seed,
            "rounds": done,
            "status": status,
            "diverged": self._divergence.found,
            "selected": self._best.index,
            "selection": self._best.to_json_dict(),
            "num_parameters": parts.model.num_parameters,
            "departure": self._departure,
            "metrics": metrics,
            "metric_directions": self._directions.to_json_dict(),
            "best": best_over_rounds(
                read_metrics(self._folder.path / "metrics.jsonl"),
                self._config.evaluation.splits,
                self._directions,
            ),
            "systems": self._costs.totals,
            "budgets": self._costs.budgets(),
            "privacy": trainer.statement(done),
            "canaries": canaries,
            "pinned_nonce": getattr(self._config.privacy, "nonce", None) is not None,
            "fine_tuned": self._config.evaluation.adaptation is not None,
            # What names the ledger's last line, so that it cannot be edited unseen.
            "ledger_digest": ledger,
            "model_sha256": model_digest,
            "settings_sha256": settings_digest(self._resolved.tree),
            "data": {
                **to_json_value(asdict(replace(facts, class_names=()))),
                "num_users": {s: parts.task.split(s).num_users for s in parts.task.split_names},
            },
            "seconds": round(self._seconds(), 3),
        }
        return with_comparison(summary, self._resolved)
