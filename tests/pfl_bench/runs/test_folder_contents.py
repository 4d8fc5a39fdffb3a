"""What a run writes into its folder, and nothing else, is known to the audit's check of the folder.

Edited folders that fail it are in test_edited_runs.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.report.audit import audit_status, audits
from pfl_bench.report.run_folder import read_run
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.environment import hardware
from pfl_bench.runs.runner import run
from pfl_bench.types.layouts import LAYOUTS, misfit
from pfl_bench.types.results import RunSummary
from privacy.audit import evidence
from privacy.audit.check import Check
from tests.helpers import make_config
from tests.pfl_bench.runs.test_recompute_devices import LATE, SELECTED
from tests.sabotage.sound_runs import _SCHEMES, MECHANISMS
from tests.sabotage.test_example_level_bugs import small, store
from tests.sabotage.test_own_mechanisms import folder

__all__ = ["folder", "store"]

Changes = dict[str, Any]
FREE: Changes = {
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 1.0,
    "privacy__noise_cohort_size": None,
    "privacy__accountant": "pld",
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    "federated__num_rounds": 3,
}
CYCLIC = {"federated__sampling": "cyclic_poisson", "federated__separation": 3}
DRAWN = ("gaussian", "adaptive_gaussian", "laplace", "local_gaussian", "privunit")
CANARIES = {"one_shot": 10, "one_run": 10, "worst_case": 10}
ATTACK = {"kind": "label_flip", "corrupted_fraction": 0.2, "labels": "permutation", "boost": 3.0}
OPTIMIZER = {"name": "adam"}
SETTINGS: dict[str, Changes] = {
    "adaptive": {},
    "no nonce": {"privacy__nonce": None},
    "workers": {"federated__workers": 2},
    "attack": {"attack": ATTACK},
    "selected": {**FREE, **SELECTED, **LATE, "privacy__accountant": "rdp"},
    "a model is chosen": {"evaluation__select_best": "val/accuracy"},
    "training users are evaluated": {"evaluation__splits": ["train", "val"]},
    "diverges": {"federated__central_learning_rate": 1e5},
    "its number is published": {
        "expected": [{"metric": "test/accuracy", "value": 0.5, "tolerance": 1.0, "source": "us"}]
    },
    **{
        one["name"]: {
            **FREE,
            **({} if one["name"] in DRAWN else CYCLIC),
            "privacy__mechanism": one,
            "federated__central_optimizer": OPTIMIZER,
        }
        for one in MECHANISMS
        if one["name"] != "dp_sgd"
    },
    **{one["federated__sampling"]: {**FREE, **one} for one in _SCHEMES},
    **{
        kind: {"privacy__audit": {"kind": kind, "count": count}} for kind, count in CANARIES.items()
    },
}


def checked(path: Path) -> Check:
    done = audit_run(path, 1)
    (check,) = [check for check in done.checks if check.name == "folder"]
    assert (check.outcome, done.inputs.other_files) == ("passed", ()), check.evidence
    return check


@pytest.mark.parametrize("what", SETTINGS)
def test_what_a_sound_run_writes_is_known(what: str, tmp_path: Path) -> None:
    run(make_config("private_federated", **SETTINGS[what]), tmp_path / "run")
    checked(tmp_path / "run")


def test_what_a_run_with_a_mechanism_of_a_plugin_writes_is_known(folder: Path) -> None:
    changes = {**FREE, "privacy__mechanism": {"name": "sound", "clip_norm": 0.5}}
    run(make_config("private_federated", **changes), folder / "run")
    checked(folder / "run")


def resume(path: Path) -> None:
    (path / "summary.json").unlink()
    max((path / "checkpoints").iterdir()).unlink()
    run(load_config(path / "config.yaml"), path, resume=True)


def members(value: Any, above: str = "") -> Iterator[str]:
    """Dotted names of all members, those of objects in lists included."""
    for item in value if isinstance(value, list) else ():
        yield from members(item, above)
    for key, part in value.items() if isinstance(value, Mapping) else ():
        if isinstance(key, str):
            yield f"{above}{key.removesuffix('!')}"
            yield from members(part, f"{above}{key.removesuffix('!')}.")


def test_no_name_is_known_that_no_run_writes(store: Path, tmp_path: Path) -> None:
    reports = {**FREE, "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5}}
    configs = [
        make_config("private_federated"),
        make_config("private_federated", **reports),
        make_config("central_dp"),
        small(store, privacy__nonce=None),
    ]
    lines, environments = set[str](), set[str]()
    for number, config in enumerate(configs):
        path = tmp_path / str(number)
        run(config, path)
        resume(path)
        checked(path)
        text = (path / "ledger.jsonl").read_text()
        lines.update(*(members(json.loads(line)) for line in text.splitlines()))
        environments.update(members(json.loads((path / "environment.json").read_text())))
        summary = json.loads((path / "summary.json").read_text())
        assert {*summary} == {key.removesuffix("!") for key in LAYOUTS["summary.json"]}
        names = {each.name for each in fields(RunSummary)} - {"edited"}
        assert names <= {*summary}
    # What older versions described in words, and what clients' reports have of other mechanisms.
    assert {*members(evidence._FORM)} - lines == {"mechanism_description.words"}
    of_gpu = {"accelerator", "cuda", "nondeterministic_operations"}
    unwritten = {f"{at}hardware.{name}" for at in ("", "resumptions.") for name in of_gpu}
    known = {*members(LAYOUTS["environment.json"])}
    assert known - environments - unwritten <= {
        f"{at}git{name}"
        for at in ("", "resumptions.")
        for name in ("", ".commit", ".uncommitted_changes")
    }


def test_what_a_run_on_a_gpu_writes_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    written = hardware(torch.device("cuda"))
    assert {*written} == {*LAYOUTS["environment.json"]["hardware!"]}


def last_line(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["audit", str(path)]) == 0
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("PASSED"))


def test_the_verdict_names_files_that_were_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    assert run(make_config("private_federated", privacy__nonce=None), path)
    main(["report", str(path), "--out", str(path / "report.html")])
    (path / "run.log").write_text("anything\n")
    sound = last_line(path, capsys)
    assert sound.startswith("PASSED: recomputed 6 of 6 rounds; ")
    assert "not looked at" not in sound
    assert checked(path).evidence.endswith("text that is not checked: run.log, report.html")
    path.chmod(0o750)
    assert checked(path).evidence.endswith(
        "others on this machine can read it (mode 0750): chmod 700"
    )

    (path / "updates.pt").write_bytes(b"")
    (path / "notes.txt").write_text("")
    line = last_line(path, capsys)
    said = "recomputed 6 of 6 rounds; not looked at: notes.txt, updates.pt"
    assert line.startswith(f"PASSED: {said}; ")
    words = json.loads((path / "audit.json").read_text())["words"]
    assert words == f"passed: {said}"
    record = read_run(path)
    assert audit_status(record) == "passed; files not looked at"
    (panel,) = audits({"small": [record]})
    assert panel["status"] == "passed"
    assert panel["counts"].startswith(f"{said}; 30 passed, ")

    (path / "checkpoints" / "sums.pt").write_bytes(b"")
    (path / "tensors").mkdir()
    (path / "z\x1b[2J").write_text("")
    named = "checkpoints/sums.pt, notes.txt, tensors and 2 more"
    assert f"; not looked at: {named}; " in last_line(path, capsys)
    assert audit_run(path, 1).words == f"passed on records alone: not looked at: {named}"
    assert audit_status(read_run(path)) == "passed on records alone; files not looked at"


def test_what_no_run_writes_of_canaries_strata_and_devices_fails(tmp_path: Path) -> None:
    def failure(path: Path, name: str, text: str) -> str:
        file = path / name
        before = file.read_text() if file.exists() else None
        file.write_text(text)
        (check,) = [check for check in audit_run(path, 1).checks if check.name == "folder"]
        file.unlink() if before is None else file.write_text(before)
        assert check.outcome == "failed"
        return check.evidence

    path = tmp_path / "canaries"
    run(make_config("private_federated", **SETTINGS["one_run"]), path)
    canaries = json.loads((path / "canaries.json").read_text()) | {"clients": {"3": 0.5}}
    said = failure(path, "canaries.json", json.dumps(canaries))
    assert "canaries.json: clients: no run writes it" in said
    said = failure(path, "strata.json", '{"train": {"3": [1, 0]}}')
    assert "strata.json: no run of this configuration writes it" in said
    log = (path / "run.log").read_text()
    said = failure(path, "run.log", f"{log}round 2: mean {np.linspace(0, 1, 13).tolist()}\n")
    assert "run.log: line 2, of 13 values: no run writes it" in said
    said = failure(path, "timelines.jsonl", "")
    assert "timelines.jsonl: no run of this configuration writes it" in said

    path = tmp_path / "devices"
    run(make_config("private_federated", **SETTINGS["selected"]), path)
    lines = (path / "timelines.jsonl").read_text().splitlines()
    lines = [json.dumps({**json.loads(line), "losses": {"3": 0.5}}) for line in lines]
    said = failure(path, "timelines.jsonl", "\n".join(lines))
    assert "timelines.jsonl: losses: no run writes it" in said


@pytest.mark.parametrize("nonce", [0, 7, "mine", None])
def test_a_nonce_may_be_whatever_a_row_gives(nonce: int | str | None) -> None:
    seed = {"value": "sha256:0", "parts": {}, "nonce": nonce}
    assert misfit({"private_seed": seed}, LAYOUTS["environment.json"]) is None
    assert misfit({"private_seed": {**seed, "nonce": 0.5}}, LAYOUTS["environment.json"])
