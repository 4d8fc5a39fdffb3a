"""Small configurations on the digits, which need no download."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_bench import plugins
from pfl_bench.config.loading import ResolvedConfig, resolve
from pfl_bench.federated.parts import FederatedParts, build_model, build_task
from pfl_bench.federated.private_seed import derive
from pfl_bench.runs import checkpoint
from pfl_bench.runs.checkpoint import load_latest

REPOSITORY = Path(__file__).resolve().parent.parent

# Tests see the same noise whatever code they test; those about seeds set ``privacy__nonce=None``.
NONCE = "tests"
FEDERATED: dict[str, Any] = {
    "version": 1,
    "name": "small",
    "seed": 3,
    "device": "cpu",
    "task": {"name": "digits", "num_users": 60},
    "model": {"name": "softmax"},
    "federated": {
        "num_rounds": 6,
        "cohort_size": 12,
        "sampling": "poisson",
        "local_batch_size": 4,
        "local_learning_rate": 0.3,
    },
    "evaluation": {"every": 2, "splits": ["val"], "final_splits": ["test"]},
    "checkpoint": {"every": 2},
}
PRIVACY: dict[str, Any] = {
    "mechanism": {"name": "adaptive_gaussian", "clip_norm": 0.5, "quantile": 0.4},
    "population_size": 60,
    "noise_cohort_size": 30,
    "epsilon": 5.0,
    "nonce": NONCE,
}
CENTRAL: dict[str, Any] = {
    **{k: v for k, v in FEDERATED.items() if k != "federated"},
    "central": {"num_epochs": 4, "batch_size": 32, "learning_rate": 0.3},
}
CENTRAL_DP: dict[str, Any] = {
    **CENTRAL,
    "privacy": {
        "mechanism": {"name": "gaussian", "clip_norm": 1.0},
        "epsilon": 5.0,
        "nonce": NONCE,
    },
}
TREES = {
    "federated": FEDERATED,
    "private_federated": {**FEDERATED, "privacy": PRIVACY},
    "central": CENTRAL,
    "central_dp": CENTRAL_DP,
}


def make_tree(setting: str, **changes: Any) -> dict[str, Any]:
    """A small configuration tree; ``changes`` are dotted keys with ``__`` for the dot."""
    tree = copy.deepcopy(TREES[setting])
    change_tree(tree, changes)
    return tree


def change_tree(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set dotted keys, with ``__`` for the dot, in place."""
    for key, value in changes.items():
        node = tree
        *parents, last = key.split("__")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value


def make_config(setting: str, **changes: Any) -> ResolvedConfig:
    """A resolved small configuration."""
    return resolve(make_tree(setting, **changes), Path("test.yaml"), ())


def parts_of(resolved: ResolvedConfig) -> FederatedParts:
    """What a small federated run on the CPU is made of."""
    device = torch.device("cpu")
    task = build_task(resolved, device)
    return FederatedParts.build(resolved, task, build_model(resolved, task, device))


def seed_of(
    config: ResolvedConfig,
    data: str = "data",
    model: str = "model",
    device: str = "cpu",
    engine: str = "",
    traces: str = "",
) -> int:
    """The private seed of a configuration, for data, a model and devices of such digests.

    The nonce of these helpers is left out.
    """
    privacy = config.config.privacy
    assert privacy is not None
    if privacy.nonce == NONCE:
        own = {**config.tree, "privacy": {**config.tree["privacy"], "nonce": None}}
        typed = config.config.model_copy(
            update={"privacy": privacy.model_copy(update={"nonce": None})}
        )
        config = replace(config, config=typed, tree=own)
    return derive(config, data, model, torch.device(device), engine, traces).value


def central_of(folder: Path) -> Tensor:
    """The central parameters, shape (P,), of a run's newest checkpoint."""
    state = load_latest(folder / "checkpoints")
    assert state is not None
    vector: Tensor = state["trainer"]["central"]
    return vector


def change_checkpoint(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a checkpoint holds, and name the new content, as a faulty writer would."""
    state = torch.load(path, weights_only=True)
    del state["sha256"]
    change(state)
    torch.save({**state, "sha256": checkpoint._digest(state)}, path)


@contextmanager
def searched(site: Path) -> Iterator[None]:
    """Find packages in a folder, as where they are installed; they are forgotten afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        plugins._entry_points.cache_clear()
        try:
            yield
        finally:
            plugins._entry_points.cache_clear()
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{site}{os.sep}"):
                    del sys.modules[name]
