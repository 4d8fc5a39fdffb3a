"""The numbers behind curves: one curve a row from its seeds, and what the page's script draws."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from pfl_bench.metrics import is_spread
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.types import as_float

HOUR_S = 3600.0
STEP, CLOCK = "step", "systems/total_simulated_seconds"
_SECONDS = "time/total_seconds"
# Horizontal axes that the page offers beside rounds: scalar, label and factor.
X_AXES: tuple[tuple[str, str, float], ...] = (
    ("privacy/epsilon_simulated", "epsilon (simulated)", 1.0),
    ("privacy/epsilon_actual", "epsilon (actual)", 1.0),
    ("systems/total_bytes_up", "bytes sent by clients", 1.0),
    ("systems/total_bytes_down", "bytes received by clients", 1.0),
    ("systems/total_flops", "FLOP computed by clients", 1.0),
    (_SECONDS, "seconds of training", 1.0),
    (CLOCK, "simulated hours", 1 / HOUR_S),
)
_NOT_EVALUATION = frozenset({"train", "privacy", "time", "systems", "local", "multitask"})
# About 250 kB of text.
_MAX_NUMBERS = 35_000
_MIN_POINTS = 16

Rows = Mapping[str, Sequence[RunRecord]]


@dataclass(frozen=True)
class Curve:
    """Means and ranges over a row's seeds, all finite; ``x``: rounds, or a scalar's means there."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    num_runs: int

    @property
    def is_constant(self) -> bool:
        """Whether it is one number, so that there is nothing to draw."""
        return len({*self.y, *self.low, *self.high}) == 1


@dataclass(frozen=True)
class Chart:
    """Chart that the page's script draws in the place of a picture.

    ``x`` is "step" or a scalar of ``X_AXES``; a line is the name of the row's runs, what the row is
    called, and its style. ``band`` has the scalars of a range around the line, None for the range
    of the seeds. The data decide an end of the vertical axis where ``limits`` have None.
    """

    x: str
    x_label: str
    y: str
    lines: tuple[tuple[str, str, int], ...] = ()
    band: tuple[str, str] | None = None
    log: bool = False
    limits: tuple[float | None, float | None] | None = None

    def to_json(self) -> str:
        """One JSON object for the page's script."""
        return json.dumps(asdict(self))


def speaking(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs that stand for a row: its finished ones, or all while none is finished."""
    return [run for run in runs if run.is_finished] or list(runs)


def is_evaluation(key: str) -> bool:
    """Whether a scalar is a metric on one of the splits."""
    return "/" in key and key.partition("/")[0] not in _NOT_EVALUATION


def curve_of(runs: Sequence[RunRecord], y: str, x: str = STEP, scale: float = 1.0) -> Curve | None:
    """Average a row's seeds where all of them have finite values; None if there is no such point.

    Runs that never logged ``y`` are left out. ``x`` is rounds, or a scalar, times ``scale``.
    """
    tables = []
    for run in speaking(runs):
        values = _finite(run, y)
        places = {step: float(step) for step in values} if x == STEP else _finite(run, x)
        if values:
            tables.append({s: (places[s] * scale, v) for s, v in values.items() if s in places})
    shared = [step for step in tables[0] if all(step in one for one in tables)] if tables else []
    points = [[table[step] for table in tables] for step in shared]
    if not points:
        return None
    ys = [[y for _, y in point] for point in points]
    return Curve(
        [fmean([x for x, _ in point]) for point in points],
        list(map(fmean, ys)),
        list(map(min, ys)),
        list(map(max, ys)),
        len(tables),
    )


def _finite(run: RunRecord, key: str) -> dict[int, float]:
    pairs = zip(*run.series(key), strict=True)
    return {step: value for step, value in pairs if math.isfinite(value)}


def numbers(rows: Rows, kept: Sequence[str] = ()) -> str:
    """The scalars of all runs, thinned, as a JSON object that is safe inside a ``script`` element.

    Of scalars over clients there are those of ``kept`` alone.
    """
    chosen = {name: speaking(runs) for name, runs in rows.items()}
    keys = _varying(chosen, kept)
    offered = [axis for axis in X_AXES if axis[0] in keys or axis[0] == _SECONDS]
    num_runs = sum(map(len, chosen.values()))
    most = max(_MIN_POINTS, _MAX_NUMBERS // max(1, num_runs * (len(keys) + 1)))
    document = {
        "rows": {
            name: {
                "unit": runs[0].step_unit,
                "runs": [
                    _columns(run, keys, places)
                    for run, places in zip(runs, _thinned(runs, most), strict=True)
                ],
            }
            for name, runs in chosen.items()
        },
        "x": offered,
        "y": [key for key in keys if not is_spread(key) and "/total_" not in key],
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _varying(rows: Rows, kept: Sequence[str]) -> list[str]:
    """Scalars that change in some run, those of evaluation first."""
    varying = {*kept}
    for runs in rows.values():
        for run in runs:
            logged = {key for line in run.rounds for key in line} - {"round"}
            numbers = {key: _finite(run, key) for key in logged if not is_spread(key)}
            varying |= {key for key, found in numbers.items() if len({*found.values()}) > 1}
    order = ("test", "val", "train", "privacy", "systems", "time")
    ranks = {name: rank for rank, name in enumerate(order)}
    return sorted(varying, key=lambda key: (ranks.get(key.partition("/")[0], 2), key))


def _thinned(runs: Sequence[RunRecord], most: int) -> Iterator[Sequence[int]]:
    """Places of each run's lines that are shown: the same of all seeds, evaluated ones first."""
    length = max((len(run.rounds) for run in runs), default=0)
    stride = -(-length // most)
    for run in runs:
        every = range(len(run.rounds))
        if stride <= 1:
            yield every
            continue
        evaluated = [i for i in every if any(map(is_evaluation, run.rounds[i]))]
        half = max(1, -(-2 * len(evaluated) // most))
        yield sorted({*every[:: 2 * stride], *evaluated[::half], *evaluated[-1:], *every[-1:]})


def _columns(run: RunRecord, keys: Sequence[str], places: Sequence[int]) -> dict[str, Any]:
    lines = [run.rounds[place] for place in places]
    columns: dict[str, Any] = {STEP: [line["round"] for line in lines]}
    for key in keys:
        column = [_short(as_float(line.get(key))) for line in lines]
        if any(value is not None for value in column):
            columns[key] = column
    seconds = [as_float(line.get("time/round_seconds")) or 0.0 for line in run.rounds]
    if any(seconds):
        total = list(accumulate(seconds))
        columns[_SECONDS] = [_short(total[place]) for place in places]
    return columns


def _short(value: float | None) -> float | int | None:
    """Five digits, more than any chart shows; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short
