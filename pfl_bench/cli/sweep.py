"""``pfl-bench sweep``: one row with every combination of some settings, the best on val first."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfl_bench.cli import run_many
from pfl_bench.cli.main import EXIT_DONE, attempt
from pfl_bench.cli.speech import say, write
from pfl_bench.cli.sweep_optuna import Proposals
from pfl_bench.cli.sweep_results import Result, command_of, result_of, table_of
from pfl_bench.config.row_files import locate
from pfl_bench.config.sweeps import Combination, LoadedSweep, load_sweep
from pfl_bench.files import write_json
from pfl_bench.runs.folder import RunFolder
from pfl_bench.runs.selection import (
    NOT_COVERED,
    SELECTION_FILE,
    adaptive_problem,
    best_of,
    composed_epsilons,
    covers,
    drawn_trials,
    is_lower_better,
    record_choice,
)
from pfl_bench.types import ConfigError
from privacy.audit.inputs import SIDES
from privacy.statement.statement import round_up, small

_COVERS = (
    "That is the honest price where the runs were fixed in advance, or by earlier releases and "
    "held-out users' data: it covers everything that they release, and whatever is chosen from "
    "it by held-out users' data or by public data, for the unit of the training data. Held-out "
    "users are not covered: the choice reads their data without noise. Runs of other sweeps on the "
    "same data add to it. Where the best run alone is to be published, a sweep with a selection "
    "may cost less (pfl-bench privacy tuning)."
)
_Runs = list[tuple[Combination, dict[str, Any] | None]]


def main(arguments: argparse.Namespace) -> int:
    """Run the combinations that are not done; print them sorted, and the best one's command."""
    path = locate(arguments.sweep, folder=False)
    sweep = load_sweep(path, arguments.overrides)
    out = Path(arguments.out or Path("runs") / run_many.short_name(path).with_suffix(""))
    # A heading that there is not is told before anything runs.
    table_of(sweep, []).with_columns(arguments.columns, arguments.format)
    return run_sweep(sweep, arguments, out).code


@dataclass(frozen=True)
class Ran:
    """The runs of a sweep.

    Attributes:
        results: Of those that may be chosen, the best first: of the last step of halving, or of all
            trials of a selection.
        runs: All of them, with their summaries; None for one that is not finished.
        is_whole: Whether every run is finished that the choice rests on.
        words: Paragraphs on the choice, and on the price of all in privacy.
    """

    results: list[Result]
    runs: _Runs
    is_whole: bool
    code: int
    words: tuple[str, ...] = ()


def run_sweep(sweep: LoadedSweep, arguments: argparse.Namespace, out: Path) -> Ran:
    """Run what is not done of a sweep; print and save its table, and what it costs."""
    if sweep.selection is not None:
        ran, words = _run_selection(sweep, arguments, out)
        # In the order in which the trials were drawn.
        shown = [result_of(one, summary) for one, summary in ran.runs if summary is not None]
    else:
        ran = (_run if sweep.optuna is None else _run_proposed)(sweep, arguments, out)
        shown = ran.results
        words = [_words(sweep, ran, out), *_price(sweep, ran.runs, out)] if ran.results else []
    if ran.results:
        run_many.save_table(out, table_of(sweep, shown), arguments, str(arguments.sweep))
    if words:
        text = ("\n" if ran.results else "") + "\n\n".join(words)
        # A program that reads the table is not to meet any prose in it.
        write(text, sys.stdout if arguments.format in (None, "md") else sys.stderr)
    return replace(ran, words=tuple(words))


def _train(
    points: Sequence[Combination], arguments: argparse.Namespace, out: Path
) -> tuple[run_many.Batch, _Runs, list[Result]]:
    """Run the points that are not done; give all of them, and the results of finished ones."""
    plans = [(out / point.slug, point.resolved) for point in points]
    batch = run_many.run_all(plans, arguments, out)
    runs = list(zip(points, batch.summaries, strict=True))
    return batch, runs, [result_of(one, summary) for one, summary in runs if summary is not None]


def _run(sweep: LoadedSweep, arguments: argparse.Namespace, out: Path) -> Ran:
    """Run the combinations; by halving, the best of them for more rounds."""
    chosen = list(_choose(sweep, arguments.only))
    runs: _Runs = []
    for rounds in sweep.rungs():
        short = [sweep.shortened(combination, rounds) for combination in chosen]
        length = "" if rounds is None else f" for {rounds}"
        total = len(sweep.combinations)
        say(f"{sweep.path}: {len(short)} of {total} combinations{length}")
        batch, ran, results = _train(short, arguments, out)
        runs += ran
        is_whole = len(results) == len(short) and arguments.only is None
        results = best_first(sweep, results, batch.summaries)
        if not is_whole or rounds is None:
            break
        assert sweep.halving is not None
        kept = results[: -(-len(results) // sweep.halving.factor)]
        chosen = [sweep.combinations[one.combination.number - 1] for one in kept]
    if arguments.only is not None:
        # What the others have released has a price, too.
        for one in sweep.combinations:
            if one.number != arguments.only and (out / one.slug).exists():
                found = attempt(RunFolder(out / one.slug).look, one.resolved, True)
                runs.append((one, None if isinstance(found, str) else found))
    return Ran(results, runs, is_whole and rounds is None, batch.exit_code())


def _run_proposed(sweep: LoadedSweep, arguments: argparse.Namespace, out: Path) -> Ran:
    """Run the points that Optuna proposes, until one fails or is not waited for."""
    assert sweep.optuna is not None
    if arguments.only is not None:
        raise ConfigError(f"--only {arguments.only}: Optuna compares its runs; leave --only out")
    trials, proposals = sweep.optuna.trials, Proposals(sweep.optuna, sweep.grid)
    runs: dict[str, tuple[Combination, dict[str, Any] | None]] = {}
    results: dict[str, Result] = {}
    code, asked = EXIT_DONE, 0
    while asked < trials and len(results) == len(runs):
        proposed = proposals.ask(min(sweep.optuna.batch, trials - asked))
        points = [sweep.point(number, one) for number, one in enumerate(proposed, asked + 1)]
        asked += len(points)
        new = {point.slug: point for point in points if point.slug not in runs}
        if new:
            say(f"{sweep.path}: {asked} of {trials} trials: {', '.join(new)}")
            batch, ran, finished = _train(list(new.values()), arguments, out)
            runs |= {point.slug: (point, summary) for point, summary in ran}
            results |= {one.combination.slug: one for one in finished}
            summaries = tuple(summary for _, summary in runs.values())
            code = replace(batch, summaries=summaries).exit_code()
        if len(results) == len(runs):
            sign = 1 if is_lower_better(sweep.metric, summaries) else -1
            proposals.tell([sign * results[point.slug].value for point in points])
    found = best_first(sweep, list(results.values()), summaries)
    return Ran(found, list(runs.values()), len(results) == len(runs), code)


def best_first(
    sweep: LoadedSweep, results: list[Result], summaries: Sequence[dict[str, Any] | None]
) -> list[Result]:
    """Sort the results of some runs, of which these are the summaries."""
    worst = math.inf if is_lower_better(sweep.metric, summaries) else -math.inf
    return sorted(
        results,
        key=lambda result: worst if math.isnan(result.value) else result.value,
        reverse=worst < 0,
    )


def _choose(sweep: LoadedSweep, only: int | None) -> tuple[Combination, ...]:
    if only is None:
        return sweep.combinations
    if sweep.halving is not None:
        raise ConfigError(f"--only {only}: halving compares its runs; leave --only out")
    if not 1 <= only <= len(sweep.combinations):
        raise ConfigError(f"--only {only}: give a number from 1 to {len(sweep.combinations)}")
    return (sweep.combinations[only - 1],)


def _words(sweep: LoadedSweep, ran: Ran, out: Path) -> str:
    best = ran.results[0]
    if not ran.is_whole:
        total = sweep.optuna.trials if sweep.optuna else len(sweep.combinations)
        return (
            f"{len(ran.results)} of {total} combinations are in this table: the "
            "best is not chosen before all runs are finished."
        )
    if math.isnan(best.value):
        return f"No run measured {sweep.metric} as a number: nothing is chosen."
    return (
        f"The best by {sweep.metric} is run {best.combination.number}. No run has looked at test "
        "data; this command trains the best once more, the same way, and tests it once (on another "
        "machine or by other code a private run draws other noise, and is one more run to pay):\n"
        f"  {command_of(sweep, best.combination, out)}"
    )


def _price(sweep: LoadedSweep, ran: _Runs, out: Path) -> list[str]:
    """The joint cost of all private runs, in words and in ``composition.json``."""
    runs = [
        (combination, summary["privacy"])
        for combination, summary in ran
        if summary is not None and (summary.get("privacy") or {}).get("unit", "none") != "none"
    ]
    if not runs:
        return []
    accountant = runs[0][1]["accountant"]
    is_adaptive = sweep.optuna is not None or sweep.halving is not None
    paid = runs
    if sweep.optuna is not None and sweep.optuna.sampler != "random":
        # Results decide which points are proposed again, and so how many are trained.
        paid = [*runs, *runs[:1] * (sweep.optuna.trials - len(runs))]
    epsilons, problems = composed_epsilons(paid, accountant)
    if is_adaptive and (why := adaptive_problem(sweep, out)):
        epsilons, problems = {}, dict.fromkeys(SIDES, why)
    left = sum(summary is None for _, summary in ran)
    also = f" {left} more not finished: what these have released comes to it." if left else ""
    if len(paid) > len(runs):
        also = (
            f" They are paid as all {len(paid)} trials of the sweep, because results decide how "
            "many of these are trained."
        )
    record = {
        "runs": len(runs),
        "paid": len(paid),
        "unfinished": left,
        "accountant": accountant,
        "epsilon": epsilons,
    }
    covered = _COVERS if epsilons else ""
    write_json(out / "composition.json", {**record, "problems": problems, "covers": covered})
    told = [f"epsilon ({side}) {round_up(float(one), 4)}" for side, one in epsilons.items()]
    told += [f"no epsilon ({side}): {why}" for side, why in problems.items()]
    return [
        f"Privacy: {len(runs)} private run{'s' * (len(runs) != 1)} on the same training data. Each "
        "run's epsilons hold for that run alone. By composition, all of them together have "
        f"{', '.join(told)} ({accountant}).{also} {covered}".rstrip()
    ]


def _run_selection(
    sweep: LoadedSweep, arguments: argparse.Namespace, out: Path
) -> tuple[Ran, list[str]]:
    """Draw the trials of a sweep with a selection, run what is not done, and record the best.

    What there is to say of it follows the runs.

    Guarantee: see ``pfl_bench.runs.selection``.
    """
    if arguments.only is not None:
        raise ConfigError(
            "--only belongs to a sweep without a selection, whose trials are drawn and all "
            "compared; leave it out, or take selection out of the sweep's file"
        )
    trials, record = drawn_trials(sweep, out)
    shown = f"{len(trials)} trial{'s' * (len(trials) != 1)}"
    say(f"{sweep.path}: {shown} of {len(sweep.combinations)} points")
    if not trials:
        text = (
            "The number of trials was drawn, and is 0: nothing is trained or released. The price "
            f"counts on that. {_selection_price(record)}"
        )
        return Ran([], [], True, EXIT_DONE), [text]
    batch, runs, results = _train(trials, arguments, out)
    found = best_first(sweep, results, batch.summaries)
    ran = Ran(found, runs, len(results) == len(trials), batch.exit_code())
    if not results:
        return ran, []
    if not ran.is_whole:
        text = f"{len(results)} of {len(trials)} trials are done: nothing is chosen before all."
        return ran, [text]
    is_lower = is_lower_better(sweep.metric, batch.summaries)
    chosen = best_of([result.value for result in results], is_lower)
    if chosen is None:
        return ran, [f"No trial measured {sweep.metric} as a number: nothing is chosen."]
    record_choice(record, trials, chosen, results[chosen].value, out)
    return ran, _selection_words(sweep, record, trials[chosen], out)


def _selection_words(
    sweep: LoadedSweep, record: dict[str, Any], best: Combination, out: Path
) -> list[str]:
    own = out / "best"
    report = ["pfl-bench", "report", str(own), "--out", str(own / "report.html"), "--force"]
    return [
        f"Selected by {sweep.metric}: {out / best.slug}. No run has looked at test data; on the "
        "same machine and code, this command repeats the selected trial, bit for bit, and tests it "
        "once. Its model has the price of the selection, not that of one run: the other commands "
        "take that along, for tables, the audit and its report. If model_sha256 in its "
        "summary.json is not the trial's, it was one more run, and spent its own epsilon:\n"
        f"  {command_of(sweep, best, out)}\n"
        f"  {shlex.join(['cp', str(out / best.slug / SELECTION_FILE), str(own)])}\n"
        f"  {shlex.join(report)}",
        f"Privacy: {_selection_price(record)} {covers(record['unit'])}",
        "Outside: " + " ".join(NOT_COVERED),
    ]


def _selection_price(record: dict[str, Any]) -> str:
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
