"""A client's update on a GPU is that on the CPU, of every task's models and by both engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pfl_bench.client.batched import convolution
from pfl_bench.client.precision import resolve_device
from pfl_bench.federated.parts import (
    FederatedParts,
    build_engine,
    build_model,
    build_task,
)
from pfl_bench.types import LocalResult
from tests.equivalence.engines import CPU, MODELS, assert_equal, configure, trained

ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized", "engine_lanes": 2},
}
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
# Other kernels add in other orders; what they differ by grows from layer to layer.
TOLERANCE = {"flair-resnet18": 2e-3, "flair-lora": 2e-3, "flair-film": 2e-3}
# On a Xeon one activation at a kink is on either side of it by either engine: one filter of one
# client moves by 2.5e-4 of the update, the other clients by 1e-6.
TOLERANCE["mnist-opacus_cnn"] = 1e-3


def updates(
    name: str, engine: str, device: str, stores: Callable[[str], Path]
) -> dict[int, LocalResult]:
    """What clients' updates are on a device, copied to the CPU."""
    options, model_options = MODELS[name]
    task_name = name.partition("-")[0]
    task_options = {"name": task_name, **options}
    if task_name not in ("digits", "synthetic"):
        task_options["data"] = str(stores(task_name))
    if task_name == "flair":
        # nvJPEG's pixels differ from Pillow's by a few grey levels.
        task_options["decode"] = "cpu"
    rate = 0.01 if "resnet" in str(model_options) else 0.05
    resolved = configure(task_options, model_options, **ENGINES[engine], local_learning_rate=rate)
    place = resolve_device(device)
    task = build_task(resolved, place)
    model = build_model(resolved, task, place)
    for layer in model.module.modules():
        if isinstance(layer, nn.Dropout):
            # Masks of a GPU are drawn in another way.
            layer.p = 0.0
    parts = FederatedParts.build(resolved, task, model)
    users = range(4 if task_name == "flair" else 5)
    found = trained(build_engine(parts, lambda text: None), users, model.vector.clone())
    return {
        user: replace(result, update=result.update.to(CPU), loss=result.loss.to(CPU))
        for user, result in found.items()
    }


# On a CPU one model alone shows that the comparison runs.
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("digits-mlp", "cpu"),
        *(pytest.param(name, *CUDA.values, marks=CUDA.marks) for name in MODELS),
    ],
)
def test_updates_are_those_of_the_cpu(
    name: str,
    device: str,
    engine: str,
    stores: Callable[[str], Path],
    record_property: Callable[[str, object], None],
) -> None:
    ours = updates(name, engine, device, stores)
    record_property("steps", sum(result.num_steps for result in ours.values()))
    theirs = updates(name, "sequential", "cpu", stores)
    assert_equal(ours, theirs, TOLERANCE.get(name, 1e-4), rounding=1e-6)


@pytest.mark.parametrize("device", [CUDA])
def test_slots_that_fill_a_gpu_are_convolved_one_by_one_to_the_same_updates(
    device: str, stores: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = updates("femnist-cnn", "sequential", "cpu", stores)
    monkeypatch.setattr(convolution, "SLOT_ELEMENTS", 1)
    assert_equal(updates("femnist-cnn", "vectorized", device, stores), theirs, 1e-4, rounding=1e-6)
