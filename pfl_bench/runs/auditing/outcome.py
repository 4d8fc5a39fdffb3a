"""Compares what a run's summary says of its outcome with data and model: names and metrics.

Guarantee: what names the run (row, task, data, seed, size) is compared with its configuration and
the data as they are opened today; the best values with ``metrics.jsonl``; and the final metrics,
where the model is in a checkpoint and time allows, with those of the model. What was measured
between rounds is the run's word alone: no checkpoint keeps the model of each round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from pfl_bench.evaluation.evaluator import Evaluator, families_of
from pfl_bench.federated.parts import build_forward
from pfl_bench.files import read_json, read_metrics, to_json_value
from pfl_bench.metrics import MetricDirections
from pfl_bench.profiling import one_thread
from pfl_bench.runs.auditing.inputs import METRICS_FILE
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.published import best_over_rounds
from pfl_bench.types import UserInputError
from privacy.audit.check import Check, Finding, conclude
from privacy.audit.errors import IncompleteError, SkippedError
from privacy.audit.inputs import as_number, json_equal
from privacy.plan.plan import tensor_digest

NAME = "outcome"
_CLAIM = (
    "The summary is of this configuration and these data, and its metrics are what its model "
    "comes to."
)
# Of a metric (of 1, where it is below): what other arithmetic makes of it, and more.
_TOLERANCE = 0.01
# Of a split, a first part shows how long the whole takes.
_PARTS = 64
_SPREADS = ("client_", "stratum_")
_OF_DATA = ("variant", "checksum", "split_by", "extra", "num_users")


@one_thread()
def check_outcome(run: OpenedRun, is_of_this_machine: bool, seconds: float) -> Check:
    """Check the summary; metrics are computed anew if that takes so many seconds at most.

    A metric that differs fails where code and machine are the run's, and is left open elsewhere.
    """
    summary, found = read_json(run.folder / "summary.json"), Finding()
    if summary is None or isinstance(run.opened, str):
        why = "the run has no summary yet" if summary is None else str(run.opened)
        return Check(NAME, "skipped", _CLAIM, why)
    data = summary.get("data") or {}
    said = {**summary, **{f"data.{key}": value for key, value in data.items()}}
    config = run.resolved.config
    directions = MetricDirections.of(families_of(run.opened[0], config))
    named = _named(run) | {"metric_directions": directions.to_json_dict()}
    total = config.federated.num_rounds if config.federated else None
    total = config.central.num_epochs if config.central else total
    named["status"] = "finished" if summary.get("rounds") == total else "budget_exhausted"
    for key, own in named.items():
        stated = said.get(key)
        found.add(not json_equal(stated, own), f"{key} is {stated!r:.80}, but comes to {own!r:.80}")
    metrics = run.folder / METRICS_FILE
    if metrics.is_file():
        best = best_over_rounds(read_metrics(metrics), config.evaluation.splits, directions)
        is_best = json_equal(summary.get("best"), to_json_value(best))
        found.add(not is_best, f"the best values are not those of {METRICS_FILE}")
    try:
        differing, text = _metrics(run, summary, seconds)
    except SkippedError as error:
        return conclude(NAME, _CLAIM, found.seen(f"its names; metrics not computed anew: {error}"))
    if differing and not is_of_this_machine and not found.problems:
        text = f"by other code or another machine than the run's, {'; '.join(differing)}"
        return Check(NAME, IncompleteError.outcome, _CLAIM, text)
    found.problems += differing
    return conclude(NAME, _CLAIM, found.seen(text))


def _named(run: OpenedRun) -> dict[str, Any]:
    """Members of a summary that follow from configuration, data and model."""
    assert not isinstance(run.opened, str)
    (task, model), config = run.opened, run.resolved.config
    facts = asdict(task.facts)
    facts["num_users"] = {split: task.split(split).num_users for split in task.split_names}
    return {
        "name": config.name,
        "setting": config.setting,
        "task": run.resolved.tree["task"]["name"],
        "variant": task.facts.variant,
        "seed": config.seed,
        "num_parameters": model.num_parameters,
        **{f"data.{key}": to_json_value(facts[key]) for key in _OF_DATA},
    }


def _metrics(run: OpenedRun, summary: Mapping[str, Any], seconds: float) -> tuple[list[str], str]:
    """Final metrics that are not what the model comes to, and what was looked at."""
    assert not isinstance(run.opened, str)
    (task, model), config = run.opened, run.resolved.config
    stated, splits = summary.get("metrics") or {}, config.evaluation.final_splits
    if not seconds:
        raise SkippedError("--recompute asks for none")
    has_others = any(name.endswith("/num_clients_without_examples") for name in stated)
    if config.evaluation.adaptation is not None or has_others or model.buffers():
        raise SkippedError("they are not of the central parameters alone")
    vector = _vector(run, summary)
    if vector is None or vector.shape != model.vector.shape:
        raise SkippedError("no checkpoint has the model that was evaluated")
    if tensor_digest(vector) != summary.get("model_sha256"):
        raise SkippedError("the newest checkpoint has another model: see central_chain")
    before = model.vector.clone()
    try:
        model.vector.copy_(vector)
        forward = build_forward(run.resolved, task, model)
        evaluator = Evaluator(config, task, model, forward, None)
        started = time.monotonic()
        evaluator.measure(splits, 0, _PARTS)
        needed = _PARTS * (time.monotonic() - started)
        if needed > seconds:
            raise SkippedError(f"that takes {needed:.0f} s: see --recompute-seconds")
        own = evaluator.evaluate(splits)[0]
    except UserInputError as error:
        raise SkippedError(str(error)) from None
    finally:
        model.vector.copy_(before)
    return list(_differing(stated, own)), f"its names; {len(own)} metrics of {', '.join(splits)}"


def _vector(run: OpenedRun, summary: Mapping[str, Any]) -> torch.Tensor | None:
    state = load_latest(run.folder / "checkpoints")
    if state is None:
        return None
    if summary.get("selected") is None:
        vector = state["trainer"].get("central")
    else:
        vector = (state.get("best") or {}).get("vector")
    return vector if isinstance(vector, torch.Tensor) and vector.dtype == torch.float32 else None


def _differing(stated: Mapping[str, Any], own: Mapping[str, float]) -> Iterator[str]:
    """Spreads over clients are left out: one example of a client of few moves them far."""
    for name, value in own.items():
        if name.partition("/")[2].startswith(_SPREADS):
            continue
        said, now = as_number(stated.get(name)), as_number(to_json_value(value))
        if not json_equal(stated.get(name), to_json_value(value)) and not (
            abs(said - now) <= _TOLERANCE * max(1.0, abs(now))
        ):
            yield f"{name} is {stated.get(name)!r:.40}, but comes to {value:.6g}"
