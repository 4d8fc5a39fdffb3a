"""Networks of timm: a private round, activations that a normalisation includes, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pfl_bench.cli.main import main

Row = Callable[..., Path]


@pytest.fixture
def row(stores: Callable[[str], Path], config_file: Row) -> Row:
    def write(**model: Any) -> Path:
        partition = {"kind": "iid", "num_clients": 10}
        return config_file(
            "private_federated",
            task={"name": "mnist", "data": str(stores("mnist")), "partition": partition},
            model=model,
            federated__num_rounds=1,
            federated__cohort_size=5,
            privacy__population_size=10,
            privacy__noise_cohort_size=5,
            evaluation__splits=["test"],
            evaluation__final_splits=["test"],
        )

    return write


def test_a_network_of_timm_trains_a_private_round(row: Row, tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    out = tmp_path / "run"
    path = row(name="timm", architecture="test_resnet")
    assert main(["run", str(path), "--out", str(out)]) == 0
    assert json.loads((out / "privacy.json").read_text())["rounds"] == 1
    assert main(["audit", str(out)]) == 0


def test_what_a_layer_of_timm_does_beside_normalising_stays() -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    from tasks.common.vision.normalization import use_group_norm

    network = timm.create_model("test_efficientnet")
    use_group_norm(network)
    first = network.bn1
    assert [type(layer) for layer in first] == [nn.GroupNorm, nn.Identity, nn.SiLU]
    assert torch.isfinite(network(torch.rand(2, 3, 64, 64))).all()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"name": "timm", "architecture": "resnet81"}, "timm has no network 'resnet81'"),
        ({"name": "timm", "architecture": "convnext_atto"}, "does not take images of 1 x 28 x 28"),
        ({"name": "timm"}, "architecture: name: timm needs one"),
        ({"name": "softmax", "architecture": "resnet18"}, "no other has it"),
    ],
)
def test_a_network_that_cannot_be_is_refused(
    model: dict[str, str], words: str, row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    assert main(["run", str(row(**model)), "--out", str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err


def test_timm_that_is_not_installed_is_named(
    row: Row,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    path = row(name="timm", architecture="resnet18")
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'pfl-bench[timm]'" in capsys.readouterr().err
