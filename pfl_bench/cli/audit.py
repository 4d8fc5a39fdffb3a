"""``pfl-bench audit``: every privacy claim of a run, derived anew from its record."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from pfl_bench.cli.arguments import check_belongs
from pfl_bench.cli.speech import answer_json, say, write
from pfl_bench.runs.audit import RunAudit, audit_run
from pfl_bench.types import ConfigError
from privacy.audit.check import OUTCOMES, Check
from privacy.audit.inputs import as_number
from privacy.audit.search import COVERS
from privacy.statement.statement import round_up, selection_note, small

_MARKS = {"passed": "PASS", "failed": "FAIL", "incomplete": "LACK", "skipped": "skip"}
_WIDTH = 110


def main(arguments: argparse.Namespace) -> int:
    """Audit a run and print what was found; 1 if a check fails, or could not be made."""
    if arguments.live:
        return _watch(arguments)
    check_belongs("--live", every=arguments.every is not None)
    seconds = arguments.recompute_seconds
    if arguments.recompute == "sample":
        say(f"rounds are computed again, for {seconds:g} s at most (--recompute-seconds)")
    done = audit_run(
        Path(arguments.run), arguments.tuned_runs, arguments.data, arguments.recompute, seconds
    )
    if arguments.json:
        answer_json(done.to_json_dict())
    else:
        write("\n".join(_lines(Path(arguments.run), done)))
    if done.not_kept:
        say(f"pfl-bench: {done.not_kept}")
    return 0 if done.verdict == "passed" else 1


def _watch(arguments: argparse.Namespace) -> int:
    """Watch a run; 1 if it was stopped for a violation."""
    from pfl_bench.runs.auditing.live import watch

    every = 5.0 if arguments.every is None else arguments.every
    if not 0.0 < every < float("inf"):
        raise ConfigError(f"--every {every:g}: must be finite and above 0 seconds, such as 5")
    seen = watch(Path(arguments.run), every, say, arguments.data)
    wealth = None if seen.bets is None else seen.bets.largest
    found = {"rounds": seen.rounds, "violation": seen.violation or None, "wealth": wealth}
    if arguments.json:
        answer_json(found)
    elif seen.violation:
        write(f"STOPPED after round {seen.rounds}: {seen.violation}")
    else:
        write(f"no violation in {seen.rounds} rounds; pfl-bench audit judges the finished run")
    return 1 if seen.violation else 0


def _lines(folder: Path, done: RunAudit) -> Iterator[str]:
    statement = done.inputs.statement
    yield f"Audit of {folder}"
    for side in ("simulated", "actual"):
        stated = statement[side]
        epsilon = round_up(as_number(stated["epsilon"]), 4)
        delta = small(as_number(stated["delta"]), 4)
        yield f"  stated epsilon ({side})  {epsilon} at delta {delta}"
    if statement["status"] == "planned":
        yield "  the run has not ended: the statement is of all planned rounds"
    yield ""
    # Checks that follow one another and say the same stand in one line.
    for (outcome, evidence), checks in groupby(done.checks, attrgetter("outcome", "evidence")):
        yield from _wrapped(f"{_MARKS[outcome]}  {_names(checks)}: {evidence}", "      ")
    yield ""
    yield "Outside of the guarantee"
    for sentence in done.not_covered:
        yield from _wrapped(f"  - {sentence}", "    ")
    if done.selected_by is not None:
        yield from _wrapped(f"  - {selection_note(done.selected_by)}", "    ")
    yield from _tuning(done)
    outcomes = [check.outcome for check in done.checks]
    yield ""
    if done.verdict == "incomplete":
        names = _names(check for check in done.checks if check.outcome == "incomplete")
        text = f"Not checked, or not in full, for lack of what is named above: {names}"
        yield from _wrapped(text, "  ")
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES)
    status, _, rest = done.words.partition(":")
    yield f"{status.upper()}: {'; '.join(filter(None, (rest.strip(), counts)))}"
    yield from _wrapped(f"  {_code(done.recomputed.code)}", "  ")


def _code(code: Mapping[str, str]) -> str:
    """Names of the code that ran and of the code that audited, in words."""
    if code["run"] == code["audit"]:
        return f"The code that audits is the one that ran: {code['audit']}."
    return (
        f"The code that audits ({code['audit']}) is another than the one that ran "
        f"({code['run'] or 'not recorded'})."
    )


def _names(checks: Iterable[Check]) -> str:
    return ", ".join(check.name for check in checks)


def _tuning(done: RunAudit) -> Iterator[str]:
    if done.tuned is None:
        return
    parts = [
        f"epsilon ({side}) {round_up(as_number(value), 4)}"
        for side, value in done.tuned.epsilon.items()
    ]
    parts += [f"no epsilon ({side}): {why}" for side, why in done.tuned.problems.items()]
    text = f"  A search over {done.tuned.runs} such runs: {', '.join(parts)}. {COVERS}"
    yield from _wrapped(text, "  ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
