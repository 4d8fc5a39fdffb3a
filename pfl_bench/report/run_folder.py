"""Reading a run folder, finished or not, for people to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfl_bench.config.schema import CONFIG_VERSION, TRAINERS, setting_of
from pfl_bench.config.yaml_text import parse_yaml
from pfl_bench.data import held_task
from pfl_bench.files import check_run_folder, read_json, read_metrics, read_text
from pfl_bench.metrics import MetricDirections
from pfl_bench.runs.rows import headline_metrics, mark_edited, results_key
from pfl_bench.types import RunFolderError, RunSummary, as_float, step_unit
from pfl_bench.types.layouts import LAYOUTS, misfit

_FORMAT_VERSION = 1
_OF_A_RUN = {"config.yaml", "environment.json", "metrics.jsonl", "summary.json"}


@dataclass(frozen=True)
class RunRecord:
    """Content of a run folder; what is absent is None or empty.

    The summary of an unfinished run is what its configuration says, with the status "unfinished".
    Of ``rounds``, lines of ``metrics.jsonl``, non-finite numbers are floats. The statement has
    ``selection.json`` as "selection" where a sweep has chosen the run. ``strata`` are by split,
    column and value. ``is_audit_believed``: False where ``audit.json`` could not be made anew here.
    """

    path: Path
    config_text: str
    config: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...]
    environment: Mapping[str, Any]
    statement: Mapping[str, Any] | None
    summary: RunSummary
    is_finished: bool
    strata: Mapping[str, Any] | None = None
    is_audit_believed: bool = True

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.summary.name

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.summary.seed

    @property
    def setting(self) -> str:
        """Setting of the run."""
        return self.summary.setting

    @property
    def step_unit(self) -> str:
        """Unit of a line of the metrics."""
        return step_unit(self.setting)

    @property
    def task(self) -> str:
        """Name of the task, of one in memory its user's; empty where nothing says it."""
        name = self.summary.task
        title = (self.config.get("task") or {}).get("title", name)
        return str(title) if name == held_task.NAME else name

    @property
    def last_round(self) -> int:
        """The last round that was logged, 0 if none was."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def planned_rounds(self) -> int | None:
        """Rounds (central training: epochs) that the configuration asks for; None if data do."""
        lengths = (
            (self.config.get(section) or {}).get(key)
            for section, key in TRAINERS.items()
            if section != "local"
        )
        return next((length for length in lengths if isinstance(length, int)), None)

    @property
    def headlines(self) -> list[str]:
        """The final metric that speaks for the run; empty without one."""
        return headline_metrics(self.summary)

    @property
    def directions(self) -> MetricDirections:
        """Directions of the metrics, as the run recorded them."""
        return MetricDirections.of_recorded(self.summary.metric_directions)

    @property
    def data(self) -> Mapping[str, Any]:
        """Facts about its data; empty where nothing says them."""
        return self.summary.data or self.environment.get("data") or {}

    @property
    def is_private(self) -> bool:
        """Whether the run makes a privacy statement."""
        return self.statement is not None and self.statement.get("unit") != "none"

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Rounds at which a scalar such as "val/accuracy" was logged, and its values there."""
        points = [
            (int(row["round"]), value)
            for row in self.rounds
            if (value := as_float(row.get(key))) is not None
        ]
        return [point[0] for point in points], [point[1] for point in points]


def runs_below(folder: Path) -> list[Path]:
    """Find the run folders at and below a folder, sorted; RunFolderError if there is none.

    A folder that cannot be listed, or lacks a file, is among them: whoever reads it says so, and
    leaves out no run in silence. Shadow runs of an attack are no rows: they are found in
    ``shadows/`` itself alone.
    """
    found: list[Path] = []
    walk = os.walk(folder, onerror=lambda error: found.append(Path(error.filename)))
    for place, inner, names in walk if folder.is_dir() else ():
        # One that has lost a file is not passed over.
        if len(_OF_A_RUN.intersection(names)) > 1:
            found.append(Path(place))
        if Path(place).name == "shadows" and Path(place) != folder:
            inner[:] = [name for name in inner if not name.startswith("shadow-")]
    if not found:
        has_none = "holds no run folder, which has config.yaml and environment.json"
        what = has_none if folder.is_dir() else "is no folder"
        raise RunFolderError(
            f"{folder} {what}; give a folder that `pfl-bench run --out` or `pfl-bench table` wrote"
        )
    return sorted(found)


def named_runs(folders: Iterable[Path]) -> list[Path]:
    """Run folders that are named, and those below other folders that are; each once, in order."""
    named: list[Path] = []
    for folder in folders:
        holds_runs = folder.is_dir() and not (folder / "config.yaml").exists()
        named += runs_below(folder) if holds_runs else [folder]
    return each_once(named)


def each_once(paths: Iterable[Path]) -> list[Path]:
    """The paths in order, but one for each place that they lead to."""
    return list({path.resolve(): path for path in paths}.values())


def each_run_once(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs of a row by seed; of those of one seed with the same results, the first alone."""
    found: dict[str, RunRecord] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        same = results_key(run.summary) if run.is_finished else repr((run.seed, run.path))
        found.setdefault(same, run)
    return list(found.values())


def read_run(path: Path) -> RunRecord:
    """Read a run folder; a missing ``summary.json`` means an unfinished run."""
    check_run_folder(path)
    config_path = path / "config.yaml"
    config_text = read_text(config_path)
    try:
        config = parse_yaml(config_text)
    except ValueError as error:
        raise RunFolderError(f"{config_path} is not YAML: {error}; run the row again") from None
    if not isinstance(config, dict):
        raise RunFolderError(f"{config_path} holds {type(config).__name__}, expected a mapping")
    if wrong := misfit(config, LAYOUTS["config.yaml"]):
        raise RunFolderError(f"{config_path}: {wrong}; run the row again")
    if (version := config.get("version", CONFIG_VERSION)) != CONFIG_VERSION:
        raise RunFolderError(
            f"{config_path}: version: {version!r} is not {CONFIG_VERSION}, the version of the "
            "format that this pfl-bench reads; restore the file, or use the pfl-bench that wrote it"
        )
    environment = read_json(path / "environment.json") or {}
    document = read_json(path / "summary.json")
    statement: Mapping[str, Any] | None = read_json(path / "privacy.json")
    if document is None:
        summary = _planned(path, config, environment, statement)
    else:
        summary = _summary(path / "summary.json", document, config)
    if statement is None:
        statement = summary.privacy
    selection = read_json(path / "selection.json")
    if statement is not None and selection is not None:
        statement = {**statement, "selection": selection}
        summary = replace(summary, privacy=statement)
    return RunRecord(
        path=path,
        config_text=config_text,
        config=config,
        rounds=tuple(read_metrics(path / "metrics.jsonl")),
        environment=environment,
        statement=statement,
        summary=summary,
        is_finished=document is not None,
        strata=read_json(path / "strata.json"),
    )


def read_runs(paths: Sequence[Path], notice: Callable[[str], None]) -> list[RunRecord]:
    """Read run folders; ``notice`` is told of each that cannot be read, unless none can."""
    runs, refused = [], []
    for path in paths:
        try:
            runs.append(read_run(path))
        except RunFolderError as error:
            refused.append(error)
    if not runs and refused:
        raise refused[0]
    for reason in refused:
        notice(f"left out: {reason}")
    return runs


def _planned(
    path: Path,
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    statement: Mapping[str, Any] | None,
) -> RunSummary:
    """The summary of an unfinished run: its configuration and data, without any outcome."""
    seed, data = config.get("seed"), environment.get("data") or {}
    privacy = config.get("privacy")
    expected = config.get("expected") or []
    return RunSummary.of(
        {
            "name": str(config.get("name") or path.name),
            "setting": setting_of(config, privacy.get("mechanism") or {} if privacy else None),
            "task": (config.get("task") or {}).get("name"),
            "variant": str(data.get("variant", "-")),
            "seed": seed if isinstance(seed, int) else 0,
            "metrics": {},
            "expected": [
                {**entry, "published": entry.get("value")}
                for entry in expected
                if isinstance(entry.get("metric"), str)
            ],
            "status": "unfinished",
            "privacy": statement,
            "data": data,
        }
    )


def _summary(path: Path, document: Mapping[str, Any], config: Mapping[str, Any]) -> RunSummary:
    if document.get("format_version") != _FORMAT_VERSION:
        raise RunFolderError(
            f"{path} has format_version {document.get('format_version')!r}, expected "
            f"{_FORMAT_VERSION}: it was written by another release of pfl-bench"
        )
    try:
        RunSummary.of(document)
        return RunSummary.of(mark_edited(document, config))
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None
