"""A folder that somebody else made runs no code of theirs in whoever reads it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pfl_bench
from pfl_bench import plugins
from pfl_bench.cli.main import main
from pfl_bench.types import UserInputError
from tests import warm
from tests.helpers import REPOSITORY
from tests.pfl_bench.test_user_plugins import ALGORITHM, ROW, folder, forget_digests

__all__ = ["folder"]


@pytest.fixture
def foreign(folder: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run folder, its plug-ins, and the file that these write when they are imported."""
    marker = tmp_path / "marker"
    assert main(["run", str(tmp_path / "row.yaml"), "--out", str(tmp_path / "theirs")]) == 0
    (tmp_path / "theirs" / "audit.json").unlink(missing_ok=True)
    code = f"open({str(marker)!r}, 'w').close()\n"
    (folder / "algorithms" / "mine.py").write_text(ALGORITHM + code, encoding="utf-8")
    forget()
    return tmp_path / "theirs", folder, marker


def forget() -> None:
    """As in a new process."""
    plugins.__path__[:] = []
    for name in [name for name in sys.modules if name.startswith("pfl_bench.plugins.")]:
        del sys.modules[name]
    forget_digests()


COMMANDS = [
    ["audit", "RUN"],
    ["audit", "RUN", "--live", "--every", "0.1"],
    ["show", "RUN/config.yaml"],
    ["run", "RUN/config.yaml", "--dry-run", "--out", "RUN"],
    ["run", "RUN/config.yaml", "federated.num_rounds=3", "--dry-run", "--out", "new"],
    ["attack", "RUN", "--kind", "gradient"],
    ["attack", "RUN", "--shadows", "16"],
    ["privacy", "explain", "RUN/config.yaml"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command))
def test_a_command_that_reads_a_folder_asks_for_its_plug_ins(
    command: list[str],
    foreign: tuple[Path, Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run, _, marker = foreign
    monkeypatch.chdir(tmp_path)
    digest = json.loads((run / "environment.json").read_text())["plugins"]["methods"]
    assert main([part.replace("RUN", str(run)) for part in command]) == 2
    said = capsys.readouterr().err
    assert not marker.exists()
    assert "'methods'" in said
    assert digest in said
    assert "--plugins" in said


def test_pages_of_foreign_folders_run_no_code(
    foreign: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, _, marker = foreign
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    board = ["leaderboard", str(run), "--audit", "--out", str(tmp_path / "board.html")]
    assert main(board) == 0
    assert "not audited" in capsys.readouterr().err
    assert not marker.exists()


def test_the_python_interface_runs_no_code_of_a_folder(foreign: tuple[Path, Path, Path]) -> None:
    run, methods, marker = foreign
    for read in (
        lambda: pfl_bench.audit(run),
        lambda: pfl_bench.load_row(run / "config.yaml"),
        lambda: pfl_bench.load_run(run).state_dict(),
        lambda: pfl_bench.run_row(run / "config.yaml", run),
    ):
        with pytest.raises(UserInputError, match="'methods'"):
            read()
    assert not marker.exists()
    assert pfl_bench.load_run(run).state_dict(plugins=[methods])
    assert marker.exists()


def test_plug_ins_that_the_user_gives_are_used_wherever_they_are(
    foreign: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not where the user's own runs may be.
    monkeypatch.chdir(tmp_path)
    run, methods, marker = foreign
    moved = tmp_path / "trusted" / "methods"
    shutil.copytree(methods, moved)
    (moved / "algorithms" / "mine.py").write_text(ALGORITHM, encoding="utf-8")
    forget()
    assert main(["audit", str(run), "--plugins", str(moved)]) == 0
    assert main(["show", str(run / "config.yaml"), "--plugins", str(moved), "--no-estimate"]) == 0
    assert not marker.exists()


def test_plug_ins_that_the_record_does_not_have_fail_the_audit(
    folder: Path, tmp_path: Path
) -> None:
    text = ROW.replace("plugins: [methods]\n", "").replace("name: mine}", "name: fedavg}")
    (tmp_path / "row.yaml").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "row.yaml"), "--out", str(out)]) == 0
    tree = yaml.safe_load((out / "config.yaml").read_text())
    tree["plugins"] = [str(folder)]
    (out / "config.yaml").write_text(yaml.safe_dump(tree))
    found = {check.name: check for check in pfl_bench.audit(out, plugins=[folder]).checks}
    assert found["plugins"].outcome == "failed"
    assert "config.yaml uses plug-ins of methods" in found["plugins"].evidence
    # Named by the algorithm alone.
    tree["plugins"] = []
    tree["federated"]["algorithm"] = {"name": "mine"}
    (out / "config.yaml").write_text(yaml.safe_dump(tree))
    assert main(["audit", str(out)]) == 1


def test_list_imports_nothing_of_the_current_folder(tmp_path: Path) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pfl_bench.algorithms]\nforeign = theirs.method\n")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("open('marker', 'w').close()\n")
    (tmp_path / "theirs" / "method.py").write_text(ALGORITHM)
    done = warm.python("-m", "pfl_bench", "list", "algorithms", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "foreign" not in done.stdout
    assert not (tmp_path / "marker").exists()


PROGRAM = """
import sys
from functools import partial
from operator import methodcaller
from pathlib import Path

from pfl_bench.federated.workers import multiprocess
from pfl_bench.runs.jobs import Run, queue
from pfl_bench.runs.launchers.local import LocalLauncher
from tasks.flair.generate import Batch, draw_in_order

if __name__ == "__main__":
    begun = sys.argv[1]
    if begun == "workers":
        multiprocess.LeadOfProcesses(2, print).close()
    elif begun == "jobs":
        done = Path("done")
        run = Run(Path("out"), partial(methodcaller("touch"), done), done.exists)
        jobs = Path("jobs")
        assert queue.launch([run], LocalLauncher(jobs, 1), jobs) == {run.folder: None}
        assert not jobs.stat().st_mode & 0o077
    else:
        print(len(list(draw_in_order(iter([Batch(0, 0, [["cat"]], [0], 32)] * 2), 2))))
"""


@pytest.mark.parametrize("begun", ["workers", "jobs", "pictures"])
def test_processes_import_nothing_of_the_current_folder(begun: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    theirs = tmp_path / "theirs"
    for name in ("multiprocessing", "submitit"):
        (theirs / name).mkdir(parents=True)
        (theirs / name / "__init__.py").write_text("open('marker', 'w').close()\n")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(tmp_path / "program.py"), begun]
    done = subprocess.run(command, cwd=theirs, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (theirs / "marker").exists()
