"""Membership attacks on real small runs: open, private, and private with a planted bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.runs import membership
from pfl_bench.runs.membership import KINDS
from pfl_bench.runs.runner import run
from pfl_bench.runs.shadows import released_model, shadow_plans
from pfl_bench.types import RunFolderError
from privacy.mechanisms import gaussian
from tests.helpers import make_tree

SHADOWS = 8
# Few users with few classes each: who has the only sevens cannot hide.
STRONG: dict[str, Any] = {
    "task__num_users": 16,
    "task__label_concentration": 0.02,
    "federated__num_rounds": 8,
    "federated__cohort_size": 8,
    "federated__local_batch_size": 32,
    "federated__local_learning_rate": 0.5,
    "federated__engine": "vectorized",
    "federated__engine_lanes": 8,
    "federated__workers": 1,
}
PRIVATE = {
    **STRONG,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    "privacy__population_size": 16,
    "privacy__noise_cohort_size": None,
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 15.0,
    "privacy__delta": 1e-3,
}


def row(folder: Path, setting: str, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "row.yaml"
    path.write_text(yaml.safe_dump(make_tree(setting, **changes)), encoding="utf-8")
    return path


def run_shadows(source: Path, out: Path) -> None:
    """What the command would run itself, without a page of each run."""
    for folder, plan in shadow_plans(source, (), SHADOWS, out / "shadows")[1]:
        run(plan, folder)


def attack(target: Path, out: Path, kind: str = "lira", shadows: int = SHADOWS) -> int:
    command = ["attack", str(target), "--kind", kind, "--shadows", str(shadows)]
    return main([*command, "--out", str(out)])


def found(out: Path, kind: str) -> dict[str, Any]:
    part: dict[str, Any] = json.loads((out / "attack.json").read_text())["attacks"][kind]
    return part


def no_noise(total: Any, stddev: float, cohort: float, rng: Any) -> Any:
    return total / cohort


def test_users_of_an_open_row_are_told_apart(tmp_path: Path) -> None:
    source = row(tmp_path, "federated", **STRONG)
    run_shadows(source, tmp_path / "out")
    assert attack(source, tmp_path / "out", "loss") == 0
    assert (tmp_path / "out" / "loss.svg").read_text().startswith("<?xml")
    resolved, plans = shadow_plans(source, (), SHADOWS, tmp_path / "out" / "shadows")
    for kind in ("lira", "rmia"):
        membership.attack(kind, resolved, plans, tmp_path / "out", 0.99)
    for kind in KINDS:
        part = found(tmp_path / "out", kind)
        assert part["auc"] > 0.65
        assert part["verdict"]["refuted"] is None
    assert found(tmp_path / "out", "loss")["verdict"]["epsilon"] > 0.2


def test_a_private_run_is_below_its_curve_and_without_noise_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = row(tmp_path, "private_federated", **PRIVATE)
    run_folder = tmp_path / "run"
    assert main(["run", str(source), "--out", str(run_folder)]) == 0
    attacked = run_folder / "attack"
    run_shadows(run_folder / "config.yaml", attacked)
    assert attack(run_folder, attacked, "loss") == 0
    assert found(attacked, "loss")["verdict"]["refuted"] is False
    main(["audit", str(run_folder)])
    assert "PASS  attacks: loss on 16 users of 8 shadow runs" in capsys.readouterr().out

    monkeypatch.setattr(gaussian, "noised_mean", no_noise)
    run_shadows(source, tmp_path / "bug")
    assert attack(source, tmp_path / "bug", "loss") == 1
    part = found(tmp_path / "bug", "loss")
    assert part["claim"] == found(attacked, "loss")["claim"]
    assert part["verdict"]["refuted"] is True
    # As if the run itself had been attacked with the bug.
    (attacked / "attack.json").write_bytes((tmp_path / "bug" / "attack.json").read_bytes())
    assert main(["audit", str(run_folder)]) == 1
    assert "FAIL  attacks: loss:" in capsys.readouterr().out


def test_shadow_runs_have_halves_seeds_and_the_row_s_claim(tmp_path: Path) -> None:
    source = row(tmp_path, "private_federated", **PRIVATE)
    resolved, plans = shadow_plans(source, (), 3, tmp_path)
    seeds = {plan.config.seed for _, plan in plans}
    assert len(seeds | {resolved.config.seed}) == 4
    for _, plan in plans:
        assert plan.config.privacy == resolved.config.privacy


def test_shadow_runs_that_are_not_of_one_claim_or_not_whole_are_refused(tmp_path: Path) -> None:
    source = row(tmp_path, "private_federated", **PRIVATE)
    plans = shadow_plans(source, (), 2, tmp_path / "shadows")[1]
    with pytest.raises(RunFolderError, match="the shadow run is not finished; give the command"):
        membership.read_claim(plans)
    for (folder, _), epsilon in zip(plans, (1.0, 2.0), strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        side = {"epsilon": epsilon, "delta": 1e-3}
        privacy = {"unit": "user", "rounds": 8, "noise_multiplier": 15.0, "actual": side}
        (folder / "summary.json").write_text(json.dumps({"privacy": privacy}))
    with pytest.raises(RunFolderError, match=r"claims another privacy than .*; delete the older"):
        membership.read_claim(plans)
    with pytest.raises(RunFolderError, match="has no checkpoint, which the model is read from"):
        released_model(plans[0][0])
