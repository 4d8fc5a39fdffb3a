"""What a resumed run must not do: go on under other settings, or release again under its noise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from pfl_bench.client import machine
from pfl_bench.client.engines.sequential import SequentialEngine
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import parts as building
from pfl_bench.runs import runner
from pfl_bench.runs.folder import RunFolder
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, RunFolderError
from privacy.errors import LedgerError
from privacy.ledger import read_ledger
from tests.helpers import REPOSITORY, make_config, make_tree

Patch = pytest.MonkeyPatch
Cut = Callable[[ResolvedConfig, Path, int | None], None]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Leaves in a folder what a kill after checkpoint ``keep`` (None: none) of a run leaves.

    Each configuration is run to its end once, and copied from then on.
    """
    ended: dict[str, Path] = {}

    def leave(config: ResolvedConfig, folder: Path, keep: int | None) -> None:
        key = config.to_yaml()
        if key not in ended:
            ended[key] = tmp_path_factory.mktemp("ended") / "run"
            run(config, ended[key])
        shutil.copytree(ended[key], folder, dirs_exist_ok=True)
        (folder / "summary.json").unlink()
        for path in (folder / "checkpoints").iterdir():
            if keep is None or path.name != f"step-{keep:08d}.pt":
                path.unlink()

    return leave


def change_environment(folder: Path, section: str, key: str, value: Any) -> None:
    path = folder / "environment.json"
    content = json.loads(path.read_text())
    content[section][key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("data", "checksum", "sha256:0", "restore the data"),
        ("hardware", "torch_threads", 7, "num_threads=7"),
        ("hardware", "device", "cuda:0", "device=cuda:0"),
    ],
)
@pytest.mark.parametrize("setting", ["federated", "central_dp"])
def test_other_data_threads_or_device_are_refused(
    setting: str, section: str, key: str, value: Any, words: str, cut: Cut, tmp_path: Path
) -> None:
    config = make_config(setting)
    cut(config, tmp_path, None)
    change_environment(tmp_path, section, key, value)
    with pytest.raises(RunFolderError, match=f"(?i){words}"):
        run(config, tmp_path, resume=True)


def test_another_engine_is_refused_with_the_settings_that_resume(cut: Cut, tmp_path: Path) -> None:
    config = make_config("federated", federated__engine="sequential")
    cut(config, tmp_path, None)
    change_environment(tmp_path, "engine", "name", "vectorized, 24 slots")
    with pytest.raises(RunFolderError, match="began with engine vectorized, 24 slots") as caught:
        run(config, tmp_path, resume=True)
    mend = "Resume with federated.engine=vectorized federated.engine_lanes=24, or start"
    assert mend in str(caught.value)


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_a_run_of_a_version_that_lacked_a_setting_is_the_run_of_its_default(
    setting: str, cut: Cut, tmp_path: Path
) -> None:
    config = make_config(setting, federated__num_rounds=2, checkpoint__every=1)
    path = tmp_path / "run" / "config.yaml"
    cut(config, path.parent, 1)
    recorded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert recorded["evaluation"].pop("metrics") == []
    del recorded["checkpoint"]["keep"]
    path.write_text(yaml.safe_dump(recorded), encoding="utf-8")
    assert run(config, path.parent, resume=True)["rounds"] == 2
    seconds = run(config, path.parent)["seconds"]
    assert run(config, path.parent)["seconds"] == seconds  # finished, and read
    # Another value than the default is another run still.
    other = make_config(
        setting, federated__num_rounds=2, checkpoint__every=1, evaluation__metrics=["next_token"]
    )
    with pytest.raises(RunFolderError, match=r"evaluation.metrics \(\[\] -> \['next_token'\]\)"):
        run(other, path.parent)


ARITHMETIC = [
    ("packages", "torch", "2.0.0", "install torch 2.0.0"),
    ("packages", "numpy", "1.26.0", "install numpy 1.26.0"),
    (None, "python", "3.11.0", "Python 3.11.0"),
    ("hardware", "cpu_capability", "AVX9000", "instructions torch uses as AVX9000"),
    ("hardware", "accelerator", "NVIDIA H1000", "a machine with NVIDIA H1000"),
]


@pytest.mark.parametrize(("section", "key", "value", "mend"), ARITHMETIC)
@pytest.mark.parametrize("setting", ["private_federated", "federated"])
def test_other_versions_and_instructions(
    setting: str, section: str | None, key: str, value: str, mend: str, cut: Cut, tmp_path: Path
) -> None:
    """A private run is refused; another goes on, says it, and records it beside the old."""
    config = make_config(setting)
    cut(config, tmp_path, 4)
    path = tmp_path / "environment.json"
    content = json.loads(path.read_text())
    (content[section] if section else content)[key] = value
    path.write_text(json.dumps(content))
    if setting == "private_federated":
        with pytest.raises(RunFolderError, match=f"{key} {value} -> .*{mend}"):
            run(config, tmp_path, resume=True)
        assert json.loads(path.read_text()) == content
        return
    run(config, tmp_path, resume=True)
    assert f"{key} {value} ->" in (tmp_path / "run.log").read_text()
    recorded = json.loads(path.read_text())
    (again,) = recorded.pop("resumptions")
    assert recorded == content
    assert (again[section] if section else again).get(key) != value


def test_a_processor_that_is_told_to_do_less_is_another(cut: Cut, tmp_path: Path) -> None:
    """The variable that torch reads at its start, in processes of their own."""
    row = tmp_path / "row.yaml"
    row.write_text(yaml.safe_dump(make_tree("private_federated")), encoding="utf-8")
    out = tmp_path / "run"
    command = [sys.executable, "-m", "pfl_bench", "run", str(row), "--out", str(out)]
    cut(make_config("private_federated"), out, 4)
    done = subprocess.run(
        [*command, "--resume"], cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "cpu_capability" in done.stderr
    assert "-> DEFAULT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("setting", ["federated", "private_federated", "central_dp"])
@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl", "ledger.jsonl"])
def test_a_missing_file_is_named(name: str, setting: str, cut: Cut, tmp_path: Path) -> None:
    config = make_config(setting)
    cut(config, tmp_path, 4)
    if not (tmp_path / name).exists():
        assert name == "ledger.jsonl"
        return
    (tmp_path / name).unlink()
    with pytest.raises((RunFolderError, LedgerError), match=f"{name}.* missing"):
        run(config, tmp_path, resume=True)
    assert not (tmp_path / name).exists()


def test_a_missing_round_of_the_metrics_is_named(cut: Cut, tmp_path: Path) -> None:
    config = make_config("federated")
    cut(config, tmp_path, 4)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(RunFolderError, match="no line of round 3"):
        run(config, tmp_path, resume=True)


SECTIONS_EMPTIED = json.dumps(
    {
        **{key: {} for key in ("data", "model", "hardware", "engine", "packages")},
        "private_seed": {"value": "", "parts": {}},
    }
)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        SECTIONS_EMPTIED,
        '{"hardware": 3}',
        '{"resumptions": 3}',
        '{"packages": null}',
        "{",
        "",
    ],
)
def test_a_damaged_record_of_the_environment(content: str, cut: Cut, tmp_path: Path) -> None:
    config = make_config("private_federated")
    cut(config, tmp_path, 4)
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"environment\.json.*[Rr]estore the file"):
        run(config, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("keep", "error"),
    [pytest.param(None, LedgerError, id="all_to_replay"), pytest.param(6, RunFolderError, id="6")],
)
def test_code_that_draws_other_cohorts_and_noise_is_refused(
    keep: int | None, error: type[Exception], cut: Cut, tmp_path: Path, monkeypatch: Patch
) -> None:
    config = make_config("private_federated", privacy__nonce=None)
    cut(config, tmp_path, keep)
    monkeypatch.setattr(machine, "code_digest", lambda: "sha256:other")
    with pytest.raises(RunFolderError, match=r"code sha256:\w+ -> sha256:other"):
        run(config, tmp_path, resume=True)
    # Should the record be forged, the ledger or the checkpoint tells.
    monkeypatch.setattr(RunFolder, "check_environment", lambda *_: [])
    with pytest.raises(error, match="another seed" if keep else "round 1"):
        run(config, tmp_path, resume=True)


@pytest.mark.parametrize("keep", [None, 6])
def test_another_noise_multiplier_than_the_ledger_s_is_refused(
    keep: int | None, cut: Cut, tmp_path: Path, monkeypatch: Patch
) -> None:
    """As after an upgrade of the accountant's library, with or without rounds left to replay."""
    config = make_config("private_federated")
    cut(config, tmp_path, keep)
    from privacy.plan import budget

    original = budget.calibrate_noise_multiplier
    raised = lambda *a, **k: 1.01 * original(*a, **k)  # noqa: E731
    monkeypatch.setattr(budget, "calibrate_noise_multiplier", raised)
    with pytest.raises(LedgerError, match="other settings than today"):
        run(config, tmp_path, resume=True)


def test_another_sum_under_the_same_noise_is_refused(
    cut: Cut, tmp_path: Path, monkeypatch: Patch
) -> None:
    config = make_config("private_federated")
    cut(config, tmp_path, 2)
    original = SequentialEngine._train_client

    def negated(self: SequentialEngine, *arguments: Any) -> Any:
        result = original(self, *arguments)
        result.update.neg_()  # Same norm, same counts: all but the digest agrees.
        return result

    monkeypatch.setattr(SequentialEngine, "_train_client", negated)
    with pytest.raises(LedgerError, match="release_sha256"):
        run(config, tmp_path, resume=True)


def test_central_steps_that_come_out_differently_are_refused(
    cut: Cut, tmp_path: Path, monkeypatch: Patch
) -> None:
    config = make_config("central_dp")
    cut(config, tmp_path, 2)
    original = building.build_task

    def relabelled(resolved: ResolvedConfig, device: torch.device) -> Any:
        task = original(resolved, device)
        task.split("train")._targets.add_(1).remainder_(10)
        return task

    monkeypatch.setattr(building, "build_task", relabelled)
    with pytest.raises(LedgerError, match="release_sha256"):
        run(config, tmp_path, resume=True)


@pytest.mark.parametrize("setting", ["private_federated", "central_dp"])
def test_a_ledger_with_fewer_rounds_than_the_checkpoint_is_refused(
    setting: str, cut: Cut, tmp_path: Path
) -> None:
    config = make_config(setting)
    last = 6 if setting == "private_federated" else 4
    cut(config, tmp_path, last)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(LedgerError, match="ends with round 2"):
        run(config, tmp_path, resume=True)


def test_runs_of_one_seed_do_not_share_noise_or_cohorts(tmp_path: Path) -> None:
    ledgers = []
    for name, epsilon in (("a", 5.0), ("b", 5.1), ("c", 5.0)):
        changes = {"privacy__epsilon": epsilon, "privacy__nonce": None}
        run(make_config("private_federated", **changes), tmp_path / name)
        ledgers.append(read_ledger(tmp_path / name / "ledger.jsonl"))
    cohorts = [[line["realised_cohort"] for line in ledger] for ledger in ledgers]
    assert cohorts[0] != cohorts[1]
    noises = [[line["noisy_fraction_unclipped"] for line in ledger] for ledger in ledgers]
    assert not set(noises[0]) & set(noises[1])
    assert ledgers[0] == ledgers[2]


def test_watching_a_run_otherwise_does_not_change_it(tmp_path: Path) -> None:
    run(make_config("private_federated"), tmp_path / "a")
    run(make_config("private_federated", evaluation__every=3, name="b"), tmp_path / "b")
    first, second = (read_ledger(tmp_path / name / "ledger.jsonl") for name in "ab")
    assert first == second


def test_a_killed_run_s_folder_states_the_most_it_can_have_spent(tmp_path: Path) -> None:
    config = make_config(
        "private_federated", privacy__noise_multiplier=2.5, privacy__epsilon=2.0,
        federated__num_rounds=50,
    )  # fmt: skip
    stated: list[dict[str, Any]] = []
    original = runner._Run._train

    def peek(self: Any, *arguments: Any) -> Any:
        stated.append(json.loads((tmp_path / "privacy.json").read_text()))
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner._Run, "_train", peek)
        summary = run(config, tmp_path)
    assert stated[0]["status"] == "planned"
    assert stated[0]["rounds"] == summary["rounds"]
    assert stated[0]["simulated"]["epsilon"] <= 2.0


class CountingLayer(nn.Module):
    """A buffer that training moves, as running statistics do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.add_(inputs.sum())  # type: ignore[operator]
        return inputs


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_a_buffer_that_training_moves_is_refused_before_a_release(
    setting: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    from tasks.digits import models

    original = models.build
    monkeypatch.setattr(models, "build", lambda *a: nn.Sequential(CountingLayer(), original(*a)))
    with pytest.raises(ConfigError, match=r"0\.seen"):
        run(make_config(setting), tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    assert not ledger.exists() or ledger.read_text() == ""


def test_a_loss_that_is_no_mean_is_refused_for_example_level_dp(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    from tasks.digits.task import DigitsTask

    original = DigitsTask.loss
    monkeypatch.setattr(DigitsTask, "loss", lambda self, o, t: original(self, o, t) * len(o) ** 0.5)
    with pytest.raises(ConfigError, match="not the mean"):
        run(make_config("central_dp"), tmp_path)
