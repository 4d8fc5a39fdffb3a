"""Clients train without a wait for the device, and a step launches no more than its budget.

Engines run on PyTorch's "meta" device, whose tensors have no values. Code that asks for one ends
there with an error; on a GPU it would wait for all that was launched before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_bench.client import flat_model
from pfl_bench.client.engines.vectorized import VectorizedEngine
from pfl_bench.federated.parts import FederatedParts, build_engine, build_model, build_task
from tests.equivalence.engines import CPU, MODELS, configure

META = torch.device("meta")
BUDGETS = Path(__file__).with_name("step_operations.json")
USERS = np.arange(2)
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "engine_lanes": 2},
}
# One step a client, with all terms that a step may have.
TERMS = {
    "local_steps": 1,
    "local_momentum": 0.9,
    "local_weight_decay": 0.01,
    "local_gradient_clip_global_norm": 1.0,
    "algorithm": {"name": "fedprox", "proximal_weight": 0.1},
}


class _Launches(TorchDispatchMode):
    """Counts operations that compute on the device, and notes those that it should not see."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.faults: set[str] = set()

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [r for r in _flat(result) if isinstance(r, torch.Tensor)]
        if any(tensor.device == META for tensor in tensors):
            self.count += not (function.is_view or function.name() in _FREE)
            if any(tensor.dtype == torch.float64 for tensor in tensors):
                self.faults.add(f"{function.name()} gives float64")
        elif any(isinstance(a, torch.Tensor) and a.device == META for a in _flat(args)):
            self.faults.add(f"{function.name()} copies to the host")
        return result


# Memory alone, no kernel.
_FREE = ("aten::empty.memory_format", "aten::empty_like", "aten::detach", "aten::_unsafe_view")


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


class _AnyDevice(torch.Generator):
    """A generator of the CPU, whatever device it is asked for."""

    def __new__(cls, device: Any = None) -> _AnyDevice:
        return super().__new__(cls)


@pytest.fixture
def without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """What "meta" lacks beside values: a digest of weights, autocast, generators."""
    monkeypatch.setattr(flat_model, "_digest", lambda module: "none")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(torch, "Generator", _AnyDevice)


def trained(name: str, engine: str, stores: Callable[[str], Path]) -> tuple[int, set[str]]:
    """Launches a step of two clients on "meta", rounded up, and the faults that were seen."""
    options, model_options = MODELS[name]
    task_name = name.partition("-")[0]
    task_options = {"name": task_name, **options}
    if task_name not in ("digits", "synthetic"):
        task_options["data"] = str(stores(task_name))
    resolved = configure(task_options, model_options, **ENGINES[engine], **TERMS)
    task = build_task(resolved, CPU)
    parts = FederatedParts.build(resolved, task, build_model(resolved, task, META))
    built = build_engine(parts, lambda text: None)
    if isinstance(built, VectorizedEngine):
        built._is_checked = True  # the check of the first step compares values
    central = torch.empty_like(parts.model.vector)
    with _Launches() as launches:
        results = list(built.train(USERS, 1, central))
    assert len(results) == len(USERS)
    steps = sum(result.num_steps for result in results)
    return math.ceil(launches.count / steps), launches.faults


@pytest.mark.usefixtures("without_values")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_clients_train_without_a_wait(
    name: str, engine: str, stores: Callable[[str], Path]
) -> None:
    launches, faults = trained(name, engine, stores)
    assert not faults
    budget = json.loads(BUDGETS.read_text())[name][engine]
    assert launches <= budget, (
        f"{name}, {engine}: a client's step launches {launches} operations, {budget} before; if it "
        f"needs them, write them to {BUDGETS.name}"
    )
