"""Results of a sweep's runs, their table, and the command that tests one."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.config.sweeps import Combination, LoadedSweep

if TYPE_CHECKING:
    from pfl_bench.report.table import Cell, Table


@dataclass(frozen=True)
class Result:
    """Result of a combination.

    Attributes:
        value: Its best metric; NaN if it measured none.
        index: Round (epoch) of that; None without one.
        epsilons: Of its statement, simulated and actual; None without privacy.
    """

    combination: Combination
    value: float
    index: int | None
    epsilons: tuple[float | None, float | None]


def result_of(combination: Combination, summary: dict[str, Any]) -> Result:
    """Read what a run's summary says."""
    from pfl_bench.runs.rows import epsilon_of
    from pfl_bench.types import as_float

    selection = summary.get("selection") or {}
    value = as_float(selection.get("value"))
    privacy = summary.get("privacy") or {}
    simulated, actual = (epsilon_of(privacy, side)[0] for side in ("simulated", "actual"))
    value = math.nan if value is None else value
    return Result(combination, value, selection.get("index"), (simulated, actual))


def table_of(sweep: LoadedSweep, results: list[Result]) -> Table:
    """The table of a sweep, a line for each result."""
    from pfl_bench.report.results import format_epsilon, format_value
    from pfl_bench.report.table import Cell, Table

    private = any(result.epsilons != (None, None) for result in results)
    unit = "epoch" if sweep.base.config.central is not None else "round"
    headings = ["run", *sweep.grid, f"best {sweep.metric}", f"at {unit}"]
    headings += ["epsilon (simulated)", "epsilon (actual)"] if private else []
    lines = []
    for result in results:
        line: list[str | Cell] = [
            str(result.combination.number),
            *map(str, result.combination.values.values()),
        ]
        line += [Cell(format_value(result.value), result.value)]
        line += ["-" if result.index is None else str(result.index)]
        if private:
            line += [Cell(format_epsilon(one, None), one) for one in result.epsilons]
        lines.append(line)
    return Table.of(headings, lines)


def command_of(sweep: LoadedSweep, combination: Combination, out: Path) -> str:
    """The command that trains a combination once more, and tests it."""
    row, relative = sweep.row.resolve(), Path(os.path.relpath(sweep.row.resolve()))
    shown = row if relative.parts[:1] == ("..",) else relative
    words = ["pfl-bench", "run", str(shown), *combination.overrides]
    if sweep.base.config.evaluation.select_best != sweep.metric:
        words.append(f"evaluation.select_best={sweep.metric}")
    return shlex.join([*words, "--out", str(out / "best")])
