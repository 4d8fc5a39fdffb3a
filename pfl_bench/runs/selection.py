"""A sweep whose choice has a price: trials that are drawn, and the record of the best.

Guarantee: that of ``privacy.tuning``, for the unit and adjacency of one trial. What is drawn (the
number of trials, and the point of each) comes from the selection's seed alone, before anything is
trained, and is recorded in ``selection.json`` of the sweep's folder: a sweep that was killed goes
on with the same trials, and one whose file has changed is refused. (As with noise, a seed makes a
simulation repeatable and protects nobody: a deployment draws from a secret source.) Each trial has
a seed of its own. Between equal scores the trial that was drawn first is chosen, which no data
decide. The selected trial's folder gets a ``selection.json`` with both epsilons of the selection.

Covered is the unit of the training data. Held-out users are not: scores are computed from their
data without noise. So data whose validation examples are the training users' own are refused where
the unit is a user. The other trials' folders, the number of trials and the table of all are the
operator's, and outside: whoever publishes them pays for the composition of all trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.config.sweeps import Combination, LoadedSweep
from pfl_bench.files import read_json, write_json
from pfl_bench.metrics import lower_is_better
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.base_plan import compose_of, configured_of, plan_of_statement, planned
from pfl_bench.types import ConfigError, RunFolderError
from privacy.accountant import compose_epsilon
from privacy.audit.inputs import SIDES, as_number
from privacy.audit.search import plan_composition
from privacy.errors import PrivacyError
from privacy.statement.statement import json_epsilon
from privacy.tuning import Trials, selection_epsilon

SELECTION_FILE = "selection.json"
_VERSION = 1
# What would tell how many trials there were.
_SECRET = ("drawn", "seed")
NOT_COVERED = (
    "Held-out users, whose data the choice reads without noise.",
    "The number of trials, and points, models, scores and folders of the trials that were not "
    "selected: the guarantee counts on their being kept secret.",
    "Any other run on the same data, such as one that chose the grid or its ranges.",
)


def drawn_trials(sweep: LoadedSweep, out: Path) -> tuple[list[Combination], dict[str, Any]]:
    """Draw the trials of a sweep, or find them drawn; gives them in that order, and the record.

    The record is written to ``selection.json`` in ``out``. ConfigError if the validation data are
    the training users' own, RunFolderError if the folder holds another selection,
    privacy.errors.PrivacyError if a trial's plan cannot be accounted for selection.
    """
    record = _record(sweep, out)
    path = out / SELECTION_FILE
    before = read_json(path)
    if before is not None:
        changed = [key for key, value in record.items() if before.get(key) != value]
        if changed:
            raise RunFolderError(
                f"{path}: this folder holds another selection ({', '.join(changed)} differ), and "
                "changing what is drawn after trials have run would void its guarantee; restore "
                "the sweep's file, or give another folder with --out"
            )
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    trials = [sweep.trial(one["trial"], one["combination"], one["seed"]) for one in record["drawn"]]
    return trials, record


def _record(sweep: LoadedSweep, out: Path) -> dict[str, Any]:
    assert sweep.selection is not None
    trials = sweep.selection.trials(sweep.path)
    seed = sweep.selection.seed
    seed = sweep.base.config.seed if seed is None else seed
    _check_rounds(sweep)
    distinct = _distinct_plans(sweep.combinations, out)
    _check_held_out(sweep, distinct)
    return {
        "format_version": _VERSION,
        "metric": sweep.metric,
        "seed": seed,
        "trials": trials.to_json_dict(),
        "grid": [combination.slug for combination in sweep.combinations],
        "drawn": _draw(trials, seed, len(sweep.combinations)),
        "unit": distinct[0]["unit"],
        "adjacency": distinct[0]["adjacency"],
        "accountant": "rdp",
        **_price(sweep, distinct, trials),
        "plans": distinct,
    }


def _draw(trials: Trials, seed: int, num_points: int) -> list[dict[str, int]]:
    """Draw the trials: number, point of the grid and run's seed of each."""
    rng = stream(seed, Purpose.TRIALS)
    number = trials.draw(rng)
    points = rng.integers(1, num_points + 1, number)
    seeds = _distinct_seeds(rng, number)
    return [
        {"trial": index, "combination": int(point), "seed": own}
        for index, (point, own) in enumerate(zip(points, seeds, strict=True), start=1)
    ]


def _distinct_plans(points: Sequence[Combination], out: Path) -> list[dict[str, Any]]:
    plans = [planned(point.resolved, out / f"{point.slug},planned") for point in points]
    return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]


def _distinct_seeds(rng: np.random.Generator, number: int) -> list[int]:
    """Seeds of which no two are equal, and which do not tell how many there are."""
    seeds: dict[int, None] = {}
    while len(seeds) < number:
        seeds[int(rng.integers(2**31))] = None
    return list(seeds)


def _check_rounds(sweep: LoadedSweep) -> None:
    """Check that a plan can be read without the number of rounds that its noise was fitted to."""
    points = [configured_of(combination.resolved) for combination in sweep.combinations]
    fitted = [point for point in points if not point.description.is_sampled_gaussian]
    if len({point.num_rounds for point in points}) > 1 and fitted:
        raise ConfigError(
            f"{sweep.path}: selection: the grid has several numbers of rounds, and the noise of "
            f"{fitted[0].mechanism} is fitted to them; keep the rounds out of the grid"
        )


def _check_held_out(sweep: LoadedSweep, plans: Sequence[Mapping[str, Any]]) -> None:
    """Check that scores come from units that are not in the training data."""
    if any(plan["unit"] == "user" and plan["split_by"] != "user" for plan in plans):
        raise ConfigError(
            f"{sweep.path}: {sweep.metric} is computed from the training users' own "
            "examples, because the data are split within users, so that choosing by it would not "
            "be covered for any user; use data that are split by user (for digits: "
            "task.split_by=user)"
        )
    if sweep.metric.startswith("train/"):
        raise ConfigError(
            f"{sweep.path}: {sweep.metric} is computed from the training data without noise, so "
            "that choosing by it would not be covered; take a metric of val"
        )


def _price(
    sweep: LoadedSweep, plans: Sequence[Mapping[str, Any]], trials: Trials
) -> dict[str, Any]:
    """Epsilon and delta of the selection in both settings."""
    # By a point of the grid: its number of rounds, which noise is fitted to, may not be the row's.
    compose = compose_of(sweep.combinations[0].resolved)
    epsilon, delta = {}, {}
    for side in SIDES:
        deltas = {as_number(plan[side]["delta"]) for plan in plans}
        if len(deltas) > 1:
            raise PrivacyError(
                f"the points of the grid have several deltas ({side}: {sorted(deltas)}); a "
                "selection has one: take privacy.delta out of the grid, and set it in the row"
            )
        delta[side] = deltas.pop()
        parts = [plan_composition(compose, plan, side) for plan in plans]
        epsilon[side] = json_epsilon(selection_epsilon(parts, trials, delta[side]))
    return {"epsilon": epsilon, "delta": delta}


def record_choice(
    record: Mapping[str, Any], trials: Sequence[Combination], chosen: int, value: float, out: Path
) -> None:
    """Write the selection into the folders of the sweep, ``out``, and of the selected trial.

    ``record`` is what ``drawn_trials`` gave; ``chosen``, from 0, is the place of the selected one
    among all trials, in the order in which they were drawn, and ``value`` its score.
    """
    released = {key: value for key, value in record.items() if key not in _SECRET}
    own = record["drawn"][chosen]
    released["selected"] = {
        "combination": trials[chosen].values,
        "run_seed": own["seed"],
        "value": value,
    }
    released["covers"] = covers(record["unit"])
    released["not_covered"] = list(NOT_COVERED)
    write_json(out / trials[chosen].slug / SELECTION_FILE, released)
    write_json(out / SELECTION_FILE, {**record, "chosen": own["trial"]})


def covers(unit: str) -> str:
    """Runs that the epsilons of a selection cover, in words."""
    return (
        f"The selected model with its settings and score, for each {unit} of the training data: "
        "both the trial itself and its having been chosen from a random number of trials."
    )


def best_of(values: Sequence[float], is_lower_better: bool) -> int | None:
    """Place of the best score: the first among equals; None if none is a number."""
    scores = np.asarray([-value if is_lower_better else value for value in values])
    return None if np.isnan(scores).all() else int(np.nanargmax(scores))


def is_lower_better(metric: str, summaries: Iterable[Mapping[str, Any] | None]) -> bool:
    """Whether lower values of a metric are better, as runs say of which these are the summaries."""
    summary = next(filter(None, summaries), {})
    return lower_is_better(metric, summary.get("metric_directions"))


def choice_problems(run_folder: Path) -> list[str] | None:
    """Differences of a selected run's sweep from what its seed draws and its scores choose.

    The sweep's folder is the one above; None where it is not there. RunFolderError if a file is
    damaged.
    """
    out = run_folder.resolve().parent
    record = read_json(out / SELECTION_FILE)
    if record is None:
        return None
    try:
        trials, seed = Trials.from_json_dict(dict(record["trials"])), int(record["seed"])
        drawn, name = _draw(trials, seed, len(record["grid"])), str(record["metric"])
        if record["drawn"] != drawn:
            return [
                f"{out}: other trials are recorded than its seed draws ({len(record['drawn'])} "
                f"recorded, {len(drawn)} drawn)"
            ]
        summaries = []
        for number in range(1, len(drawn) + 1):
            (folder,) = out.glob(f"trial-{number:03d},*")
            summaries.append(read_json(folder / "summary.json") or {})
        values = [as_number(summary["selection"]["value"]) for summary in summaries]
        chosen = best_of(values, is_lower_better(name, summaries))
        if chosen is None:
            return [f"{out}: no trial has a number as its {name}"]
        own = (read_json(run_folder / "summary.json") or {}).get("model_sha256")
        if own != summaries[chosen]["model_sha256"]:
            return [
                f"{out}: the best {name} is that of trial {chosen + 1}, whose model is not this "
                "run's"
            ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return [f"{out}: the sweep's trials cannot be read again: {error!r}"]
    return []


def adaptive_problem(sweep: LoadedSweep, out: Path) -> str | None:
    """Say why runs that earlier results choose have no price by composition; None if they do.

    Guarantee: adaptive composition bounds runs that are chosen one after another by what earlier
    ones release, if each has the same events whatever is chosen. (Where the choice also decides how
    much is spent, the sum of what was spent bounds nothing.) Scores count as chosen by releases
    alone if they are computed from held-out users' data, or from examples that no training unit is.
    A random number of trials (``privacy.tuning``) is no help: its trials are drawn independently.

    Source: Zhu, Dong and Wang 2022, "Optimal accounting of differential privacy via characteristic
    function", theorem 10; Rogers et al. 2016, "Privacy odometers and filters", of adaptive costs.
    """
    try:
        # Points that cost the same in whole runs may differ in shorter ones.
        for rounds in sweep.rungs():
            points = [sweep.shortened(point, rounds) for point in sweep.combinations]
            plans = _distinct_plans(points, out)
            _check_held_out(sweep, plans)
            compose = compose_of(points[0].resolved)
            for side in SIDES:
                parts = [plan_composition(compose, plan, side) for plan in plans]
                if any(part != parts[0] for part in parts):
                    length = "" if rounds is None else f" of {rounds} rounds"
                    return (
                        f"the grid has points of several costs{length} (noise, rounds, sampling), "
                        "and earlier results choose among them; leave those keys out of the grid, "
                        "or draw points by `random`"
                    )
    except ValueError as error:
        return str(error)
    return None


def composed_epsilons(
    runs: Sequence[tuple[Combination, Mapping[str, Any]]], accountant: str
) -> tuple[dict[str, float | str], dict[str, str]]:
    """Joint epsilons of several runs with their statements, if all of them are published.

    Gives by setting the epsilon at the smallest of their deltas; and why there is none.
    """
    epsilons: dict[str, float | str] = {}
    problems: dict[str, str] = {}
    configs = [combination.resolved.config for combination, _ in runs]
    pinned = [one.seed for one in configs if one.privacy and one.privacy.nonce is not None]
    if len(set(pinned)) < len(pinned):
        why = (
            "by privacy.nonce several runs of one seed share their noise, so that there is no "
            "guarantee of them together; leave privacy.nonce out"
        )
        return {}, dict.fromkeys(SIDES, why)
    for side in SIDES:
        try:
            parts, delta = [], math.inf
            for combination, statement in runs:
                plan = plan_of_statement(combination.resolved, statement)
                parts.append(plan_composition(compose_of(combination.resolved), plan, side))
                delta = min(delta, as_number(plan[side]["delta"]))
            epsilons[side] = json_epsilon(compose_epsilon(parts, delta, accountant))
        except (ValueError, ArithmeticError) as error:
            problems[side] = str(error)
    return epsilons, problems
