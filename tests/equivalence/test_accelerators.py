"""Runs on accelerators, as far as they can be shown without one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from pfl_bench import plugins
from pfl_bench.client import precision
from pfl_bench.client.costs import measure_step
from pfl_bench.client.precision import resolve_device
from pfl_bench.federated.parts import build_forward, build_model, build_task
from pfl_bench.files import read_metrics
from pfl_bench.metrics.multilabel import MultiLabel
from pfl_bench.metrics.next_token import NextToken
from pfl_bench.runs.auditing.opened import OpenedRun
from pfl_bench.runs.auditing.starts import noise_generator
from pfl_bench.runs.runner import run
from tests.emulated_mps import MPS, emulated_mps
from tests.helpers import REPOSITORY, make_config

CPU = torch.device("cpu")
ROUNDS = {"federated__num_rounds": 2}
NOISE = {
    **ROUNDS,
    "privacy__epsilon": None,
    "privacy__noise_cohort_size": None,
    "privacy__noise_multiplier": 4.0,
}
BY_EXAMPLE = {"task__split_by": "example"}
CYCLIC = {"federated__sampling": "cyclic_poisson", "federated__separation": 2}
OF_MECHANISMS: dict[str, dict[str, Any]] = {
    "banded_inverse_square_root": CYCLIC,
    "banded_matrix_factorization": CYCLIC,
    "buffered_toeplitz": CYCLIC,
    "column_normalized_banded": CYCLIC,
    "tree_aggregation": CYCLIC,
    "privunit": {"privacy__noise_multiplier": 0.25, "privacy__accountant": "pld"},
    "laplace": {"privacy__accountant": "pld"},
    "adaptive_gaussian": {"privacy__noise_multiplier": 1.0},
}
DP = {"central__num_epochs": 1, "privacy__epsilon": None, "privacy__noise_multiplier": 1.0}
# What plug-ins ask for that have no default.
REQUIRED: dict[str, dict[str, Any]] = {
    "ditto": {"proximal_weight": 0.1},
    "feddyn": {"alpha": 0.1},
    "fedprox": {"proximal_weight": 0.1},
    "minibatch_sgd": {"fraction": 0.5},
    "qfedavg": {"q": 1.0},
    "krum": {"num_attackers": 1},
    "trimmed_mean": {"trimmed_fraction": 0.2},
    "count_sketch": {"columns": 50, "rows": 3, "k": 20},
    "quantization": {"levels": 15},
    "top_k": {"k": 20},
    "adaptive_gaussian": {"quantile": 0.5, "clip_norm": 0.5},
    "banded_inverse_square_root": {"bands": 2, "clip_norm": 0.5},
    "banded_matrix_factorization": {"bands": 2, "clip_norm": 0.5},
    "column_normalized_banded": {"bands": 2, "clip_norm": 0.5},
    "none": {},
}


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A small run of every kind: name, setting and changes."""
    uniform = {**ROUNDS, "federated__weighting": "uniform"}
    for kind, key in (
        (plugins.ALGORITHM, "algorithm"),
        (plugins.AGGREGATION, "aggregation"),
        (plugins.COMPRESSION, "compression"),
    ):
        for name in plugins.available(kind):
            options = {"name": name, **REQUIRED.get(name, {})}
            changes = {**uniform, f"federated__{key}": options}
            # Clients with models of their own are tested on examples of their own.
            yield name, "federated", {**changes, **{"ditto": BY_EXAMPLE}.get(name, {})}
    for name in plugins.available(plugins.MECHANISM):
        if name != "none":
            options = {"name": name, **REQUIRED.get(name, {"clip_norm": 0.5})}
            changes = {**NOISE, "privacy__mechanism": options, **OF_MECHANISMS.get(name, {})}
            yield name, "private_federated", changes
    yield "adam", "federated", {**ROUNDS, "federated__central_optimizer": {"name": "adam"}}
    adaptation = {"num_steps": 2, "batch_size": 2, "learning_rate": 0.1, "fraction": 0.5}
    yield "adaptation", "federated", {**ROUNDS, "evaluation__adaptation": adaptation}
    yield "central", "central", {"central__num_epochs": 1}
    yield "central DP", "central_dp", DP


CASES = list(cases())


@pytest.mark.parametrize(
    ("name", "setting", "changes"), CASES, ids=[f"{setting}: {name}" for name, setting, _ in CASES]
)
def test_runs_on_a_device_without_float64(
    name: str, setting: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    # Opacus' hooks are given tensors that have lost the mark of their device.
    with emulated_mps(checks_devices=setting != "central_dp"):
        config = make_config(setting, device="auto", **changes)
        summary = run(config, tmp_path / "mps")
    assert summary["status"] == "finished"
    if config.config.privacy is None:  # a private run's streams depend on the device
        run(make_config(setting, **changes), tmp_path / "cpu")
        assert numbers(tmp_path / "mps") == numbers(tmp_path / "cpu")


def numbers(folder: Path) -> list[dict[str, float]]:
    """All that a run measured, but times, and the losses that Metal adds up in float32."""
    return [
        {
            name: value
            for name, value in row.items()
            if not name.startswith("time/") and name != "train/loss"
        }
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def test_the_emulated_device_refuses_what_a_mac_s_does() -> None:
    with emulated_mps():
        assert resolve_device("auto") == MPS
        there = torch.zeros(3, device=MPS)
        assert there.device == MPS
        assert there.cpu().double().dtype == torch.float64
        for wide in (lambda: there.double(), lambda: torch.zeros(2, dtype=float, device=MPS)):
            with pytest.raises(TypeError, match="float64"):
                wide()
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3)
    assert resolve_device("cpu") == CPU


def test_metrics_take_outputs_of_a_device_without_float64() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((4, 5, 7), dtype=np.float32))
    tokens = torch.from_numpy(rng.integers(0, 7, (4, 5)))
    labels = torch.from_numpy(rng.integers(0, 2, (4, 7)).astype(np.float32))
    for make, outputs, targets in (
        (lambda: NextToken(()), logits, tokens),
        (lambda: MultiLabel(tuple("abcdefg")), logits[:, 0], labels),
    ):
        here, there = make(), make()
        here.update(outputs, targets)
        with emulated_mps():
            there.update(outputs.to(MPS), targets.to(MPS))
            found = there.compute()
        assert found == here.compute()


@pytest.mark.parametrize("arithmetic", ["float32", "tf32", "bfloat16"])
def test_cuda_settings_leave_nothing_that_raises_when_it_is_read(
    arithmetic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    torch_defaults = importlib.import_module("benchmarks.common").torch_defaults
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    config = make_config("federated", model__name="mlp")
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    forward = build_forward(config, task, model)
    before = measure_step(forward, model, task.split("train"))
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        precision.use(arithmetic, torch.device("cuda"))
        assert measure_step(forward, model, task.split("train")) == before
        assert torch.backends.cudnn.allow_tf32 is (arithmetic == "tf32")
        # What libraries do, and what the benchmarks do for their other sides.
        with torch.backends.cudnn.flags(enabled=False):
            pass
        precision.use(arithmetic, torch.device("cuda"))
        with torch_defaults():
            assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.allow_tf32 is (arithmetic == "tf32")
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept


@pytest.mark.parametrize(
    ("drawn_by", "is_here"),
    [
        ({"device": "cuda", "accelerator": "NVIDIA H200"}, True),
        ({"device": "cuda", "accelerator": "NVIDIA A100-SXM4-80GB"}, False),
        ({"device": "mps"}, False),
    ],
)
def test_noise_of_another_kind_of_gpu_is_not_drawn_again(
    drawn_by: dict[str, str], is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would differ, where a tensor has more elements than a GPU has threads."""
    made = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch, "Generator", lambda device: made)
    environment = {"private_seed": {"parts": {"arithmetic": drawn_by}}}
    unused = cast("Any", None)
    generator, reason = noise_generator(OpenedRun(tmp_path, unused, environment, unused, ""))
    assert (generator is made) == is_here
    assert (list(drawn_by.values())[-1] in reason) != is_here
