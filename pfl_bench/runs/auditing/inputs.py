"""Inputs of an audit beside the ledger: a run's files, and what follows from what was opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.client.machine import files_added, plugin_digests
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.config.training import FederatedOptions
from pfl_bench.config.yaml_text import read_yaml
from pfl_bench.federated import private_seed
from pfl_bench.federated.central_gradient import has_own_gradient, private_gradient
from pfl_bench.federated.parts import build_algorithm
from pfl_bench.files import mode_for_others, read_json, read_metrics
from pfl_bench.metrics import lower_is_better
from pfl_bench.runs.auditing import foreign, seeds
from pfl_bench.runs.auditing.opened import OpenedRun, rebuild
from pfl_bench.runs.auditing.replay import make_replay
from pfl_bench.runs.base_plan import compose_of, configured_of
from pfl_bench.runs.checkpoint import load, restoring, steps_saved
from pfl_bench.runs.membership import read_attacks
from pfl_bench.simulation.devices.cohorts import digest_of
from pfl_bench.simulation.devices.timeline import TIMELINES
from pfl_bench.types import UserInputError
from pfl_bench.types.layouts import LAYOUTS, unnamed
from privacy.audit.evidence import SkippedError
from privacy.audit.inputs import (
    AuditInputs,
    CentralOptimizer,
    DataAtHand,
    Metrics,
    Saved,
    SeedRecord,
)
from privacy.recording.central_record import Sketcher, central_state
from privacy.reference.central import rate

METRICS_FILE = "metrics.jsonl"
Array = NDArray[np.float64]


def gather_inputs(run: OpenedRun, statement: Mapping[str, Any]) -> AuditInputs:
    """Gather what a private run and its statement give; RunFolderError if a file is damaged."""
    folder, resolved = run.folder, run.resolved
    is_federated = resolved.config.federated is not None
    others: list[str] = []
    rows = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).is_file() else None
    summary, canaries = (read_json(folder / name) for name in ("summary.json", "canaries.json"))
    read, starts, form = [], list[Any](), foreign.saved_form(run)
    lines = {row["round"]: row for row in rows or ()}
    for path in steps_saved(folder / "checkpoints").values():
        state = load(path)
        read.append(_read_saved(path, state))
        watched, row = state.get("divergence"), lines.get(read[-1][0].rounds, {})
        starts.append(watched.get("start") if isinstance(watched, Mapping) else None)
        found = foreign.problems_of_saved(run, form, state, row, summary or {}, starts[0])
        others += (f"{path.name}: {problem}" for problem in found)
    saved, seed = read[-1] if read else (None, None)
    stated = (summary or {}).get("metrics") or {}
    measured = foreign.measured(run, {*stated}.union(*rows or ()))
    others += () if summary is None else foreign.torn_lines(folder)
    others += foreign.replaced_lines(folder, run.recorded("resumptions"))
    others += foreign.unasked_files(folder, resolved.config)
    for file, names in (
        (METRICS_FILE, foreign.scalars(rows or (), measured)),
        ("environment.json", foreign.environment(run.environment)),
        ("summary.json", foreign.results(summary or {}, measured)),
        ("canaries.json", unnamed(canaries or {}, LAYOUTS["canaries.json"])),
        (TIMELINES, foreign.timelines(folder)),
        ("run.log", foreign.logged(folder)),
    ):
        others += (f"{file}: {name}: no run writes it" for name in names)
    record, is_final = _read_seed(run, seed), statement["status"] == "final"
    return AuditInputs(
        statement=statement,
        configured=configured_of(resolved),
        composition=compose_of(resolved),
        data=run.data,
        saved=saved,
        older=tuple(one for one, _ in read[:-1]),
        summary=summary,
        canaries=canaries,
        attacks=read_attacks(folder, resolved),
        metrics=None if rows is None else _metrics(rows, summary or {}, resolved),
        central_optimizer=central_optimizer(resolved, run.data),
        replay=make_replay(run, record.value, statement),
        seed=record,
        rebuilt=rebuild(run, "final" if is_final else "planned"),
        missing=_missing_files(folder, is_final, is_federated),
        foreign=tuple(others),
        other_files=tuple(foreign.files(folder)),
        texts=tuple(name for name in foreign.TEXTS if (folder / name).exists()),
        mode_for_others=mode_for_others(folder),
        plugins=_plugin_records(run),
    )


def _read_saved(path: Path, state: Mapping[str, Any]) -> tuple[Saved, int | None]:
    """Parts of a checkpoint, and the private seed that it has; None without."""
    with restoring(path, {"trainer": {}}, {}):
        trainer = state["trainer"]
        # A federated trainer keeps these with all else of its private rounds.
        private = trainer.get("private") or trainer
        kept = state.get("best") or {}
        held, best = _held(trainer.get("central")), _held(kept.get("vector"))
        saved = Saved(
            rounds=int(state["step"]),
            mechanism=trainer.get("mechanism"),
            digest=private.get("ledger"),
            central=held,
            best=None if best is None else (int(kept["index"]), best),
        )
        return saved, private.get("seed")


def _held(vector: Any) -> dict[str, Any] | None:
    """Digest and sketch of a model that a checkpoint holds; None for what is none."""
    is_one = isinstance(vector, torch.Tensor) and vector.dtype == torch.float32 and vector.numel()
    return central_state(vector) if is_one else None


def _read_seed(run: OpenedRun, saved: int | None) -> SeedRecord:
    """A run's private seed, by all that have it (``saved``: a checkpoint), and its parts today."""
    resolved, said = run.resolved, run.recorded("private_seed")
    said = said if isinstance(said, Mapping) else {}
    parts = said.get("parts")
    nonce = None if resolved.config.privacy is None else resolved.config.privacy.nonce
    values = {"environment.json": _number(said.get("value"))}
    if isinstance(parts, Mapping):
        values["its parts"] = seeds.value_of(resolved.config.seed, nonce, parts)
    values["the checkpoint"] = saved
    return SeedRecord(
        values={where: value for where, value in values.items() if value is not None},
        configured=resolved.config.seed,
        nonce=nonce,
        recorded_nonce=said.get("nonce", nonce),
        parts=parts if isinstance(parts, Mapping) else None,
        engine=str(run.recorded("engine", "name") or ""),
        today=_parts_today(run),
        covers_code=seeds.covers_all_code(),
    )


def _number(value: Any) -> int | None:
    try:
        number = -1 if value is None else int(str(value), 16)
    except ValueError:
        return None
    return number if number >= 0 else None


def _parts_today(run: OpenedRun) -> Mapping[str, Any] | str:
    if isinstance(run.opened, str):
        return run.opened
    task, model = run.opened
    try:
        # As it is written there: what this version fills in has not decided the run.
        written = replace(run.resolved, tree=read_yaml(run.folder / "config.yaml"))
        traces = "" if run.devices is None else digest_of(run.devices)
        digests = task.facts.checksum, model.initial_digest
        today = private_seed.derive(written, *digests, model.device, traces=traces).parts
        settings = seeds.configuration_digest(written.tree, has_traces=bool(traces))
        data, initial = digests
        return {**today, "configuration": settings, "data": data, "initial_model": initial}
    except (UserInputError, OSError, LookupError, TypeError, AttributeError) as error:
        return f"the parts of the seed cannot be computed anew ({error})"


def _plugin_records(run: OpenedRun) -> dict[str, Mapping[str, str]]:
    """Digests of the user's plug-ins: as the run began with them, of today, and those used."""
    begun, today = run.recorded("plugins"), plugin_digests()
    known = {"environment.json": begun} if isinstance(begun, Mapping) else {}
    used = {name: today.get(name, "none") for name in sorted(run.resolved.plugin_origins)}
    recorded = known.get("environment.json", {})
    added = {
        name: ", ".join(files_added(name, recorded[name]))
        for name in today
        if recorded.get(name, today[name]) != today[name]
    }
    return {**known, "today": today, "config.yaml": used, "added": added}


def _metrics(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], resolved: ResolvedConfig
) -> Metrics:
    """Scalars of rounds, and the round in which the selecting metric is best."""
    metrics, name = Metrics(rows), resolved.config.evaluation.select_best
    values = metrics.column(name or "")
    if name is None or np.isnan(values).all():
        return metrics
    is_lower = lower_is_better(name, summary.get("metric_directions"))
    place = int(np.nanargmin(values) if is_lower else np.nanargmax(values))
    return replace(metrics, best=(name, rows[place]["round"]))


def central_optimizer(resolved: ResolvedConfig, data: DataAtHand) -> CentralOptimizer | str:
    """The central step as configured; in words, why it is not taken anew.

    An algorithm with a gradient of its own is told the numbers of users and parameters of ``data``.
    """
    options = resolved.config.federated
    if options is None:
        return "the steps of central training are of gradients that no ledger records"
    gradient = None
    if has_own_gradient(build_algorithm(resolved, options)):
        whose = resolved.tree["federated"]["algorithm"]["name"]
        whose = f"what the algorithm {whose} makes of a release"
        if not data.num_units or not data.num_parameters:
            return (
                f"{whose} needs the numbers of users and parameters, and the data or the model are "
                "not at hand"
            )
        gradient = _own_gradient(resolved, options, whose, data.num_units, data.num_parameters)
    full, schedule = options.central_learning_rate, options.central_schedule

    def rate_of(number: int) -> float:
        return rate(full, schedule, number, options.num_rounds)

    return CentralOptimizer(options.central_optimizer, rate_of, gradient)


def _own_gradient(
    resolved: ResolvedConfig, options: FederatedOptions, whose: str, num_users: int, length: int
) -> Callable[[Array], Array]:
    """An algorithm's own ``central_gradient``, on the recorded coordinates of the releases.

    Of all releases' coordinates it gives the gradients', shape (T, 8) each. Two copies of the
    algorithm see the releases with other values at all other places. Where their gradients agree, a
    coordinate's gradient follows from that coordinate of the releases alone; else ``SkippedError``.
    """

    def gradients(release: Array, fill: float) -> Array:
        algorithm, places = build_algorithm(resolved, options), Sketcher(length).places
        algorithm.begin(num_users, torch.zeros(length))
        mean, out = torch.full((length,), fill), torch.zeros(length)
        made = np.full(release.shape, np.nan)
        for line, coordinates in enumerate(release.astype(np.float32)):
            mean[places] = torch.from_numpy(coordinates[: len(places)])
            private_gradient(algorithm, options.cohort_size, mean.clone(), out)
            made[line, : len(places)] = out[places].double().numpy()
        return made

    def known(release: Array) -> Array:
        first, second = (gradients(release, fill) for fill in (0.0, 1.0))
        if not np.array_equal(first, second, equal_nan=True):
            raise SkippedError(
                f"{whose} at one place rests on other places too, which no ledger records; "
                "--recompute computes it from whole releases"
            )
        return first

    return known


def _missing_files(folder: Path, is_final: bool, is_federated: bool) -> dict[str, str]:
    """Files that a run's folder lacks, and what each would show.

    A summary is wanted if the statement ``is_final``, of a run that has ended; the environment,
    which has the seed, if the run ``is_federated``.
    """
    shows = {
        "checkpoints": "whether the model that the run ended with follows from the recorded "
        "releases, and whether the ledger is the one that the model was saved beside",
        METRICS_FILE: "whether cohorts, bounds and noise of each round were really so",
    }
    if is_federated:
        shows["environment.json"] = "from which seed cohorts and noise were drawn"
    if is_final:
        shows["summary.json"] = (
            "which line of the ledger was the last, and which model was evaluated"
        )
    has = {"checkpoints": any((folder / "checkpoints").glob("step-*.pt"))}
    return {
        name: text for name, text in shows.items() if not has.get(name, (folder / name).is_file())
    }
