"""Computation and communication of training, in all and until a metric reaches a value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Table
from pfl_bench.types import as_float, step_unit

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")
AMOUNTS = ("flops", "bytes_down", "bytes_up")


@dataclass(frozen=True)
class Price:
    """Mean cost of a row's runs until they reached a value; if none did, of all until their ends.

    FLOPs and bytes are those of all clients together; steps are rounds (central training: epochs).
    ``best`` is the metric's in any run; ``seconds`` are simulated. None: nothing tells.
    """

    num_runs: int
    num_reached: int
    flops: float
    bytes_down: float
    bytes_up: float
    steps: float
    best: float | None
    seconds: float | None = None


def flops_text(value: float | None) -> str:
    """Write a number of floating-point operations."""
    return _scaled(value, "FLOP")


def bytes_text(value: float | None) -> str:
    """Write a number of bytes; a kB has 1,000."""
    return _scaled(value, "B")


def _scaled(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    place = 0
    while abs(value) >= 1000 and place < len(_PREFIXES) - 1:
        value /= 1000
        place += 1
    number = f"{value:.3g}" if place or value != int(value) else f"{int(value)}"
    # 999.6 k is written 1e+03 by three digits.
    number = f"{value:.0f}" if "e" in number else number
    return f"{number} {_PREFIXES[place]}{unit}"


def amounts(entry: Any) -> dict[str, float] | None:
    """The three amounts of a summary's entry; None if one is missing."""
    if not isinstance(entry, Mapping):
        return None
    found = {name: value for name in AMOUNTS if (value := as_float(entry.get(name))) is not None}
    return found if len(found) == len(AMOUNTS) else None


def total_of(runs: Sequence[RunRecord]) -> dict[str, float] | None:
    """Mean over finished runs of what the whole training cost; None if no run says it."""
    found = [total for run in runs if (total := amounts(run.summary.systems))]
    return {name: fmean([total[name] for total in found]) for name in AMOUNTS} if found else None


def price_of(runs: Sequence[RunRecord], metric: str, target: float) -> Price | None:
    """Cost of reaching a value of a metric; None if no finished run of the row looked for it."""
    looked = [
        (run, entry)
        for run in runs
        for entry in run.summary.budgets
        if entry.get("metric") == metric and as_float(entry.get("target")) == target
    ]
    if not looked:
        return None
    price = _price_where_reached([entry for _, entry in looked])
    if price.num_reached == 0:
        totals = [amounts(run.summary.systems) or {} for run, _ in looked]
        flops, down, up = (fmean([one.get(name, math.nan) for one in totals]) for name in AMOUNTS)
        rounds = [run.summary.rounds for run, _ in looked]
        steps = fmean([math.nan if one is None else one for one in rounds])
        price = replace(price, flops=flops, bytes_down=down, bytes_up=up, steps=steps)
    best = [v for run, _ in looked for v in run.series(metric)[1] if math.isfinite(v)]
    better = min if runs[0].directions.lower_is_better(metric) else max
    return replace(price, best=better(best, default=None))


def _price_where_reached(entries: Sequence[Mapping[str, Any]]) -> Price:
    """Price by the entries, of one value, that reached it; where none did, its costs are NaN."""
    found = [entry for entry in entries if entry.get("reached") and amounts(entry)]
    means = {name: _mean(found, name) for name in AMOUNTS}
    seconds = _mean(found, "simulated_seconds")
    return Price(
        num_runs=len(entries),
        num_reached=len(found),
        **means,
        steps=_mean(found, "index"),
        best=None,
        seconds=None if math.isnan(seconds) else seconds,
    )


def _mean(entries: Sequence[Mapping[str, Any]], key: str) -> float:
    """Mean of what entries say of a key; NaN if none says it."""
    found = [value for entry in entries if (value := as_float(entry.get(key))) is not None]
    return fmean(found) if found else math.nan


def cost_table(groups: Mapping[str, Sequence[RunRecord]]) -> Table | None:
    """Table of the cost of each row's whole training; None if no run states it."""
    totals = {name: total for name, group in groups.items() if (total := total_of(group))}
    return _table(
        ("computed", "received by clients", "sent by clients"),
        [(name, *amount_texts(*total.values())) for name, total in totals.items()],
    )


def amount_texts(flops: float, *numbers_of_bytes: float) -> list[str]:
    """Write FLOPs, and what follows as bytes."""
    return [flops_text(flops), *map(bytes_text, numbers_of_bytes)]


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table | None:
    return Table.of(("row", *headings), lines) if lines else None


def clock_table(groups: Mapping[str, Sequence[RunRecord]]) -> Table | None:
    """Table of rows with simulated devices: means over finished runs; None without such rows."""
    lines: list[tuple[str, ...]] = []
    for name, group in groups.items():
        found = [one for run in group if (one := _simulated(run))]
        if found:
            seconds, lost, late, rounds = (fmean(column) for column in zip(*found, strict=True))
            counts = (f"{lost:,.0f}", f"{late:,.0f}")
            lines.append((name, f"{seconds / 3600:.3g}", f"{seconds / rounds:.4g}", *counts))
    return _table(("simulated hours", "seconds a round", "lost", "too late"), lines)


def _simulated(run: RunRecord) -> list[float] | None:
    """Simulated seconds, participants lost and too late, and rounds of a finished run."""
    totals = {**run.summary.systems, "rounds": run.summary.rounds}
    keys = ("simulated_seconds", "lost", "stragglers", "rounds")
    found = [value for key in keys if (value := as_float(totals.get(key))) is not None]
    return found if len(found) == len(keys) and found[-1] > 0 else None


def budget_table(
    rows: Mapping[str, tuple[str, Sequence[Sequence[Mapping[str, Any]]]]],
) -> Table | None:
    """Table of the costs of the values that rows were to reach; None if there is no such value.

    Args:
        rows: By name: the setting, and of each finished run its summary's ``budgets``.
    """
    lines: list[tuple[str, ...]] = []
    for name, (setting, runs) in rows.items():
        wanted: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
        for entry in chain.from_iterable(runs):
            if (target := as_float(entry.get("target"))) is not None:
                wanted.setdefault((str(entry.get("metric")), target), []).append(entry)
        for (metric, target), entries in wanted.items():
            price = _price_where_reached(entries)
            reached = f"{step_unit(setting)} {price.steps:,.0f}"
            reached = reached if price.num_reached else "not reached"
            if price.seconds is not None:
                reached += f", {price.seconds / 3600:.3g} simulated hours"
            if price.num_runs > 1:
                reached += f" ({price.num_reached} of {price.num_runs} runs)"
            texts = amount_texts(price.flops, price.bytes_down, price.bytes_up)
            lines.append((name, f"{metric} {target:g}", reached, *texts))
    return _table(("value", "reached", "computed", "received by clients", "sent by clients"), lines)
