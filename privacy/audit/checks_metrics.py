"""Do the run's metrics, written line by line beside the ledger, say the same?

Guarantee: checked here is each scalar that both files have, in each round, and that both have the
same rounds. The two are written by different code at different times: a ledger that was written
anew contradicts the metrics, unless these were, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from privacy.accountant import compose_epsilon
from privacy.audit.check import Finding, check
from privacy.audit.checks_accounting import composed
from privacy.audit.evidence import Evidence, IncompleteError
from privacy.audit.inputs import SIDES, AuditInputs, Metrics, as_number, json_equal

Array = NDArray[np.float64]

# Relative; the norm of an update is added up in float32 on any device.
_EXACT, _OF_NORM, _EPSILON = 1e-9, 1e-3, 1e-6
# Lines whose epsilons are computed anew.
_MOST_EPSILONS = 50


@check(
    "metrics",
    "Metrics and ledger have the same rounds, and agree in each scalar that both have; a selected "
    "model is that of the round that they select.",
)
def check_metrics(evidence: Evidence, inputs: AuditInputs) -> Finding:
    found, metrics = Finding(), inputs.metrics
    if metrics is None or not metrics.rows:
        evidence.need_lines()
    if metrics is None:
        raise IncompleteError(
            "metrics.jsonl is missing: nothing in the folder can contradict the ledger's lines"
        )
    found.problems += _problems_of_rounds(evidence, inputs, metrics)
    compared, absent = [], []
    if not found.problems:
        for what, recorded, tolerance in _columns(evidence, inputs):
            values = metrics.column(what)
            if np.isnan(values).all():
                absent.append(what)
                continue
            compared.append(what)
            own = recorded[: len(values)]
            # Numbers that are not finite are null in both.
            same = np.abs(own - values) <= tolerance * np.abs(own)
            same |= np.isnan(own) & np.isnan(values)
            found.where(f"{what} is not what the ledger says", ~same)
        found.problems += _problems_of_epsilon(evidence, inputs, metrics)
        if inputs.summary is not None and metrics.best is not None:
            (name, number), chosen = metrics.best, inputs.summary.get("selected")
            best = f"{name} is best in round {number}"
            found.add(chosen != number, f"the model of round {chosen} was selected, but {best}")
    text = f"{len(metrics.rows)} lines of metrics; compared: {', '.join(compared) or 'nothing'}"
    if absent and not found.problems:
        raise IncompleteError(f"{text}; the metrics do not have {', '.join(absent)}")
    return found.seen(text, compared=compared)


def _problems_of_rounds(evidence: Evidence, inputs: AuditInputs, metrics: Metrics) -> Iterator[str]:
    found, recorded = len(metrics.rows), evidence.rounds
    if not np.array_equal(metrics.column("round"), np.arange(1, found + 1)):
        yield "the metrics' rounds are not 1, 2, ... one line each"
    elif inputs.summary is not None and found != recorded:
        yield f"the metrics have {found} rounds, the ledger {recorded}"
    elif found > recorded:
        yield f"the metrics have {found} rounds, more than the ledger's {recorded}"
    elif inputs.saved is not None and found < inputs.saved.rounds:
        yield f"the metrics have {found} rounds, the newest checkpoint {inputs.saved.rounds}"


def _columns(evidence: Evidence, inputs: AuditInputs) -> Iterator[tuple[str, Array, float]]:
    """Names of metrics, what the ledger has of each, and the relative tolerance."""
    if evidence.has("num_nonfinite"):
        yield "train/num_nonfinite", evidence["num_nonfinite"], _EXACT
    if inputs.configured.unit == "example":
        if evidence.has("steps"):
            yield "train/num_steps", np.diff(evidence["steps"], prepend=0.0), _EXACT
        return
    for metric, name in (
        ("train/cohort_size", "realised_cohort"),
        ("privacy/clip_norm", "clip_norm"),
        ("privacy/update_noise_stddev", "update_noise_stddev"),
        ("privacy/noisy_fraction_unclipped", "noisy_fraction_unclipped"),
    ):
        if evidence.has(name) and not np.isnan(evidence[name]).all():
            yield metric, evidence[name], _EXACT
    canaries = np.nan_to_num(evidence["num_canaries"])
    if evidence.has("num_clipped", "num_contributions") and not canaries.any():
        clipped = evidence["num_clipped"] / np.maximum(1.0, evidence["num_contributions"])
        yield "privacy/fraction_clipped", clipped, _EXACT
    if evidence.has_digests:
        yield "train/update_norm", evidence["release.norm"], _OF_NORM
    optimizer = inputs.central_optimizer
    if not isinstance(optimizer, str) and evidence.rounds <= inputs.configured.num_rounds:
        yield "train/central_learning_rate", optimizer.rates(evidence.rounds), _EXACT


def _problems_of_epsilon(
    evidence: Evidence, inputs: AuditInputs, metrics: Metrics
) -> Iterator[str]:
    """Epsilons are those of the rounds so far, and the last line's the statement's."""
    is_example, own = inputs.configured.unit == "example", str(inputs.statement.get("accountant"))
    for label in SIDES:
        name = f"privacy/epsilon_{label}"
        values, delta = metrics.column(name), as_number(inputs.side(label).get("delta"))
        known = np.flatnonzero(np.isfinite(values))
        if (np.diff(values[known]) < 0.0).any():
            yield f"{name} falls from one line to the next"
        stated, ends = as_number(inputs.side(label).get("epsilon")), inputs.is_final and len(values)
        named = np.array([name in row for row in metrics.rows], dtype=np.bool_)
        if np.isfinite(stated) and (lost := np.flatnonzero(named & ~np.isfinite(values))).size:
            yield f"{name} is no number after round {lost[0] + 1}, but {stated:.6g} is stated"
        if ends and np.isfinite(values[-1]) and not json_equal(float(values[-1]), stated):
            yield f"{name} is {values[-1]:.6g} after the last round, but {stated:.6g} is stated"
        # Of many lines some, the last among them.
        for line in known[:: -(1 + len(known) // _MOST_EPSILONS)]:
            rounds = int(evidence["steps"][line]) if is_example else int(line) + 1
            try:
                part, _ = composed(evidence, inputs, label, rounds)
                epsilon = compose_epsilon([part], delta, own)
            except (ValueError, ZeroDivisionError):
                break  # which the checks of the stated epsilons say
            if not abs(epsilon - values[line]) <= _EPSILON * epsilon:
                yield (
                    f"{name} is {values[line]:.6g} after round {line + 1}, but {own} gives "
                    f"{epsilon:.6g}"
                )
                break
