"""Plug-ins from outside the checkout: folders of the user, and installed packages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pfl_bench
from pfl_bench import plugins
from pfl_bench.cli.main import main
from pfl_bench.client.machine import (
    _digest_of_code,
    _digests_of_plugins,
    code_digest,
    plugin_digests,
)
from pfl_bench.types import PluginError
from tests import warm
from tests.helpers import REPOSITORY, searched

ALGORITHM = '''"""Local SGD whose updates are sent at a fraction."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pfl_bench.federated.algorithms import fedavg
from pfl_bench.types import LocalTraining


class Options(BaseModel):
    """No options."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def build(options: Options, local: LocalTraining) -> fedavg.FedAvg:
    """Build FedAvg under another name."""
    return fedavg.build(fedavg.Options(), local)
'''
BAD = {
    "a = (": (1, "SyntaxError"),
    "\n\nimport nowhere_to_be_found": (3, "ModuleNotFoundError"),
    "import sys\nsys.exit(3)": (2, "SystemExit: 3"),
    "open('/nowhere/file')": (1, "FileNotFoundError"),
    "Options = 3\nbuild = 4": (None, "no pydantic model"),
    "from pydantic import BaseModel as Options\nbuild = 4": (None, "no pydantic model of its own"),
    "x = 1": (None, "lacks Options and build"),
    ALGORITHM.replace("options: Options, local: LocalTraining", ""): (17, "takes 0 positional"),
    ALGORITHM.replace("return ", "raise SystemExit(4)\n    return "): (19, "SystemExit: 4"),
    ALGORITHM.replace("return ", "return 1 / 0 +"): (19, "ZeroDivisionError"),
    ALGORITHM
    + """

class Mine(fedavg.FedAvg):
    def central_gradient(self):
        return 3


def build(options, local):
    return Mine(local)
""": (23, "central_gradient() got an unexpected"),
}
ROW = """\
version: 1
name: mine
seed: 1
device: cpu
plugins: [methods]
task: {name: digits, num_users: 60}
model: {name: softmax}
federated:
  num_rounds: 4
  cohort_size: 20
  local_batch_size: 4
  local_learning_rate: 0.3
  algorithm: {name: mine}
privacy:
  mechanism: {name: gaussian, clip_norm: 0.5}
  population_size: 60
  epsilon: 8.0
evaluation: {every: 4, splits: [], final_splits: [test]}
checkpoint: {every: 2}
"""


# A task of a file whose lines are a user, a feature and a label.
TASK = '''"""Readings of a file, of the same users in each split."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from pfl_bench.data import InMemorySplit
from pfl_bench.types import DataFacts
from tasks.common.classification import InMemoryTask


class Options(BaseModel):
    """The file."""

    data: str


def build(options):
    """Read the file."""
    path = Path(options.data)
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    offsets = np.concatenate([[0], np.bincount(table[:, 0].astype(int)).cumsum()])
    ids = [f"user-{index}" for index in range(len(offsets) - 1)]
    inputs, targets = torch.from_numpy(table[:, 1:2]), torch.from_numpy(table[:, 2]).long()
    parts = inputs, targets, offsets, ids
    splits = {name: InMemorySplit(name, *parts) for name in ("train", "val", "test")}
    checksum = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    facts = DataFacts(f"readings of {path.name}", "readings", checksum, 2, (1,), "example")
    return InMemoryTask("readings", splits, facts)
'''
MODELS = '''"""A linear model."""

from pydantic import BaseModel
from torch import nn


class Options(BaseModel):
    """The name."""

    name: str


def build(options, facts):
    """Build it."""
    return nn.Linear(1, 2)
'''


@pytest.fixture
def readings(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of readings beside a row of them, in the working directory."""
    monkeypatch.chdir(tmp_path)
    home = folder / "tasks" / "readings"
    home.mkdir(parents=True)
    (home / "__init__.py").touch()
    (home / "task.py").write_text(TASK, encoding="utf-8")
    (home / "models.py").write_text(MODELS, encoding="utf-8")
    row = ROW.replace("{name: digits, num_users: 60}", "{name: readings, data: readings.csv}")
    Path("row.yaml").write_text(row, encoding="utf-8")
    data = Path("readings.csv")
    lines = [f"{user},{0.1 * (user % 7)},{user % 2}" for user in range(60) for _ in range(3)]
    data.write_text("\n".join(lines), encoding="utf-8")
    return data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of plug-ins beside a row that uses one; both are forgotten afterwards."""
    # A folder of a test before may have had the same path.
    forget_digests()
    monkeypatch.setattr(plugins, "__path__", [])
    monkeypatch.delenv(plugins.FOLDERS, raising=False)
    # Set, so that what add_folder sets is taken back.
    monkeypatch.setenv(plugins.FOLDERS, "")
    methods = tmp_path / "methods"
    (methods / "algorithms").mkdir(parents=True)
    (methods / "algorithms" / "mine.py").write_text(ALGORITHM, encoding="utf-8")
    (tmp_path / "row.yaml").write_text(ROW, encoding="utf-8")
    yield methods
    for name in [name for name in sys.modules if name.startswith("pfl_bench.plugins.")]:
        del sys.modules[name]


def forget_digests() -> None:
    """As in a new process."""
    _digest_of_code.cache_clear()
    _digests_of_plugins.cache_clear()


def test_a_row_s_plug_in_is_found_run_resumed_and_audited(folder: Path, tmp_path: Path) -> None:
    row, out = str(tmp_path / "row.yaml"), tmp_path / "out"
    assert main(["run", row, "--out", str(out)]) == 0
    whole = json.loads((out / "summary.json").read_text())
    assert whole["status"] == "finished"
    assert main(["audit", str(out)]) == 0
    named_everywhere(out, plugin_digests()["methods"])
    # Stopped after the checkpoint of round 2, and gone on with from another folder.
    other = tmp_path / "other"
    shutil.copytree(out, other)
    for left in ("summary.json", "privacy.json", "report.html"):
        (other / left).unlink()
    newest = max((other / "checkpoints").iterdir())
    newest.unlink()
    assert main(["run", row, "--out", str(other), "--resume"]) == 0
    assert json.loads((other / "summary.json").read_text())["metrics"] == whole["metrics"]
    assert (other / "ledger.jsonl").read_text() == (out / "ledger.jsonl").read_text()


def test_a_run_whose_data_file_has_another_name_now_passes(
    readings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "row.yaml", "--out", "out"]) == 0
    moved = readings.rename("moved.csv")
    assert main(["audit", "out", "--data", str(moved)]) == 0, capsys.readouterr().out
    summary = json.loads(Path("out/summary.json").read_text())
    summary["data"]["source"] = "real readings"
    Path("out/summary.json").write_text(json.dumps(summary))
    moved.rename(readings)
    assert main(["audit", "out"]) == 1
    assert "data.source is 'real readings'" in capsys.readouterr().out


def test_labels_that_are_no_class_are_refused_by_the_user_s_name(
    readings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = readings.read_text().splitlines()
    for label, goes in ((-1, "from -1 to 1"), (2, "from 0 to 2")):
        lines[4] = f"1,0.5,{label}"
        readings.write_text("\n".join(lines))
        assert main(["run", "row.yaml", "--out", "out"]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert f"train, user 'user-1', targets: go {goes}, but num_classes of the task" in error
        assert "whole numbers from 0 to 1" in error


def test_a_client_whose_data_hold_nan_is_told_both_causes(readings: Path) -> None:
    lines = readings.read_text().splitlines()
    lines[4] = "1,nan,1"
    readings.write_text("\n".join(lines))
    row = ["run", "row.yaml", "federated.cohort_size=60", "evaluation.final_splits=[]"]
    main([*row, "--out", "out"])
    told = " ".join(Path("out/run.log").read_text().split())
    assert "the update of client 'user-1' was not finite and contributed nothing" in told
    assert "local_learning_rate usually mends this, or this client's data hold NaN" in told


NOT_FINITE = {
    "compress": (
        "compressions",
        """
from pfl_bench.config.training import Strict as Options
from pfl_bench.federated.compression import Compression

class Own(Compression):
    def compress(self, update, user, round_index):
        return update / 0

def build(options, num_parameters, seed):
    return Own(num_parameters, num_parameters)
""",
    ),
    "release": (
        "aggregations",
        """
from dataclasses import replace
from pfl_bench.config.training import Strict as Options
from pfl_bench.federated.aggregation import Aggregation

class Own(Aggregation):
    def release(self, aggregate, rng):
        release = super().release(aggregate, rng)
        return replace(release, mean_update=release.mean_update.log())

def build(options, noise):
    return Own()
""",
    ),
    "accumulate": (
        "aggregations",
        """
from pfl_bench.config.training import Strict as Options
from pfl_bench.federated.aggregation import Aggregation

class Own(Aggregation):
    def accumulate(self, aggregate, update, weight, rng=None):
        outcome = super().accumulate(aggregate, update, weight)
        aggregate.total.log_()
        return outcome

def build(options, noise):
    return Own()
""",
    ),
}


@pytest.mark.parametrize("method", NOT_FINITE)
def test_a_part_that_makes_nan_of_finite_numbers_is_named(
    method: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group, text = NOT_FINITE[method]
    file = folder / group / "own.py"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    row = ["run", "demo/federated", "federated.num_rounds=1", "--plugins", str(folder)]
    part = f"federated.{group.removesuffix('s')}={{name: own}}"
    assert main([*row, part, "--out", str(tmp_path / "out")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"{file}: Own.{method}" in error.replace("- ", "-")
    assert "NaN or infinity" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("inputs[:0], targets[:0], 0 * offsets", "has no examples; give its users at least one"),
        (
            "inputs, targets, offsets * (np.arange(len(offsets)) != 1)",
            "users have no examples to train on, such as 'user-0'; leave",
        ),
    ],
)
def test_a_training_split_without_examples_is_refused(
    parts: str, said: str, readings: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = f"""
    none = {parts}, ids
    splits["train"] = InMemorySplit("train", *none)
    checksum ="""
    text = TASK.replace("\n    checksum =", empty)
    (folder / "tasks" / "readings" / "task.py").write_text(text, encoding="utf-8")
    assert main(["run", "row.yaml", "--out", "out"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert said in error


OWN_SPLIT = """class Own:
    def __init__(self, *parts):
        self.split = InMemorySplit(*parts)

    def __getattr__(self, name):
        return getattr(self.split, name)


def build("""


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize(
    ("labels", "said"), [(".float()", "are of torch.float32"), (".long() + 2", "go from 2 to ")]
)
def test_labels_of_a_split_s_own_class_are_refused(
    labels: str, said: str, is_own: bool, readings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TASK.replace(".long()", labels)
    if is_own:
        text = text.replace("InMemorySplit(name", "Own(name").replace("def build(", OWN_SPLIT)
    Path("methods/tasks/readings/task.py").write_text(text, encoding="utf-8")
    assert main(["run", "row.yaml", "--out", "out"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"train, user 'user-0', targets: {said}" in error
    assert "targets are whole numbers from 0 to 1" in error


def test_an_audit_without_the_plug_ins_names_a_folder_that_is_there(
    readings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "row.yaml", "--out", "out"]) == 0
    monkeypatch.setattr(plugins, "__path__", [])
    assert main(["audit", "out"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("--plugins methods")
    monkeypatch.chdir(tmp_path / "out")
    assert main(["audit", "."]) == 2
    assert capsys.readouterr().err.rstrip().endswith("--plugins path/to/methods")


def named_everywhere(out: Path, digest: str) -> None:
    """Environment, each line of the ledger, statement and audit name the plug-ins' content."""
    environment = json.loads((out / "environment.json").read_text())
    assert environment["plugins"] == {"methods": digest}
    lines = (out / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["plugins"] for line in lines] == [{"methods": digest}] * 4
    notes = json.loads((out / "privacy.json").read_text())["notes"]
    assert any(f"methods ({digest})" in note for note in notes)
    audited = json.loads((out / "audit.json").read_text())
    assert "on the word of plug-ins (methods)" in audited["words"]
    found = {check["name"]: check for check in audited["checks"]}
    assert found["plugins"]["outcome"] == "passed"
    assert found["plugins"]["evidence"] == f"methods ({digest})"


def test_an_audit_sees_plug_ins_that_the_record_does_not_agree_on(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "row.yaml"), "--out", str(out)]) == 0
    before = plugin_digests()["methods"]
    (folder / "algorithms" / "mine.py").write_text(ALGORITHM + "# another\n", encoding="utf-8")
    forget_digests()
    after = plugin_digests()["methods"]
    assert after != before
    # Code that changed after the run is said, and no contradiction.
    found = {check.name: check for check in pfl_bench.audit(out).checks}["plugins"]
    assert (found.outcome, found.numbers["changed_since"]) == ("passed", ["methods"])
    assert found.evidence.endswith("other code today: methods")
    path = out / "environment.json"
    path.write_text(path.read_text().replace(before, after))
    found = {check.name: check for check in pfl_bench.audit(out).checks}["plugins"]
    assert found.outcome == "failed"
    assert f"methods is {before} in the ledger, {after} in environment.json" in found.evidence


def test_an_audit_names_files_that_were_added_to_plug_ins(folder: Path, tmp_path: Path) -> None:
    out, added = tmp_path / "out", [folder / "algorithms" / name for name in ("a.py", "b.py")]
    assert main(["run", str(tmp_path / "row.yaml"), "--out", str(out)]) == 0
    for path in added:
        path.write_text("# new\n", encoding="utf-8")
        forget_digests()
        found = {check.name: check for check in pfl_bench.audit(out).checks}
        files = ", ".join(map(str, added[: added.index(path) + 1]))
        assert found["plugins"].evidence.endswith(
            f"other code today: methods; since then added: {files}"
        )
        assert "audit it by those (see plugins)" in found["statement"].evidence


def test_a_digest_is_of_where_a_file_is_in_its_folder(folder: Path, tmp_path: Path) -> None:
    plugins.add_folder(folder)
    before = plugin_digests()
    (folder / "metrics").mkdir()
    (folder / "algorithms" / "mine.py").rename(folder / "metrics" / "mine.py")
    (folder / "metrics" / ".#mine.py").write_text("an editor's lock", encoding="utf-8")
    forget_digests()
    assert plugin_digests() != before
    (folder / "metrics" / "mine.py").rename(folder / "algorithms" / "mine.py")
    forget_digests()
    assert plugin_digests() == before


def test_an_open_run_that_goes_on_with_other_plug_ins_says_so(folder: Path, tmp_path: Path) -> None:
    text = ROW[: ROW.index("privacy:")] + ROW[ROW.index("evaluation:") :]
    (tmp_path / "row.yaml").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "row.yaml"), "--out", str(out)]) == 0
    (out / "summary.json").unlink()
    (folder / "algorithms" / "mine.py").write_text(ALGORITHM + "# another\n", encoding="utf-8")
    forget_digests()
    assert main(["run", str(tmp_path / "row.yaml"), "--out", str(out), "--resume"]) == 0
    assert (
        "another environment than it began with (plug-ins: methods" in (out / "run.log").read_text()
    )


def test_worker_processes_find_a_user_s_plug_in(folder: Path, tmp_path: Path) -> None:
    row = str(tmp_path / "row.yaml")
    assert main(["run", row, "--out", str(tmp_path / "out"), "federated.workers=2"]) == 0
    assert main(["audit", str(tmp_path / "out")]) == 0


def test_a_folder_on_the_command_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "demo/federated.yaml", "federated.num_rounds=1", "--out", "out"]
    assert main([*command, "federated.algorithm={name: mine}", "--plugins", "methods"]) == 0
    assert f"- {folder}" in (tmp_path / "out" / "config.yaml").read_text()


def test_a_name_that_we_have_is_refused_with_both_places(folder: Path) -> None:
    theirs = folder / "algorithms" / "fedavg.py"
    theirs.write_text(ALGORITHM, encoding="utf-8")
    plugins.add_folder(folder)
    with pytest.raises(PluginError, match="two plug-ins are the algorithm 'fedavg'") as caught:
        plugins.load(plugins.ALGORITHM, "fedavg")
    assert str(theirs) in str(caught.value)
    assert str(REPOSITORY / "pfl_bench/federated/algorithms/fedavg.py") in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [("nowhere", "is no folder"), (".", "which methods has"), ("row.yaml", "is no folder")],
)
def test_what_is_no_folder_of_plug_ins_is_refused(
    given: str,
    said: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "demo/federated.yaml", "--plugins", given, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "algorithms" in error
    assert not (tmp_path / "out").exists()


def test_the_seed_s_digest_takes_in_the_user_s_code_wherever_it_is(
    folder: Path, tmp_path: Path
) -> None:
    without = code_digest()
    plugins.add_folder(folder)
    with_one = code_digest()
    assert with_one != without
    file = folder / "algorithms" / "mine.py"
    file.write_text(ALGORITHM + "\n# changed\n", encoding="utf-8")
    assert code_digest() == with_one, "of the files as they were loaded"
    forget_digests()
    assert code_digest() not in (without, with_one)
    file.write_text(ALGORITHM, encoding="utf-8")
    moved = tmp_path / "elsewhere" / "methods"
    shutil.copytree(folder, moved)
    forget_digests()
    plugins.__path__.remove(str(folder))
    plugins.add_folder(moved)
    assert code_digest() == with_one


def install(site: Path, value: str) -> None:
    """Install a plug-in 'theirs', found by its entry point, into a folder of packages."""
    info = site / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pfl_bench.algorithms]\ntheirs = {value}\n")


def code_of_site(site: Path) -> subprocess.CompletedProcess[str]:
    """The digests of code and plug-ins in a process that finds the installed plug-in."""
    program = (
        "from pfl_bench.client import machine as m; print(m.code_digest(), m.plugin_digests())"
    )
    paths = os.pathsep.join([str(site), str(REPOSITORY)])
    return warm.python("-c", program, env={**os.environ, "PYTHONPATH": paths})


@pytest.mark.parametrize(
    ("value", "file"), [("my_alg", "my_alg.py"), ("my_package.method", "my_package/method.py")]
)
def test_an_edited_installed_plug_in_draws_noise_of_its_own(
    value: str, file: str, tmp_path: Path
) -> None:
    install(tmp_path, value)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    found = []
    for change in ("", "# changed\n"):
        (tmp_path / file).write_text(ALGORITHM + change, encoding="utf-8")
        done = code_of_site(tmp_path)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split()[0])
        assert f"'{value.partition('.')[0]}': 'sha256:" in done.stdout
    assert found[0] != found[1]


def test_an_installed_plug_in_without_files_is_refused(tmp_path: Path) -> None:
    install(tmp_path, "my_package.method")
    (tmp_path / "my_package").mkdir()
    done = code_of_site(tmp_path)
    assert done.returncode == 1
    assert (
        "PluginError: the installed package 'my_package' offers plug-ins, but has no" in done.stderr
    )


@pytest.mark.parametrize(
    ("value", "files", "words"),
    [
        ("absent.method", {}, "(package 'theirs'): there is no module 'absent.method'"),
        ("pack.method:build", {"method": ALGORITHM}, "there is no module 'pack.method:build'"),
        ("", {}, "(package 'theirs'): there is no module ''"),
        ("pack.method", {"method": "import absent"}, "method.py, line 1: ModuleNotFoundError"),
        ("pack.method", {"method": "raise SystemExit(0)"}, "method.py, line 1: SystemExit: 0"),
        ("pack.method", {"__init__": "1 / 0"}, "__init__.py, line 1: ZeroDivisionError"),
        ("pack.method", {"method": "Options = 3\nbuild = 4"}, "no pydantic model"),
    ],
)
def test_a_broken_installed_plug_in_is_named_and_the_others_are_listed(
    value: str,
    files: dict[str, str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(tmp_path, value)
    (tmp_path / "pack").mkdir()
    for name in ("__init__", *files):
        (tmp_path / "pack" / f"{name}.py").write_text(files.get(name, ""))
    with searched(tmp_path):
        main(["list", "algorithms"])
        listed = capsys.readouterr()
        assert "fedprox" in listed.out, listed.err
        row = ["show", "demo/federated.yaml", "federated.algorithm.name=theirs"]
        assert main(row) == 2
        error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert "theirs" in listed.out or words in listed.err


def test_a_signal_in_the_import_of_an_installed_package_ends_the_command(tmp_path: Path) -> None:
    install(tmp_path, "pack")
    points = tmp_path / "theirs-1.0.dist-info" / "entry_points.txt"
    points.write_text("[pfl_bench.tasks]\ntheirs = pack\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("import os; os.kill(os.getpid(), 10)")
    seen: list[int] = []

    def end_once(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) == 1:
            sys.exit(128 + number)

    before = signal.signal(10, end_once)
    try:
        with searched(tmp_path), pytest.raises(SystemExit, match="138"):
            main(["list", "tasks"])
    finally:
        signal.signal(10, before)


def test_two_installed_plug_ins_of_one_name_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("one", "other"):
        install(tmp_path, package)
        (tmp_path / f"{package}.py").write_text(ALGORITHM, encoding="utf-8")
        info = (tmp_path / "theirs-1.0.dist-info").rename(tmp_path / f"{package}-1.0.dist-info")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    with searched(tmp_path):
        row = ["show", "demo/federated.yaml"]
        assert main(row) == 0, "a row that has nothing of them"
        assert main([*row, "federated.algorithm.name=theirs"]) == 2
    error = capsys.readouterr().err
    for package in ("one", "other"):
        assert f"{package}.py (package '{package}')" in error


def test_helpers_of_a_folder_are_part_of_its_code(folder: Path) -> None:
    plugins.add_folder(folder)
    before, seed = plugin_digests(), code_digest()
    (folder / "shared").mkdir()
    (folder / "shared" / "helper.py").write_text("SCALE = 2.0\n", encoding="utf-8")
    forget_digests()
    assert plugin_digests() != before
    assert code_digest() != seed


def test_an_installed_package_s_plug_ins_are_found_by_entry_points(tmp_path: Path) -> None:
    package = tmp_path / "site" / "their_methods"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Methods of theirs."""\n', encoding="utf-8")
    (package / "momentum.py").write_text(ALGORITHM, encoding="utf-8")
    shutil.copytree(REPOSITORY / "tasks" / "digits", package / "numbers")
    info = tmp_path / "site" / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pfl_bench.algorithms]\ntheirs = their_methods.momentum\n"
        "[pfl_bench.tasks]\nnumbers = their_methods.numbers\n"
    )
    row = ROW.replace("plugins: [methods]\n", "").replace("name: mine}", "name: theirs}")
    (tmp_path / "row.yaml").write_text(row.replace("name: digits", "name: numbers"))
    paths = os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])
    arguments = ("-m", "pfl_bench", "run", "row.yaml", "--out", "out")
    done = warm.python(*arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["task"] == "numbers"


@pytest.mark.parametrize("code", BAD)
def test_a_bad_plug_in_is_named_by_file_and_line(
    code: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = folder / "algorithms" / "mine.py"
    file.write_text(code, encoding="utf-8")
    (folder / "algorithms" / "sound.py").write_text(ALGORITHM, encoding="utf-8")
    line, words = BAD[code]
    assert main(["run", "row.yaml", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (said,) = [text for text in error.splitlines() if words in text]
    assert str(file) in said
    assert line is None or f"line {line}:" in said


def test_a_process_that_is_told_to_end_in_a_plug_in_blames_no_plug_in(tmp_path: Path) -> None:
    file = tmp_path / "methods" / "algorithms" / "mine.py"
    file.parent.mkdir(parents=True)
    kill = "import os\n    os.kill(os.getpid(), 10)\n    return "
    file.write_text(ALGORITHM.replace("return ", kill), encoding="utf-8")
    (tmp_path / "row.yaml").write_text(ROW, encoding="utf-8")
    program = """if True:
        import signal
        import sys
        from pfl_bench.cli.main import main
        signal.signal(10, lambda number, frame: sys.exit(128 + number))
        sys.exit(main(["run", "row.yaml", "--out", "out"]))
    """
    done = warm.python("-c", program, cwd=tmp_path)
    assert done.returncode == 138, done.stderr
    assert "plug-in" not in done.stderr


def test_a_plug_in_that_is_no_python_does_not_keep_others_from_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "__path__", [])
    monkeypatch.setenv(plugins.FOLDERS, "")
    folder = tmp_path / "methods" / "algorithms"
    folder.mkdir(parents=True)
    (folder / "sound.py").write_text(ALGORITHM, encoding="utf-8")
    for name, content in (("cut.py", b"\na = ("), ("nul.py", b"\0"), ("binary.py", b"\xff")):
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.py")
    assert main(["list", "algorithms", "--plugins", str(tmp_path / "methods")]) == 1
    told = capsys.readouterr()
    assert "sound" in told.out
    assert "fedavg" in told.out
    left_out = [line for line in told.err.splitlines() if line.startswith("left out: ")]
    for name in ("cut.py, line 2: SyntaxError", "nul.py", "binary.py"):
        assert sum(str(folder / name) in line for line in left_out) == 1


def test_a_file_that_was_written_a_moment_ago_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "algorithms"
    folder.mkdir()
    (folder / "early.py").write_text(ALGORITHM)
    listed = folder.stat().st_mtime_ns
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pfl_bench import plugins\n"
        f"folder, listed = Path({str(folder)!r}), {listed}\n"
        "plugins.add_folder(folder.parent)\n"
        "plugins.load(plugins.ALGORITHM, 'early')\n"
        "(folder / 'late.py').write_text((folder / 'early.py').read_text())\n"
        # As on a disk whose clock has not moved on since the folder was listed.
        "os.utime(folder, ns=(listed, listed))\n"
        "plugins.load(plugins.ALGORITHM, 'late')\n"
    )
    done = warm.python("-c", program, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
