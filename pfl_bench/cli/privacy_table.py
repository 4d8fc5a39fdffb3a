"""``pfl-bench privacy table``: epsilon of several rounds or noises, by each accountant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import privacy_settings as shared
from pfl_bench.cli.speech import answer_json, print_table, say
from pfl_bench.types import ConfigError
from privacy.accountant import ACCOUNTANTS
from privacy.errors import PlanError
from privacy.statement.statement import Guarantee, json_epsilon, round_up, small

if TYPE_CHECKING:
    from pfl_bench.report.table import Cell, Column
    from privacy.amplification import MechanismComposition

_DIGITS = 4


@dataclass(frozen=True)
class _Line:
    """Both settings of one number of rounds and one noise multiplier (z of the deployment).

    They are by accountant, without those that cannot account them.
    """

    rounds: int
    noise_multiplier: float
    pairs: dict[str, Guarantee]

    def epsilon(self, side: str, accountant: str) -> float | None:
        """One epsilon of the line, if the accountant has one."""
        pair = self.pairs.get(accountant)
        return None if pair is None else float(getattr(pair, side).epsilon)


def main(arguments: argparse.Namespace, composition: MechanismComposition) -> int:
    """Print the table."""
    from pfl_bench.report.table import Table

    accountants = tuple(dict.fromkeys(arguments.accountant or ACCOUNTANTS))
    if arguments.format == "json" and arguments.columns is not None:
        raise ConfigError("--columns is for tables; leave it out, or take another --format")
    # A heading that there is not is told before the work.
    table = Table(_columns(arguments, accountants), ())
    table.with_columns(arguments.columns, arguments.format)
    if sys.stderr.isatty():
        say(f"pfl-bench privacy table: accounting by {', '.join(accountants)}")
    lines, refusals = _lines(arguments, composition, accountants)
    pair = next(pair for line in lines for pair in line.pairs.values())
    notes = _notes(arguments, pair, refusals)
    if arguments.format == "json":
        answer_json(_document(arguments, lines, pair, accountants, notes))
    else:
        rows = tuple(_row(arguments, line, accountants) for line in lines)
        table = replace(table, rows=rows, notes=tuple(notes))
        table = table.with_columns(arguments.columns, arguments.format)
        print_table(table, arguments.format and table.write(arguments.format))
    return 0


def _lines(
    arguments: argparse.Namespace, composition: MechanismComposition, accountants: Sequence[str]
) -> tuple[list[_Line], dict[str, str]]:
    """Every line of the table, and why an accountant is missing in some; one has to be there."""
    wrong = [count for count in arguments.rounds if count < 1]
    if wrong:
        raise ConfigError(
            f"pfl-bench privacy table: --rounds {wrong[0]}: must be whole numbers, at least 1"
        )
    lines: list[_Line] = []
    refusals: dict[str, str] = {}
    for noise in dict.fromkeys(arguments.noise_multiplier):
        for rounds in sorted(set(arguments.rounds)):
            pairs = {}
            for name in accountants:
                try:
                    pairs[name] = shared.account(arguments, composition, noise, rounds, name)
                except PlanError as error:
                    refusals.setdefault(name, str(error))
            lines.append(_Line(rounds, noise, pairs))
    if not any(line.pairs for line in lines):
        raise PlanError(next(iter(refusals.values())))
    return lines, refusals


def _columns(arguments: argparse.Namespace, accountants: Sequence[str]) -> tuple[Column, ...]:
    from pfl_bench.report.table import Column

    labels = [f" ({side})" for side in shared.sides(arguments)]
    labels = labels if len(labels) > 1 else [""]
    epsilons = [f"epsilon{label} {name}" for label in labels for name in accountants]
    return (
        Column("rounds"),
        *(Column(heading, is_number=True) for heading in ("noise multiplier", *epsilons)),
        *(Column(f"delta{label}", only="programs") for label in labels),
    )


def _row(
    arguments: argparse.Namespace, line: _Line, accountants: Sequence[str]
) -> tuple[str | Cell, ...]:
    """Epsilons rounded up (CSV: as they are), a dash (CSV: empty) where there is none."""
    from pfl_bench.report.table import Cell

    sides = shared.sides(arguments)
    epsilons = [line.epsilon(side, name) for side in sides for name in accountants]
    anybody = next(iter(line.pairs.values()), None)
    return (
        f"{line.rounds}",
        f"{line.noise_multiplier!r}",
        *(Cell("-" if one is None else round_up(one, _DIGITS), one) for one in epsilons),
        *(Cell("", anybody and getattr(anybody, side).delta) for side in sides),
    )


def _notes(arguments: argparse.Namespace, pair: Guarantee, refusals: dict[str, str]) -> list[str]:
    capped = arguments.max_participations is not None
    notes = [
        f"Unit {pair.unit}, adjacency {pair.adjacency}, sampling {arguments.sampling}"
        + (f", separation {arguments.separation}" if arguments.separation > 1 else "")
        + (f", at most {arguments.max_participations} rounds a user" if capped else "")
        + (f", mechanism {arguments.mechanism}" if arguments.mechanism else "")
        + ". Epsilons are rounded up."
    ]
    for side in shared.sides(arguments):
        accounted = getattr(pair, side)
        label = f"{side}: " if shared.simulates(arguments) else ""
        scaled = "" if side == "simulated" else ", noise scaled by the ratio of the cohorts"
        notes.append(
            f"{label}{accounted.cohort_size} of {accounted.population_size} {pair.unit}s a "
            f"{pair.step} (q = {accounted.sampling_probability:.4g}), delta "
            f"{small(accounted.delta, 4)}{scaled}."
        )
    return [
        *notes,
        *pair.notes,
        *(f"{name}, where there is a dash: {why}." for name, why in refusals.items()),
    ]


def _document(
    arguments: argparse.Namespace,
    lines: Sequence[_Line],
    pair: Guarantee,
    accountants: Sequence[str],
    notes: list[str],
) -> dict[str, Any]:
    sides, rows = shared.sides(arguments), []
    for line in lines:
        row: dict[str, Any] = {"rounds": line.rounds, "noise_multiplier": line.noise_multiplier}
        for side in sides:
            found = {name: line.epsilon(side, name) for name in accountants}
            key = f"epsilon_{side}" if len(sides) > 1 else "epsilon"
            row[key] = {k: None if one is None else json_epsilon(one) for k, one in found.items()}
        rows.append(row)
    document = {"unit": pair.unit, "sampling": arguments.sampling, "rows": rows, "notes": notes}
    for side in sides:
        facts = shared.accounted_to_json(getattr(pair, side))
        kept = ("population_size", "cohort_size", "sampling_probability", "delta")
        document[side if len(sides) > 1 else "setting"] = {key: facts[key] for key in kept}
    return document
