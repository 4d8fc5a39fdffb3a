"""The audits of runs, for a page: what ``pfl-bench audit`` left in their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_bench.files import read_json
from pfl_bench.report.results import format_epsilon
from pfl_bench.report.run_folder import RunRecord
from pfl_bench.report.table import Cell, Table
from pfl_bench.runs.audit_file import (
    AUDIT_FILE,
    AUDIT_VERSION,
    NOT_LOOKED_AT,
    ON_RECORDS,
    ledger_digest,
)
from pfl_bench.types import RunFolderError, as_float

# Failures first, then what was not looked at: that is what a reader should see.
_ORDER = ("failed", "incomplete", "skipped", "passed")
_COUNTED = ("passed", "failed", "incomplete", "skipped")


def audits(groups: Mapping[str, Sequence[RunRecord]]) -> list[dict[str, Any]]:
    """Put the audits of all runs that have one into words; RunFolderError if one is damaged.

    They are stale if ledger or claim have changed since; "tuning" is a sentence on what a search
    over so many runs would cost, empty where unknown.
    """
    return [
        _words(name, run, document)
        for name, group in groups.items()
        for run in group
        if (document := _read(run.path / AUDIT_FILE)) is not None
    ]


def audit_status(run: RunRecord) -> str:
    """Status of a private run's audit; "stale" if it is of another claim, or "not audited"."""
    document = _read(run.path / AUDIT_FILE) if run.is_audit_believed else None
    if document is None:
        return "not audited"
    if _is_stale(run, document):
        return "stale"
    status = _status(document)
    has_others = status.startswith("passed") and NOT_LOOKED_AT in str(document.get("words"))
    return f"{status}; files not looked at" if has_others else status


def _is_stale(run: RunRecord, document: Mapping[str, Any]) -> bool:
    """Whether a run's ledger, unit or epsilons are not those that were audited."""
    if ledger_digest(run.path) != document.get("ledger_sha256"):
        return True
    stated = run.statement or {}
    now = {side: (stated.get(side) or {}).get("epsilon") for side in ("simulated", "actual")}
    audited = (document.get("unit", stated.get("unit")), document.get("epsilon", now))
    return audited != (stated.get("unit"), now)


def _read(path: Path) -> dict[str, Any] | None:
    document = read_json(path)
    if document is None:
        return None
    known = document.get("format_version") == AUDIT_VERSION
    if not known or not isinstance(document.get("checks"), list):
        raise RunFolderError(
            f"{path} is not an audit of version {AUDIT_VERSION}; run `pfl-bench audit "
            f"{path.parent}` again, or delete the file"
        )
    return document


def _words(name: str, run: RunRecord, document: Mapping[str, Any]) -> dict[str, Any]:
    counts = document.get("counts") or {}
    counted = ", ".join(f"{counts.get(key, 0)} {key}" for key in _COUNTED)
    # Behind the verdict: how much was computed again, and what was not looked at.
    _, _, said = str(document.get("words") or "").partition(": ")
    keys = ("name", "outcome", "claim", "evidence")
    checks = [tuple(str(check.get(key, "")) for key in keys) for check in document["checks"]]
    # A stable sort: within an outcome, the audit's own order stays.
    checks.sort(key=lambda check: _ORDER.index(check[1]) if check[1] in _ORDER else -1)
    lines = [
        (name.replace("_", " "), outcome_cell(outcome), claim, evidence)
        for name, outcome, claim, evidence in checks
    ]
    return {
        "title": f"{name}, seed {run.seed}",
        "status": _status(document),
        "counts": "; ".join(filter(None, (said, counted))),
        "is_stale": _is_stale(run, document),
        "checks": Table.of(("check", *keys[1:]), lines, to_left=range(4)),
        "tuning": _tuning(document.get("tuned_runs") or {}),
    }


def outcome_cell(outcome: str, detail: str = "") -> Cell:
    """An outcome of a check or an audit, in its colour."""
    color = {"passed": "reproduced", "failed": "differs"}.get(outcome, "other")
    return Cell(outcome, outcome, detail, style=f"verdict {color}")


def _status(document: Mapping[str, Any]) -> str:
    """Verdict of an audit, which says if it rests on records alone; earlier versions knew two."""
    known, words = document.get("verdict"), str(document.get("words"))
    if known == "passed" and words.startswith(ON_RECORDS):
        return ON_RECORDS
    if known in ("passed", "failed", "incomplete"):
        return str(known)
    return "passed" if document.get("passed") is True else "failed"


def _tuning(tuned: Mapping[str, Any]) -> str:
    epsilons = tuned.get("epsilon") or {}
    values = {side: format_epsilon(as_float(value), None) for side, value in epsilons.items()}
    if not values:
        return ""
    parts = ", ".join(f"epsilon ({side}) {value}" for side, value in values.items())
    return f"A search over {tuned.get('runs')} such runs: {parts}. {tuned.get('covers')}"
