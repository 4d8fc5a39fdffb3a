"""The audit of a run: its ledger and its data held against what it claims.

Guarantee: an audit reads and never changes. It proves no claim; each check either finds a
contradiction between the claim and the record, or finds none, or says what it could not look at. On
a run that does what it claims, each check fails with probability ``check.LEVEL`` at most (the
canaries' with half of one less their confidence). Whoever can write all of a run's folder can write
a consistent lie: the chain shows accidents and edits, not forgery from end to end.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from privacy.audit.check import Check, judge, skip
from privacy.audit.checks_accounting import check_budget, check_epsilon
from privacy.audit.checks_central import check_central_chain, check_central_step
from privacy.audit.checks_clients import check_report_noise
from privacy.audit.checks_clipping import (
    check_clip_bound,
    check_clip_path,
    check_clip_probe,
    check_count_query,
    check_sum_path,
)
from privacy.audit.checks_cohorts import (
    check_cohort_dispersion,
    check_cohort_total,
    check_users_distinct,
)
from privacy.audit.checks_draws import (
    check_noise_complete,
    check_noise_repeats,
    check_noise_tails,
)
from privacy.audit.checks_independence import (
    check_count_noise,
    check_denominator,
    check_noise_fresh,
    check_noise_independent,
)
from privacy.audit.checks_lags import check_count_fresh, check_noise_lags
from privacy.audit.checks_metrics import check_metrics
from privacy.audit.checks_multiplier import (
    check_delta,
    check_noise_multiplier,
    check_population,
)
from privacy.audit.checks_noise import check_noise_mean, check_noise_scale, check_noise_shape
from privacy.audit.checks_participation import check_participation, check_separation
from privacy.audit.checks_record import (
    CHAIN,
    check_chain,
    check_configuration,
    check_constants,
    check_folder,
    check_rounds,
)
from privacy.audit.checks_referee import check_referee
from privacy.audit.checks_release import (
    check_batchnorm,
    check_canaries,
    check_release_length,
    check_releases,
    check_uploads,
    check_weights,
)
from privacy.audit.checks_replay import (
    check_cohort_replay,
    check_noise_replay,
    check_private_seed,
)
from privacy.audit.checks_reports import check_report_scale
from privacy.audit.evidence import Evidence, gather
from privacy.audit.inputs import AuditInputs
from privacy.errors import LedgerError

# What a ledger of DP-SGD, which has a line an epoch and no observation, cannot show.
_NOT_OF_EXAMPLES = (
    "noise_multiplier",
    "cohort_total",
    "cohort_dispersion",
    "users_distinct",
    "participation",
    "separation",
    "clip_bound",
    "clip_probe",
    "sum_path",
    "count_query",
    "noise_scale",
    "noise_shape",
    "noise_mean",
    "noise_tails",
    "noise_complete",
    "noise_repeats",
    "noise_fresh",
    "noise_lags",
    "noise_independent",
    "denominator",
    "release_length",
    "count_noise",
    "count_fresh",
    "report_noise",
    "weights",
    "uploads",
)


def audit(lines: Iterable[tuple[Mapping[str, Any], str]], inputs: AuditInputs) -> list[Check]:
    """Audit a run: the checks of ``audit_with_evidence``."""
    return audit_with_evidence(lines, inputs)[0]


def audit_with_evidence(
    lines: Iterable[tuple[Mapping[str, Any], str]], inputs: AuditInputs
) -> tuple[list[Check], Evidence | None]:
    """Audit a run.

    Args:
        lines: The ledger's, in order, each with its SHA-256; reading them raises ``LedgerError``
            where the chain is broken, as ``privacy.ledger.iterate_ledger`` does.
        inputs: What the ledger is held against.

    Returns:
        The checks, in a fixed order, and what was gathered from the ledger. A broken chain fails,
        all that rests on the ledger is then skipped, and there is no evidence.
    """
    try:
        evidence = gather(lines)
    except LedgerError as error:
        broken = judge("chain", CHAIN, [str(error)], "the ledger, up to there")
        reason = "the ledger is not sound, so that nothing can be read from it: see chain"
        rest = [skip(name, "Needs a sound ledger.", reason) for name in _names(inputs)]
        return [broken, *rest, check_delta(inputs), check_canaries(inputs)], None
    # A ledger that was tampered with may hold any number. What comes of it is NaN or infinite,
    # which no check takes for a pass.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        inputs = inputs.as_recorded(evidence.constants)
        made = _checks(evidence, inputs)
    return [check_chain(evidence, inputs), *made], evidence


def _names(inputs: AuditInputs) -> list[str]:
    made = _checks(gather([]), inputs)
    return [check.name for check in made if check.name not in ("delta", "canaries")]


def _checks(evidence: Evidence, inputs: AuditInputs) -> list[Check]:
    return [
        check_folder(evidence, inputs),
        check_rounds(evidence, inputs),
        check_constants(evidence),
        check_configuration(evidence, inputs),
        check_metrics(evidence, inputs),
        check_private_seed(evidence, inputs),
        check_cohort_replay(evidence, inputs),
        check_noise_replay(evidence, inputs),
        check_central_step(evidence, inputs),
        check_central_chain(evidence, inputs),
        check_epsilon(evidence, inputs, "simulated"),
        check_epsilon(evidence, inputs, "actual"),
        check_referee(evidence, inputs, "simulated"),
        check_referee(evidence, inputs, "actual"),
        check_budget(evidence, inputs),
        check_delta(inputs),
        check_population(evidence, inputs),
        *_observed_checks(evidence, inputs),
        check_releases(evidence, inputs),
        check_canaries(inputs),
    ]


def _observed_checks(evidence: Evidence, inputs: AuditInputs) -> Iterator[Check]:
    """The checks of what was seen of each round, outside of the code that clips and noises."""
    if inputs.configured.unit == "example":
        for name in _NOT_OF_EXAMPLES:
            yield skip(
                name,
                "What a round did is what is claimed of it.",
                "the ledger of example-level DP has a line an epoch, with no observation of its "
                "steps: batches, gradients and noise are Opacus' own",
            )
        yield check_clip_path(evidence, inputs)
        yield check_batchnorm(evidence, inputs)
        return
    yield check_noise_multiplier(evidence, inputs)
    yield check_cohort_total(evidence)
    yield check_cohort_dispersion(evidence)
    yield check_users_distinct(evidence)
    yield check_participation(evidence)
    yield check_separation(evidence)
    yield check_clip_bound(evidence)
    yield check_clip_probe(evidence, inputs)
    yield check_sum_path(evidence)
    yield check_clip_path(evidence, inputs)
    yield check_count_query(evidence, inputs)
    if inputs.configured.description.reports == "direction":
        yield check_report_scale(evidence, inputs)
    else:
        yield check_noise_scale(evidence, inputs)
    yield check_noise_shape(evidence, inputs)
    yield check_noise_mean(evidence, inputs)
    yield check_noise_tails(evidence, inputs)
    yield check_noise_complete(evidence, inputs)
    yield check_noise_repeats(evidence, inputs)
    yield check_noise_fresh(evidence, inputs)
    yield check_noise_lags(evidence, inputs)
    yield check_noise_independent(evidence, inputs)
    yield check_denominator(evidence, inputs)
    yield check_release_length(evidence, inputs)
    yield check_count_noise(evidence, inputs)
    yield check_count_fresh(evidence, inputs)
    yield check_report_noise(evidence, inputs)
    yield check_weights(evidence)
    yield check_uploads(evidence)
    yield check_batchnorm(evidence, inputs)
