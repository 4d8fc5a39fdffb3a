"""Is the record whole, and is it the record of what was configured and stated?

Guarantee: checked here is that the lines that summary and checkpoint name are the ledger's (its
reading checks that each line follows from the one before, and these that the last one is what it
was), that no round is missing or added at either end, that all rounds ran under one set of
constants, and that these are the statement's and the configuration's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from privacy.audit.check import Finding, check
from privacy.audit.described import ADJACENCY, own_users
from privacy.audit.evidence import STRIPPED, Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import SIDES, AuditInputs, as_number, differing, json_equal

_OF_ANY = {"weighting": "uniform", "uploads": ["update"], "batchnorm_layers": []}


@check(
    "folder",
    "Of what the run has written, its folder lacks nothing that an audit needs; checkpoints, "
    "metrics, ledger, summary and environment hold nothing that no run writes.",
)
def check_folder(evidence: Evidence, inputs: AuditInputs) -> Finding:
    if not inputs.is_final:
        evidence.need_lines()
    parts = [f"{file} is missing: it would show {what}" for file, what in inputs.missing.items()]
    found = Finding([*inputs.foreign])
    found.problems += (f"ledger.jsonl: {name}: no run writes it" for name in evidence.foreign)
    if parts and not found.problems:
        raise IncompleteError("; ".join(parts))
    others = f"; not looked at: {', '.join(inputs.other_files)}" if inputs.other_files else ""
    texts = f"; text that is not checked: {', '.join(inputs.texts)}" if inputs.texts else ""
    mode = inputs.mode_for_others
    readers = f"; others on this machine can read it (mode {mode}): chmod 700" if mode else ""
    due = "no checkpoint, metrics, environment or summary that is due is missing"
    return found.seen(f"{due}{others}{texts}{readers}")


@check(
    "chain",
    "Each line of the ledger holds the digest of the one before, rounds follow one another without "
    "a gap, and the lines that the summary and the newest checkpoint name are these.",
)
def check_chain(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """A ledger that could be read is the one that summary and checkpoint were written beside.

    What these say of rounds that the ledger has not, ``check_rounds`` tells.
    """
    summary, saved = inputs.summary or {}, inputs.saved
    found, agreeing = Finding(), []
    for where, rounds, digest in (
        ("the summary", summary.get("rounds"), summary.get("ledger_digest")),
        ("the newest checkpoint", saved and saved.rounds, saved and saved.digest),
    ):
        # Nothing released, or written by a version that did not name its ledger.
        if digest is None or type(rounds) is not int or not 0 <= rounds <= evidence.rounds:
            continue
        own = evidence.digest("line", rounds)
        if digest == own:
            agreeing.append(where)
            continue
        found.problems.append(
            f"{where} names the line {str(digest)[:12]}... of round {rounds}, but the ledger's is "
            f"{own[:12]}...: it was altered, or is another run's"
        )
    lines = f"{evidence.rounds} lines" if evidence.rounds else "the ledger has no line yet"
    by = f"named by {' and '.join(agreeing)}" if agreeing else "named by no other file"
    return found.seen(f"{lines}; {by}", named_by=agreeing)


@check(
    "rounds",
    "The ledger has each round that was released, and no other: as many as the statement, the "
    "summary and the newest checkpoint say.",
)
def check_rounds(evidence: Evidence, inputs: AuditInputs) -> Finding:
    number, stated = evidence.rounds, as_number(inputs.statement.get("rounds"))
    found, summary, saved = Finding(), inputs.summary, inputs.saved
    if inputs.configured.unit == "example":
        found.problems += _step_problems(evidence, inputs)
    elif inputs.is_final:
        found.add(stated != number, f"the ledger has {number} rounds, the statement {stated:g}")
    else:
        more = f"the ledger has {number} rounds, more than the {stated:g} planned"
        found.add(not number <= stated, more)
    configured = inputs.configured.num_rounds
    found.add(number > configured, f"{configured} were configured")
    summarised = None if summary is None else summary.get("rounds")
    if summary is not None:
        found.add(summarised != number, f"the summary says {summarised}")
        planned = "the run has a summary, but its statement is only a planned one"
        found.add(not inputs.is_final, planned)
    if saved is not None and saved.rounds > number:
        found.problems.append(f"the newest checkpoint is of round {saved.rounds}")
    elif saved is not None and summary is not None and saved.rounds != number:
        last = f"the last checkpoint of a finished run is of round {saved.rounds}"
        found.problems.append(last)
    state = "finished" if inputs.is_final else f"unfinished, held against the {stated:g} planned"
    return found.seen(
        f"{number} lines; {state}",
        ledger=number,
        statement=stated,
        summary=summarised,
        checkpoint=None if saved is None else saved.rounds,
    )


def _step_problems(evidence: Evidence, inputs: AuditInputs) -> Iterator[str]:
    """Errors in the steps of DP-SGD, which has a line an epoch."""
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
    observed = evidence.steps
    if not observed.missing and observed.counts != each.tolist():
        yield "lines observe other numbers of steps than they say were taken"
    if inputs.is_final and steps[-1] != stated:
        yield f"the ledger ends at step {steps[-1]:g}, the statement at {stated:g}"
    if steps[-1] > stated:
        yield f"the ledger goes to step {steps[-1]:g}, beyond the {stated:g} stated"
    units, batch = inputs.data.num_units, inputs.configured.cohort_size
    if units is None:
        return
    # An order's last batch, which is not full, is dropped.
    whole = math.floor if inputs.configured.sampling == "shuffled" else math.ceil
    if each[0] != whole(units / batch):
        yield (
            f"an epoch has {each[0]:g} steps, but {units} examples in batches of {batch:g} are "
            f"{whole(units / batch)}"
        )


@check(
    "constants",
    "Mechanism, sampling, noise, cohorts, populations, delta and data never change, nor what is "
    "recorded.",
)
def check_constants(evidence: Evidence, inputs: AuditInputs) -> Finding:
    evidence.need_lines()
    found = Finding()
    found.problems += (f"{names} changed in round {number}" for number, names in evidence.changes)
    found.problems += [
        f"{name} is not recorded in {count} of {evidence.rounds} lines"
        for name, count in evidence.partly.items()
    ]
    absent = evidence.unrecorded(inputs.configured.unit)
    if absent and not found.problems:
        raise IncompleteError(f"the ledger does not record {', '.join(absent)}{STRIPPED}")
    text = f"{evidence.rounds} lines; in each: {', '.join(evidence.constants)}"
    return found.seen(text, segments=1 + len(evidence.changes))


@check(
    "configuration",
    "What the ledger records as constant is what was configured and what is stated.",
)
def check_configuration(evidence: Evidence, inputs: AuditInputs) -> Finding:
    if not evidence.constants:
        raise SkippedError("the ledger has no line yet")
    found, compared = Finding(), 0
    for name, recorded, source, expected in _comparisons(inputs, evidence.constants):
        compared += 1
        ours = "privacy.json" if name == "privacy" else "the ledger"
        for path, *values in differing(recorded, expected, name, absent=...):
            one, other = ("absent" if value is ... else f"{value!r:.80}" for value in values)
            found.problems.append(f"{path} is {one} in {ours} and {other} in {source}")
    found.problems += _derived_problems(inputs, evidence)
    text = f"{compared} comparisons with configuration, statement and data"
    return found.seen(text, compared=compared)


@check("plugins", "The ledger names the plug-ins from outside that the run began with.")
def check_plugins(evidence: Evidence, inputs: AuditInputs) -> Finding:
    evidence.need_lines()
    if "plugins" not in evidence.constants:
        raise IncompleteError(f"the ledger does not record plug-ins{STRIPPED}")
    recorded, found = evidence.constants["plugins"], Finding()
    begun, today = inputs.plugins.get("environment.json"), inputs.plugins.get("today")
    for name in sorted({*recorded, *(recorded if begun is None else begun)}):
        ours, theirs = recorded.get(name, "none"), (begun or recorded).get(name, "none")
        found.add(ours != theirs, f"{name} is {ours} in the ledger, {theirs} in environment.json")
    for name in sorted({*inputs.plugins.get("config.yaml", {})} - {*recorded}):
        found.add(True, f"config.yaml uses plug-ins of {name}, which the ledger does not have")
    text = ", ".join(f"{name} ({digest})" for name, digest in recorded.items()) or "there are none"
    changed = sorted(n for n, digest in recorded.items() if today and today.get(n) != digest)
    others = f"; other code today: {', '.join(changed)}" if changed else ""
    files = filter(None, map(inputs.plugins.get("added", {}).get, changed))
    others += "".join(f"; since then added: {names}" for names in files)
    return found.seen(text + others, plugins=len(recorded), changed_since=changed)


def _comparisons(
    inputs: AuditInputs, constants: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str, Any]]:
    """Name, value in the ledger, where else it is said, value there."""
    configured, statement, data = inputs.configured, inputs.statement, inputs.data
    config, stating = "the configuration", "the statement"
    own = (
        "unit", "mechanism", "mechanism_options", "sampling", "separation", "max_participations",
        "accountant", "weighting",
    )  # fmt: skip
    known = {key: getattr(configured, key) for key in own}
    stated_too = ("unit", "mechanism", "adjacency", "accountant", "num_parameters")
    sources: list[tuple[str, Mapping[str, Any]]] = [
        (config, known | {"denominator": configured.cohort_size}),
        (stating, {key: statement.get(key) for key in stated_too}),
    ]
    if data.checksum is not None:
        sources.append(("the data", {"data": data.checksum}))
    if data.num_parameters is not None:
        built = {key: getattr(data, key) for key in ("num_parameters", "batchnorm_layers")}
        sources.append(("the model", built))
    # Weights, other uploads and statistics of layers would reach the server beside the noised sum.
    sources.append(("any private run", _OF_ANY))
    for where, values in sources:
        for key in values:
            if key in constants:
                yield key, constants[key], where, values[key]
    own_words = inputs.built_description
    if own_words is not None and "mechanism_description" in constants:
        described = constants["mechanism_description"]
        read = inputs.configured.description
        agrees = read is not own_words and read.agrees(own_words)
        expected = described if agrees else own_words.to_json_dict()
        yield "mechanism_description", described, "the mechanism's module", expected
    sides = {label: constants.get(label) or {} for label in SIDES}
    simulated = configured.noise_cohort_size or configured.cohort_size
    of_config: dict[str, dict[str, float | None]] = {
        "simulated": {"cohort_size": simulated, "noise_multiplier": configured.noise_multiplier},
        "actual": {"cohort_size": configured.cohort_size},
    }
    for label, recorded in sides.items():
        stated = inputs.side(label)
        for key in sorted({*recorded} & {*stated}):
            yield f"{label}.{key}", recorded[key], stating, stated[key]
        for key, default in (("sampling", None), ("separation", 1), ("max_participations", None)):
            yield f"{label}.{key}", constants.get(key, default), stating, stated.get(key, default)
        for key, value in ({"delta": configured.delta} | of_config[label]).items():
            if value is not None:
                yield f"{label}.{key}", recorded.get(key), config, value
    noise = sides["simulated"].get("noise_multiplier")
    # The statement's own head repeats the deployment's multiplier.
    yield "simulated.noise_multiplier", noise, stating, statement.get("noise_multiplier")
    if inputs.summary is not None:
        yield "privacy", statement, "the summary", inputs.summary.get("privacy")


def _derived_problems(inputs: AuditInputs, evidence: Evidence) -> Iterator[str]:
    """Constants that do not follow from others as they should."""
    constants = evidence.constants
    sampling, adjacency = constants.get("sampling"), constants.get("adjacency")
    own = own_users(constants)
    expected = ADJACENCY.get(str(sampling)) if own is None else own.adjacency
    if inputs.configured.description.randomizes_clients:
        # A report hides which of two values it is of, not that there is one.
        expected = "replace-one"
    if adjacency != expected:
        yield f"adjacency is {adjacency!r}, but {sampling} sampling is accounted under {expected!r}"
    layers = inputs.data.batchnorm_layers
    if layers and "batchnorm_layers" not in constants:
        yield f"the model has the layers {', '.join(layers)}, of which the ledger does not say"
    if inputs.configured.unit == "user" and "weighting" not in constants:
        yield "the ledger does not say how users weigh"
    separation = evidence.constant("separation", default=1)
    for label in SIDES:
        rate = evidence.constant("cohort_size", label) * separation
        rate /= evidence.constant("population_size", label) or math.nan
        if sampling in ("selected", "shuffled"):
            rate = 1.0
        own = own_users(constants, label)
        if own is not None:
            rate = own.sampling_probability
        recorded, stated = constants.get(label) or {}, inputs.side(label)
        for where, side in (("ledger", recorded), ("statement", stated)):
            value = side.get("sampling_probability")
            if value is not None and not json_equal(value, rate):
                yield f"{label}.sampling_probability is {value!r} in the {where}, not {rate:.6g}"
    cohorts = [evidence.constant("cohort_size", label) for label in SIDES]
    noises = [evidence.constant("noise_multiplier", label) for label in SIDES]
    scaled = noises[0] * cohorts[1] / (cohorts[0] or math.nan)
    if not math.isclose(noises[1], scaled, rel_tol=1e-9):
        yield (
            f"actual.noise_multiplier is {noises[1]:.9g}, but {noises[0]:.9g} with cohorts of "
            f"{cohorts[1]:g} for {cohorts[0]:g} is {scaled:.9g}"
        )
