"""``pfl-bench sweep``: one row with every combination of some settings, the best on val first."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import run_many
from pfl_bench.config.bundled_rows import locate
from pfl_bench.config.sweeps import Combination, LoadedSweep, load_sweep
from pfl_bench.metrics import lower_is_better
from pfl_bench.types import ConfigError

if TYPE_CHECKING:
    from pfl_bench.report.table import Cell, Table


@dataclass(frozen=True)
class _Result:
    """What a combination came to."""

    combination: Combination
    value: float
    index: int | None
    epsilons: tuple[float | None, float | None]


def main(arguments: argparse.Namespace) -> int:
    """Run the combinations that are not done; print them sorted, and the best one's command."""
    path = locate(arguments.sweep, folder=False)
    sweep = load_sweep(path, arguments.overrides)
    chosen = _choose(sweep, arguments.only)
    out = Path("runs") / run_many.short_name(path).with_suffix("")
    if arguments.out:
        out = Path(arguments.out)
    print(f"{path}: {len(chosen)} of {len(sweep.combinations)} combinations", file=sys.stderr)
    plans = [(out / combination.slug, combination.resolved) for combination in chosen]
    # A heading that there is not is told before anything runs.
    _table(sweep, []).with_columns(arguments.columns, arguments.format)
    batch = run_many.run_all(plans, arguments, out)
    results = [
        _result(combination, summary)
        for combination, summary in zip(chosen, batch.summaries, strict=True)
        if summary is not None
    ]
    if results:
        summary = next(summary for summary in batch.summaries if summary is not None)
        worst = math.inf if lower_is_better(sweep.metric, summary) else -math.inf
        results.sort(
            key=lambda result: worst if math.isnan(result.value) else result.value,
            reverse=worst < 0,
        )
        run_many.save_table(out, _table(sweep, results), arguments, str(arguments.sweep))
        # A program that reads the table is not to meet prose in it.
        stream = sys.stdout if arguments.format in (None, "md") else sys.stderr
        print("\n" + "\n\n".join(_words(sweep, results, out)), file=stream)
    return batch.exit_code()


def _choose(sweep: LoadedSweep, only: int | None) -> tuple[Combination, ...]:
    if only is None:
        return sweep.combinations
    if not 1 <= only <= len(sweep.combinations):
        raise ConfigError(f"--only {only}: give a number from 1 to {len(sweep.combinations)}")
    return (sweep.combinations[only - 1],)


def _result(combination: Combination, summary: dict[str, Any]) -> _Result:
    from pfl_bench.runs.rows import as_float

    selection = summary.get("selection") or {}
    value = as_float(selection.get("value"))
    privacy = summary.get("privacy") or {}
    simulated, actual = (
        as_float((privacy.get(side) or {}).get("epsilon")) for side in ("simulated", "actual")
    )
    return _Result(
        combination,
        math.nan if value is None else value,
        selection.get("index"),
        (simulated, actual),
    )


def _table(sweep: LoadedSweep, results: list[_Result]) -> Table:
    from pfl_bench.report.results import format_epsilon, format_value
    from pfl_bench.report.table import Cell, Table

    private = any(result.epsilons != (None, None) for result in results)
    unit = "epoch" if sweep.base.config.central is not None else "round"
    headings = ["run", *sweep.keys, f"best {sweep.metric}", f"at {unit}"]
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


def _words(sweep: LoadedSweep, results: list[_Result], out: Path) -> list[str]:
    """What was chosen, how to test it, and what no statement covers."""
    paragraphs = []
    best = results[0]
    whole = len(results) == len(sweep.combinations)
    if not whole:
        paragraphs.append(
            f"{len(results)} of {len(sweep.combinations)} combinations are in this table: the best "
            "is not chosen before all are."
        )
    elif math.isnan(best.value):
        paragraphs.append(f"No run measured {sweep.metric} as a number: nothing is chosen.")
    else:
        paragraphs.append(
            f"The best by {sweep.metric} is run {best.combination.number}. No run has looked at "
            "test data; this command trains the best once more, the same way, and tests it once:\n"
            f"  {_command(sweep, best.combination, out)}"
        )
    if any(result.epsilons != (None, None) for result in results):
        paragraphs.append(
            f"Privacy: {len(results)} private run{'s' * (len(results) != 1)} on the same training "
            "data. Each run's epsilons hold for that run alone. What all of them reveal together "
            "(their composition), and the choice of the best by validation data, are outside each "
            "of these statements and outside the one of the run that is tested in the end."
        )
    return paragraphs


def _command(sweep: LoadedSweep, combination: Combination, out: Path) -> str:
    row, relative = sweep.row.resolve(), Path(os.path.relpath(sweep.row.resolve()))
    shown = row if relative.parts[:1] == ("..",) else relative
    words = ["pfl-bench", "run", str(shown), *combination.overrides]
    if sweep.base.config.evaluation.select_best != sweep.metric:
        words.append(f"evaluation.select_best={sweep.metric}")
    return shlex.join([*words, "--out", str(out / "best")])
