"""Whole runs on a GPU: what they release, resume and write is what it is on the CPU.

``test_cuda_stub`` starts them on a runtime without a GPU.
"""

from __future__ import annotations

import io
import json
import pydoc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.cli.main import main
from pfl_bench.client.batched.auto_slots import slots_of
from pfl_bench.client.costs import StepFlops
from pfl_bench.config.loading import load_config
from pfl_bench.federated.parts import FederatedParts, build_run
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from tasks.common.lstm.stacked_lstm import StackedLstm
from tasks.flair.decoding import Decoder
from tests.contracts.small_rows import CONFIGS, shortened, write_small_files
from tests.equivalence.same_numbers import CASES
from tests.helpers import central_of, make_config, make_tree

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MECHANISMS = {
    "gaussian": {"name": "gaussian", "clip_norm": 0.5},
    "adaptive": {"name": "adaptive_gaussian", "clip_norm": 0.5, "quantile": 0.4},
    "tree": {"name": "tree_aggregation", "clip_norm": 0.5},
    "local": {"name": "local_gaussian", "clip_norm": 0.5},
}
ENGINE = {"federated__engine": "vectorized", "federated__engine_lanes": 4}
# Noise is given, not calibrated: accountants compute nothing on a device. An audit composes the
# losses of so much of it in a fraction of the time.
NOISE: dict[str, Any] = {"privacy__epsilon": None, "privacy__noise_multiplier": 2.5}
# Two steps a client, the second with the examples that are left, not six.
TWO_STEPS: dict[str, Any] = {"federated__local_batch_size": 12}
Recorder = Callable[[str, object], None]


def changes(mechanism: str) -> dict[str, Any]:
    """What makes a small private run one of a mechanism."""
    found: dict[str, Any] = {"privacy__mechanism": MECHANISMS[mechanism]}
    if mechanism == "local":
        found |= {"privacy__noise_cohort_size": 12}
    if mechanism == "tree":
        found |= {"federated__sampling": "cyclic_poisson", "federated__separation": 2}
    return found


def clients_of(folder: Path) -> float:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line).get("train/cohort_size", 0.0) for line in lines)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_private_run_passes_its_audit(
    mechanism: str, tmp_path: Path, record_property: Recorder
) -> None:
    options = ENGINE | NOISE | changes(mechanism)
    config = make_config("private_federated", device="cuda", **options)
    run(config, tmp_path / "run")
    record_property("clients", clients_of(tmp_path / "run"))
    checks = audit_run(tmp_path / "run", 1).checks
    assert not [check for check in checks if check.outcome == "failed"]


def test_a_run_without_privacy_ends_where_that_of_the_cpu_does(
    tmp_path: Path, record_property: Recorder
) -> None:
    for device in ("cpu", "cuda"):
        run(make_config("federated", device=device, **ENGINE), tmp_path / device)
    record_property("clients", clients_of(tmp_path / "cuda"))
    ours, theirs = (central_of(tmp_path / device).cpu() for device in ("cuda", "cpu"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("setting", "trainer", "few"),
    [
        (
            "private_federated",
            "pfl_bench.federated.trainer.FederatedTrainer",
            {"federated__num_rounds": 3, **TWO_STEPS},
        ),
        (
            "central_dp",
            "pfl_bench.trainers.central.CentralTrainer",
            {"central__num_epochs": 2, "central__batch_size": 128},
        ),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    setting: str,
    trainer: str,
    few: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config(setting, device="cuda", checkpoint__every=1, **NOISE, **few)
    run(config, tmp_path / "whole")
    advance = pydoc.locate(f"{trainer}.advance")

    def stop(self: Any, index: int) -> dict[str, float]:
        if index == 1:
            raise KeyboardInterrupt
        found: dict[str, float] = advance(self, index)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(f"{trainer}.advance", stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
    run(config, tmp_path / "cut", resume=True)
    assert torch.equal(central_of(tmp_path / "whole"), central_of(tmp_path / "cut"))
    assert not [c for c in audit_run(tmp_path / "cut", 1).checks if c.outcome == "failed"]


@pytest.mark.parametrize("setting", ["private_federated", "central_dp", "federated"])
def test_what_cannot_be_repeated_is_refused_or_warned_of(
    setting: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = nn.Linear.forward

    def pooled(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        outputs = plain(layer, inputs)
        return functional.adaptive_max_pool2d(outputs[None], outputs.shape)[0]

    monkeypatch.setattr(nn.Linear, "forward", pooled)
    row, out = tmp_path / "row.yaml", tmp_path / "run"
    row.write_text(yaml.safe_dump(make_tree(setting, device="cuda")), encoding="utf-8")
    if setting == "federated":
        with pytest.warns(UserWarning, match="adaptive_max_pool2d_backward_cuda"):
            assert main(["run", str(row), "federated.num_rounds=1", "--out", str(out)]) == 0
        record = json.loads((out / "environment.json").read_text(encoding="utf-8"))
        assert record["hardware"]["nondeterministic_operations"] == "warned of"
        return
    assert main(["run", str(row), "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "device: adaptive_max_pool2d_backward_cuda does not have a deterministic" in told
    assert not (out / "privacy.json").exists()


def test_an_lstm_in_bfloat16_has_gradients_that_float16_loses() -> None:
    torch.manual_seed(0)
    small = 2.0**-30
    lstm = StackedLstm(4, 8, num_layers=2)
    inputs = torch.randn(3, 5, 4)
    (lstm(inputs).sum() * small).backward()
    expected = [parameter.grad for parameter in lstm.parameters()]
    lstm.zero_grad()
    lstm.to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        outputs = lstm(inputs.to("cuda"))
    assert outputs.dtype == torch.float32
    (outputs.sum() * small).backward()
    for parameter, gradient in zip(lstm.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.cpu() / small, gradient / small)


def test_slots_leave_room_for_activations() -> None:
    memory = torch.cuda.get_device_properties("cuda").total_memory
    config = make_config("federated", device="cuda", **(ENGINE | {"federated__engine_lanes": None}))
    parts = FederatedParts.of(build_run(config))
    local = parts.algorithm.local_training
    assert slots_of(parts.model, parts.forward, parts.split, local) == 256
    # As large as if each example of a batch kept an eighth of the quarter that slots may take.
    costly = StepFlops(0, 0, memory // 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfl_bench.client.batched.auto_slots.measure_step", lambda *given: costly)
        few = replace(local, batch_size=2)
        assert slots_of(parts.model, parts.forward, parts.split, few) == 3


# Several processes share no device, what the plan refuses is refused on any, and accountants
# compute on the CPU alone.
LEFT_OUT = {"private_federated/ditto", "private/pld", "private/prv"}
# Fewer rounds and clients than the cases have. Every second round evaluates and saves; a tree
# restarts in the fourth; each of two reports alone would have a larger epsilon than an accountant
# knows; and krum chooses among more clients than six.
# Where all take part, they are a fifth of the users, with two steps each.
ALL: dict[str, Any] = {
    "task__num_users": 12,
    "privacy__population_size": 12,
    "federated__cohort_size": 12,
    "federated__local_batch_size": 60,
}
OWN: dict[str, dict[str, Any]] = {
    # So few need a noisier count.
    "private/full": {**ALL, "privacy__mechanism__count_noise_stddev": 3.0},
    "private/laplace": ALL,
    "private/local_gaussian": ALL,
    "private/tree": {**ALL, "federated__num_rounds": 4},
    "private/privunit": {**ALL, "federated__num_rounds": 4},
    "federated/krum": {"federated__cohort_size": 12},
}
SHORT: dict[str, Any] = {
    "federated__num_rounds": 2,
    "federated__cohort_size": 6,
    **TWO_STEPS,
}
FEW: dict[str, dict[str, Any]] = {
    "federated": SHORT,
    "private_federated": {**SHORT, **NOISE},
    "central": {"central__num_epochs": 2},
    "central_dp": {"central__num_epochs": 2, "central__batch_size": 128, **NOISE},
}


@pytest.mark.parametrize("name", [n for n in CASES if n[-2:] != "/2" and n not in LEFT_OUT])
def test_every_kind_of_run_ends_as_on_the_cpu_or_passes_its_audit(
    name: str, tmp_path: Path
) -> None:
    """A private run draws other noise on another device: its first round is computed again."""
    setting, changes = CASES[name]
    changes = FEW[setting] | changes | OWN.get(name, {})
    found = run(make_config(setting, **changes, device="cuda"), tmp_path / "cuda")
    if found["privacy"] is not None:
        audited = audit_run(tmp_path / "cuda", 1, recompute="first", seconds=1.0)
        assert audited.verdict == "passed", [c for c in audited.checks if c.outcome == "failed"]
        assert audited.recomputed.rounds, audited.recomputed.reasons
        return
    expected = run(make_config(setting, **changes), tmp_path / "cpu")
    for metric, value in expected["metrics"].items():
        assert found["metrics"][metric] == pytest.approx(value, rel=1e-3, abs=1e-3), metric


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_small_files(tmp_path_factory.mktemp("stores"))


@pytest.mark.parametrize(
    "name",
    [
        "fedscale/quick/amazon.yaml",
        "fedscale/quick/openimage-fedavg.yaml",
        "fedscale/quick/reddit.yaml",
    ],
)
def test_rows_of_other_models_end(name: str, small_files: dict[str, Path], tmp_path: Path) -> None:
    row = CONFIGS / name
    overrides = [*shortened(load_config(row).tree, small_files), "federated.cohort_size=2"]
    assert run(load_config(row, [*overrides, "device=cuda"]), tmp_path)["status"] == "finished"


def test_nvjpeg_writes_to_memory_that_no_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no kernel: memory of the caller's stream may still be read when it is freed."""
    caller, used = torch.cuda.current_stream(), []
    awaited: list[torch.cuda.Stream] = []

    def decode_jpeg(jpegs: Sequence[Tensor], mode: Any, device: torch.device) -> list[Tensor]:
        used.append(torch.cuda.current_stream(device))
        assert device == caller.device  # not that of a reading thread, by its number
        return [torch.full((3, 8, 8), n, dtype=torch.uint8, device=device) for n in range(2)]

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode_jpeg)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: awaited.append(stream)
    )
    decoder, buffer = Decoder("gpu", 8, None), io.BytesIO()
    decoder.use_device(torch.device("cuda"))
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    encoded = np.frombuffer(bytearray(buffer.getvalue()), np.uint8)
    for _ in range(2):
        pictures = decoder.decode([encoded, encoded], ["1", "2"])
        assert pictures.amax((1, 2, 3)).tolist() == [0, 1]
    assert used[0] == used[1] != caller
    assert awaited == [caller] * 4
    assert torch.cuda.current_stream() == caller
