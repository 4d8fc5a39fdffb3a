"""Layouts of the JSON files of a run folder, as their readers rely on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from pfl_bench.types.results import ExpectedResult


def misfit(value: Any, layout: Any, where: str = "") -> str | None:
    """First place where parsed JSON is of another kind than its readers expect, in words.

    Args:
        value: The value.
        layout: A word of ``_KINDS``; a tuple of the texts that are allowed; a list with the layout
            of each element; or an object's members, where ``...`` stands for all that are not
            named. A named one may be missing, or null unless its name ends in "!".
        where: What the value is called.

    Returns:
        The first place that differs; None if there is none.
    """
    if isinstance(layout, str):
        is_bool, kinds = isinstance(value, bool), _KINDS[layout]
        right = isinstance(value, kinds) and is_bool == (layout == "flag")
        right = right or (layout.startswith("number") and value in ("nan", "inf", "-inf"))
        right = right or layout == "any"
        return None if right else f"'{where}' is {value!r:.60}; expected a {layout}"
    if isinstance(layout, tuple):
        return None if value in layout else f"'{where}' is {value!r:.60}; expected one of {layout}"
    if isinstance(layout, list):
        if not isinstance(value, list):
            return f"'{where}' is {value!r:.60}; expected a list"
        parts = [(f"{where}[{index}]", item, layout[0]) for index, item in enumerate(value)]
    elif not isinstance(value, dict):
        return f"'{where}' is {value!r:.60}; expected an object"
    else:
        parts = []
        for key, item in value.items():
            part = layout.get(f"{key}!")
            if part is None and not (item is None and key in layout):
                part = layout.get(key, layout.get(...))
            if part is not None:
                parts.append((f"{where}.{key}".lstrip("."), item, part))
    return next((found for at, item, part in parts if (found := misfit(item, part, at))), None)


def unnamed(value: Any, layout: Any, where: str = "") -> Iterator[str]:
    """Dotted names of the members of parsed JSON that its layout does not name.

    The value has its layout, which is as for ``misfit``; an object without a named member may have
    any.
    """
    if isinstance(layout, list):
        for item in value or ():
            yield from unnamed(item, layout[0], where)
    elif isinstance(layout, dict) and layout and value:
        for key, item in value.items():
            at, part = f"{where}.{key}".lstrip("."), layout.get(f"{key}!", layout.get(key))
            part = layout.get(...) if part is None else part
            yield from (at,) if part is None else unnamed(item, part, at)


_KINDS: dict[str, Any] = {
    "any": object,
    "text": str,
    "text or null": (str, type(None)),
    "flag": bool,
    "number": (int, float),
    "number or null": (int, float, type(None)),
    "whole number": int,
    "text or whole number": (str, int),
    "scalar": (str, int, float, type(None)),
}


def _each(kind: str, names: str) -> dict[Any, Any]:
    return dict.fromkeys(names.split(), kind)


_CLAIM = {
    "sampling": "text",
    **_each("number", "sampling_probability noise_multiplier delta epsilon!"),
    **_each("whole number", "population_size cohort_size separation max_participations"),
}
_STATEMENT = {
    "unit!": ("user", "example", "none"),
    **_each("text", "adjacency mechanism accountant status!"),
    **_each("whole number", "rounds! num_parameters"),
    **_each("number", "noise_multiplier update_noise_multiplier count_noise_stddev budget_epsilon"),
    "mechanism_description": {},
    "clip!": {},
    "simulated!": _CLAIM,
    "actual!": _CLAIM,
    "not_covered!": ["text"],
    "notes!": ["text"],
}
_SOURCE = _each("text", "source variant checksum")
_DATA = {
    **_SOURCE,
    "num_classes": "whole number",
    "split_by": "text",
    **_each("any", "input_shape class_names artificial_users"),
    "extra": {},
    "num_users": {...: "whole number"},
}
_ENVIRONMENT = {
    "command": ["text"],
    **_each("text", "started python platform processes"),
    "packages!": {...: "text or null"},
    "plugins": {...: "text"},
    "hardware!": {
        "torch_threads": "whole number",
        "device": "text",
        **_each("scalar", "machine processor logical_cores cpu_capability accelerator cuda"),
        **_each("scalar", "nondeterministic_operations"),
    },
    "git": {"commit": "text", "uncommitted_changes": "flag"},
    "data!": _SOURCE,
    "model!": {"initial_digest": "text"},
    "engine!": {"name": "text"},
    "private_seed!": {"value!": "text", "parts!": {}, "nonce": "text or whole number"},
}
# How the ledger began that a resumed run goes on with.
_LEDGER = {"bytes": "whole number", "sha256": "text"}
_CANARIES = _each(
    "any",
    "kind count direction access sampling knows_others rounds delta confidence method estimate "
    "lower_bound upper_bound rests_on scores lower_bound_any_mechanism guesses num_correct "
    "num_hypotheses included noise_multiplier_upper_bound mu_lower_bound mu_estimate null_law "
    "canary_law trials",
)
# What a run writes into its files, of the kinds that their readers rely on.
LAYOUTS: dict[str, Any] = {
    "environment.json": {
        **_ENVIRONMENT,
        "resumptions!": [{**_ENVIRONMENT, "after": "whole number", "ledger": _LEDGER}],
    },
    "summary.json": {
        **_each("any", "format_version name setting task variant seed diverged selected selection"),
        **_each("text", "status departure ledger_digest model_sha256 settings_sha256"),
        **_each("whole number", "rounds num_parameters"),
        **_each("flag", "pinned_nonce fine_tuned"),
        "seconds": "number",
        "expected": [dict.fromkeys((each.name for each in fields(ExpectedResult)), "any")],
        "metrics": {...: "number"},
        "metric_directions": {"lower_is_better!": ["text"], "headlines!": ["text"]},
        "best": {...: {"value": "number", "round": "whole number"}},
        "systems": {...: "number or null"},
        "budgets": [{}],
        "privacy": _STATEMENT,
        "canaries": {},
        "data": _DATA,
    },
    "canaries.json": _CANARIES,
    "selection.json": {
        "epsilon!": {...: "number"},
        "delta!": {...: "number"},
        "trials!": {"distribution!": "text", "mean!": "number"},
    },
    "metrics.jsonl": {...: "number"},
    "privacy.json": _STATEMENT,
    "config.yaml": {
        "task": {"name": "text"},
        "federated": {"algorithm": {}, "central_optimizer": {}},
        "privacy": {"mechanism": {}, "audit": {}},
        "attack": {"kind": "text"},
        **{key: {} for key in ("model", "central", "local", "multitask", "systems", "evaluation")},
        "expected": [{}],
    },
}
