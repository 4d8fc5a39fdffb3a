"""No memory is read before it is written: runs stay when PyTorch fills new memory with NaN.

So a GPU need not fill it (``pfl_bench.client.precision.resolve_device``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import deterministic

from pfl_bench.federated.parts import FederatedParts, build_engine, build_model, build_task
from pfl_bench.runs.runner import run
from tests.equivalence.engines import CPU, MODELS, configure, trained
from tests.helpers import central_of, make_config

ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "engine_lanes": 2},
}
GAUSSIAN = {"name": "gaussian", "clip_norm": 0.5}
VECTORIZED = {"federated__engine": "vectorized", "federated__engine_lanes": 4}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian": ("private_federated", {"privacy__mechanism": GAUSSIAN, **VECTORIZED}),
    "adaptive": ("private_federated", {}),
    "tree": (
        "private_federated",
        {
            "privacy__mechanism": {"name": "tree_aggregation", "clip_norm": 0.5},
            "federated__sampling": "cyclic_poisson",
            "federated__separation": 2,
        },
    ),
    "local": (
        "private_federated",
        {
            "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5},
            "privacy__noise_cohort_size": 12,
        },
    ),
    "momentum": ("federated", {"federated__local_momentum": 0.9, **VECTORIZED}),
    "top_k": ("federated", {"federated__compression": {"name": "top_k", "fraction": 0.1}}),
    "sketch": (
        "federated",
        {"federated__compression": {"name": "count_sketch", "columns": 100, "k": 50}},
    ),
    "median": ("federated", {"federated__aggregation": {"name": "coordinate_median"}}),
    "example": ("central_dp", {"central__num_epochs": 1}),
}


@contextmanager
def new_memory(is_filled: bool) -> Iterator[None]:
    """Whether PyTorch fills new memory, by algorithms that are deterministic either way."""
    before = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = is_filled
    try:
        assert not is_filled or torch.empty(1000).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        deterministic.fill_uninitialized_memory = before


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_an_engine_reads_no_new_memory(
    name: str, engine: str, stores: Callable[[str], Path]
) -> None:
    options, model_options = MODELS[name]
    task_name = name.partition("-")[0]
    task_options = {"name": task_name, **options}
    if task_name not in ("digits", "synthetic"):
        task_options["data"] = str(stores(task_name))
    resolved = configure(task_options, model_options, **ENGINES[engine])

    def updates() -> dict[int, torch.Tensor]:
        task = build_task(resolved, CPU)
        model = build_model(resolved, task, CPU)
        found = build_engine(FederatedParts.build(resolved, task, model), lambda text: None)
        results = trained(found, range(3), model.vector.clone())
        return {user: result.update.clone() for user, result in results.items()}

    with new_memory(is_filled=False):
        plain = updates()
    with new_memory(is_filled=True):
        filled = updates()
    assert all(torch.equal(filled[user], plain[user]) for user in plain)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_reads_no_new_memory(name: str, tmp_path: Path) -> None:
    setting, changes = RUNS[name]
    for is_filled in (False, True):
        with new_memory(is_filled):
            run(make_config(setting, **changes), tmp_path / str(is_filled))
    plain, filled = (central_of(tmp_path / str(is_filled)) for is_filled in (False, True))
    assert torch.equal(plain, filled)
