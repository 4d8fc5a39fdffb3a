"""Disks, folders, files and memory that fail in the midst of a run: a message, and --resume."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.cli.main import explain, main
from pfl_bench.federated import trainer as federated
from pfl_bench.files import read_json, read_metrics, write_atomically
from pfl_bench.runs.folder import RunFolder
from pfl_bench.runs.log import RunLog
from pfl_bench.runs.runner import run
from pfl_bench.types import RunFolderError
from privacy.errors import LedgerError
from privacy.ledger import read_ledger
from tests.helpers import central_of, make_config
from tests.pfl_bench.data.test_store_full_disk import small_disk

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ConfigFile = Callable[..., Path]


def test_a_disk_that_reports_an_error_under_a_checkpoint(
    config_file: ConfigFile, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    command = ["run", str(config_file("private_federated")), "--out", str(tmp_path / "run")]
    original = os.fsync

    def failing(descriptor: int) -> None:
        if "step-00000004" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), "step-00000004.pt")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "the disk reports an error" in said
    assert "--resume" in said
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step-00000002.pt"]
    monkeypatch.setattr(os, "fsync", original)
    assert main([*command, "--resume"]) == 0
    run(make_config("private_federated"), tmp_path / "whole")
    assert central_of(tmp_path / "run").equal(central_of(tmp_path / "whole"))


def test_a_disk_that_fills_up(config_file: ConfigFile, tmp_path: Path, capsys: Capture) -> None:
    row = config_file("federated", checkpoint={"every": 1, "keep": 100}, federated__num_rounds=40)
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, 40 * os.sysconf("SC_PAGE_SIZE")):
        command = ["run", str(row), "--out", str(disk / "run")]
        assert main(command) == 2
        assert "no space is left" in capsys.readouterr().err
        assert not list((disk / "run" / "checkpoints").glob(".*"))
        before = len(list((disk / "run" / "checkpoints").iterdir()))
        assert before > 0
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert main([*command, "--resume"]) == 0
        assert len(read_metrics(disk / "run" / "metrics.jsonl")) == 40


def test_metrics_that_are_cut_during_the_run(tmp_path: Path) -> None:
    with RunLog(tmp_path, "name", 3, 0) as log:
        log.metrics(1, {"loss": 0.5}, "")
        log.metrics(2, {"loss": 0.4}, "")
        os.truncate(tmp_path / "metrics.jsonl", 0)
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl was cut while the run wrote"):
            log.metrics(3, {"loss": 0.3}, "")


@pytest.mark.parametrize("name", ["run.log", "metrics.jsonl"])
def test_a_log_that_cannot_grow_is_named(name: str, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        with RunLog(tmp_path, "name", 1, 0) as log:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
            log.notice("text") if name == "run.log" else log.metrics(1, {"loss": 0.5}, "")

    try:
        with pytest.raises(OSError, match="large") as caught:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value) == f"[Errno 27] File too large: '{tmp_path / name}'"


def test_a_disk_that_becomes_read_only(tmp_path: Path, monkeypatch: Patch) -> None:
    def refuse(self: Path, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    def write() -> None:
        with RunFolder(tmp_path / "run"):
            monkeypatch.setattr(Path, "unlink", refuse)
            write_atomically(tmp_path / "run" / "report.html", "text")

    with pytest.raises(OSError, match="Read-only") as caught:
        write()
    assert caught.value.filename == str(tmp_path / "run" / "report.html")
    with RunFolder(tmp_path / "run"):  # its lock was released
        pass


@pytest.mark.parametrize("what", ["removed", "moved"])
def test_a_folder_that_goes_away_during_the_run(
    what: str, config_file: ConfigFile, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    out = tmp_path / "run"
    command = ["run", str(config_file("private_federated")), "--out", str(out)]
    original = federated.FederatedTrainer.advance

    def advance(self: Any, index: int) -> dict[str, float]:
        if index == 3 and what == "removed":
            shutil.rmtree(out)
        elif index == 3:
            out.rename(tmp_path / "elsewhere")
        return original(self, index)

    monkeypatch.setattr(federated.FederatedTrainer, "advance", advance)
    assert main(command) == 2
    assert "was removed or moved while the run wrote to it" in capsys.readouterr().err
    monkeypatch.setattr(federated.FederatedTrainer, "advance", original)
    if what == "moved":
        (tmp_path / "elsewhere").rename(out)
    assert main([*command, "--resume"]) == 0


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl"])
def test_a_record_that_goes_away_during_the_run(
    name: str, config_file: ConfigFile, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    out = tmp_path / "run"
    command = ["run", str(config_file("private_federated")), "--out", str(out)]
    original = federated.FederatedTrainer.advance

    def advance(self: Any, index: int) -> dict[str, float]:
        if index == 4:
            (out / name).rename(tmp_path / name)
        return original(self, index)

    monkeypatch.setattr(federated.FederatedTrainer, "advance", advance)
    assert main(command) == 2
    assert f"{name} was removed, moved or replaced" in capsys.readouterr().err
    monkeypatch.setattr(federated.FederatedTrainer, "advance", original)
    assert main([*command, "--resume"]) == 2
    assert f"{name} is missing" in capsys.readouterr().err
    (tmp_path / name).rename(out / name)
    assert main([*command, "--resume"]) == 0
    assert main(["audit", str(out)]) == 0


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_error_of_the_machine_is_explained(number: int) -> None:
    said = explain(OSError(number, os.strerror(number), "some/file"))
    assert said is not None
    assert said.startswith("some/file: ")
    assert "--resume" in said
    assert explain(OSError("no number")) is not None


def test_a_file_system_whose_folders_cannot_be_synchronised(
    config_file: ConfigFile, tmp_path: Path, monkeypatch: Patch
) -> None:
    original = os.fsync

    def failing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    command = ["run", str(config_file("private_federated")), "--out", str(tmp_path / "run")]
    assert main(command) == 0


def test_too_few_open_files(config_file: ConfigFile, tmp_path: Path, capsys: Capture) -> None:
    """Each number of files that may be opened beyond those that are: done, or a message."""
    row = str(config_file("private_federated"))
    assert main(["run", row, "--out", str(tmp_path / "first")]) == 0  # all is imported
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    codes = []
    for more in range(6):
        lowest = os.dup(0)
        os.close(lowest)
        capsys.readouterr()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, before[1]))
        try:
            codes.append(main(["run", row, "--resume", "--out", str(tmp_path / f"run-{more}")]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert codes[-1] == 0 or "files" in capsys.readouterr().err
        if more:
            assert main(["run", row, "--resume", "--out", str(tmp_path / f"run-{more}")]) == 0
    assert codes[0] == 2


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_memory_that_cannot_be_had(
    library: str, config_file: ConfigFile, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    def advance(self: Any, index: int) -> dict[str, float]:
        np.empty(2**58, np.uint8) if library == "numpy" else torch.empty(2**58, dtype=torch.uint8)
        return {}

    monkeypatch.setattr(federated.FederatedTrainer, "advance", advance)
    assert main(["run", str(config_file("federated")), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "memory ran out" in said
    assert library == "numpy" or "(one tensor needs 288,230,376.2 GB)" in said
    assert "--resume" in said


def test_a_library_for_which_there_is_no_memory() -> None:
    error = ImportError("libtorch_python.so: failed to map segment from shared object")
    assert "memory ran out" in str(explain(error))
    assert explain(ImportError("no module named x")) is None


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_ledger_that_never_ends_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(LedgerError, match="it is no regular file"):
        read_ledger(path)


@pytest.mark.parametrize("given", ["--out", "name"])
def test_a_name_of_300_letters(given: str, config_file: ConfigFile, capsys: Capture) -> None:
    name = "a" * 300
    option = ["--out", name] if given == "--out" else [f"name={name}"]
    assert main(["run", str(config_file("federated")), *option]) == 2
    assert "too long" in capsys.readouterr().err


def test_what_a_killed_run_left_goes_and_what_others_write_stays(tmp_path: Path) -> None:
    config = make_config("private_federated")
    run(config, tmp_path)
    assert not (tmp_path / ".lock").exists()
    (tmp_path / "summary.json").unlink()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    gone = [
        f".summary.json.{child.pid}.partial",
        f"checkpoints/.step-00000008.pt.{child.pid}.partial",
    ]
    stay = [
        f".report.html.{child.pid}.partial",
        f"checkpoints/.step-00000008.pt.{os.getpid()}.partial",
        ".notes.partial",
    ]
    for name in [*gone, *stay, ".lock"]:
        (tmp_path / name).write_text("")
    run(config, tmp_path, resume=True)
    assert not [name for name in [*gone, ".lock"] if (tmp_path / name).exists()]
    assert all((tmp_path / name).exists() for name in stay)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_run_s_folder_is_its_owner_s_alone(tmp_path: Path, capsys: Capture) -> None:
    run(make_config("private_federated"), tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    assert "its mode" not in capsys.readouterr().err
    for setting in ("central_dp", "federated"):
        (tmp_path / setting).mkdir(mode=0o755)
        run(make_config(setting), tmp_path / setting)
    assert (mode(tmp_path / "central_dp"), mode(tmp_path / "federated")) == (0o700, 0o755)
    assert "its mode was 0755 and is 0700 now" in (tmp_path / "central_dp" / "run.log").read_text()
    assert mode(tmp_path) == mode(tmp_path.parent)


def test_what_others_could_read_of_a_run_that_was_killed_is_said(
    tmp_path: Path, capsys: Capture
) -> None:
    config, killed = make_config("central_dp"), tmp_path / "killed"
    killed.mkdir(mode=0o755)
    (killed / ".lock").touch()
    run(config, killed, resume=True)
    assert "is 0700 now" in (said := capsys.readouterr().err)
    assert "until now it had neither" in said
    (killed / "summary.json").unlink()
    killed.chmod(0o755)
    run(config, killed, resume=True)
    assert "until now that mode let others on this machine read them" in capsys.readouterr().err


def test_what_a_run_began_with_is_kept_beside_its_resumptions(tmp_path: Path) -> None:
    config = make_config("federated", checkpoint__keep=9)
    run(config, tmp_path)
    began = read_json(tmp_path / "environment.json")
    for done in (2, 4):
        (tmp_path / "summary.json").unlink()
        for path in (tmp_path / "checkpoints").iterdir():
            if int(path.stem.removeprefix("step-")) > done:
                path.unlink()
        run(config, tmp_path, resume=True)
    recorded = read_json(tmp_path / "environment.json")
    assert began is not None
    assert recorded is not None
    again = recorded.pop("resumptions")
    assert recorded == began
    assert [entry["after"] for entry in again] == [2, 4]
    assert all(entry["packages"] == began["packages"] for entry in again)
