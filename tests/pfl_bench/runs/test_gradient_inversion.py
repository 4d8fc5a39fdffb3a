"""Inverting a client's update: the image is found in the bare one, and not under noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl_bench.cli.main import main
from pfl_bench.runs.gradient_inversion import invert_update
from pfl_bench.types import ConfigError
from tests.helpers import make_config, parts_of

STEPS = 400


def test_a_bare_update_shows_the_image_and_a_noised_one_does_not() -> None:
    config = make_config("private_federated", task__num_users=300, privacy__population_size=300)
    inverted = invert_update(parts_of(config), steps=STEPS)
    psnr = {name: one.psnr for name, one in inverted.found.items()}
    assert set(psnr) == {"bare update", "clipped", "clipped and noised"}
    # Clipping does not turn an update.
    assert psnr["bare update"] > 30.0
    assert psnr["clipped"] == pytest.approx(psnr["bare update"], abs=3.0)
    assert psnr["clipped and noised"] < 12.0
    assert inverted.originals.shape[1:] == (1, 8, 8)


def test_a_client_s_own_report_takes_the_place_of_clipped_and_noised() -> None:
    mechanism = {"name": "local_gaussian", "clip_norm": 0.5}
    changes = {"privacy__mechanism": mechanism, "privacy__noise_cohort_size": None}
    config = make_config("private_federated", **changes)
    inverted = invert_update(parts_of(config), steps=2)
    assert set(inverted.found) == {"bare update", "the client's report"}


def test_what_is_no_image_is_refused() -> None:
    config = make_config("federated", task={"name": "synthetic"}, model={"name": "softmax"})
    with pytest.raises(ConfigError, match="are no images"):
        invert_update(parts_of(config), steps=1)


def test_the_command_leaves_a_picture_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pfl_bench.runs.gradient_inversion.STEPS", 2)
    command = ["attack", "demo/federated", "--kind", "gradient", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "PSNR" in capsys.readouterr().out
    assert (tmp_path / "gradient.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "gradient.json").read_text())
    assert set(numbers["found"]) == {"bare update"}
