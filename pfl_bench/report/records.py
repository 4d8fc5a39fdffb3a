"""Records of an experiment's runs: for leaderboards and for result pages."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from pfl_bench.config.loading import RECORD_NAME, claim_differences
from pfl_bench.config.row_differences import experiment, from_head, row_differences
from pfl_bench.metrics import is_spread
from pfl_bench.report.audit import audit_status
from pfl_bench.report.costs import total_of
from pfl_bench.report.run_folder import RunRecord, each_run_once
from pfl_bench.runs.divergence import describe_divergence
from pfl_bench.runs.rows import RowResult, epsilon_of, rows_of
from pfl_bench.types import RunSummary


@dataclass(frozen=True)
class Data:
    """Identity of the data: equal for two numbers of the same data."""

    task: str
    variant: str | None
    checksum: str | None
    split_by: str | None
    num_users: dict[str, int] | None
    extra: Any


@dataclass(frozen=True)
class Headline:
    """The metric that speaks for a row, and its direction."""

    metric: str
    lower_is_better: bool


@dataclass(frozen=True)
class Claim:
    """One side of a privacy statement; None where it says nothing."""

    epsilon: float | None
    delta: float | None


@dataclass(frozen=True)
class Privacy:
    """The unit ("user", "example", "nobody"), the weakest run's claims, audits by status."""

    unit: str
    simulated: Claim
    actual: Claim
    audits: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The result of an experiment's finished runs; lists over seeds are in their order.

    Attributes:
        changes: How it differs from the row of its name.
        selected_by: Metric by which the models were chosen; empty for the last ones.
        metrics: Final metrics, without their spread over clients and strata.
        lines: Those of the table of results, with the verdicts of when they were written.
        cost: Mean over runs of FLOPs and bytes; None if no run says it.
        budgets: What it cost each seed to reach the values that the row names.
        versions: Those of packages, and Python's; where runs differ, joined by " / ".
    """

    row: str
    setting: str
    changes: list[str]
    method: str
    attack: str | None
    has_canaries: bool
    selected_by: str = ""
    data: Data
    seeds: list[int | None]
    headline: Headline
    metrics: dict[str, list[float | None]]
    lines: list[RowResult]
    diverged: list[str]
    edited: list[str] = field(default_factory=list)
    privacy: Privacy | None
    cost: dict[str, float] | None
    budgets: list[list[dict[str, Any]]] = field(default_factory=list)
    seconds: list[float | None]
    commits: list[str]
    commands: list[str]
    versions: dict[str, Any]
    hardware: dict[str, Any]

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the simulated deployment; None where nobody is protected."""
        if self.privacy is None or self.privacy.unit == "nobody":
            return None
        epsilon = self.privacy.simulated.epsilon
        return None if epsilon == math.inf else epsilon


def records(runs: Iterable[RunRecord]) -> list[Record]:
    """Gather finished runs by name, experiment and data, and say what all seeds of each came to."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.is_finished:
            key = repr((run.name, experiment(run.config), data_of(run)))
            groups.setdefault(key, []).append(run)
    return [_record(each_run_once(group), group) for group in groups.values()]


def told_apart(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Name runs so that each further experiment of a name has its differences in the name."""
    found: dict[str, dict[str, RunRecord]] = {}
    for run in runs:
        found.setdefault(run.name, {}).setdefault(experiment(run.config), run)
    named = []
    for run in runs:
        others = found[run.name]
        place = list(others).index(experiment(run.config)) + 1
        if place > 1:
            first = next(iter(others.values()))
            differences = "; ".join(row_differences(first.config, run.config))
            name = f"{run.name} ({place}: {differences})"
            run = replace(run, summary=replace(run.summary, name=name))
        named.append(run)
    return named


def data_of(run: RunRecord) -> Data:
    """The data of a run."""
    named = ("checksum", "split_by", "num_users", "extra")
    return Data(run.task, run.summary.variant, *map(run.data.get, named))


def _record(runs: Sequence[RunRecord], folders: Sequence[RunRecord]) -> Record:
    """The record of runs, each once, whose statements and audits are those of all folders."""
    first, environments = runs[0], [run.environment for run in runs]
    summaries = [run.summary for run in runs]
    headline = (first.headlines or [""])[0]
    lower = first.directions.lower_is_better(headline)
    return Record(
        row=first.name,
        setting=first.setting,
        changes=_changes(first),
        method=method_of(first.config, first.setting),
        attack=(first.config.get("attack") or {}).get("kind"),
        has_canaries=bool((first.config.get("privacy") or {}).get("audit")),
        selected_by=next((one.selected_by for one in summaries if one.selected_by), ""),
        data=data_of(first),
        seeds=[run.seed for run in runs],
        headline=Headline(headline, lower),
        metrics=_metrics(summaries),
        lines=rows_of(summaries),
        diverged=_distinct(describe_divergence(one.diverged) for one in summaries),
        edited=_distinct(one.edited for one in summaries),
        privacy=_privacy(folders),
        cost=total_of(runs),
        budgets=[[dict(entry) for entry in one.budgets] for one in summaries],
        seconds=[one.seconds for one in summaries],
        commits=_distinct(map(_commit, runs)),
        commands=_distinct(map(_command, runs)),
        versions=same_or_each(
            {**(one.get("packages") or {}), "python": one.get("python")} for one in environments
        ),
        hardware=same_or_each(one.get("hardware") or {} for one in environments),
    )


def _changes(run: RunRecord) -> list[str]:
    # By what was run too: the head is text that anybody edits, and a row may have changed since.
    claimed = claim_differences(run.path / RECORD_NAME, run.config)
    return _distinct((*from_head(run.config_text), *claimed))


def _metrics(summaries: Sequence[RunSummary]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for one in summaries for name in one.metrics)
    return {
        name: [one.metrics.get(name) for one in summaries] for name in names if not is_spread(name)
    }


def _privacy(runs: Sequence[RunRecord]) -> Privacy | None:
    statements = [run.statement for run in runs if run.statement is not None]
    if not statements:
        return None
    audits = [audit_status(run) for run in runs]
    simulated, actual = (
        max(
            (Claim(*epsilon_of(one, side)) for one in statements),
            key=lambda claim: -1.0 if claim.epsilon is None else claim.epsilon,
        )
        for side in ("simulated", "actual")
    )
    unit = str(statements[0].get("unit")).replace("none", "nobody")
    counts = {status: audits.count(status) for status in dict.fromkeys(audits)}
    return Privacy(unit, simulated, actual, counts)


def method_of(config: Mapping[str, Any], setting: str) -> str:
    """A configuration's method and model in a few words, such as "fedavg, gaussian; cnn"."""
    federated = config.get("federated") or {}
    parts = {
        "central": ["pooled data"],
        "central_dp": ["DP-SGD"],
        "local": ["local models"],
        "multitask": ["mocha"],
    }.get(setting, [_name(federated.get("algorithm")) or "fedavg"])
    optimizer = _name(federated.get("central_optimizer"))
    parts += [f"central {optimizer}"] if optimizer not in ("", "sgd") else []
    parts += [_name(federated.get(key)) for key in ("aggregation", "compression", "selection")]
    if setting != "central_dp":
        parts.append(_name((config.get("privacy") or {}).get("mechanism")))
    if (config.get("evaluation") or {}).get("adaptation"):
        parts.append("fine-tuned")
    model = _name(config.get("model"))
    text = ", ".join(part for part in parts if part not in ("", "mean", "none"))
    return f"{text}; {model}" if model else text


def _name(section: Any) -> str:
    return str(section.get("name") or "") if isinstance(section, Mapping) else ""


def _commit(run: RunRecord) -> str:
    """Commit of the code; empty for an installed package."""
    state = run.environment.get("git") or {}
    commit = str(state.get("commit") or "")
    return f"{commit} with changes" if commit and state.get("uncommitted_changes") else commit


def _command(run: RunRecord) -> str:
    """The command as its user typed it, without the folders of one machine; of a script none."""
    program, *words = [str(word) for word in run.environment.get("command") or [""]]
    # The arguments of a script, or of a notebook's kernel, are none of ours.
    is_ours = PureWindowsPath(program).stem in ("pfl-bench", "__main__")
    return shlex.join(["pfl-bench", *map(_without_folders, words)]) if words and is_ours else ""


def _without_folders(word: str) -> str:
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{Path(value).name}" if Path(value).is_absolute() else word


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def same_or_each(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Values that all mappings have; where they differ, every value, joined by " / ".

    Mappings may be results of it.
    """
    every = list(mappings)
    found = {}
    for key in dict.fromkeys(key for one in every for key in one):
        given = [one.get(key) for one in every]
        parts = (value.split(" / ") if isinstance(value, str) else [value] for value in given)
        values = list(dict.fromkeys(part for each in parts for part in each))
        found[key] = values[0] if len(values) == 1 else " / ".join(map(str, values))
    return found
