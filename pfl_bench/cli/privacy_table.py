"""``pfl-bench privacy table``: epsilon of several rounds or noises, by each accountant."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import privacy_settings as shared
from pfl_bench.cli.speech import print_table
from pfl_bench.types import ConfigError
from privacy.accountant import ACCOUNTANTS
from privacy.errors import PlanError
from privacy.statement.statement import json_epsilon, round_up

if TYPE_CHECKING:
    from pfl_bench.report.table import Cell, Column, Table
    from privacy.amplification import MechanismComposition

_DIGITS = 4


@dataclass(frozen=True)
class Line:
    """Both settings of one number of rounds and one noise multiplier (z of the deployment).

    They are by accountant, without those that cannot account them.
    """

    rounds: int
    noise_multiplier: float
    pairs: dict[str, shared.Pair]


def main(arguments: argparse.Namespace, composition: MechanismComposition) -> int:
    """Print the table; draw the picture, if one is asked for."""
    from pfl_bench.report.table import Table

    accountants = tuple(dict.fromkeys(arguments.accountant or ACCOUNTANTS))
    target = None if arguments.plot is None else Path(arguments.plot)
    if target is not None:
        # Before the work, so that a wrong FILE is told at once.
        from pfl_bench.cli.privacy_plot import check_target

        check_target(target)
    if arguments.format == "json" and arguments.columns is not None:
        raise ConfigError("--columns is for tables; leave it out, or take another --format")
    headings = Table(_columns(arguments, accountants), ())
    headings.with_columns(arguments.columns, arguments.format)
    lines, refusals = _lines(arguments, composition, accountants)
    if arguments.format == "json":
        print(_json(arguments, lines, accountants, refusals))
    else:
        table = _table(arguments, lines, accountants, refusals)
        table = table.with_columns(arguments.columns, arguments.format)
        print_table(table, arguments.format and table.write(arguments.format))
    if target is not None:
        from pfl_bench.cli.privacy_plot import draw

        draw(arguments, composition, [name for name in accountants if name in _seen(lines)], target)
        print(f"plot: {target}", file=sys.stderr)
    return 0


def _lines(
    arguments: argparse.Namespace, composition: MechanismComposition, accountants: Sequence[str]
) -> tuple[list[Line], dict[str, str]]:
    """Every line of the table, and why an accountant is missing in some; one has to be there."""
    wrong = [count for count in arguments.rounds if count < 1]
    if wrong:
        raise ConfigError(
            f"pfl-bench privacy table: --rounds {wrong[0]}: must be whole numbers, at least 1"
        )
    lines: list[Line] = []
    refusals: dict[str, str] = {}
    for noise in dict.fromkeys(arguments.noise_multiplier):
        for rounds in sorted(set(arguments.rounds)):
            pairs = {}
            for name in accountants:
                try:
                    pairs[name] = shared.make_pair(arguments, composition, noise, rounds, name)
                except PlanError as error:
                    refusals.setdefault(name, str(error))
            lines.append(Line(rounds, noise, pairs))
    if not _seen(lines):
        raise PlanError(next(iter(refusals.values())))
    return lines, refusals


def _seen(lines: Sequence[Line]) -> set[str]:
    return {name for line in lines for name in line.pairs}


def _epsilons(
    arguments: argparse.Namespace, accountants: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Header, side and accountant of each column of epsilons."""
    for side in shared.sides(arguments):
        label = f"epsilon ({side})" if shared.simulates(arguments) else "epsilon"
        for name in accountants:
            yield f"{label} {name}", side, name


def _columns(arguments: argparse.Namespace, accountants: Sequence[str]) -> tuple[Column, ...]:
    from pfl_bench.report.table import Column

    sides = shared.sides(arguments)
    deltas = [f"delta ({side})" for side in sides] if len(sides) > 1 else ["delta"]
    return (
        Column("rounds"),
        Column("noise multiplier", is_number=True),
        *(Column(text, is_number=True) for text, _, _ in _epsilons(arguments, accountants)),
        *(Column(heading, only="programs") for heading in deltas),
    )


def _notes(
    arguments: argparse.Namespace, lines: Sequence[Line], refusals: dict[str, str]
) -> list[str]:
    from privacy.statement.statement import small

    pair = next(pair for line in lines for pair in line.pairs.values())
    capped = arguments.max_participations is not None
    notes = [
        f"Unit user, adjacency {pair.adjacency}, sampling {arguments.sampling}"
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
            f"{label}{accounted.cohort_size} of {accounted.population_size} users a round (q = "
            f"{accounted.sampling_probability:.4g}), delta {small(accounted.delta, 4)}{scaled}."
        )
    notes += [f"{name}, where there is a dash: {reason}." for name, reason in refusals.items()]
    return notes


def _table(
    arguments: argparse.Namespace,
    lines: Sequence[Line],
    accountants: Sequence[str],
    refusals: dict[str, str],
) -> Table:
    """Epsilons rounded up (CSV: as they are), a dash (CSV: empty) where there is none."""
    from pfl_bench.report.table import Cell, Table

    epsilons, sides = list(_epsilons(arguments, accountants)), shared.sides(arguments)
    rows = []
    for line in lines:
        row: list[str | Cell] = [f"{line.rounds}", f"{line.noise_multiplier!r}"]
        for _, side, name in epsilons:
            pair = line.pairs.get(name)
            epsilon = None if pair is None else getattr(pair, side).epsilon
            row.append(Cell("-" if epsilon is None else round_up(epsilon, _DIGITS), epsilon))
        anybody = next(iter(line.pairs.values()), None)
        row += [Cell("", anybody and getattr(anybody, side).delta) for side in sides]
        rows.append(tuple(row))
    notes = tuple(_notes(arguments, lines, refusals))
    return Table(_columns(arguments, accountants), tuple(rows), notes)


def _json(
    arguments: argparse.Namespace,
    lines: Sequence[Line],
    accountants: Sequence[str],
    refusals: dict[str, str],
) -> str:
    rows = []
    for line in lines:
        row: dict[str, Any] = {"rounds": line.rounds, "noise_multiplier": line.noise_multiplier}
        for side in shared.sides(arguments):
            key = f"epsilon_{side}" if shared.simulates(arguments) else "epsilon"
            row[key] = {
                name: json_epsilon(getattr(line.pairs[name], side).epsilon)
                if name in line.pairs
                else None
                for name in accountants
            }
        rows.append(row)
    document = {
        "unit": "user",
        "sampling": arguments.sampling,
        "rows": rows,
        "notes": _notes(arguments, lines, refusals),
    }
    pair = next(pair for line in lines for pair in line.pairs.values())
    for side in shared.sides(arguments):
        facts = shared.accounted_to_json(getattr(pair, side))
        kept = ("population_size", "cohort_size", "sampling_probability", "delta")
        document[side if shared.simulates(arguments) else "setting"] = {k: facts[k] for k in kept}
    return json.dumps(document)
