"""``pfl-bench privacy table``: epsilon of several rounds or noises, by each accountant."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import privacy_settings as shared
from pfl_bench.types import ConfigError
from privacy.accountant import ACCOUNTANTS
from privacy.errors import PlanError
from privacy.statement.statement import json_epsilon, round_up

if TYPE_CHECKING:
    from privacy.amplification import MechanismComposition

_DIGITS = 4


@dataclass(frozen=True)
class Line:
    """Epsilons of one number of rounds and one noise multiplier.

    Attributes:
        rounds: Number of rounds.
        noise_multiplier: z of the deployment.
        pairs: Both settings by accountant; without those that cannot account them.
    """

    rounds: int
    noise_multiplier: float
    pairs: dict[str, shared.Pair]


def main(arguments: argparse.Namespace, composition: MechanismComposition) -> int:
    """Print the table; draw the picture, if one is asked for."""
    accountants = tuple(dict.fromkeys(arguments.accountant or ACCOUNTANTS))
    target = None if arguments.plot is None else Path(arguments.plot)
    if target is not None:
        # Before the work, so that a wrong FILE is told at once.
        from pfl_bench.cli.privacy_plot import check_target

        check_target(target)
    lines, refusals = _lines(arguments, composition, accountants)
    text = {"json": _json, "csv": _csv, "md": _markdown, "latex": _latex}[arguments.format]
    print(text(arguments, lines, accountants, refusals), end="")
    if target is not None:
        from pfl_bench.cli.privacy_plot import draw

        draw(arguments, composition, [name for name in accountants if name in _seen(lines)], target)
        print(f"plot: {target}", file=sys.stderr)
    return 0


def _lines(
    arguments: argparse.Namespace, composition: MechanismComposition, accountants: Sequence[str]
) -> tuple[list[Line], dict[str, str]]:
    """Every line of the table, and why an accountant is missing in some.

    Raises:
        ConfigError: A number of rounds is less than 1.
        PlanError: No accountant can account any line.
    """
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
                    pairs[name] = shared.make_pair(
                        arguments,
                        composition,
                        noise,
                        rounds,
                        name,
                    )
                except PlanError as error:
                    refusals.setdefault(name, str(error))
            lines.append(Line(rounds, noise, pairs))
    if not _seen(lines):
        raise PlanError(next(iter(refusals.values())))
    return lines, refusals


def _seen(lines: Sequence[Line]) -> set[str]:
    return {name for line in lines for name in line.pairs}


def _sides(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("simulated", "actual") if shared.simulates(arguments) else ("simulated",)


def _columns(
    arguments: argparse.Namespace, accountants: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Header, side and accountant of each column of epsilons."""
    for side in _sides(arguments):
        label = f"epsilon ({side})" if shared.simulates(arguments) else "epsilon"
        for name in accountants:
            yield f"{label} {name}", side, name


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
    for side in _sides(arguments):
        accounted = getattr(pair, side)
        label = f"{side}: " if shared.simulates(arguments) else ""
        scaled = "" if side == "simulated" else ", noise scaled by the ratio of the cohorts"
        notes.append(
            f"{label}{accounted.cohort_size} of {accounted.population_size} users a round (q = "
            f"{accounted.sampling_probability:.4g}), delta {small(accounted.delta, 4)}{scaled}."
        )
    notes += [f"{name}, where there is a dash: {reason}." for name, reason in refusals.items()]
    return notes


def _cells(
    arguments: argparse.Namespace, lines: Sequence[Line], accountants: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    columns = list(_columns(arguments, accountants))
    body = []
    for line in lines:
        cells = [f"{line.rounds}", f"{line.noise_multiplier!r}"]
        for _, side, name in columns:
            known = name in line.pairs
            cells.append(
                round_up(getattr(line.pairs[name], side).epsilon, _DIGITS) if known else "-"
            )
        body.append(cells)
    return ["rounds", "noise multiplier", *(header for header, _, _ in columns)], body


def _markdown(
    arguments: argparse.Namespace,
    lines: Sequence[Line],
    accountants: Sequence[str],
    refusals: dict[str, str],
) -> str:
    from pfl_bench.report.grid import markdown_table

    table = markdown_table(*_cells(arguments, lines, accountants))
    return table + "\n" + "\n".join(_notes(arguments, lines, refusals)) + "\n"


def _latex(
    arguments: argparse.Namespace,
    lines: Sequence[Line],
    accountants: Sequence[str],
    refusals: dict[str, str],
) -> str:
    from pfl_bench.report.grid import latex_table

    header, body = _cells(arguments, lines, accountants)
    return latex_table(header, body, _notes(arguments, lines, refusals))


def _csv(
    arguments: argparse.Namespace,
    lines: Sequence[Line],
    accountants: Sequence[str],
    refusals: dict[str, str],
) -> str:
    """Raw numbers; an empty cell is an epsilon that the accountant cannot give."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = list(_columns(arguments, accountants))
    deltas = [f"delta ({side})" for side in _sides(arguments)]
    if not shared.simulates(arguments):
        deltas = ["delta"]
    writer.writerow(["rounds", "noise_multiplier", *(header for header, _, _ in columns), *deltas])
    for line in lines:
        cells: list[Any] = [line.rounds, repr(line.noise_multiplier)]
        for _, side, name in columns:
            pair = line.pairs.get(name)
            cells.append("" if pair is None else repr(getattr(pair, side).epsilon))
        anybody = next(iter(line.pairs.values()), None)
        cells += [
            "" if anybody is None else repr(getattr(anybody, side).delta)
            for side in _sides(arguments)
        ]
        writer.writerow(cells)
    return buffer.getvalue()


def _json(
    arguments: argparse.Namespace,
    lines: Sequence[Line],
    accountants: Sequence[str],
    refusals: dict[str, str],
) -> str:
    rows = []
    for line in lines:
        row: dict[str, Any] = {"rounds": line.rounds, "noise_multiplier": line.noise_multiplier}
        for side in _sides(arguments):
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
    for side in _sides(arguments):
        facts = shared.accounted_to_json(getattr(pair, side))
        kept = ("population_size", "cohort_size", "sampling_probability", "delta")
        document[side if shared.simulates(arguments) else "setting"] = {k: facts[k] for k in kept}
    return json.dumps(document) + "\n"
