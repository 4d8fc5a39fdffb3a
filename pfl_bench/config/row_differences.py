"""Differences of a configuration from the row in its file, and from another configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from pfl_bench.config.schema import RunConfig

# How results are computed, watched and kept; which of the row's random draws are taken; and what is
# evaluated beside the published metrics. None of these makes a run another experiment.
_HARMLESS = frozenset((
    "name", "plugins", "seed", "privacy.nonce", "device", "num_threads", "checkpoint", "logging",
    "federated.engine", "federated.engine_lanes", "federated.workers", "federated.data_workers",
    "central.data_workers", "central.physical_batch_size",
    "evaluation.batch_size", "evaluation.budgets", "evaluation.data_workers",
    "evaluation.final_splits", "evaluation.metrics", "evaluation.splits", "evaluation.strata",
))  # fmt: skip
# Where a file lies is no setting. The content of data is judged by their variant and numbers.
_PATHS = frozenset((
    "task.data", "model.weights", "model.embeddings",
    "systems.source.capacity", "systems.source.availability", "systems.source.path",
))  # fmt: skip
_MOST_SHOWN = 5
_MOST_LETTERS = 60

_MARK = "# not the row: "

Difference = tuple[str, Any, Any]


def tree_differences(
    before: Any, now: Any, left_out: Container[str] = (), prefix: str = ""
) -> list[Difference]:
    """Compare two configuration trees.

    Args:
        before: One of them, as plain data.
        now: The other.
        left_out: Dotted keys that are not compared, sections with all that is in them.
        prefix: Dotted key of both, for calls of this function by itself.

    Returns:
        Dotted key and both values of each difference, sorted; None for a key that is missing.
    """
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [] if before == now else [(prefix, before, now)]
    found = []
    for key in sorted(set(before) | set(now)):
        dotted = f"{prefix}.{key}" if prefix else key
        if dotted not in left_out:
            found += tree_differences(before.get(key), now.get(key), left_out, dotted)
    return found


def with_defaults(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in the defaults of keys that a recorded configuration lacks: it may be older than they.

    Options of plug-ins stay as they are, and no plug-in is imported. So does a tree that is no
    configuration of today.
    """
    try:
        whole = RunConfig.model_validate(tree).model_dump(mode="json")
    except ValidationError:
        return tree
    return _filled(tree, whole)


def _filled(tree: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in whole.items() if key not in tree} | {
        key: _filled(value, whole[key])
        if isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
        else value
        for key, value in tree.items()
    }


def is_harmless(key: str) -> bool:
    """Whether a run with another value of a dotted key is still a run of its row."""
    parts = key.split(".")
    return any(".".join(parts[:end]) in _HARMLESS for end in range(1, len(parts) + 1))


def row_differences(row: Mapping[str, Any], tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what makes a configuration another experiment than a row; empty for a run of the row.

    The texts are such as "privacy.noise_multiplier 0.7 -> 0.01".
    """
    texts = [
        f"{key} {_shown(before)} -> {_shown(now)}"
        for key, before, now in tree_differences(row, tree, _passed_over(row, tree))
        if not (key in _PATHS and isinstance(before, str) and isinstance(now, str))
    ]
    if len(texts) > _MOST_SHOWN:
        texts[_MOST_SHOWN:] = [f"and {len(texts) - _MOST_SHOWN} more"]
    return tuple(texts)


def _passed_over(*trees: Mapping[str, Any]) -> frozenset[str]:
    """Keys by which configurations may differ and be of one row."""
    # Where the best is taken, it decides which evaluations that is chosen from.
    return _HARMLESS if any(map(_selects, trees)) else _HARMLESS | {"evaluation.every"}


def experiment(tree: Mapping[str, Any]) -> str:
    """Text that identifies the experiment of a whole configuration: equal for runs of one row.

    It is JSON without what ``row_differences`` passes over, and without published numbers.
    """
    left_out = {*_passed_over(tree), "expected", "version"}
    return json.dumps(_without(tree, left_out), sort_keys=True)


def digest_of(value: Any) -> str:
    """Digest of a JSON value, "sha256:<hex>"; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def settings_digest(tree: Mapping[str, Any]) -> str:
    """Digest of what ``experiment`` gives: equal for the seeds of a row."""
    return digest_of(json.loads(experiment(tree)))


def _without(tree: Any, left_out: Container[str], prefix: str = "") -> Any:
    if isinstance(tree, str) and prefix in _PATHS:
        return "a path"
    if not isinstance(tree, Mapping):
        return tree
    dotted = {key: f"{prefix}.{key}" if prefix else str(key) for key in tree}
    return {
        key: _without(value, left_out, dotted[key])
        for key, value in tree.items()
        if dotted[key] not in left_out
    }


def _selects(tree: Mapping[str, Any]) -> bool:
    """Whether the best of the evaluations during training is taken, as model or as number."""
    given = tree.get("expected")
    listed = given if isinstance(given, Sequence) else ()
    expected = [entry for entry in listed if isinstance(entry, Mapping)]
    best = any(entry.get("statistic") == "best_over_rounds" for entry in expected)
    evaluation = tree.get("evaluation")
    return best or bool(isinstance(evaluation, Mapping) and evaluation.get("select_best"))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def head_lines(differences: Sequence[str]) -> list[str]:
    """Comments that mark a written configuration as that of no row."""
    return [_MARK + text for text in differences]


def from_head(text: str) -> tuple[str, ...]:
    """Lines that ``head_lines`` has left in the head of a file; empty for a row's own file."""
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return tuple(line.removeprefix(_MARK) for line in head if line.startswith(_MARK))
