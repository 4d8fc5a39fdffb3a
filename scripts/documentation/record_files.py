"""Files of records, of which the pages of results are generated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pfl_bench.files import read_text, to_json_value, write_atomically
from pfl_bench.report.records import Record, records
from pfl_bench.report.run_folder import read_run, runs_below
from pfl_bench.types import ConfigError, RunFolderError

FOLDER = Path("docs/results")
_RECORDS = TypeAdapter(list[Record], config=ConfigDict(extra="forbid"))


def collect(folders: Iterable[Path], into: Path, merge: bool = False) -> int:
    """Write the records of all runs at and below some folders.

    Args:
        folders: Run folders, or folders of such.
        into: The JSON file: a list, a record a line.
        merge: Whether records that are there stay, in their places: those of other rows or other
            changes of a row, and those of more seeds.

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
        there = {experiment_of(record): record for record in read_records(into)}
        new = {
            experiment_of(one): one
            for one in found
            if experiment_of(one) not in there
            or len(one.seeds) >= len(there[experiment_of(one)].seeds)
        }
        found = list({**there, **new}.values())
    values = [to_json_value(asdict(one)) for one in found]
    lines = [json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
    write_atomically(into, "[\n" + ",\n".join(lines) + "\n]\n")
    return len(found)


def experiment_of(record: Record) -> tuple[str, ...]:
    """The row, and how the runs of a record differ from it."""
    return (record.row, *record.changes)


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
