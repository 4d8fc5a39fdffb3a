"""A privacy statement in words, for a page; the numbers are those of ``privacy.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pfl_bench.report.results import format_epsilon
from pfl_bench.types import as_float
from privacy.sampling_scheme import scheme_names, scheme_type
from privacy.statement.statement import small

_UNITS = {
    "user": "one user: all the examples that this user holds, in every round",
    "example": "one example of the pooled training data",
}
_ADJACENCY = {
    "add-or-remove-one": "one has all the data of one {unit} more than the other",
    "replace-one": "the data of one {unit} are replaced by others",
    "zero-out": "the device of one {unit} sends nothing; who takes part when is the same",
}


def describe(
    statement: Mapping[str, Any], title: str = "", is_planned: bool = False
) -> dict[str, Any]:
    """Put a ``RunRecord``'s privacy statement into words; members that it lacks are left out.

    Returns:
        The statement as ``page.html`` shows it; "facts", of label and value, are what else its
        claims rest on.
    """
    unit = str(statement.get("unit", "unknown"))
    clip = statement.get("clip")
    adjacency = str(statement.get("adjacency") or "")
    named = {
        "mechanism": "Mechanism",
        "accountant": "Accountant",
        "rounds": "Rounds" if unit == "user" else "Steps",
        "clip": "Clipping",
        "noise_multiplier": "Noise multiplier (standard deviation in multiples of the clip norm)",
        "update_noise_multiplier": "Noise multiplier of the update alone",
        "count_noise_stddev": "Standard deviation of the noise on the count of unclipped users",
        "budget_epsilon": "Stops before epsilon (simulated) exceeds",
        "num_parameters": "Trained parameters",
    }
    values = {key: _number(statement.get(key)) for key in named}
    values["clip"] = _pairs(clip) if isinstance(clip, Mapping) else str(clip or "")
    facts = [
        ("Neighbouring data sets", _ADJACENCY.get(adjacency, adjacency).replace("{unit}", unit)),
        *((label, values[key]) for key, label in named.items()),
        ("Epsilon with the choice among trials", selection_words(statement.get("selection"))),
    ]
    return {
        "title": title,
        "is_planned": is_planned,
        "unit": _UNITS.get(unit, unit),
        "claims": [
            _claim(kind, statement[kind], unit)
            for kind in ("simulated", "actual")
            if isinstance(statement.get(kind), Mapping)
        ],
        "facts": [fact for fact in facts if fact[1]],
        "not_covered": list(map(str, statement.get("not_covered") or ())),
        "notes": list(map(str, statement.get("notes") or ())),
    }


def selection_words(selection: Any) -> str:
    """Epsilons of a run together with its having been chosen; empty without a choice."""
    if selection is None:
        return ""
    epsilons, deltas, law = (selection.get(key, {}) for key in ("epsilon", "delta", "trials"))
    sides = [
        f"{format_epsilon(as_float(epsilons.get(side)), None)} {side} at delta "
        f"{_number(deltas.get(side))}"
        for side in ("simulated", "actual")
    ]
    name = str(law.get("distribution")).replace("_", " ")
    return f"{', '.join(sides)}: {name} number of trials, mean {_number(law.get('mean'))}"


def _claim(kind: str, side: Mapping[str, Any], unit: str) -> dict[str, str]:
    epsilon, delta = as_float(side.get("epsilon")), as_float(side.get("delta"))
    subject = "users" if unit == "user" else "examples"
    about = {
        "simulated": "What a deployment with this cohort and this noise would guarantee.",
        "actual": "What this very run would guarantee if its noise were secret.",
    }[kind]
    if epsilon is not None and math.isinf(epsilon):
        about += " That is no guarantee."
    sampling = str(side.get("sampling"))
    if sampling in scheme_names():
        sampling = scheme_type(sampling).phrase
    sampling = sampling.replace("{b}", _number(side.get("separation")))
    cap = side.get("max_participations")
    most = "" if cap is None else f", and no one is in more than {_number(cap)}"
    sampling = sampling.replace("{k}", most)
    detail = (
        f"{_number(side.get('population_size'))} {subject}, "
        f"{_number(side.get('cohort_size'))} expected a {'round' if unit == 'user' else 'step'}; "
        f"{sampling.replace('{q}', _number(side.get('sampling_probability')))}; "
        f"noise multiplier {_number(side.get('noise_multiplier'))}"
    )
    return {
        "kind": kind,
        "epsilon": format_epsilon(epsilon, None),
        "delta": "" if delta is None else small(delta, 4),
        "about": about,
        "detail": detail,
    }


def _number(value: Any) -> str:
    """Write a number for reading: separated thousands, four significant digits."""
    number = as_float(value)
    if number is None:
        return "" if value is None else str(value)
    if not math.isfinite(number):
        return str(number)
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:.4g}"


def _pairs(members: Mapping[str, Any]) -> str:
    written = [(key.replace("_", " "), _number(value)) for key, value in members.items()]
    return ", ".join(f"{key} {value}" for key, value in written if value)
