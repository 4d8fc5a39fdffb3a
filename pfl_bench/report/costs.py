"""Computation and communication of training, in all and until a metric reaches a value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Table
from pfl_bench.types import as_float

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
    seconds: list[float] = []
    reached: list[tuple[dict[str, float], float]] = []
    missed: list[tuple[dict[str, float], float]] = []
    best: list[float] = []
    for run in runs:
        for entry in run.summary.budgets:
            if entry.get("metric") != metric or as_float(entry.get("target")) != target:
                continue
            spent = amounts(entry) if entry.get("reached") else None
            if spent is not None:
                reached.append((spent, as_float(entry.get("index")) or math.nan))
                simulated = as_float(entry.get("simulated_seconds"))
                seconds += [] if simulated is None else [simulated]
            else:
                total = amounts(run.summary.systems) or dict.fromkeys(AMOUNTS, math.nan)
                rounds = run.summary.rounds
                missed.append((total, math.nan if rounds is None else float(rounds)))
            best += [value for value in run.series(metric)[1] if math.isfinite(value)]
    shown = reached or missed
    if not shown:
        return None
    return Price(
        num_runs=len(reached) + len(missed),
        num_reached=len(reached),
        **{name: fmean([spent[name] for spent, _ in shown]) for name in AMOUNTS},
        steps=fmean([steps for _, steps in shown]),
        best=(min if runs[0].directions.lower_is_better(metric) else max)(best, default=None),
        seconds=fmean(seconds) if seconds else None,
    )


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
        rows: By name: the unit of a step, and of each finished run its summary's ``budgets``.
    """
    lines: list[tuple[str, ...]] = []
    for name, (unit, runs) in rows.items():
        wanted: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
        for entry in (entry for run in runs for entry in run):
            if (target := as_float(entry.get("target"))) is not None:
                wanted.setdefault((str(entry.get("metric")), target), []).append(entry)
        for (metric, target), entries in wanted.items():
            found = [entry for entry in entries if entry.get("reached") and amounts(entry)]
            reached = f"{unit} {_mean(found, 'index'):,.0f}" if found else "not reached"
            if any(as_float(entry.get("simulated_seconds")) is not None for entry in found):
                reached += f", {_mean(found, 'simulated_seconds') / 3600:.3g} simulated hours"
            if len(entries) > 1:
                reached += f" ({len(found)} of {len(entries)} runs)"
            texts = amount_texts(*(_mean(found, amount) for amount in AMOUNTS))
            lines.append((name, f"{metric} {target:g}", reached, *texts))
    return _table(("value", "reached", "computed", "received by clients", "sent by clients"), lines)


def _mean(entries: Sequence[Mapping[str, Any]], key: str) -> float:
    """Mean of what entries say of a key; NaN if none says it."""
    found = [value for entry in entries if (value := as_float(entry.get(key))) is not None]
    return fmean(found) if found else math.nan
