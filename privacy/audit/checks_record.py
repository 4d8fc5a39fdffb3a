"""Is the record whole, and is it the record of what was configured and stated?

Guarantee: checked here is that the lines that summary and checkpoint name are the ledger's (its
reading checks that each line follows from the one before, and these that the last one is what it
was), that no round is missing or added at either end, that all rounds ran under one set of
constants, and that these are the statement's and the configuration's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from privacy.audit.check import Check, judge, lack, skip
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number, json_equal

# How each scheme is accounted: written down here once more, independent of the plan's table.
ADJACENCY = {
    "poisson": "add-or-remove-one",
    "cyclic_poisson": "add-or-remove-one",
    "full": "add-or-remove-one",
    "fixed_size": "replace-one",
    "selected": "zero-out",
}
SIDES = ("simulated", "actual")
CHAIN = (
    "Each line of the ledger holds the digest of the one before, rounds follow one another without "
    "a gap, and the lines that the summary and the newest checkpoint name are these."
)


def check_folder(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The folder holds what the run has written."""
    name, claim = "folder", "The run's folder holds everything that the run has written."
    if not evidence.rounds and not inputs.is_final:
        return skip(name, claim, "the ledger has no line yet")
    if not inputs.missing:
        return judge(name, claim, [], "checkpoints, metrics, environment, summary as far as due")
    parts = [f"{file} is missing: it would show {what}" for file, what in inputs.missing.items()]
    return lack(name, claim, "; ".join(parts))


def check_chain(evidence: Evidence, inputs: AuditInputs) -> Check:
    """A ledger that could be read is the one that summary and checkpoint were written beside.

    Args:
        evidence: A ledger whose lines follow from one another.
        inputs: Summary and checkpoint; of what they say of other rounds, ``check_rounds`` tells.
    """
    names = []
    if inputs.summary is not None:
        rounds, digest = inputs.summary.get("rounds"), inputs.summary.get("ledger_digest")
        names.append(("the summary", rounds, digest))
    if inputs.saved is not None:
        names.append(("the newest checkpoint", inputs.saved.rounds, inputs.saved.digest))
    problems, agreeing = [], []
    for where, rounds, digest in names:
        # Nothing released, or written by a version that did not name its ledger.
        if digest is None or type(rounds) is not int or not 0 <= rounds <= evidence.rounds:
            continue
        if digest == evidence.digest(rounds):
            agreeing.append(where)
            continue
        problems.append(
            f"{where} names the line {str(digest)[:12]}... of round {rounds}, but the ledger's is "
            f"{evidence.digest(rounds)[:12]}...: it was altered, or is another run's"
        )
    lines = f"{evidence.rounds} lines" if evidence.rounds else "the ledger has no line yet"
    by = f"named by {' and '.join(agreeing)}" if agreeing else "named by no other file"
    return judge("chain", CHAIN, problems, f"{lines}; {by}", {"named_by": agreeing})


def check_rounds(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Rounds 1 to T are there, and T is what statement, summary and checkpoint say."""
    claim = (
        "The ledger has each round that was released, and no other: as many as the statement, the "
        "summary and the newest checkpoint say."
    )
    found, stated = evidence.rounds, as_number(inputs.statement.get("rounds"))
    problems: list[str] = []
    if inputs.configured.unit == "example":
        problems += _step_problems(evidence, inputs)
    elif inputs.is_final and stated != found:
        problems.append(f"the ledger has {found} rounds, the statement {stated:g}")
    elif not inputs.is_final and not found <= stated:
        problems.append(f"the ledger has {found} rounds, more than the {stated:g} planned")
    if found > inputs.configured.num_rounds:
        problems.append(f"{inputs.configured.num_rounds} were configured")
    summary = inputs.summary
    if summary is not None:
        if summary.get("rounds") != found:
            problems.append(f"the summary says {summary.get('rounds')}")
        if not inputs.is_final:
            problems.append("the run has a summary, but its statement is only a planned one")
    saved = inputs.saved
    if saved is not None:
        if saved.rounds > found:
            problems.append(f"the newest checkpoint is of round {saved.rounds}")
        elif summary is not None and saved.rounds != found:
            problems.append(f"the last checkpoint of a finished run is of round {saved.rounds}")
    numbers = {
        "ledger": found,
        "statement": stated,
        "summary": None if summary is None else summary.get("rounds"),
        "checkpoint": None if saved is None else saved.rounds,
    }
    evidence_text = f"{found} lines; " + (
        "finished" if inputs.is_final else f"unfinished, held against the {stated:g} planned"
    )
    return judge("rounds", claim, problems, evidence_text, numbers)


def _step_problems(evidence: Evidence, inputs: AuditInputs) -> Iterator[str]:
    """What is wrong with the steps of DP-SGD, which has a line an epoch."""
    steps, stated = evidence["steps"], as_number(inputs.statement.get("rounds"))
    if not len(steps):
        if inputs.is_final and stated:
            yield f"the ledger has no line, the statement {stated:g} steps"
        return
    if np.isnan(steps).any():
        yield "a line does not say how many steps were taken"
        return
    each = np.diff(steps, prepend=0.0)
    if (each != each[0]).any() or each[0] < 1:
        yield "epochs do not all have the same number of steps"
    if inputs.is_final and steps[-1] != stated:
        yield f"the ledger ends at step {steps[-1]:g}, the statement at {stated:g}"
    if steps[-1] > stated:
        yield f"the ledger goes to step {steps[-1]:g}, beyond the {stated:g} stated"
    units = inputs.data.num_units
    batch = inputs.configured.cohort_size
    if units is not None and each[0] != math.ceil(units / batch):
        yield (
            f"an epoch has {each[0]:g} steps, but {units} examples in batches of {batch:g} are "
            f"{math.ceil(units / batch)}"
        )


def check_constants(evidence: Evidence) -> Check:
    """All rounds ran under the same constants."""
    claim = (
        "Mechanism, sampling, noise, cohorts, populations, delta and data never change, nor what "
        "is recorded."
    )
    if not evidence.rounds:
        return skip("constants", claim, "the ledger has no line yet")
    problems = []
    for before, after in zip(evidence.segments, evidence.segments[1:], strict=False):
        keys = sorted({*before.constants, *after.constants})
        changed = [key for key in keys if before.constants.get(key) != after.constants.get(key)]
        problems.append(f"{', '.join(changed)} changed in round {after.first_round}")
    problems += [
        f"{name} is not recorded in {count} of {evidence.rounds} lines"
        for name, count in evidence.partly.items()
    ]
    held = ", ".join(evidence.constants)
    return judge(
        "constants",
        claim,
        problems,
        f"{evidence.rounds} lines; in each: {held}",
        {"segments": len(evidence.segments)},
    )


def check_configuration(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The constants are those of the configuration and of the statement."""
    claim = "What the ledger records as constant is what was configured and what is stated."
    constants = evidence.constants
    if not constants:
        return skip("configuration", claim, "the ledger has no line yet")
    compared = 0
    problems = []
    for name, recorded, source, expected in _comparisons(inputs, constants):
        compared += 1
        if not json_equal(recorded, expected):
            problems.append(f"{name} is {recorded!r} in the ledger and {expected!r} in {source}")
    problems += _derived_problems(inputs, constants)
    return judge(
        "configuration",
        claim,
        problems,
        f"{compared} comparisons with configuration, statement and data",
        {"compared": compared},
    )


def _comparisons(inputs: AuditInputs, constants: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Name, value in the ledger, where else it is said, value there."""
    configured, statement, data = inputs.configured, inputs.statement, inputs.data
    config = "the configuration"
    plain = {
        "unit": configured.unit,
        "mechanism": configured.mechanism,
        "mechanism_options": dict(configured.mechanism_options),
        "sampling": configured.sampling,
        "separation": configured.separation,
        "max_participations": configured.max_participations,
        "accountant": configured.accountant,
        "weighting": configured.weighting,
    }
    for key, expected in plain.items():
        if key in constants:
            yield key, constants[key], config, expected
    for key in ("unit", "mechanism", "adjacency", "accountant", "num_parameters"):
        if key in constants:
            yield key, constants[key], "the statement", statement.get(key)
    if "denominator" in constants:
        yield "denominator", constants["denominator"], config, configured.cohort_size
    if data.checksum is not None and "data" in constants:
        yield "data", constants["data"], "the data", data.checksum
    if data.num_parameters is not None and "num_parameters" in constants:
        yield "num_parameters", constants["num_parameters"], "the model", data.num_parameters
    built = inputs.built_description
    if built is not None and "mechanism_description" in constants:
        recorded = constants["mechanism_description"]
        read = inputs.configured.description
        same = read is not built and read.agrees(built)
        expected = recorded if same else built.to_json_dict()
        yield "mechanism_description", recorded, "the mechanism's module", expected
    for label in SIDES:
        recorded, stated, where = constants.get(label) or {}, inputs.side(label), "the statement"
        for key in sorted({*recorded} & {*stated}):
            yield f"{label}.{key}", recorded[key], where, stated[key]
        scheme = stated.get("sampling")
        yield f"{label}.sampling", constants.get("sampling"), where, scheme
        apart = stated.get("separation", 1)
        yield f"{label}.separation", constants.get("separation", 1), "the statement", apart
        cap = stated.get("max_participations")
        yield f"{label}.max_participations", constants.get("max_participations"), where, cap
    actual, simulated = constants.get("actual") or {}, constants.get("simulated") or {}
    yield "actual.cohort_size", actual.get("cohort_size"), config, configured.cohort_size
    cohort = configured.noise_cohort_size or configured.cohort_size
    yield "simulated.cohort_size", simulated.get("cohort_size"), config, cohort
    if configured.noise_multiplier is not None:
        noise = simulated.get("noise_multiplier")
        yield "simulated.noise_multiplier", noise, config, configured.noise_multiplier
    if configured.delta is not None:
        for label, side in (("simulated", simulated), ("actual", actual)):
            yield f"{label}.delta", side.get("delta"), config, configured.delta
    # The statement's own head repeats the deployment's multiplier.
    noise = simulated.get("noise_multiplier")
    yield "simulated.noise_multiplier", noise, "the statement", statement.get("noise_multiplier")
    if inputs.summary is not None:
        yield "privacy.json", statement, "the summary", inputs.summary.get("privacy")


def _derived_problems(inputs: AuditInputs, constants: Any) -> Iterator[str]:
    """What follows from other constants, and is not so."""
    sampling = constants.get("sampling")
    expected = ADJACENCY.get(str(sampling))
    if inputs.configured.randomizes_clients:
        # A report hides which of two values it is of, not that there is one.
        expected = "replace-one"
    if constants.get("adjacency") != expected:
        yield (
            f"adjacency is {constants.get('adjacency')!r}, but {sampling} sampling is accounted "
            f"under {expected!r}"
        )
    separation = as_number(constants.get("separation", 1))
    sides = {label: constants.get(label) or {} for label in SIDES}
    for label, side in sides.items():
        rate = as_number(side.get("cohort_size")) * separation
        rate /= as_number(side.get("population_size")) or math.nan
        if sampling == "selected":
            rate = 1.0
        for where, recorded in (("ledger", side), ("statement", inputs.side(label))):
            value = recorded.get("sampling_probability")
            if value is not None and not json_equal(value, rate):
                yield f"{label}.sampling_probability is {value!r} in the {where}, not {rate:.6g}"
    cohorts = [as_number(sides[label].get("cohort_size")) for label in SIDES]
    noises = [as_number(sides[label].get("noise_multiplier")) for label in SIDES]
    scaled = noises[0] * cohorts[1] / (cohorts[0] or math.nan)
    if not math.isclose(noises[1], scaled, rel_tol=1e-9):
        yield (
            f"actual.noise_multiplier is {noises[1]:.9g}, but {noises[0]:.9g} with cohorts of "
            f"{cohorts[1]:g} for {cohorts[0]:g} is {scaled:.9g}"
        )
