"""Contents of a run's folder that no run writes: members, scalars, replaced lines, other files.

A sum before its noise, once kept "to debug", leaves the machine with the folder. Of checkpoints are
compared: members, shapes of tensors, and values that are on record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from pfl_bench.client.costs import CostMeter
from pfl_bench.config.schema import RunConfig
from pfl_bench.evaluation.evaluator import names_measured
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import read_metrics, to_json_value
from pfl_bench.runs import divergence
from pfl_bench.runs.audit_file import ledger_digest
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.auditing.starts import noise_generator
from pfl_bench.runs.checkpoint import differences, steps_saved
from pfl_bench.runs.environment import PACKAGES
from pfl_bench.simulation.devices.timeline import TIMELINES, RoundTimeline
from pfl_bench.simulation.devices.trace_file import DEVICES
from pfl_bench.trainers import dp_sgd
from pfl_bench.types import UserInputError
from pfl_bench.types.layouts import LAYOUTS, unnamed
from privacy.audit.inputs import json_equal
from privacy.errors import PrivacyError
from privacy.mechanism import check_saved

Members = Mapping[str, Any]
# What trainers save; of one whose parts are not at hand, no more is known.
_TRAINER = dict.fromkeys(
    ("central", "optimizer", "mechanism", "private", "clients", "buffers", "noise_generator",
     "ledger", "seed", "statistics")
)  # fmt: skip
# Scalars of a step.
_SCALARS = {
    "train": "loss step_loss num_examples step_examples num_steps num_nonfinite cohort_size "
    "update_norm central_learning_rate local_learning_rate learning_rate rounds_left_out",
    "privacy": "clip_norm update_noise_stddev fraction_clipped noisy_fraction_unclipped "
    "epsilon_simulated epsilon_actual",
    "canaries": "right trials",
    "systems": "steps examples flops bytes_down bytes_up total_flops total_bytes_down "
    "total_bytes_up simulated_seconds selected counted stragglers lost total_simulated_seconds "
    "total_waited_seconds total_stragglers total_lost",
    "time": "round_seconds",
}
_KNOWN = {f"{group}/{name}" for group, names in _SCALARS.items() for name in names.split()}
_FILES = (
    "config.yaml", "environment.json", "metrics.jsonl", "ledger.jsonl", "privacy.json",
    "summary.json", "checkpoints", "run.log", "report.html", "audit.json", "canaries.json",
    "attack.json", "attack", "selection.json", "profile.json", "trace.json", "wandb", "wandb.json",
    "mlflow.json", "mlflow.db", "mlflow", "tensorboard", ".lock", ".job.json", "stop.json",
    "strata.json", "timelines.jsonl", "devices.npz",
)  # fmt: skip
# Of these, what is written for people alone.
TEXTS = ("run.log", "report.html")
# A notice has four, those of an engine's candidates; a vector that was printed has more.
_MOST_VALUES = 12
_VALUE = re.compile(r"\d\.\d")


def environment(environment: Mapping[str, Any]) -> Iterator[str]:
    """Dotted names of members of ``environment.json`` that no run writes."""
    yield from unnamed(environment, LAYOUTS["environment.json"])
    for one in (environment, *environment.get("resumptions", ())):
        packages = one.get("packages") or {}
        yield from (f"packages.{name}" for name in packages if name not in PACKAGES)


def results(summary: Mapping[str, Any], measured: Collection[str]) -> Iterator[str]:
    """Dotted names of members of ``summary.json`` that no run with this evaluation writes."""
    yield from unnamed(summary, LAYOUTS["summary.json"])
    yield from (f"metrics.{name}" for name in summary.get("metrics") or {} if name not in measured)


def unasked_files(folder: Path, config: RunConfig) -> Iterator[str]:
    """Files of canaries, strata and devices of a configuration that has none, in words."""
    asked = {
        "canaries.json": config.privacy is not None and config.privacy.audit is not None,
        "strata.json": bool(config.evaluation.strata),
        TIMELINES: config.systems is not None,
        DEVICES: config.systems is not None,
    }
    for name, asks in asked.items():
        if not asks and (folder / name).exists():
            yield f"{name}: no run of this configuration writes it"


def timelines(folder: Path) -> list[str]:
    """Names of columns of rounds' timelines that no run writes."""
    known = {"round", *(each.name for each in fields(RoundTimeline))}
    return sorted(set().union(*read_metrics(folder / TIMELINES)) - known)


def scalars(rows: Iterable[Mapping[str, Any]], measured: Collection[str]) -> list[str]:
    """Names of scalars of rounds that no run with this evaluation writes."""
    return sorted(set().union(*rows) - _KNOWN - {"round", *measured})


def measured(run: OpenedRun, found: Iterable[str]) -> set[str]:
    """Names of what evaluation measures; without data or model, those ``found`` of its splits."""
    config = run.resolved.config
    # What cannot be evaluated here is not measured again either, which says why.
    with suppress(UserInputError, ValueError, RuntimeError, TypeError, IndexError):
        if not isinstance(run.opened, str):
            return names_measured(config, *run.opened)
    splits = {*config.evaluation.splits, *config.evaluation.final_splits}
    return {name for name in found if name.partition("/")[0] in splits}


def logged(folder: Path) -> Iterator[str]:
    """Lines of ``run.log`` that have more values than a notice, in words."""
    path = folder / "run.log"
    if path.exists() and not path.is_file():  # a pipe would be waited for
        yield "it is no regular file"
        return
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        count = len(_VALUE.findall(line))
        if count > _MOST_VALUES:
            yield f"line {number}, of {count} values"


def torn_lines(folder: Path) -> Iterator[str]:
    """Files of a run that has ended whose last line has no end, in words: readers leave it out."""
    for name in ("ledger.jsonl", "metrics.jsonl", TIMELINES):
        path = folder / name
        if not path.exists() or not path.stat().st_size:
            continue
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            is_torn = file.read() != b"\n"
        if is_torn:
            yield f"{name} ends with a part of a line, though the run has ended"


def replaced_lines(folder: Path, resumptions: Any) -> Iterator[str]:
    """Resumptions whose ledger did not begin with the bytes that it begins with now, in words.

    A round that was released, and then again from other data or code, has the same noise twice.
    """
    for resumption in resumptions if isinstance(resumptions, list) else ():
        recorded = resumption.get("ledger") if isinstance(resumption, Mapping) else None
        if not isinstance(recorded, Mapping):
            continue  # of an older version, or before the first round
        size = recorded.get("bytes")
        known = isinstance(size, int) and size >= 0
        if not known or ledger_digest(folder, size) != recorded.get("sha256"):
            yield (
                f"the ledger is not the one that the run was resumed with after "
                f"{resumption.get('after')}: a recorded line was replaced"
            )


def files(folder: Path) -> list[str]:
    """Names of files that no command of the toolkit leaves in a run's folder."""
    found = [path.name for path in folder.iterdir() if path.name not in _FILES]
    checkpoints = folder / "checkpoints"
    if checkpoints.is_dir():
        kept = {*steps_saved(checkpoints).values()}
        found += [f"checkpoints/{path.name}" for path in checkpoints.iterdir() if path not in kept]
    return sorted(found)


def saved_form(run: OpenedRun) -> dict[str, Any]:
    """The form of a run's checkpoints, closed; of data or model not at hand, of less."""
    config, trainer = run.resolved.config, _TRAINER
    best: dict[str, Any] = {"index": 0, "value": 0.0, "vector": None, "buffers": None}
    if not isinstance(run.opened, str):
        model = run.opened[1]
        best |= {"vector": model.vector, "buffers": model.buffers()}
        if config.central is not None:
            trainer = dp_sgd.saved_form(model, config.central, noise_generator(run)[0])
        # Without a plan the statement cannot be computed anew either, which says why.
        with suppress(UserInputError, PrivacyError, OSError):
            if config.federated is not None and (plan := run.federated[2]) is not None:
                trainer = FederatedTrainer.saved_form(*run.federated[:2], plan)
    return {
        **dict.fromkeys(("version", "step", "seconds"), 0.0),
        "settings": "",
        "trainer": trainer,
        "best": best,
        "costs": CostMeter.state_form(len(config.evaluation.budgets)),
        "divergence": divergence.STATE_FORM,
    }


def problems_of_saved(
    run: OpenedRun, form: Members, state: Members, row: Members, summary: Members, start: Any
) -> Iterator[str]:
    """Members of a checkpoint beyond its form, in words; of others, what differs from the record.

    On record are its round's line of metrics ``row`` and the ``summary``, empty where there is
    none, and the first checkpoint's loss at the ``start``.
    """
    if foreign := [*differences(state, form, is_closed=True)]:
        yield from foreign
        return
    totals = (state.get("costs") or {}).get("totals") or {}
    stated = {key: row[name] for key in totals if (name := f"systems/total_{key}") in row}
    watched = state.get("divergence") or {}
    found = watched.get("found")
    for what, own, known in (
        ("costs.totals", totals, stated or totals),
        ("divergence.start", watched.get("start"), start),
        ("divergence.found", found, summary.get("diverged") if found and summary else found),
    ):
        if not json_equal(to_json_value(own), to_json_value(known)):
            yield f"{what} is {own!r:.80}, but {known!r:.80} is on record"
    if form["trainer"].get("mechanism") and (plan := run.federated[2]) is not None:
        try:
            check_saved(plan.mechanism, state["trainer"].get("mechanism") or {})
        except PrivacyError as error:
            yield f"trainer.mechanism: {error}"
