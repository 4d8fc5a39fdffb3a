"""The audit of finished runs whose folder has another model in a released one's place.

Whoever edits writes ledger, checkpoints, summary and metrics anew, so that all digests agree.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_bench.runs.audit import RunAudit, audit_run
from pfl_bench.runs.checkpoint import load, steps_saved
from pfl_bench.runs.runner import run
from privacy.plan.plan import tensor_digest
from privacy.recording.central_record import Sketcher
from tests.helpers import change_checkpoint, make_config
from tests.pfl_bench.runs.test_edited_runs import json_edit, ledger_edit

ROUNDS = 6
_PRIVATE: dict[str, Any] = {
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 2.0,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    "federated__num_rounds": ROUNDS,
    "evaluation__final_splits": [],
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model is that of a round before the last."""
    folder = tmp_path_factory.mktemp("chosen") / "run"
    changes: dict[str, Any] = {"evaluation__select_best": "val/loss", "evaluation__every": 1}
    changes["federated__central_learning_rate"] = 100.0
    summary = run(make_config("private_federated", **_PRIVATE, **changes), folder)
    assert summary["selected"] < ROUNDS
    return folder


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("last") / "run"
    run(make_config("private_federated", **_PRIVATE, evaluation__splits=[]), folder)
    return folder


def audited(folder: Path) -> tuple[RunAudit, dict[str, str]]:
    done = audit_run(folder, 1, recompute="sample")
    return done, {check.name: check.evidence for check in done.checks if check.outcome == "failed"}


def moved(vector: Tensor, distance: float) -> Tensor:
    """A model so far from another in each parameter, shape (P,)."""
    noise = torch.randn(vector.shape, generator=torch.Generator().manual_seed(1))
    return vector + distance * noise


def test_a_selected_model_that_no_round_released_fails(chosen: Path, tmp_path: Path) -> None:
    assert audited(chosen)[0].verdict == "passed"
    folder = Path(shutil.copytree(chosen, tmp_path / "copy"))
    number = json.loads((folder / "summary.json").read_text())["selected"]
    newest = steps_saved(folder / "checkpoints")[ROUNDS]
    model = moved(load(newest)["best"]["vector"], 1e-3)
    digest = tensor_digest(model)

    def exchange(state: dict[str, Any]) -> None:
        if state["best"]["index"] == number:
            state["best"]["vector"] = model

    for path in steps_saved(folder / "checkpoints").values():
        change_checkpoint(path, exchange)
    # Its sketch stays, by which the central steps are followed.
    ledger_edit(lambda lines: lines[number]["central"].update(sha256=digest))(folder)
    json_edit("summary.json", lambda summary: summary.update(model_sha256=digest))(folder)
    done, failed = audited(folder)
    assert (done.verdict, {*failed}) == ("failed", {"central_chain"})
    assert f"keeps as the best is not that of round {number}" in failed["central_chain"]


@pytest.mark.parametrize("is_of_length", [False, True], ids=["far", "of the noise's length"])
def test_a_last_step_that_a_stated_rounding_would_hide_fails(
    is_of_length: bool, last: Path, tmp_path: Path
) -> None:
    assert audited(last)[0].verdict == "passed"
    folder = Path(shutil.copytree(last, tmp_path / "copy"))
    newest = steps_saved(folder / "checkpoints")[ROUNDS]
    line = json.loads((folder / "ledger.jsonl").read_text().splitlines()[-1])
    before = load(newest)["trainer"]["central"]
    distance = line["release"]["norm"] / len(before) ** 0.5 if is_of_length else 0.5
    model, sketcher = moved(before, distance), Sketcher(len(before))
    change_checkpoint(newest, lambda state: state["trainer"].update(central=model))
    norm = float((model - before).norm())

    def release(lines: list[dict[str, Any]]) -> None:
        line = lines[-1]
        after, start = sketcher.sketch(model), line["central"]
        # The row's rate is 1, and the step goes along the release.
        for key in ("projections", "coordinates"):
            pairs = zip(after[key], start[key], strict=True)
            line["release"][key] = [one - other for one, other in pairs]
        line["release"]["norm"] = norm
        noise, stddev, length = line["noise"], line["update_noise_stddev"], line["sum_norm"]
        squares = length**2 + stddev**2 * noise["sum_squares"]
        noise["dot_sum"] = ((norm * line["denominator"]) ** 2 - squares) / (2 * stddev * length)
        noise["rounding"] = 1e9

    ledger_edit(release)(folder)
    digest = tensor_digest(model)
    json_edit("summary.json", lambda summary: summary.update(model_sha256=digest))(folder)
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["train/update_norm"] = norm
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done, failed = audited(folder)
    assert done.verdict == "failed"
    assert {*failed} == {"recomputation", *(() if is_of_length else ("releases",))}
    assert f"round {ROUNDS}: " in failed["recomputation"]


def test_an_evaluated_model_that_no_checkpoint_holds_is_incomplete(
    chosen: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(chosen, tmp_path / "copy"))
    number = json.loads((folder / "summary.json").read_text())["selected"]
    for path in steps_saved(folder / "checkpoints").values():
        change_checkpoint(path, lambda state: state.update(best=None))
    ledger_edit(lambda lines: lines[number]["central"].update(sha256="1" * 64))(folder)
    json_edit("summary.json", lambda summary: summary.update(model_sha256="1" * 64))(folder)
    done, _ = audited(folder)
    lacking = [check.name for check in done.checks if check.outcome == "incomplete"]
    assert (done.verdict, lacking) == ("incomplete", ["central_chain"])


def test_a_trained_model_of_a_run_without_rounds_fails(last: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(last, tmp_path / "copy"))
    (folder / "summary.json").unlink()
    for name in ("ledger.jsonl", "metrics.jsonl"):
        (folder / name).write_text("")
    json_edit("privacy.json", lambda statement: statement.update(status="planned"))(folder)
    *others, newest = steps_saved(folder / "checkpoints").values()
    for path in others:
        path.unlink()
    newest = newest.rename(newest.with_name("step-00000000.pt"))

    def begin(state: dict[str, Any]) -> None:
        state["step"] = 0
        state["trainer"]["private"]["ledger"] = "0" * 64

    change_checkpoint(newest, begin)
    done, failed = audited(folder)
    assert (done.verdict, {*failed}) == ("failed", {"central_chain"})


@pytest.fixture(scope="module")
def of_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of_examples") / "run"
    changes = {"central__num_epochs": 2, "evaluation__final_splits": []}
    choosing = {"evaluation__select_best": "val/loss", "evaluation__every": 1}
    run(make_config("central_dp", **changes, **choosing), folder)
    return folder


def test_a_model_that_steps_of_examples_did_not_end_with_fails(
    of_examples: Path, tmp_path: Path
) -> None:
    assert audited(of_examples)[0].words == "passed: recomputed 76 of 76 steps"
    folder = Path(shutil.copytree(of_examples, tmp_path / "copy"))
    newest = steps_saved(folder / "checkpoints")[2]
    assert load(newest)["best"]["index"] == 2
    model = moved(load(newest)["trainer"]["central"], 1e-3)

    def exchange(state: dict[str, Any]) -> None:
        state["trainer"]["central"] = state["best"]["vector"] = model

    change_checkpoint(newest, exchange)
    digest = tensor_digest(model)
    ledger_edit(lambda lines: lines[-1].update(release_sha256=digest))(folder)
    json_edit("summary.json", lambda summary: summary.update(model_sha256=digest))(folder)
    done, failed = audited(folder)
    assert (done.verdict, {*failed}) == ("failed", {"recomputation"})
    assert "holds another model than the steps of epoch 2 end with" in failed["recomputation"]
