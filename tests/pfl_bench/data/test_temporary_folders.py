"""What a killed process leaves beside a result goes with the next command; what lives stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_bench.data import new_folder
from pfl_bench.data.temporary import TemporaryFolder, remove_leftovers
from pfl_bench.files import write_atomically
from pfl_bench.types import DataError
from tests.helpers import REPOSITORY

HOLD = """
import sys, time
from pathlib import Path
from pfl_bench.data.temporary import TemporaryFolder
folder = TemporaryFolder(Path(sys.argv[1]), "gathering")
(folder.path / "data").write_text("x")
print(folder.path, flush=True)
time.sleep(600)
"""

WRITE = """
import sys, time
from pathlib import Path
from pfl_bench.files import write_atomically
from pfl_bench.types import DataError
def content(file):
    print(file.name, flush=True)
    time.sleep(600)
write_atomically(Path(sys.argv[1]), content)
"""


def hold(out: Path, code: str = HOLD) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a temporary folder beside ``out``, or is about to write it."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_s_folder_goes_and_a_living_one_s_stays(tmp_path: Path) -> None:
    out = tmp_path / "data.h5"
    process, folder = hold(out)
    try:
        remove_leftovers(out)
        assert (folder / "data").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    remove_leftovers(tmp_path / "other.h5")
    remove_leftovers(tmp_path / "data")
    assert folder.exists()
    TemporaryFolder(out, "partial").remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_process_is_of_another_machine_stays_while_it_is_locked(
    tmp_path: Path,
) -> None:
    """The id in its name is free here, as another machine's usually is."""
    out = tmp_path / "data.h5"
    process, folder = hold(out)
    try:
        elsewhere = folder.rename(tmp_path / f".data.h5.gathering-{2**22 + 1}-abc_1")
        remove_leftovers(out)
        assert (elsewhere / "data").exists()
    finally:
        process.kill()
        process.communicate()
    remove_leftovers(out)
    assert not elsewhere.exists()


def test_the_next_write_removes_a_killed_one_s_file_and_no_other(tmp_path: Path) -> None:
    out, other = tmp_path / "attack.json", tmp_path / f".attack.json.old.{2**22 + 1}.partial.txt"
    other.touch()
    process, partial = hold(out, WRITE)
    try:
        write_atomically(out, "while it writes")
        # As of a process of another machine, whose id is free here.
        elsewhere = partial.rename(tmp_path / f".attack.json.{2**22 + 1}.partial")
        write_atomically(out, "while it has a lock")
        assert elsewhere.exists()
    finally:
        process.kill()
        process.communicate()
    write_atomically(tmp_path / "attack", "another file")
    assert elsewhere.exists()
    write_atomically(out, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "attack", out.name]


@pytest.mark.parametrize(
    "name", [".data.h5.spool", ".data.h5.gathering-x-y", "data.h5.partial-1-x"]
)
def test_foreign_names_stay(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "data.h5")
    assert (tmp_path / name).is_dir()


def test_the_next_generation_removes_a_killed_one_s_files(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    left = tmp_path / f".made.{child.pid}.partial"
    left.mkdir()
    (left / "picture").write_text("half")
    with new_folder(tmp_path / "made", "pictures") as folder:
        (folder / "picture").write_text("whole")
    assert os.listdir(tmp_path) == ["made"]


def test_a_folder_that_another_process_made_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "raw"
    with (
        pytest.raises(DataError, match="another process has made this folder meanwhile"),
        new_folder(out, "data"),
    ):
        (out / "theirs").mkdir(parents=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["raw", "theirs"]
