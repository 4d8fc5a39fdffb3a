"""The audit of a run: its ledger and its data held against what it claims.

Guarantee: an audit reads and never changes. It proves no claim; each check either finds a
contradiction between the claim and the record, or finds none, or says what it could not look at. On
a run that does what it claims, each check fails with probability ``check.LEVEL`` at most (the
canaries' with half of one less their confidence, that of attacks on users with one less theirs).
Whoever can write all of a run's folder can write a consistent lie: the chain shows accidents and
edits, not forgery from end to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from privacy.audit import (
    checks_accounting,
    checks_central,
    checks_clipping,
    checks_cohorts,
    checks_metrics,
    checks_noise,
    checks_record,
    checks_referee,
    checks_release,
    checks_replay,
    checks_reports,
    checks_statement,
)
from privacy.audit.check import Check, Finding, conclude
from privacy.audit.evidence import Evidence, gather
from privacy.audit.inputs import SIDES, AuditInputs
from privacy.errors import LedgerError

_OF_THE_RECORD = (
    checks_record.check_folder,
    checks_record.check_rounds,
    checks_record.check_constants,
    checks_record.check_configuration,
    checks_statement.check_statement,
    checks_record.check_plugins,
    checks_metrics.check_metrics,
    checks_replay.check_private_seed,
    checks_replay.check_cohort_replay,
    checks_replay.check_noise_replay,
    checks_central.check_central_step,
    checks_central.check_central_chain,
)
# Of what was seen of each round, outside of the code that clips and noises.
_OBSERVED = (
    checks_accounting.check_noise_multiplier,
    checks_cohorts.check_users_distinct,
    checks_cohorts.check_participation,
    checks_clipping.check_clip_bound,
    checks_clipping.check_clip_probe,
    checks_clipping.check_clip_path,
    checks_noise.check_noise_scale,
    checks_reports.check_report_noise,
)
# What can be told without a ledger.
_OF_INPUTS = ("delta", "canaries")


def audit(
    lines: Iterable[tuple[Mapping[str, Any], str]], inputs: AuditInputs
) -> tuple[list[Check], Evidence | None]:
    """Audit a run: the checks, in a fixed order, and what was gathered from the ledger.

    ``lines`` are the ledger's, as ``privacy.ledger.iterate_ledger`` has them; reading them raises
    ``LedgerError`` where the chain is broken. That fails, all that rests on the ledger is then
    skipped, and there is no evidence.
    """
    try:
        evidence = gather(lines)
    except LedgerError as error:
        chain, checks = checks_record.check_chain, _checks(gather([]), inputs)
        reason = "the ledger is not sound, so that nothing can be read from it: see chain"
        broken = Finding([str(error)]).seen("the ledger, up to there")
        of_inputs = [check for check in checks if check.name in _OF_INPUTS]
        rest = [check.name for check in checks if check.name not in _OF_INPUTS]
        return [
            conclude(chain.name, chain.text, broken),
            *(Check(name, "skipped", "Needs a sound ledger.", reason) for name in rest),
            *of_inputs,
        ], None
    inputs = inputs.as_recorded(evidence.constants)
    return [checks_record.check_chain(evidence, inputs), *_checks(evidence, inputs)], evidence


def _checks(evidence: Evidence, inputs: AuditInputs) -> list[Check]:
    return [
        *(check(evidence, inputs) for check in _OF_THE_RECORD),
        *(checks_accounting.check_epsilon(evidence, inputs, side) for side in SIDES),
        *(checks_referee.check_referee(evidence, inputs, side) for side in SIDES),
        checks_accounting.check_budget(evidence, inputs),
        checks_accounting.check_delta(evidence, inputs),
        checks_accounting.check_population(evidence, inputs),
        *_observed_checks(evidence, inputs),
        checks_release.check_releases(evidence, inputs),
        checks_release.check_canaries(evidence, inputs),
        *([] if inputs.attacks is None else [checks_release.check_attacks(evidence, inputs)]),
    ]


def _observed_checks(evidence: Evidence, inputs: AuditInputs) -> Iterator[Check]:
    """The checks of what was seen of each round."""
    if inputs.configured.unit != "example":
        for check in _OBSERVED:
            # Reports have no law element by element.
            is_of_reports = check is checks_noise.check_noise_scale and (
                inputs.configured.description.reports == "direction"
            )
            yield (checks_reports.check_report_scale if is_of_reports else check)(evidence, inputs)
        return
    reason = (
        "no law is tested on the record of example-level DP: where data and seed are at hand, "
        "its steps are computed again (cohort_replay, noise_replay, recomputation)"
    )
    claim = "What a round did is what is claimed of it."
    # What a ledger of DP-SGD, which has a line an epoch, can show by itself.
    shown = checks_clipping.check_clip_path
    others = (check.name for check in _OBSERVED if check is not shown)
    yield from (Check(name, "skipped", claim, reason) for name in others)
    yield shown(evidence, inputs)
    yield checks_noise.check_statistics(evidence, inputs)
