"""``pfl-bench attack``: a killed one goes on, what cannot be attacked is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pfl_bench.cli.attack import _lines
from pfl_bench.cli.main import main
from pfl_bench.federated.trainer import FederatedTrainer
from tests.pfl_bench.runs.test_membership import PRIVATE, STRONG, attack, found, row


def test_a_killed_attack_goes_on_and_finished_shadow_runs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = row(tmp_path, "federated", **STRONG)
    assert attack(source, tmp_path / "whole", "loss", 3) == 0
    rounds: list[int] = []
    advance = FederatedTrainer.advance

    def dying(trainer: FederatedTrainer, index: int) -> dict[str, float]:
        if len(rounds) == 12:
            raise KeyboardInterrupt
        rounds.append(index)
        return advance(trainer, index)

    monkeypatch.setattr(FederatedTrainer, "advance", dying)
    assert attack(source, tmp_path / "out", "loss", 3) == 130
    assert not (tmp_path / "out" / "attack.json").exists()
    monkeypatch.setattr(FederatedTrainer, "advance", advance)
    first = tmp_path / "out" / "shadows" / "shadow-0000" / "summary.json"
    written = first.stat().st_mtime_ns
    assert attack(source, tmp_path / "out", "loss", 3) == 0
    assert first.stat().st_mtime_ns == written
    assert found(tmp_path / "out", "loss") == found(tmp_path / "whole", "loss")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo/central.yaml"], "needs federated training"),
        (["demo/federated.yaml", "--shadows", "2"], "needs 4 or more"),
        (["demo/federated.yaml", "--confidence", "1.5"], "is not in [0.5, 1)"),
        (["demo/federated.yaml", "federated.shadow=1"], "federated.shadow"),
        (["demo/federated.yaml", "--kind", "gradient", "--user", "9999"], "is no user"),
        (["demo/central.yaml", "--kind", "gradient"], "this row is of the setting 'central'"),
        (["."], "no config.yaml"),
    ],
)
def test_what_cannot_be_attacked_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_stated_is_rounded_up_and_what_is_shown_down() -> None:
    verdict = {"guesses": {"most_in": 5, "least_out": 0}, "num_correct": 5, "num_users": 9}
    verdict |= {
        "epsilon": 1.23456,
        "confidence": 0.99,
        "num_tests": 3,
        "wealth": None,
        "refuted": True,
    }
    claim = {"epsilon": 3.14119, "delta": 0.00012341}
    counts = {"kind": "loss", "users": 9, "shadows": 4, "trials": {"in": 5, "out": 4}, "auc": 0.5}
    told = "\n".join(_lines(counts | {"rates": [], "claim": claim, "verdict": verdict}))
    assert "stated epsilon (actual)  3.142 at delta 0.000124" in told
    assert "epsilon is at least 1.234 by" in told


def test_a_reason_of_all_shadow_runs_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = row(tmp_path, "federated", **STRONG)
    assert attack(source, tmp_path / "out", "loss", 3) == 0
    arguments = [str(source), "--kind", "loss", "--shadows", "3", "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert main(["attack", *arguments, "federated.num_rounds=1"]) == 2
    told = capsys.readouterr().err
    assert told.count("num_rounds (") == 1
    assert told.count("for one reason, see above") == 1


def test_a_shadow_run_is_not_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = row(tmp_path, "private_federated", **PRIVATE)
    assert main(["run", str(source), "federated.shadow=0", "--out", str(tmp_path / "run")]) == 0
    assert main(["audit", str(tmp_path / "run")]) == 2
    assert "a shadow run of pfl-bench attack" in capsys.readouterr().err


def test_a_shadow_run_that_has_lost_its_model_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = row(tmp_path, "federated", **STRONG), tmp_path / "out"
    assert attack(source, out, "loss", 2) == 0
    lost = out / "shadows" / "shadow-0001"
    for path in (*lost.glob("*.npz"), *lost.glob("checkpoints/*")):
        path.unlink()
    capsys.readouterr()
    assert attack(source, out, "loss", 2) == 2
    said = capsys.readouterr().err
    assert f"{lost}: has no checkpoint, which the model is read from; restore it" in said
    shutil.rmtree(lost)
    assert attack(source, out, "loss", 2) == 0
