"""Compares summary and canaries with the lines of ``metrics.jsonl``, by records alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pfl_bench.client.costs import CostMeter, StepFlops
from pfl_bench.config.sections import EvaluationOptions
from pfl_bench.files import to_json_value
from pfl_bench.metrics import MetricDirections as Directions
from pfl_bench.runs.auditing.inputs import METRICS_FILE
from pfl_bench.runs.divergence import DivergenceWatch
from pfl_bench.runs.published import best_over_rounds
from pfl_bench.types import as_float
from pfl_bench.types.results import STEP_NAMES
from privacy.audit.inputs import AuditInputs, as_number, json_equal

Json = Mapping[str, Any]
# Far beyond any cost: sums of more leave what a float holds.
_ENDLESS = 1e100
# Of each round, in metrics.jsonl: coins of canaries that are guessed right, and all.
RIGHT, TRIALS = "canaries/right", "canaries/trials"


def summary_problems(
    options: EvaluationOptions, unit: str, inputs: AuditInputs, saved: Json, directions: Directions
) -> Iterator[str]:
    """Members of a summary that are not what the lines of metrics come to, in words.

    Then total costs of lines that are not the sums of the costs so far. ``unit`` is "round" or
    "epoch"; the loss at the start is the newest checkpoint's, ``saved``, or else the summary's.
    """
    rows, summary = inputs.rows, inputs.summary or {}
    if not rows:
        return
    best = best_over_rounds(rows, options.splits, directions)
    name = options.select_best or ""
    chosen = best.get(name)
    costs = CostMeter(StepFlops(0, 0), options.budgets, directions)
    starts = (saved.get("divergence"), summary.get("diverged"))
    start = next((one.get("start") for one in starts if isinstance(one, Mapping)), math.nan)
    watch, others = DivergenceWatch(as_number(start), unit), list[str]()
    # Where the training users are evaluated, a step's loss has a name of its own.
    of_steps = STEP_NAMES["train/loss"] if "train" in options.splits else "train/loss"
    unused = dict.fromkeys(("stragglers", "lost"), 0.0)
    names = {"train/loss": of_steps, "train/num_nonfinite": "train/num_nonfinite"}
    for row in rows:
        scalars = {
            key: value for key, given in row.items() if (value := as_float(given)) is not None
        }
        own = costs.add({key: value for key, value in scalars.items() if abs(value) < _ENDLESS})
        for key in unused:
            unused[key] += scalars.get(f"systems/{key}", 0.0)
            own[f"systems/total_{key}"] = unused[key]
        others += (
            f"{METRICS_FILE}, {row['round']}: {key} is {scalars[key]!r}, not {cost!r}"
            for key, cost in own.items()
            if scalars.get(key, cost) != cost
        )
        costs.watch(row["round"], scalars)
        # Steps come first.
        steps = {name: scalars[step] for name, step in names.items() if step in scalars}
        watch.look(row["round"], steps)
        watch.look(row["round"], scalars | {"train/num_nonfinite": 0.0})
    stated = summary.get("metrics") or {}
    watch.look(rows[-1]["round"], {key: float(value) for key, value in stated.items()})
    members = {
        "best": best,
        "selected": chosen and chosen["round"],
        "selection": chosen
        and {"metric": name, "value": chosen["value"], "index": chosen["round"]},
        "systems": costs.totals,
        "budgets": costs.budgets(),
        "diverged": watch.found,
    }
    for key, found in members.items():
        if not json_equal(summary.get(key), to_json_value(found)):
            yield f"{key} is not what {METRICS_FILE} comes to"
    yield from others[:1]


def canary_problems(inputs: AuditInputs) -> Iterator[str]:
    """Compare the trials of canaries with what the lines of metrics have of each round."""
    trials = (inputs.canaries or {}).get("trials")
    if not isinstance(trials, Mapping):
        return
    counts = {key: as_number(value) for key, value in trials.items()}
    tossed = counts.get("num_in", math.nan) + counts.get("num_out", math.nan)
    wrong = counts.get("misses", math.nan) + counts.get("false_alarms", math.nan)
    for what, stated, name in (("right", tossed - wrong, RIGHT), ("all", tossed, TRIALS)):
        own = sum(as_number(row.get(name)) for row in inputs.rows)
        if stated != own:
            yield (
                f"canaries.json: {stated:g} guesses ({what}) follow from trials, but "
                f"{METRICS_FILE} has {own:g} ({name})"
            )
