"""The outcome of a finished run, as its ``summary.json`` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfl_bench.types.errors import RunFolderError

# Of ``canaries.json``, what the summary repeats.
CANARIES_IN_SUMMARY = ("kind", "lower_bound", "confidence", "upper_bound")
# Names that a trainer gives up to the evaluation of the training split, where that is asked for.
STEP_NAMES = {"train/loss": "train/step_loss", "train/num_examples": "train/step_examples"}


def as_float(value: Any) -> float | None:
    """Read a number as run folders write it, non-finite as texts; None of what is no number."""
    if isinstance(value, bool):
        return None
    is_number = isinstance(value, int | float) or value in ("nan", "inf", "-inf")
    return float(value) if is_number else None


def step_unit(setting: str) -> str:
    """Unit of a line of a setting's metrics: "epoch" of central training, else "round"."""
    return "epoch" if setting in {"central", "central_dp"} else "round"


def describe_choice(selected_by: str, metric: str) -> str:
    """Say that a model was chosen by a metric of the very split that it is measured on, or nothing.

    Such a value is optimistic: it is the best of several on those examples.
    """
    if not selected_by or selected_by.partition("/")[0] != metric.partition("/")[0]:
        return ""
    return f"the model was chosen by {selected_by}, on the split that it is measured on"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedResult:
    """A published number, and what a run measured of it; None where nothing says it.

    Attributes:
        statistic: The number of a run that it is of: "last" or "best_over_rounds".
        sd: Standard deviation over ``seeds`` seeds.
        tolerance: Largest absolute difference that does not matter.
        measured_here: Whether the published value is one of this toolkit.
        chance: What guessing gives.
        difference: Measured less published.
        verdict: Of this run alone; empty for a run that is not finished.
        why: Reason of the verdict.
    """

    metric: str
    statistic: str
    published: float | None
    sd: float | None
    seeds: int | None
    tolerance: float | None
    source: str | None
    measured_here: bool
    chance: float | None
    measured: float | None
    difference: float | None
    verdict: str
    why: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> ExpectedResult:
        """Read an entry of "expected"; what older runs did not write has its default."""
        numbers = ("published", "sd", "tolerance", "chance", "measured", "difference")
        return cls(
            metric=str(entry["metric"]),
            statistic=str(entry.get("statistic", "last")),
            seeds=entry.get("seeds"),
            source=entry.get("source"),
            measured_here=bool(entry.get("measured_here")),
            verdict=str(entry.get("verdict") or ""),
            why=str(entry.get("why") or ""),
            **{name: as_float(entry.get(name)) for name in numbers},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Outcome of a finished run.

    Attributes:
        variant: Variant of the data.
        metrics: Final metrics by full name, such as "test/accuracy"; they may not be finite.
        best: Best value over rounds, by full name.
        status: "finished" or "budget_exhausted".
        seconds: Those of all its processes, each up to its last checkpoint if it was cut off.
        diverged: What ``pfl_bench.runs.divergence`` found; None for nothing.
        departure: Why the model is not the row's; empty if it is.
        edited: Why the outcome is not that of ``config.yaml``; empty if it is.
        systems: Totals of computation, communication and simulated devices.
        budgets: What it cost to reach values, an entry each.
        privacy: The privacy statement; None for a run that claims nothing.
        data: Facts about the data.
        metric_directions: What ``pfl_bench.metrics.MetricDirections`` writes; None in older runs.
        selection: How the model was chosen among those of the rounds; None for the last model.
    """

    name: str
    setting: str
    task: str
    variant: str
    seed: int
    metrics: Mapping[str, float]
    expected: tuple[ExpectedResult, ...]
    best: Mapping[str, float]
    status: str
    rounds: int | None
    seconds: float | None
    diverged: Mapping[str, Any] | None
    departure: str
    edited: str
    pinned_nonce: bool
    fine_tuned: bool
    settings_sha256: str | None
    model_sha256: str | None
    systems: Mapping[str, Any]
    budgets: tuple[Mapping[str, Any], ...]
    privacy: Mapping[str, Any] | None
    data: Mapping[str, Any]
    metric_directions: Mapping[str, Any] | None
    selection: Mapping[str, Any] | None

    @property
    def selected_by(self) -> str:
        """Metric by which the model was chosen; empty for the last model."""
        return str((self.selection or {}).get("metric") or "")

    @classmethod
    def of(cls, document: Mapping[str, Any], index: int = 0) -> RunSummary:
        """Read the content of a ``summary.json``, the one of ``index`` among several.

        Raises:
            RunFolderError: It lacks a member that a table needs, or has one of another kind.
        """
        _check(document, index)
        numbers = {name: as_float(value) for name, value in document["metrics"].items()}
        best = document.get("best") or {}
        values = {name: as_float(entry.get("value")) for name, entry in best.items()}
        plain: dict[str, Any] = {
            **{key: document[key] for key in ("name", "setting", "variant", "seed")},
            **{key: str(document.get(key) or "") for key in ("task", "departure", "edited")},
            **{key: document.get(key) or {} for key in ("systems", "data")},
            **{key: document.get(key) for key in ("rounds", "privacy", "metric_directions")},
            **{key: document.get(key) for key in ("settings_sha256", "model_sha256", "selection")},
        }
        return cls(
            **plain,
            metrics={name: value for name, value in numbers.items() if value is not None},
            expected=tuple(map(ExpectedResult.of, document["expected"])),
            best={name: value for name, value in values.items() if value is not None},
            status=str(document.get("status") or "finished"),
            seconds=as_float(document.get("seconds")),
            diverged=document.get("diverged") or None,
            pinned_nonce=bool(document.get("pinned_nonce")),
            fine_tuned=bool(document.get("fine_tuned")),
            budgets=tuple(document.get("budgets") or ()),
        )


def _check(document: Mapping[str, Any], index: int) -> None:
    """Refuse a summary that lacks members of which lines are made."""
    kinds: dict[str, Any] = {
        "name": str,
        "setting": str,
        "variant": str,
        "seed": int,
        "metrics": Mapping,
        "expected": Sequence,
    }
    named = f"summary {index} ({document.get('name', 'without a name')!r})"
    for key, kind in kinds.items():
        if not isinstance(document.get(key), kind):
            raise RunFolderError(
                f"{named}: {key!r} is {document.get(key)!r}; expected a {kind.__name__.lower()} as "
                "pfl-bench writes it into summary.json; run the row again"
            )
    found = document.get("diverged")
    if found and not (isinstance(found, Mapping) and {"metric", "round", "unit"} <= set(found)):
        raise RunFolderError(
            f"{named}: 'diverged' is {found!r}; expected null or an object as pfl-bench writes it; "
            "run the row again"
        )
    for entry in document["expected"]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("metric"), str):
            raise RunFolderError(
                f"{named}: an entry of 'expected' is {entry!r}; expected an object that names its "
                "'metric'; run the row again"
            )
