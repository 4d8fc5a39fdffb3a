"""Auditing a run folder: gathers what ``privacy.audit`` holds the ledger against."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pfl_bench.config.loading import ResolvedConfig, load_config
from pfl_bench.files import check_run_folder, read_json, write_json
from pfl_bench.runs import audit_file
from pfl_bench.runs.auditing.dp_sgd import recompute_dp_sgd
from pfl_bench.runs.auditing.inputs import gather_inputs
from pfl_bench.runs.auditing.opened import open_run
from pfl_bench.runs.auditing.outcome import check_outcome
from pfl_bench.runs.auditing.recompute import SECONDS, Mode, Recomputation, recompute_run
from pfl_bench.runs.selection import choice_problems
from pfl_bench.types import RunFolderError
from privacy.audit.auditor import audit
from privacy.audit.check import OUTCOMES, Check, verdict
from privacy.audit.inputs import AuditInputs
from privacy.audit.search import COVERS, TunedRuns, check_selection, tuned_runs
from privacy.ledger import iterate_ledger
from privacy.statement.statement import PrivacyStatement

# For so long an audit computes steps of DP-SGD again.
_RECOMPUTE_SECONDS = 3.0


@dataclass(frozen=True)
class RunAudit:
    """An audit of a run folder.

    ``tuned`` is the bound for a search, None where the ledger could not be read; ``selected_by``
    the metric by which the reported model was chosen, None for the last one; ``ledger_sha256`` is
    empty if there is no ledger; ``not_kept`` says why ``audit.json`` could not be written.
    """

    inputs: AuditInputs
    checks: tuple[Check, ...]
    tuned: TunedRuns | None
    selected_by: str | None
    ledger_sha256: str
    recomputed: Recomputation
    not_kept: str = ""

    def __str__(self) -> str:
        """The verdict in words, and a line for each check that failed or is incomplete."""
        wrong = (one for one in self.checks if one.outcome in ("failed", "incomplete"))
        lines = [self.words, *(f"{one.outcome} {one.name}: {one.evidence}" for one in wrong)]
        return "\n".join(filter(None, [*lines, self.not_kept]))

    @property
    def verdict(self) -> str:
        """Verdict of the checks: "passed", "failed", or "incomplete" (files are lacking)."""
        return verdict(self.checks)

    @property
    def words(self) -> str:
        """The verdict in words: what a pass rests on, and what was left out."""
        again, seen, own = self.recomputed, "", self.inputs.plugins.get("config.yaml")
        status = self.verdict
        if status == "passed" and again.rounds:
            seen = f"recomputed {len(again.rounds)} of {again.of} {again.unit}"
        elif status == "passed":
            status = audit_file.ON_RECORDS
        # The reference calls them too, so that nothing stands against what they read or remember.
        word = f"on the word of plug-ins ({', '.join(own)})" if own and status != "failed" else ""
        said = "; ".join(
            filter(None, (seen, word, audit_file.files_left_out(self.inputs.other_files)))
        )
        return f"{status}: {said}" if said else status

    @property
    def not_covered(self) -> list[str]:
        """Limits of the guarantee: as computed anew, or as stated where that is not known."""
        return list((self.inputs.rebuilt.statement or self.inputs.statement)["not_covered"])

    def to_json_dict(self) -> dict[str, Any]:
        """The audit as ``audit.json`` has it."""
        statement = self.inputs.statement
        outcomes = [check.outcome for check in self.checks]
        return {
            "format_version": audit_file.AUDIT_VERSION,
            "verdict": self.verdict,
            "passed": self.verdict == "passed",
            "words": self.words,
            "recomputed": self.recomputed.to_json_dict(),
            "counts": {key: outcomes.count(key) for key in OUTCOMES},
            "missing": dict(self.inputs.missing),
            "ledger_sha256": self.ledger_sha256,
            "status": statement["status"],
            "unit": statement["unit"],
            "epsilon": {side: statement[side]["epsilon"] for side in ("simulated", "actual")},
            "checks": [check.to_json_dict() for check in self.checks],
            "not_covered": self.not_covered,
            "selected_by": self.selected_by,
            "tuned_runs": self.tuned and {**asdict(self.tuned), "covers": COVERS},
        }


def audit_run(
    folder: Path,
    num_tuned_runs: int = 10,
    data: str | None = None,
    recompute: Mode = "none",
    seconds: float = SECONDS,
) -> RunAudit:
    """Audit a run, finished or not, and write ``audit.json`` into its folder if that can be done.

    The joint epsilon is of ``num_tuned_runs`` runs of a search, this one among them. ``data`` is
    the data file, where it is no longer where the configuration says. A sample of rounds that are
    computed again takes ``seconds``.

    UserInputError if it is no run folder, its run claims no privacy, or a file of it is damaged;
    privacy.errors.PrivacyError if the statement is damaged, or ``num_tuned_runs`` is not allowed.
    """
    resolved, statement = read_claim(folder, data)
    run = open_run(folder, resolved)
    inputs = gather_inputs(run, statement)
    # Before it is read: lines that a run adds meanwhile make the audit stale.
    digest = audit_file.ledger_digest(folder)
    checks, evidence = audit(iterate_ledger(folder / audit_file.LEDGER_FILE), inputs)
    is_central = resolved.config.central is not None
    # A configuration that cannot be run has no rounds to compute.
    cannot_run = is_central or evidence is None or inputs.rebuilt.refused
    mode: Mode = "none" if cannot_run else recompute
    again = recompute_run(run, inputs.seed.value, mode, seconds)
    if mode != "none":
        checks.append(again.to_check())
    if is_central:
        again.mode, again.unit = recompute, "steps"
    if is_central and evidence is not None:
        # Batches and noise are drawn for as long again as sums are computed.
        limits = {"none": _RECOMPUTE_SECONDS, "first": 0.0, "all": math.inf, "sample": seconds / 2}
        made = {
            check.name: check
            for check in recompute_dp_sgd(run, inputs, evidence, limits[recompute])
        }
        checks = [*(check for check in checks if check.name not in made), *made.values()]
        again.of = len(evidence.steps)
        again.rounds = [*range(1, 1 + int(made["recomputation"].numbers.get("steps", 0)))]
    allowed = {"none": 0.0, "all": math.inf}.get(recompute, seconds)
    checks.append(check_outcome(run, inputs, allowed))
    selection = read_json(folder / "selection.json")
    if selection is not None:
        checks.append(check_selection(selection, evidence, inputs, choice_problems(folder)))
    done = RunAudit(
        inputs=inputs,
        checks=tuple(checks),
        tuned=None if evidence is None else tuned_runs(evidence, inputs, num_tuned_runs),
        selected_by=resolved.config.evaluation.select_best,
        ledger_sha256=digest,
        recomputed=again,
    )
    try:
        write_json(folder / audit_file.AUDIT_FILE, done.to_json_dict())
    except OSError as error:  # of somebody else's folder, or a full disk: the verdict stands
        path = error.filename or folder / audit_file.AUDIT_FILE
        why = f"{path} cannot be written ({error.strerror})"
        done = replace(done, not_kept=f"this audit is not kept: {why}; to keep it, audit a copy")
    return done


def read_claim(folder: Path, data: str | None) -> tuple[ResolvedConfig, dict[str, Any]]:
    """Configuration and privacy statement of a run; RunFolderError if it claims no privacy."""
    check_run_folder(folder)
    # YAML reads what JSON writes: quotes, and every character of a path.
    overrides = () if data is None else (f"task.data={json.dumps(data)}",)
    resolved = load_config(folder / "config.yaml", overrides)
    statement = read_json(folder / "privacy.json")
    if not resolved.config.is_private:
        raise RunFolderError(
            f"{folder}: the run claims no privacy (setting {resolved.config.setting}), so that "
            "there is nothing to audit; name the folder of a private run"
        )
    if statement is None:
        raise RunFolderError(
            f"{folder}: has no privacy.json, though its configuration is private; it did not "
            "start (then run or resume it), or the file was lost: restore it, or run the row in "
            "another folder"
        )
    if resolved.config.federated is not None and resolved.config.federated.shadow is not None:
        raise RunFolderError(
            f"{folder}: a shadow run of pfl-bench attack, from whose cohorts half of the users are "
            "left out after the draw, so that its ledger is not that of a run; audit the run that "
            "was attacked"
        )
    PrivacyStatement.from_json_dict(statement)
    if statement["rounds"] < 0:
        raise RunFolderError(
            f"{folder / 'privacy.json'}: 'rounds' is {statement['rounds']}; expected 0 or more: "
            "restore the file from a copy, or run the row again"
        )
    return resolved, statement
