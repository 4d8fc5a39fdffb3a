"""Compares what a run's summary says of its outcome with data and model: names and metrics.

Guarantee: what names the run (row, task, data, seed, size) is compared with its configuration and
the data as they are opened today; what follows from ``metrics.jsonl`` with its lines, whose total
costs are the sums of the costs before (``metrics_lines``); canaries with their file; the loss at
the start with that of the model as it is built today; and the final metrics, and those of rounds of
which a checkpoint has the model, with those of the model, where time allows, by a loop of the
audit's own. Metrics of other rounds are the run's word alone. Seconds are recorded nowhere else,
and published numbers are compared anew by whoever shows them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client.forward import Forward
from pfl_bench.config.row_differences import settings_digest
from pfl_bench.config.schema import RunConfig
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.evaluation.evaluator import families_of
from pfl_bench.evaluation.splits import examples_at_once, initial_loss
from pfl_bench.federated.parts import build_forward
from pfl_bench.files import to_json_value
from pfl_bench.metrics import MetricDirections, build_metrics, is_spread
from pfl_bench.profiling import one_thread
from pfl_bench.runs.auditing.metrics_lines import canary_problems, summary_problems
from pfl_bench.runs.auditing.opened import OpenedRun, initial_model
from pfl_bench.runs.checkpoint import load, load_latest, steps_saved
from pfl_bench.runs.folder import SUMMARY_VERSION
from pfl_bench.types import Task, UserInputError
from pfl_bench.types.results import CANARIES_IN_SUMMARY
from privacy.audit.check import Check, Finding, conclude
from privacy.audit.evidence import IncompleteError, SkippedError
from privacy.audit.inputs import AuditInputs, as_number, json_equal
from privacy.plan.plan import tensor_digest

Json = Mapping[str, Any]
NAME = "outcome"
_CLAIM = (
    "The summary is of this configuration and these data; its metrics, and those of the "
    "rounds whose models checkpoints have, are what these models come to."
)
# Of a metric (of 1, where it is below): what other arithmetic makes of it, and more.
_TOLERANCE = 0.01
# Of a split, a first part shows how long the whole takes.
_PARTS = 64
# Older checkpoints whose models are evaluated again, at most.
_OLDER = 2
_OF_DATA = ("variant", "checksum", "split_by", "extra", "num_users")


@one_thread()
def check_outcome(run: OpenedRun, inputs: AuditInputs, seconds: float) -> Check:
    """Check the summary; metrics are computed anew if that takes so many seconds at most.

    A metric that differs fails where code and machine are the run's, and is left open elsewhere.
    """
    summary, found = inputs.summary, Finding()
    if summary is None or isinstance(run.opened, str):
        why = "the run has no summary yet" if summary is None else str(run.opened)
        return Check(NAME, "skipped", _CLAIM, why)
    data = summary.get("data") or {}
    said = {**summary, **{f"data.{key}": value for key, value in data.items()}}
    directions = MetricDirections.of(families_of(run.opened[0], run.resolved.config))
    saved = load_latest(run.folder / "checkpoints") or {}
    named = _named(run, inputs, directions)
    unit = "epoch" if inputs.configured.unit == "example" else "round"
    # Rounds of a final statement computed anew are all that configuration and budget allow.
    allowed = inputs.rebuilt.statement or inputs.statement
    if inputs.statement["rounds"] < allowed["rounds"] and named["status"] != "finished":
        del named["status"]
        found.problems.append(
            f"the run ended after {summary.get('rounds')} of {inputs.configured.num_rounds} "
            f"{unit}s, and neither its configuration nor an exhausted budget explains it"
        )
    for key, own in named.items():
        stated = said.get(key)
        found.add(not json_equal(stated, own), f"{key} is {stated!r:.80}, but comes to {own!r:.80}")
    options = run.resolved.config.evaluation
    found.problems += summary_problems(options, unit, inputs, saved, directions)
    found.problems += canary_problems(inputs)
    differing = [*_other_start(run, saved)]
    try:
        text, others = _metrics(run, inputs, saved, seconds)
        differing += others
    except SkippedError as error:
        text = f"its names; metrics not computed anew: {error}"
    if differing and not inputs.seed.is_of_this_machine and not found.problems:
        text = f"by other code or another machine than the run's, {'; '.join(differing)}"
        return Check(NAME, IncompleteError.outcome, _CLAIM, text)
    found.problems += differing
    return conclude(NAME, _CLAIM, found.seen(text))


def _named(run: OpenedRun, inputs: AuditInputs, directions: MetricDirections) -> dict[str, Any]:
    """Members of a summary that follow from configuration, data, model and canaries.

    Facts of the data that runs of before did not write are not wanted. The text of their source is
    wanted only on the run's machine (other code may word it otherwise) and from where the run had
    them: of data that were moved it may name the file.
    """
    assert not isinstance(run.opened, str)
    (task, model), config, summary = run.opened, run.resolved.config, inputs.summary or {}
    facts = asdict(replace(task.facts, class_names=()))
    facts["num_users"] = {split: task.split(split).num_users for split in task.split_names}
    # As it is written there: what this version fills in has not decided the run.
    written = read_yaml(run.folder / "config.yaml")
    is_moved = (written.get("task") or {}).get("data") != run.resolved.tree["task"].get("data")
    worded = {"source"} if is_moved or not inputs.seed.is_of_this_machine else set()
    wanted = {*_OF_DATA, *(summary.get("data") or {})} - worded
    is_whole = summary.get("rounds") == inputs.configured.num_rounds
    named = {
        "format_version": SUMMARY_VERSION,
        "name": config.name,
        "setting": config.setting,
        "task": run.resolved.tree["task"]["name"],
        "variant": task.facts.variant,
        "seed": config.seed,
        "status": "finished" if is_whole else "budget_exhausted",
        "metric_directions": directions.to_json_dict(),
        "num_parameters": model.num_parameters,
        "pinned_nonce": getattr(config.privacy, "nonce", None) is not None,
        "settings_sha256": settings_digest(written),
        "canaries": inputs.canaries
        and {key: inputs.canaries.get(key) for key in CANARIES_IN_SUMMARY},
        **{f"data.{key}": to_json_value(facts[key]) for key in facts if key in wanted},
    }
    if "fine_tuned" in summary:  # not of runs of before
        named["fine_tuned"] = config.evaluation.adaptation is not None
    if inputs.seed.is_of_this_machine and run.is_known_model:
        named["departure"] = getattr(model.module, "departure", "")
    return named


def _other_start(run: OpenedRun, saved: Json) -> Iterator[str]:
    """The loss at the start, if it is not that of the initial model as it is built today."""
    watched, name = saved.get("divergence"), "divergence.start"
    is_known = run.is_known_model and not run.other_reading
    if isinstance(watched, Mapping) and not isinstance(run.opened, str) and is_known:
        task = run.opened[0]
        with suppress(UserInputError):
            # Not the opened model, which rounds that were computed again may have moved.
            forward = build_forward(run.resolved, task, initial_model(run.resolved, task))
            own = {name: initial_loss(forward, task.split("train"))}
            yield from _differing({name: to_json_value(as_number(watched.get("start")))}, own)


def _metrics(
    run: OpenedRun, inputs: AuditInputs, saved: Json, seconds: float
) -> tuple[str, list[str]]:
    """Text of what was looked at, and metrics that are not what the models come to."""
    assert not isinstance(run.opened, str)
    (task, model), config, summary = run.opened, run.resolved.config, inputs.summary or {}
    stated = summary.get("metrics") or {}
    if not seconds:
        raise SkippedError("--recompute asks for none")
    has_others = any(name.endswith("/num_clients_without_examples") for name in stated)
    # Released statistics, which no step moves; checkpoints of other private runs have no buffers.
    held = (saved.get("trainer") or {}).get("buffers") or {}
    buffers, shapes = model.buffers(), {name: getattr(held[name], "shape", None) for name in held}
    is_other = shapes != {name: buffer.shape for name, buffer in buffers.items()}
    if config.evaluation.adaptation is not None or has_others or is_other:
        raise SkippedError("they are not of the central parameters alone")
    if run.other_reading:
        raise SkippedError(run.other_reading)
    vector = _vector(saved, summary)
    if vector is None or vector.shape != model.vector.shape:
        raise SkippedError("no checkpoint has the model that was evaluated")
    if tensor_digest(vector) != summary.get("model_sha256"):
        raise SkippedError("the newest checkpoint has another model: see central_chain")
    before, seen, differing = model.vector.clone(), list[str](), list[str]()
    try:
        model.load_buffers(held)
        forward = build_forward(run.resolved, task, model)
        for at, values, names, said in (
            ("", vector, config.evaluation.final_splits, stated),
            *_evaluated(run, inputs, saved, model.vector),
        ):
            model.vector.copy_(values)
            started = time.monotonic()
            plain_metrics(forward, task, config, names, _PARTS)
            needed = _PARTS * (time.monotonic() - started)
            late = f"that takes {needed:.0f} s: see --recompute-seconds"
            if needed > seconds and not seen:
                raise SkippedError(late)
            if needed > seconds:
                seen.append(f"{at}not computed anew: {late}")
                break
            seconds -= needed
            own = plain_metrics(forward, task, config, names)
            differing += [at + problem for problem in _differing(said, own)]
            seen.append(f"{at}{len(own)} metrics of {', '.join(names)}")
    except UserInputError as error:
        raise SkippedError(str(error)) from None
    finally:
        model.vector.copy_(before)
        model.load_buffers(buffers)
    return "; ".join(["its names", *seen]), differing


def _evaluated(
    run: OpenedRun, inputs: AuditInputs, saved: Json, like: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, Sequence[str], Json]]:
    """Models of checkpoints that were evaluated on the way, with their lines of metrics.

    They are the central parameters, and those of the selected round, of the newest checkpoint,
    ``saved``; then the central parameters of older ones.
    """
    splits = run.resolved.config.evaluation.splits
    measured = {f"{split}/num_examples" for split in splits}
    lines = {row["round"]: row for row in inputs.rows if not measured.isdisjoint(row)}
    best, paths = saved.get("best") or {}, steps_saved(run.folder / "checkpoints")
    older = [step for step in paths if step in lines and step < saved["step"]][-_OLDER:]
    known: dict[Any, torch.Tensor] = {}
    for number, vector in (
        (saved["step"], saved["trainer"].get("central")),
        (best.get("index"), best.get("vector")),
        *((step, load(paths[step])["trainer"].get("central")) for step in reversed(older)),
    ):
        row = lines.get(number) if isinstance(number, int) else None
        is_one = isinstance(vector, torch.Tensor) and vector.shape == like.shape
        if row is None or not is_one:
            continue
        # The last round is often the selected one, too: one model is evaluated once.
        if number not in known or not torch.equal(known[number], vector):
            known[number] = vector
            yield f"round {number}: ", vector, splits, row


def _vector(saved: Json, summary: Json) -> torch.Tensor | None:
    is_last = summary.get("selected") is None
    held = saved.get("trainer" if is_last else "best") or {}
    vector = held.get("central" if is_last else "vector")
    return vector if isinstance(vector, torch.Tensor) and vector.dtype == torch.float32 else None


def _differing(stated: Mapping[str, Any], own: Mapping[str, float]) -> Iterator[str]:
    """Spreads over clients are left out: one example of a client of few moves them far."""
    for name, value in own.items():
        if is_spread(name):
            continue
        said, now = as_number(stated.get(name)), as_number(to_json_value(value))
        if not json_equal(stated.get(name), to_json_value(value)) and not (
            abs(said - now) <= _TOLERANCE * max(1.0, abs(now))
        ):
            yield f"{name} is {stated.get(name)!r:.40}, but comes to {value:.6g}"


@torch.no_grad()
def plain_metrics(
    forward: Forward, task: Task, config: RunConfig, splits: Sequence[str], part: int = 1
) -> dict[str, float]:
    """Metrics over all examples of some splits, of the model that is in memory.

    Named as an evaluation names them ("val/loss"), with the means over clients of what examples
    have on their own ("val/loss_by_client"), and the numbers of examples and of clients that have
    any. Shared with evaluation are the data, the forward pass and each metric's formula; which
    examples are measured is decided here. With ``part`` k they are the first k-th of each split.
    """
    families, batch_size = families_of(task, config), config.evaluation.batch_size
    step = min(batch_size, examples_at_once(task.facts.input_shape, forward.device) or batch_size)
    was_training, result = forward.module.training, dict[str, float]()
    forward.module.eval()
    try:
        for name in splits:
            split, metrics = task.split(name), build_metrics(task, families)
            kept: list[list[Mapping[str, torch.Tensor]]] = [[] for _ in metrics]
            end = -(-split.num_examples // part)
            for start in range(0, end, step):
                examples = split.read_range(start, min(start + step, end))
                outputs = forward.outputs(examples.inputs.to(forward.device))
                for metric, values in zip(metrics, kept, strict=True):
                    values.append(metric.update(outputs, examples.targets.to(forward.device)))
            if part > 1:
                continue  # of a few examples alone, metrics need not be defined
            found = {key: value for metric in metrics for key, value in metric.compute().items()}
            for values in kept:
                found |= _by_client(values, np.diff(split.offsets))
            found["num_examples"] = split.num_examples
            found["num_clients"] = int(np.count_nonzero(np.diff(split.offsets)))
            result |= {f"{name}/{key}": float(value) for key, value in found.items()}
    finally:
        forward.module.train(was_training)
    return result


def _by_client(
    values: Sequence[Mapping[str, torch.Tensor]], sizes: NDArray[np.int64]
) -> dict[str, float]:
    """Mean over clients of their own means of each value.

    ``values`` have shape (n,), batch by batch, with "weight" where examples do not weigh the same;
    ``sizes``, shape (U,), are the clients' numbers of examples.
    """
    columns = {
        name: torch.cat([one[name].cpu().double() for one in values]).numpy() for name in values[0]
    }
    owners, weights = np.repeat(np.arange(len(sizes)), sizes), columns.pop("weight", None)
    counts = np.bincount(owners, weights, len(sizes))
    counted = True if weights is None else weights > 0  # what weighs nothing may be anything
    found = {}
    for name, column in columns.items():
        weighed = np.where(counted, column, 0.0) * (1.0 if weights is None else weights)
        sums = np.bincount(owners, weighed, len(sizes))[counts > 0]
        found[f"{name}_by_client"] = float((sums / counts[counts > 0]).mean())
    return found
