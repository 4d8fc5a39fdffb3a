"""Files of records, of which the pages of results are generated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pfl_bench.files import read_text, to_json_value, write_atomically
from pfl_bench.report.records import Record, records, same_or_each
from pfl_bench.report.run_folder import read_run, runs_below
from pfl_bench.runs.rows import RowResult, seeds_note
from pfl_bench.types import ConfigError, RunFolderError

FOLDER = Path("docs/results")
_RECORDS = TypeAdapter(list[Record], config=ConfigDict(extra="forbid"))


def collect(folders: Iterable[Path], into: Path, merge: bool = False) -> int:
    """Write the records of all runs at and below some folders.

    Args:
        folders: Run folders, or folders of such.
        into: The JSON file: a list, a record a line.
        merge: Whether records that are there stay, in their places: those of other rows or other
            changes of a row, and those of more seeds. A record of other seeds on the same data
            gains the new ones (``joined``).

    Returns:
        How many records there are.

    Raises:
        RunFolderError: A run is not finished, or its commit does not say what code it ran.
        ConfigError: What is there is no file of records.
    """
    paths = {path.resolve(): path for folder in folders for path in runs_below(folder)}
    runs = [read_run(path) for path in paths.values()]
    for run in runs:
        state = run.environment.get("git") or {}
        if not run.is_finished:
            raise RunFolderError(f"{run.path}: is not finished; finish it, or leave it out")
        if not state.get("commit") or state.get("uncommitted_changes"):
            raise RunFolderError(
                f"{run.path}: no commit says what code it ran (git: {state or None}); commit the "
                "code, and run it again from a checkout without changes"
            )
    found = records(runs)
    if merge and into.exists():
        kept = {experiment_of(record): record for record in read_records(into)}
        for one in found:
            old = kept.setdefault(experiment_of(one), one)
            if set(one.seeds) > set(old.seeds) or not can_join(old, one):
                kept[experiment_of(one)] = one if len(one.seeds) >= len(old.seeds) else old
            elif set(one.seeds) - set(old.seeds):
                kept[experiment_of(one)] = joined(old, one)
        found = list(kept.values())
    values = [to_json_value(asdict(one)) for one in found]
    lines = [json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
    write_atomically(into, "[\n" + ",\n".join(lines) + "\n]\n")
    return len(found)


def experiment_of(record: Record) -> tuple[str, ...]:
    """The row, and how the runs of a record differ from it."""
    return (record.row, *record.changes)


def can_join(old: Record, new: Record) -> bool:
    """Whether two records measure seeds of one experiment on the same data, and are comparable.

    Those of private runs are joined where they claim the same, each passed its audit (each run that
    of its own version of the code), and no seed is in both. Records with a line that is not judged,
    or that says more than its seeds, are not joined.
    """
    return (
        _are_alike(old, new)
        and (old.data, old.headline) == (new.data, new.headline)
        and list(map(_expected, old.lines)) == list(map(_expected, new.lines))
        and all(
            line.is_judged and line.note in ("", seeds_note(one.seeds))
            for one in (old, new)
            for line in one.lines
        )
    )


def _are_alike(old: Record, new: Record) -> bool:
    if old.privacy is None or new.privacy is None:
        return old.privacy is new.privacy
    is_same = replace(old.privacy, audits={}) == replace(new.privacy, audits={})
    passed = {*old.privacy.audits, *new.privacy.audits} == {"passed"}
    return is_same and passed and set(old.seeds).isdisjoint(new.seeds)


def _expected(line: RowResult) -> tuple[object, ...]:
    return (line.metric, line.published, line.published_sd, line.published_seeds, line.margin)


def joined(old: Record, new: Record) -> Record:
    """The record of both records' seeds; of a seed in both it is ``new`` that counts.

    Verdicts are today's. Versions and hardware that differ are each named.
    """
    values = {seed: (old, index) for index, seed in enumerate(old.seeds)}
    values |= {seed: (new, index) for index, seed in enumerate(new.seeds)}
    seeds = sorted(values, key=lambda seed: seed or 0)
    runs = [values[seed] for seed in seeds]
    names = dict.fromkeys([*new.metrics, *old.metrics])
    lines = [
        replace(
            line,
            measured=tuple(one.lines[place].measured[index] for one, index in runs),
            num_seeds=len(seeds),
            seeds=(),
            note=seeds_note(seeds),
        ).judged()
        for place, line in enumerate(new.lines)
    ]
    audits: Counter[str] = Counter()
    for one in (old, new):
        audits.update(one.privacy.audits if one.privacy else {})
    return replace(
        new,
        seeds=seeds,
        privacy=new.privacy and replace(new.privacy, audits=dict(audits)),
        metrics={
            name: [one.metrics[name][index] if name in one.metrics else None for one, index in runs]
            for name in names
        },
        lines=lines,
        budgets=[one.budgets[index] for one, index in runs] if old.budgets and new.budgets else [],
        seconds=[one.seconds[index] for one, index in runs],
        commits=list(dict.fromkeys([*old.commits, *new.commits])),
        commands=list(dict.fromkeys([*old.commands, *new.commands])),
        versions=same_or_each((old.versions, new.versions)),
        hardware=same_or_each((old.hardware, new.hardware)),
    )


def read_records(path: Path) -> list[Record]:
    """Read what ``collect`` wrote; ConfigError if it is no file of records."""
    try:
        return _RECORDS.validate_json(read_text(path))
    except RunFolderError as error:
        raise ConfigError(f"records: {path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path}: is no file of records ({where}: {first['msg']}); write it with: "
            f"python scripts/results.py collect RUNS... --into {FOLDER}/{path.name}"
        ) from None
