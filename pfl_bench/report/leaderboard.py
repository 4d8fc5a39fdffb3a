"""A leaderboard: the experiments of many run folders, ranked where they can be compared.

Rows stand in one table if they are of the same data (task, variant, content, split and users), of
the same metric on as many examples and clients, and under the same attack. (A client that
fine-tunes is tested on the rest of its examples; local models may be of some clients alone.) Within
a table only rows that protect the same unit, with an epsilon within the same bound, are ranked
together, by the mean of the metric over seeds. A row has no rank where its number or its guarantee
cannot be relied on (``_unranked``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pfl_bench.files import write_atomically, write_json
from pfl_bench.report.audit import outcome_cell
from pfl_bench.report.canvas import Picture
from pfl_bench.report.costs import bytes_text, flops_text
from pfl_bench.report.page import fill
from pfl_bench.report.pictures import draw_front
from pfl_bench.report.records import Data, Privacy, Record, records
from pfl_bench.report.results import SETTINGS, epsilon_cell, with_spread
from pfl_bench.report.run_facts import count, duration
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Cell, Table
from pfl_bench.runs.rows import rows_from_summaries, runs_of_seeds
from pfl_bench.types import describe_choice

BOARD_VERSION = 1
_PASSED = "passed"  # and what is said of it
_UNITS = ("nobody", "example", "user")
# Rows are ranked with those whose epsilon is within the same of these, or beyond all.
_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, math.inf)
_HEADINGS = (
    "row", "rank", "front", "utility", "protects", "epsilon (simulated)", "epsilon (actual)",
    "audit", "seeds", "cost", "commit",
)  # fmt: skip
READING = (
    "A rank is among the rows of one table that protect the same unit, with an epsilon (simulated) "
    'up to the same of 1, 2, 4, 8, 16, by the mean over seeds: "1 (to 2)" is the first of those '
    "above 1 and up to 2. A row is on the front if no other row of its unit has at least its "
    "utility at a smaller epsilon, or more at the same. A private row is ranked if the audits of "
    "all its runs have passed."
)


@dataclass(frozen=True)
class Board:
    """One table of the leaderboard, with its picture (None of fewer than two private rows)."""

    title: str
    about: str
    table: Table
    picture: Picture | None = None


@dataclass(frozen=True)
class Utility:
    """The headline metric over seeds."""

    mean: float | None
    sd: float | None
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Row(Record):
    """A record in its table, whose ``rank`` is None where ``unranked`` says why."""

    utility: Utility
    protects: str
    bound: float | None
    unranked: list[str]
    rank: int | None = None
    front: bool = False
    note: str


@dataclass(frozen=True)
class Standings:
    """The rows of the same data, metric and attack, in the order in which they are shown.

    ``evaluated`` says on how many examples and clients; empty where nothing does.
    """

    data: Data
    metric: str
    lower_is_better: bool
    evaluated: str
    attack: str | None
    rows: list[Row]


def standings(runs: Sequence[RunRecord]) -> list[Standings]:
    """Put the experiments of runs that have a number to rank by into tables, and rank them."""
    return ranked(records(run for run in runs if not _left_out(run)))


def ranked(found: Iterable[Record]) -> list[Standings]:
    """Put records into tables, and rank them."""
    groups: dict[str, list[Row]] = {}
    for record in found:
        key = repr((record.data, record.headline, _evaluated(record), record.attack))
        groups.setdefault(key, []).append(_row(record))
    tables = []
    for rows in groups.values():
        first, best = rows[0], rows[0].headline
        facts = (best.metric, best.lower_is_better, _evaluated(first), first.attack)
        tables.append(Standings(first.data, *facts, _ranked(rows)))
    return sorted(tables, key=lambda table: (table.data.task, table.metric))


def _evaluated(record: Record) -> str:
    """Number of examples and clients that the headline is of, such as "299 examples of 50 clients".

    Where seeds differ, the smallest and the largest; empty where nothing says it.
    """
    split, texts = record.headline.metric.partition("/")[0], []
    for unit in ("example", "client"):
        column = record.metrics.get(f"{split}/num_{unit}s", ())
        found = {int(number) for number in column if number is not None}
        if found:
            ends = " to ".join(f"{n:,}" for n in sorted({min(found), max(found)}))
            texts.append(f"{ends} {unit}{'' if found == {1} else 's'}")
    return " of ".join(texts)


def _row(record: Record) -> Row:
    metric, epsilon = record.headline.metric, record.epsilon
    values = record.metrics.get(metric) or [None] * len(record.seeds)
    about = {"name": record.row, "setting": record.setting, "variant": str(record.data.variant)}
    summaries: list[dict[str, Any]] = [
        {**about, "seed": seed, "metrics": {} if one is None else {metric: one}, "expected": []}
        for seed, one in zip(record.seeds, values, strict=True)
    ]
    (line, *_) = rows_from_summaries(summaries)
    return Row(
        **vars(record),
        utility=Utility(line.mean, line.sd, line.measured),
        protects="nobody" if record.privacy is None or epsilon is None else record.privacy.unit,
        bound=None if epsilon is None else next(b for b in _BOUNDS if epsilon <= b),
        unranked=_unranked(record, line.mean),
        note=line.note,
    )


def left_out(runs: Iterable[RunRecord]) -> dict[str, str]:
    """Reasons why runs have no number to rank by, by their folders; those that have one are not."""
    return {str(run.path): why for run in runs if (why := _left_out(run))}


def _left_out(run: RunRecord) -> str:
    """Reason why a run has no number to rank by; empty if it has one."""
    if not run.is_finished:
        return "not finished"
    return "" if run.headlines else "no final metrics, as those of a sweep"


def _unranked(record: Record, mean: float | None) -> list[str]:
    """Reason why a row has no rank; empty if it has one."""
    reasons = [] if mean is not None and math.isfinite(mean) else ["no finite utility"]
    reasons += [*record.diverged, *record.edited]
    if why := describe_choice(record.selected_by, record.headline.metric):
        reasons.append(why)
    if record.has_canaries:
        reasons.append("canaries have moved the model")
    if record.privacy is not None and record.privacy.unit != "nobody":
        reasons += ["its guarantee is infinite"] if record.epsilon is None else []
        audits = record.privacy.audits
        reasons += [f"audit: {status}" for status in audits if not status.startswith(_PASSED)]
    return reasons


def _ranked(rows: list[Row]) -> list[Row]:
    """Rank the rows of a table by unit, in the order in which they are shown."""
    sign = 1 if rows[0].headline.lower_is_better else -1

    def place(row: Row) -> tuple[int, bool, float, float]:
        mean = row.utility.mean
        worth = math.inf if mean is None or math.isnan(mean) else sign * mean
        return _UNITS.index(row.protects), bool(row.unranked), row.bound or 0.0, worth

    def point(row: Row) -> tuple[float, float]:
        return row.epsilon or 0.0, place(row)[3]

    def with_rank(row: Row) -> Row:
        if row.unranked:
            return row
        peers = [one for one in sound if place(one)[:3] == place(row)[:3]]
        others = [point(one) for one in sound if one.protects == row.protects]
        epsilon, worth = mine = point(row)
        front = row.bound is not None and not any(
            other != mine and other[0] <= epsilon and other[1] <= worth for other in others
        )
        return replace(row, rank=1 + sum(place(one) < place(row) for one in peers), front=front)

    sound = [row for row in rows if not row.unranked]
    return [with_rank(row) for row in sorted(rows, key=place)]


def boards(tables: Sequence[Standings]) -> list[Board]:
    """Lay out the tables of ``standings``."""
    return [_board(place, table) for place, table in enumerate(tables)]


def _board(place: int, table: Standings) -> Board:
    data = table.data
    better = "lower" if table.lower_is_better else "higher"
    title = f"{data.task}: {data.variant}"
    if table.attack:
        title += f", under the attack {table.attack}"
    users = data.num_users or {}
    facts = [
        f"{table.metric}, {better} is better",
        f"on {table.evaluated}" if table.evaluated else "",
        f"split by {data.split_by}" if data.split_by else "",
        ", ".join(f"{number:,} {split} users" for split, number in users.items()),
        f"content {data.checksum[:15]}" if data.checksum else "",
    ]
    notes: list[str] = []
    lines = [_line(row, notes) for row in table.rows]
    plain = Table.of(_HEADINGS, lines, to_left=(0, 2, 4, 7, 10), notes=notes)
    shown = replace(plain, has_numbered_notes=True)
    private = [
        (row.row, row.epsilon or 0.0, row.utility.mean or 0.0, row.protects, row.front)
        for row in table.rows
        if row.rank and row.bound
    ]
    about = "; ".join(filter(None, facts))
    picture = draw_front(f"front{place}", private, table.metric) if private[1:] else None
    return Board(title, about, shown, picture)


def _line(row: Row, notes: list[str]) -> list[str | Cell]:
    utility, privacy, cost = row.utility, row.privacy, row.cost
    changes = ", ".join(row.changes)
    said = [f"no rank: {'; '.join(row.unranked)}" if row.unranked else "", row.note]
    notice = ". ".join(filter(None, [*said, f"not the row: {changes}" if changes else ""]))
    if notice and notice not in notes:
        notes.append(notice)
    mark = notes.index(notice) + 1 if notice else None
    bound = row.bound
    within = "" if bound is None else f" (to {bound:g})" if bound < math.inf else " (beyond 16)"
    rank = Cell(f"{row.rank}{within}" if row.rank else "-", row.rank, note=mark)
    num_seeds = len(set(row.seeds))
    seeds = runs_of_seeds(len(row.seeds), num_seeds)
    setting = SETTINGS.get(row.setting, row.setting)
    name = Cell(row.row, row.row, detail=row.method, page_detail=setting)
    epsilons = [Cell("-")] * 2
    if privacy is not None and privacy.unit != "nobody":
        claims = (privacy.simulated, privacy.actual)
        epsilons = [epsilon_cell(claim.epsilon, claim.delta) for claim in claims]
    seconds = [one for one in row.seconds if one is not None]
    spent = Cell("-")
    if cost is not None:
        sent = cost["bytes_down"] + cost["bytes_up"]
        took = f"{duration(fmean(seconds))} a run" if seconds else ""
        detail = f"{bytes_text(sent)} moved" if sent else "nothing moved"
        spent = Cell(flops_text(cost["flops"]), cost["flops"], detail, took)
    return [
        name,
        rank,
        Cell("yes" if row.front else "-"),
        with_spread(utility.mean, utility.sd),
        row.protects,
        *epsilons,
        _audit(privacy),
        Cell(str(num_seeds) if num_seeds == len(row.seeds) else seeds, num_seeds),
        spent,
        ", ".join(_short(commit) for commit in row.commits)
        or f"version {row.versions.get('pfl-bench', 'unknown')}",
    ]


def _audit(privacy: Privacy | None) -> Cell:
    if privacy is None or privacy.unit == "nobody":
        return Cell("-")
    audits = privacy.audits
    # What has failed first, and what has passed without a reserve last.
    worst = min(audits, key=lambda one: (one != "failed", one.startswith(_PASSED), one == _PASSED))
    return outcome_cell(worst, f"{audits[worst]} of {sum(audits.values())}")


def _short(commit: str) -> str:
    """The first digits of a commit, with a plus where the code had changes."""
    digits, _, changes = commit.partition(" ")
    return digits[:9] + ("+" if changes else "")


def write_leaderboard(
    runs: Sequence[RunRecord], tables: Sequence[Standings], out: Path
) -> list[Board]:
    """Write the page of ``standings`` of runs, and the same as JSON beside it.

    Runs without a number to rank by are only named.
    """
    shown = boards(tables)
    without = left_out(runs)
    rows = sum(len(table.rows) for table in tables)
    subtitle = f"{count(len(tables), 'table')}, {count(rows, 'row')}, {count(len(runs), 'run')}"
    page = fill(
        "leaderboard.html",
        title="Leaderboard",
        subtitle=subtitle + (f", {len(without)} left out" if without else ""),
        reading=READING,
        boards=shown,
        left_out=without,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    found = [asdict(table) for table in tables]
    write_json(
        out.with_suffix(".json"),
        {"format_version": BOARD_VERSION, "tables": found, "left_out": without},
    )
    return shown
