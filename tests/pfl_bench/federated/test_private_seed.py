"""The seed of a private run's noise: what moves it, what pins it, and what says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from pfl_bench.client import machine
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.messages import Built, await_workers
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.simulation.devices.cohorts import digest_of, open_devices
from pfl_bench.types import ConfigError, RunFolderError
from privacy.audit.check import Check
from privacy.ledger import read_ledger
from tests import warm
from tests.equivalence.test_processes import InTurn
from tests.helpers import REPOSITORY, make_config, parts_of, seed_of

NOISE = {
    "privacy__nonce": None,
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 1.0,
    "federated__num_rounds": 2,
}
PRINT = "from pfl_bench.client.machine import code_digest; print(code_digest())"


def python(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the three packages, to be edited."""
    folder = tmp_path_factory.mktemp("copy")
    for name in machine.PACKAGES:
        shutil.copytree(
            REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder


def test_the_code_s_digest_is_of_its_content_alone(copy: Path) -> None:
    assert warm.python("-c", PRINT, cwd=copy, check=True).stdout.strip() == machine.code_digest()


@pytest.mark.parametrize(
    "name",
    ["tasks/digits/task.py", "privacy/clipping.py", "pfl_bench/client/engines/sequential.py"],
)
def test_an_edit_of_code_moves_its_digest(name: str, copy: Path) -> None:
    path = copy / name
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(before + "\n", encoding="utf-8")
        assert (
            warm.python("-c", PRINT, cwd=copy, check=True).stdout.strip() != machine.code_digest()
        )
    finally:
        path.write_text(before, encoding="utf-8")


def test_a_new_plug_in_moves_the_digest(copy: Path) -> None:
    path = copy / "pfl_bench/federated/algorithms/mine.py"
    path.write_text('"""Mine."""\n', encoding="utf-8")
    try:
        assert (
            warm.python("-c", PRINT, cwd=copy, check=True).stdout.strip() != machine.code_digest()
        )
    finally:
        path.unlink()


@pytest.mark.parametrize(
    "name", ["code_digest", "library_versions", "processor_details", "cpu_capability"]
)
def test_code_versions_and_instructions_move_the_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("private_federated")
    pinned = make_config("private_federated", privacy__nonce="mine")
    before, kept = seed_of(config), seed_of(pinned)
    other = {"torch": "1.0"} if name == "library_versions" else "other"
    monkeypatch.setattr(machine, name, lambda: other)
    assert seed_of(config) != before
    assert seed_of(pinned) == kept


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("MKL_CBWR", True),
        ("ONEDNN_DEFAULT_FPMATH_MODE", True),
        ("GLIBC_TUNABLES", True),
        ("MKL_VERBOSE", False),
        ("MKL_NUM_THREADS", False),
        # Of CUDA alone, and set by runs on it for the process.
        ("CUBLAS_WORKSPACE_CONFIG", False),
        ("HOME", False),
    ],
)
def test_a_switch_moves_the_seed(name: str, moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("private_federated")
    before = seed_of(config)
    monkeypatch.setenv(name, "BF16")
    assert (seed_of(config) != before) == moves


def test_what_editors_leave_is_no_code(copy: Path) -> None:
    lock = copy / "tasks" / "digits" / ".#task.py"
    other = copy / "tasks" / "digits" / ".ipynb_checkpoints"
    lock.symlink_to("nobody@nowhere")
    other.mkdir()
    (other / "task-checkpoint.py").write_text("x = 1\n", encoding="utf-8")
    try:
        assert (
            warm.python("-c", PRINT, cwd=copy, check=True).stdout.strip() == machine.code_digest()
        )
    finally:
        lock.unlink()
        shutil.rmtree(other)


def test_settings_beside_weights_move_the_seed(tmp_path: Path) -> None:
    """They decide what the same tensors compute, such as ALBERT's number of heads."""
    config = make_config("private_federated")
    config.tree["model"]["weights"] = str(tmp_path)
    seeds = []
    for heads in (2, 4):
        (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": heads}))
        seeds.append(seed_of(config))
    # A file says what it does by its name.
    (tmp_path / "config.json").rename(tmp_path / "other.json")
    seeds.append(seed_of(config))
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("setting", ["private_federated", "central_dp"])
@pytest.mark.parametrize("seed", ["text", {}, {"value": 3, "parts": {}}, {"value": "3"}])
def test_a_damaged_record_of_the_seed_is_named(setting: str, seed: Any, tmp_path: Path) -> None:
    changes = NOISE if setting == "private_federated" else {"central__num_epochs": 2}
    config = make_config(setting, **changes)
    run(config, tmp_path)
    (tmp_path / "summary.json").unlink()
    path = tmp_path / "environment.json"
    environment = json.loads(path.read_text()) | {"private_seed": seed}
    path.write_text(json.dumps(environment))
    with pytest.raises(RunFolderError, match=r"('|lacks )private_seed"):
        run(config, tmp_path, resume=True)


def test_central_training_is_resumed_under_its_own_seed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("central_dp", privacy__nonce=None, checkpoint__every=1)
    run(config, tmp_path)
    (tmp_path / "summary.json").unlink()
    (tmp_path / "checkpoints" / "step-00000004.pt").unlink()
    path = tmp_path / "environment.json"
    environment = json.loads(path.read_text())
    del environment["private_seed"]
    path.write_text(json.dumps(environment))
    monkeypatch.setattr(machine, "code_digest", lambda: "sha256:other")
    with pytest.raises(RunFolderError, match="private_seed"):
        run(config, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("engine", "size", "sums"),
    [
        ({"engine": "sequential"}, 1, "sequential, 8 shards"),
        ({"engine": "sequential"}, 2, "sequential, 8 shards"),
        ({"engine": "vectorized", "engine_lanes": 3}, 1, "vectorized, 3 slots, 1 shards"),
        (
            {"engine": "vectorized", "engine_lanes": 3},
            2,
            "vectorized, 3 slots, 2 threads in turn, 2 shards",
        ),
    ],
)
def test_the_seed_takes_in_what_the_run_has_at_hand(
    engine: dict[str, Any], size: int, sums: str, tmp_path: Path
) -> None:
    changes = {f"federated__{key}": value for key, value in engine.items()}
    source = {"source": {"name": "generated"}}
    parts = parts_of(
        make_config("private_federated", systems=source, federated__sampling="selected", **changes)
    )
    trainer = FederatedTrainer(parts, tmp_path, lambda text: None, InTurn(size))
    devices = open_devices(parts.resolved, parts.split.num_users)
    given = trainer.private_seed.parts
    assert given["data"] == parts.task.facts.checksum
    assert given["initial_model"] == parts.model.initial_digest
    assert given["engine"] == sums
    assert given["simulated_devices"] == digest_of(devices)


def test_a_nonce_pins_the_seed_whatever_else_changes() -> None:
    one = make_config("private_federated", privacy__nonce=7)
    assert seed_of(one) == seed_of(one, "other", "other", "mps", "vectorized")
    zero = make_config("private_federated", privacy__nonce=0)
    assert seed_of(zero) == seed_of(zero, "other")
    rounds = make_config("private_federated", privacy__nonce=7, federated__num_rounds=9)
    assert seed_of(rounds) == seed_of(one)
    others = [
        make_config("private_federated", privacy__nonce=8),
        make_config("private_federated", privacy__nonce="7"),
        make_config("private_federated", privacy__nonce=7, seed=4),
        make_config("private_federated"),
    ]
    assert len({seed_of(config) for config in (one, *others)}) == 5


@pytest.mark.parametrize("nonce", ["", "x" * 101, -1, 1.5, True])
def test_a_bad_nonce_is_refused(nonce: Any) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.nonce"):
        make_config("private_federated", privacy__nonce=nonce)


@pytest.mark.parametrize("setting", ["private_federated", "central_dp"])
def test_statement_and_record_say_that_noise_is_pinned(setting: str, tmp_path: Path) -> None:
    changes = NOISE if setting == "private_federated" else {"privacy__nonce": None}
    run(make_config(setting, **{**changes, "privacy__nonce": "mine"}), tmp_path / "pinned")
    run(make_config(setting, **changes), tmp_path / "own")
    for name, nonce in (("pinned", "mine"), ("own", None)):
        notes = json.loads((tmp_path / name / "privacy.json").read_text())["notes"]
        assert any("nonce 'mine'" in note for note in notes) == (nonce is not None)
        recorded = json.loads((tmp_path / name / "environment.json").read_text())["private_seed"]
        assert recorded["nonce"] == nonce
        assert len(recorded["value"]) == 64
        assert recorded["parts"]["code"] == machine.code_digest()
        if setting == "private_federated":
            check = seed_check(tmp_path / name)
            assert check.outcome == "passed"
            assert ("pinned by the nonce 'mine'" in check.evidence) == (nonce is not None)


def seed_check(folder: Path) -> Check:
    """What the audit says of a run's seed."""
    return next(check for check in audit_run(folder).checks if check.name == "private_seed")


def test_a_seed_that_does_not_follow_from_its_parts_fails_the_audit(tmp_path: Path) -> None:
    run(make_config("private_federated", **NOISE), tmp_path / "run")
    path = tmp_path / "run" / "environment.json"
    environment = json.loads(path.read_text())
    environment["private_seed"]["parts"]["code"] = "sha256:" + "0" * 64
    path.write_text(json.dumps(environment))
    assert "different seeds" in seed_check(tmp_path / "run").evidence


PINNED: dict[str, dict[str, Any]] = {"own": {}, "again": {}, "pinned": {"privacy__nonce": 1}}


def first_noises(folder: Path, *names: str) -> dict[str, list[float]]:
    """The first noise of runs that are named as in ``PINNED``."""
    found = {}
    for name in names:
        run(make_config("private_federated", **{**NOISE, **PINNED[name]}), folder / name)
        found[name] = read_ledger(folder / name / "ledger.jsonl")[0]["noise"]["head"]
    return found


RUNS = """
import json, sys
from pathlib import Path
from tests.pfl_bench.federated.test_private_seed import first_noises

found = first_noises(Path(sys.argv[1]), "own", "pinned")
(Path(sys.argv[1]) / "found.json").write_text(json.dumps(found))
"""


def test_another_instruction_set_draws_other_noise(tmp_path: Path) -> None:
    """Otherwise the difference of the two runs' releases would be bare of noise."""
    native = first_noises(tmp_path / "native", "own", "again", "pinned")
    # PyTorch reads it when it is imported.
    switches = {"ATEN_CPU_CAPABILITY": "default"}
    python(REPOSITORY, "-c", RUNS, str(tmp_path), environment=switches)
    other = json.loads((tmp_path / "found.json").read_text())
    assert native["own"] == native["again"]
    assert native["own"] != pytest.approx(other["own"], rel=1e-3)
    assert native["pinned"] == pytest.approx(other["pinned"], rel=1e-3)


class _WorkerGroup:
    size = 2

    def __init__(self, built: Built) -> None:
        self._built = built

    def receive(self, rank: int) -> tuple[Built, tuple[()]]:
        return self._built, ()


@pytest.mark.parametrize("is_private", [False, True])
def test_a_process_that_computes_otherwise_is_refused_in_private_runs(is_private: bool) -> None:
    own = Built("sequential", {"versions": {"torch": "2.9.0"}} if is_private else None)
    other = Built("sequential", {"versions": {"torch": "2.8.0"}} if is_private else None)
    await_workers(_WorkerGroup(own), own)  # type: ignore[arg-type]
    if not is_private:
        await_workers(_WorkerGroup(other), own)  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match=r"process 1 .*versions\.torch 2\.9\.0 -> 2\.8\.0"):
        await_workers(_WorkerGroup(other), own)  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_a_private_run_s_worker_with_other_code_is_refused_before_round_1(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = machine.identity

    def identity(device: torch.device) -> dict[str, Any]:
        is_worker = threading.current_thread() is not threading.main_thread()
        return known(device) | ({"code": "sha256:0"} if is_worker else {})

    monkeypatch.setattr(machine, "identity", identity)
    parts = parts_of(make_config(setting))
    if setting == "federated":
        FederatedTrainer(parts, tmp_path, lambda text: None, InTurn(2))
        return
    with pytest.raises(ConfigError, match=r"process 1 computes otherwise than this one \(code"):
        FederatedTrainer(parts, tmp_path, lambda text: None, InTurn(2))
