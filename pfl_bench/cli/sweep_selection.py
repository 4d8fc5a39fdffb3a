"""``pfl-bench sweep`` with a selection: a random number of trials, of which the best is released.

Guarantee: see ``pfl_bench.runs.selection``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pfl_bench.cli import run_many
from pfl_bench.cli.main import EXIT_DONE
from pfl_bench.cli.sweep_results import command_of, result_of, table_of
from pfl_bench.config.sweeps import Combination, LoadedSweep
from pfl_bench.metrics import lower_is_better
from pfl_bench.runs.selection import NOT_COVERED, best_of, covers, drawn_trials, record_choice
from pfl_bench.types import ConfigError
from privacy.statement.statement import round_up, small


def main(sweep: LoadedSweep, arguments: argparse.Namespace, out: Path) -> int:
    """Draw the trials, run those that are not done, and record the best."""
    if arguments.only is not None:
        raise ConfigError(
            "--only belongs to a sweep without a selection, whose trials are drawn and all "
            "compared; leave it out, or take selection out of the sweep's file"
        )
    trials, record = drawn_trials(sweep, out)
    print(
        f"{sweep.path}: {len(trials)} trials of {len(sweep.combinations)} points", file=sys.stderr
    )
    stream = sys.stdout if arguments.format in (None, "md") else sys.stderr
    if not trials:
        print(
            "The number of trials was drawn, and is 0: nothing is trained or released. The price "
            f"counts on that. {_price(record)}",
            file=stream,
        )
        return EXIT_DONE
    plans = [(out / trial.slug, trial.resolved) for trial in trials]
    batch = run_many.run_all(plans, arguments, out)
    results = [
        result_of(trial, summary)
        for trial, summary in zip(trials, batch.summaries, strict=True)
        if summary is not None
    ]
    if not results:
        return batch.exit_code()
    summary = next(summary for summary in batch.summaries if summary is not None)
    is_lower = lower_is_better(sweep.metric, summary)
    run_many.save_table(out, table_of(sweep, results), arguments, str(arguments.sweep))
    chosen = best_of([result.value for result in results], is_lower)
    if len(results) < len(trials):
        words = [f"{len(results)} of {len(trials)} trials are done: nothing is chosen before all."]
    elif chosen is None:
        words = [f"No trial measured {sweep.metric} as a number: nothing is chosen."]
    else:
        record_choice(record, trials, chosen, results[chosen].value, out)
        words = _words(sweep, record, trials[chosen], out)
    print("\n" + "\n\n".join(words), file=stream)
    return batch.exit_code()


def _words(sweep: LoadedSweep, record: dict[str, Any], best: Combination, out: Path) -> list[str]:
    return [
        f"Selected by {sweep.metric}: {out / best.slug}. No run has looked at test data; on the "
        "same machine and code, this command repeats the selected trial, bit for bit, and tests it "
        "once. Its model has the price of the selection, not that of one run. If model_sha256 in "
        "its summary.json is not the trial's, it was one more run, and spent its own epsilon:\n"
        f"  {command_of(sweep, best, out)}",
        f"Privacy: {_price(record)} {covers(record['unit'])}",
        "Outside: " + " ".join(NOT_COVERED),
    ]


def _price(record: dict[str, Any]) -> str:
    law = record["trials"]
    shape = "" if law["eta"] is None else f", eta {law['eta']:g}"
    told = [
        f"epsilon ({side}) {round_up(float(record['epsilon'][side]), 4)} at delta "
        f"{small(record['delta'][side], 4)}"
        for side in ("simulated", "actual")
    ]
    return (
        f"With the selection: {', '.join(told)} (rdp; {law['distribution'].replace('_', ' ')} "
        f"number of trials, mean {law['mean']:g}{shape})."
    )
