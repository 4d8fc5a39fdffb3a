"""Runs as jobs: the same numbers as without, nothing twice, what is cut goes on, failures named."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.runs.jobs import Run, queue
from pfl_bench.runs.jobs.job import JobRecord, RunJob, read_record, require_submitit
from pfl_bench.runs.launchers.local import LocalLauncher, gpus_for, usual_slots
from pfl_bench.runs.launchers.slurm import SlurmLauncher, _minutes
from pfl_bench.types import ConfigError
from tests import warm
from tests.helpers import REPOSITORY, make_tree
from tests.pfl_bench.runs import fake_slurm
from tests.pfl_bench.runs.light_job import WriteGpu

# Processes of jobs are to outlive the command that began them.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

Capture = pytest.CaptureFixture[str]
# Long enough to be met while it trains, as soon as it has a checkpoint.
LONG = {"federated__num_rounds": 100, "checkpoint__every": 5, "evaluation__every": 50}


@pytest.fixture(autouse=True)
def _jobs_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr(LocalLauncher, "interval", 0.1)
    monkeypatch.setattr(SlurmLauncher, "interval", 0.1)
    monkeypatch.setattr(SlurmLauncher, "patience", 0.0)


@pytest.fixture(scope="module", autouse=True)
def _jobs_are_warm() -> Iterator[None]:
    """The processes that run in jobs have their libraries imported; others are new."""
    require_submitit("local")
    from submitit import LocalExecutor, SlurmExecutor

    with warm.command() as python, pytest.MonkeyPatch.context() as patch:
        for executor in (LocalExecutor, SlurmExecutor):
            # Its last argument is the command of Python.
            *others, _ = executor.__init__.__defaults__
            patch.setattr(executor.__init__, "__defaults__", (*others, python))
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts here, even where the shell has the tests' process ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a folder of small rows, named by what changes: ``rows(good={}, bad={...})``."""
    monkeypatch.chdir(tmp_path)

    def write(**changes: dict[str, Any]) -> Path:
        folder = Path("rows")
        folder.mkdir(exist_ok=True)
        for name, change in changes.items():
            tree = make_tree("federated", name=name, num_threads=1, **change)
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of this machine."""
    home = tmp_path / "slurm"
    monkeypatch.setenv("PATH", str(fake_slurm.install(home)), prepend=os.pathsep)
    return home


def summary(run_folder: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(run_folder, "summary.json").read_text(encoding="utf-8"))
    return {key: value for key, value in read.items() if key != "seconds"}


def record(run_folder: str) -> JobRecord:
    found = read_record(Path(run_folder), Path(run_folder).parents[1] / "jobs")
    assert found is not None
    return found


def call_once(
    monkeypatch: pytest.MonkeyPatch, is_time: Callable[[], bool], act: Callable[[], None]
) -> None:
    """Act between the first two looks of the waiting command, as soon as it is time."""
    done = []

    def sleep(seconds: float) -> None:
        if done:
            time.sleep(seconds)
            return
        done.append(True)
        wait_until(is_time)
        act()

    monkeypatch.setattr(
        queue, "time", type("Time", (), {"sleep": sleep, "monotonic": time.monotonic})
    )


def tell_children(process: str, number: signal.Signals) -> None:
    """Have what a job's watcher began wait (SIGTSTP, told on to the warm process) or go on.

    It is done where the system says which processes these are.
    """
    children = Path("/proc", process, "task", process, "children")
    for child in children.read_text().split() if children.exists() else ():
        os.kill(int(child), number)


def wait_until(is_time: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not is_time():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_checkpoint(run_folder: str) -> bool:
    return any(Path(run_folder, "checkpoints").glob("step-*.pt"))


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_local_jobs_outlive_their_command_resume_when_killed_and_give_the_same_numbers(
    rows: Callable[..., Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A valid configuration; that the data have no such split is found by the run.
    folder = str(rows(long=LONG, bad={"evaluation__final_splits": ["nowhere"]}))
    assert main(["table", folder, "--out", "here"]) == 1
    here = capsys.readouterr()
    command = ["table", folder, "--out", "jobs", "--launcher", "local", "--jobs", "2"]
    run_folder = "jobs/long/seed-3"

    def interrupt() -> None:
        # A terminal sends it to every process of the command, the job's among them.
        os.kill(int(record(run_folder).job_id), signal.SIGINT)
        tell_children(record(run_folder).job_id, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGINT)

    call_once(monkeypatch, lambda: has_checkpoint(run_folder), interrupt)
    assert main([*command, "--only", "long"]) == 130
    first = record(run_folder)
    err = capsys.readouterr().err
    assert f"local jobs that go on: {first.job_id}; the same command comes back" in err

    def stop() -> None:
        os.kill(int(first.job_id), signal.SIGTERM)
        tell_children(first.job_id, signal.SIGCONT)

    call_once(monkeypatch, lambda: True, stop)
    assert main([*command, "--only", "long"]) == 1
    err = capsys.readouterr().err
    assert f"{run_folder}: job {first.job_id} has it already" in err
    assert f"job {first.job_id} ended without a result" in err
    assert str(first.log) in err
    assert not Path(run_folder, "summary.json").exists()

    assert main(command) == 1
    there = capsys.readouterr()
    assert there.out == here.out
    assert record(run_folder) != first
    assert "resumed after round" in Path(run_folder, "run.log").read_text(encoding="utf-8")
    assert Path(run_folder, "report.html").exists()
    assert summary(run_folder) == summary("here/long/seed-3")
    refusal = "the data have no split 'nowhere'; there are: train, val, test"
    assert refusal in here.err
    assert refusal in there.err
    log = record("jobs/bad/seed-3").log
    assert f"log of its job: {log}" in there.err
    assert refusal in log.read_text(encoding="utf-8")
    assert "failed: jobs/bad/seed-3" in there.err

    before = sorted(Path("jobs/jobs").rglob("*"))
    assert main([*command, "--only", "long"]) == 0
    again = capsys.readouterr()
    assert f"{run_folder}: finished before; not run again" in again.err
    assert sorted(Path("jobs/jobs").rglob("*")) == before


@pytest.mark.slow
def test_slurm_jobs_are_one_array_are_found_again_and_resume_when_requeued(
    rows: Callable[..., Path], slurm: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run_folder = (
        str(rows(long=LONG, short={"federated__num_rounds": 2})),
        "jobs/long/seed-3",
    )
    command = ["table", folder, "--out", "jobs", "--launcher", "slurm", "--slurm", "time=1:00:00"]
    command += ["--slurm", "partition=gpu", "--jobs", "5"]
    assert main([*command, "--no-wait"]) == 0
    assert "slurm jobs that go on: 102_0 102_1; the same command" in capsys.readouterr().err
    [script] = fake_slurm.submissions(slurm)
    for line in ("--array=0-1%2", "--time=60", "--partition=gpu", "--job-name=pfl-bench"):
        assert f"#SBATCH {line}\n" in script

    def preempt() -> None:
        os.kill(int((slurm / "queue" / record(run_folder).job_id).read_text()), signal.SIGUSR2)

    call_once(monkeypatch, lambda: has_checkpoint(run_folder), preempt)
    assert main(command) == 0
    err = capsys.readouterr().err
    assert f"{run_folder}: job 102_0 has it already" in err
    assert len(fake_slurm.submissions(slurm)) == 1
    assert "resumed after round" in Path(run_folder, "run.log").read_text(encoding="utf-8")
    assert main(["table", folder, "--out", "here"]) == 0
    for name in ("long", "short"):
        assert summary(f"jobs/{name}/seed-3") == summary(f"here/{name}/seed-3")


def test_a_job_that_slurm_lost_is_named_with_its_state_and_submitted_again(
    rows: Callable[..., Path], slurm: Path, capsys: Capture
) -> None:
    (slurm / "bin" / "srun").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    command = ["table", str(rows(row={})), "--launcher", "slurm", "--slurm", "time=5"]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert "runs/rows/row/seed-3: job 102 ended without a result (OUT_OF_MEMORY)" in err
    assert main(command) == 1
    assert "job 103 submitted" in capsys.readouterr().err


def test_a_job_that_ended_before_is_not_met_again_while_squeue_is_silent(
    rows: Callable[..., Path], slurm: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["table", "rows", "--launcher", "slurm", "--slurm", "time=5"]
    rows(row={"federated__cohort_size": 10_000})
    assert main(command) == 2
    assert "cohort_size" in capsys.readouterr().err
    rows(row={"federated__num_rounds": 2})
    squeue = slurm / "bin" / "squeue"
    words = squeue.read_text(encoding="utf-8")
    squeue.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")

    def answer() -> None:
        squeue.write_text(words, encoding="utf-8")

    call_once(monkeypatch, lambda: True, answer)
    assert main(command) == 0
    err = capsys.readouterr().err
    assert "squeue does not answer" in err
    assert "job 103 submitted" in err


def test_what_sbatch_refuses_is_exit_2_in_its_words(
    rows: Callable[..., Path], slurm: Path, capsys: Capture
) -> None:
    options = ["--launcher", "slurm", "--slurm", "time=5", "--slurm", "partition=nowhere"]
    assert main(["table", str(rows(row={})), *options]) == 2
    err = capsys.readouterr().err
    assert "sbatch refused the jobs: sbatch: error: invalid partition" in err
    assert "partition=nowhere" in err
    assert read_record(Path("runs/rows/row/seed-3"), Path("runs/rows/jobs")) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "time limit by --slurm time=MINUTES"),
        (["time=soon"], "--slurm time=soon: write minutes"),
        (["time=0"], "more than no time"),
        (["time"], "--slurm time=: write minutes"),
        (["time=5", "partion=gpu"], "did you mean 'partition'"),
        (["time=5", "partition"], "write KEY=VALUE"),
        (["time=5", "nodes=2"], "A run is one process"),
        (["time=5", "nodes=2"], "additional_parameters={name: value}"),
        (["time=5", "mem=[1"], "not valid YAML"),
        (["time=5", "setup=module load cuda"], "setup: a list"),
        (["time=5", "setup=[1]"], "--slurm setup=[1]: setup: a list of texts"),
        (["time=5", "additional_parameters=3"], "additional_parameters: a mapping"),
    ],
)
def test_a_wrong_slurm_option_is_exit_2_before_any_job(
    rows: Callable[..., Path], slurm: Path, options: list[str], words: str, capsys: Capture
) -> None:
    command = ["table", str(rows(row={})), "--launcher", "slurm"]
    assert main([*command, *(w for text in options for w in ("--slurm", text))]) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()
    assert fake_slurm.submissions(slurm) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--jobs", "2"], "--jobs belongs to --launcher local or slurm"),
        (["--slurm", "time=5"], "--slurm belongs to --launcher"),
        (["--no-wait"], "--no-wait belongs to --launcher"),
        (["--launcher", "local", "--jobs", "0"], "--jobs 0: give 1 or more"),
        (["--launcher", "local", "--slurm", "time=5"], "--slurm belongs to --launcher slurm"),
        (["--launcher", "local", "--no-wait"], "the queue of --launcher local is the command"),
        (["--launcher", "slurm", "--slurm", "time=5"], "no command sbatch"),
    ],
)
def test_options_that_do_not_belong_together_are_exit_2(
    rows: Callable[..., Path],
    options: list[str],
    words: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["table", str(rows(row={})), *options]) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_without_submitit_the_extra_is_named(
    rows: Callable[..., Path], launcher: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["table", str(rows(row={})), "--launcher", launcher]) == 2
    assert "pip install 'pfl-bench[cluster]'" in capsys.readouterr().err


def test_handlers_of_log_records_that_others_hold_stay_open() -> None:
    # In a process of its own, because submitit is imported once in a process.
    script = """
import logging, os, sys

class Held(logging.Handler):
    def close(self):
        print("closed")

held = Held()
from pfl_bench.runs.jobs.job import require_submitit
require_submitit("local")
assert not logging.getLogger("submitit").handlers
print(os.environ.get("SUBMITIT_LOG_LEVEL"))
# What the end of a process closes is not meant.
sys.stdout.flush()
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


def test_a_typo_in_the_last_row_stops_the_first_job(
    rows: Callable[..., Path], capsys: Capture
) -> None:
    folder = rows(a={}, b={"federated__num_round": 3})
    assert main(["table", str(folder), "--launcher", "local"]) == 2
    assert "num_rounds" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_what_another_process_writes_is_waited_for_and_a_foreign_folder_is_refused(
    rows: Callable[..., Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfl_bench.runs.folder import RunFolder

    folder = str(rows(a={}, b={}))
    assert main(["table", folder, "--only", "a"]) == 0
    finished = Path("runs/rows/a/seed-3")
    Path("runs/rows/b/seed-3").mkdir(parents=True)
    Path("runs/rows/b/seed-3/notes.txt").write_text("mine", encoding="utf-8")
    capsys.readouterr()
    with RunFolder(finished) as held:
        call_once(monkeypatch, lambda: True, lambda: held.__exit__(None, None, None))
        assert main(["table", folder, "--launcher", "local"]) == 1
    err = capsys.readouterr().err
    assert "runs: 1 failed, 1 running elsewhere" in err
    assert "holds files but no run (found: notes.txt)" in err
    assert "runs/rows/a/seed-3: finished before" in err
    assert "submitted" not in err


def test_who_waits_for_a_command_that_has_the_jobs_is_told(
    rows: Callable[..., Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = rows(a={})
    assert main(["table", str(folder)]) == 0
    Path("runs/rows/jobs").mkdir()
    monkeypatch.setattr(queue, "_PATIENCE", 0.1, raising=False)
    capsys.readouterr()
    with Path("runs/rows/jobs/.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(1.0, fcntl.flock, (held, fcntl.LOCK_UN)).start()
        assert main(["table", str(folder), "--launcher", "local"]) == 0
    told = "runs/rows/jobs/.lock: waiting for another command that submits jobs here; if it is"
    assert capsys.readouterr().err.count(told) == 1


def test_jobs_on_a_file_system_without_locks_are_refused(
    rows: Callable[..., Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*given: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    folder = rows(a={})
    monkeypatch.setattr(fcntl, "flock", without)
    assert main(["table", str(folder), "--launcher", "local"]) == 2
    text = "runs/rows/jobs/.lock: cannot be locked (No locks available)"
    assert text in capsys.readouterr().err


def test_a_sweep_shows_the_same_with_a_launcher_and_runs_nothing_twice(
    rows: Callable[..., Path], capsys: Capture
) -> None:
    row = rows(base={})
    grid = {"federated.num_rounds": [1, 2]}
    tree = {"version": 1, "row": "base.yaml", "metric": "val/accuracy", "grid": grid}
    (row / "sweep.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    command = ["sweep", str(row / "sweep.yaml"), "--out", "runs"]
    assert main(command) == 0
    before = capsys.readouterr()
    assert main([*command, "--launcher", "local"]) == 0
    after = capsys.readouterr()
    assert after.out == before.out
    assert after.err.count("and 1 other run: finished before; not run again") == 1


def test_a_local_job_has_the_devices_and_the_words_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(sys, "argv", ["pfl-bench", "table"])
    told: list[object] = []

    def train() -> None:
        told.extend([os.environ["CUDA_VISIBLE_DEVICES"], sys.argv, Path.cwd()])

    job = RunJob(Run(Path("run"), train, lambda: False))
    # As submitit's local executor starts it.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "7")
    monkeypatch.setattr(sys, "argv", ["_submit.py"])
    monkeypatch.chdir("/")
    before = signal.getsignal(signal.SIGTERM)
    try:
        job()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["1", ["pfl-bench", "table"], tmp_path]


def test_a_job_record_in_a_foreign_folder_runs_no_code(
    rows: Callable[..., Path], tmp_path: Path
) -> None:
    # A pickle that writes a file, left where the records of a run folder from elsewhere point.
    marker, theirs = tmp_path / "marker", tmp_path / "theirs"
    theirs.mkdir()
    program = b"cbuiltins\nopen\n(V" + str(marker).encode() + b"\nVw\ntR."
    folder, out = str(rows(row={"federated__num_rounds": 1})), Path("out").absolute()
    run_folder = out / "row/seed-3"
    for place in (theirs, out / "jobs/old"):
        # Of a process that lives and names the folder, as if the job were under way.
        watcher = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)", str(place.absolute())]
        )
        try:
            place.mkdir(parents=True, exist_ok=True)
            number = str(watcher.pid)
            (place / f"{number}_0_result.pkl").write_bytes(program)
            record = JobRecord("local", number, str(place.absolute()), socket.gethostname())
            record.write(run_folder)
            code = main(["table", folder, "--out", str(out), "--launcher", "local"])
        finally:
            watcher.kill()
            watcher.wait()
        assert not marker.exists()
        assert code == 0
        shutil.rmtree(run_folder)


def test_jobs_of_an_earlier_command_count_as_jobs_at_once(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"

    class Full(LocalLauncher):
        def states(self, records: Any) -> dict[JobRecord, str]:
            return dict.fromkeys(records, "running")

        def submit(self, runs: Any) -> list[JobRecord]:
            raise AssertionError(f"begun beside two others: {runs}")

    runs = [Run(tmp_path / name, lambda: None, lambda: False) for name in "abc"]
    for run in runs[:2]:
        JobRecord("local", "1", str(jobs / run.folder.name), "here").write(run.folder)
    assert queue.launch(runs, Full(jobs, 2), jobs, wait=False) == {}


def test_a_process_of_the_same_number_is_not_taken_for_the_job(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path, 1)
    foreign = JobRecord("local", str(os.getpid()), str(tmp_path / "jobs"), socket.gethostname())
    assert launcher.states([foreign]) == {}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:00", 90), ("0:30", 1), ("2:00:00", 120), ("1-0", 1440), ("1-2:30", 1590)],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text: str, minutes: int) -> None:
    assert _minutes(text) == minutes
    with pytest.raises(ConfigError):
        _minutes(text + ":0:0:0")


def test_as_many_local_jobs_as_the_cores_hold() -> None:
    cores = usual_slots([1])
    assert cores >= 1
    assert usual_slots([1, None]) == 1
    assert usual_slots([cores * 2]) == 1
    assert usual_slots([]) == cores
    assert usual_slots([1], ["0"]) == 1


def test_gpus_are_those_that_the_command_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_for(["cpu", "mps"]) == []
    assert gpus_for(["cpu", "auto"]) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    assert gpus_for(["cuda"]) == ["5", "GPU-7"]


def test_each_local_job_sees_the_gpu_with_the_fewest_jobs(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path / "jobs", 2, ["5", "7"])

    def begin(name: str) -> JobRecord:
        folder = tmp_path / name
        folder.mkdir()
        return launcher.submit([Run(folder, WriteGpu(folder), lambda: False)])[0]

    first, second = begin("a"), begin("b")
    wait_until((tmp_path / "b" / "gpu").exists)
    (tmp_path / "b" / "end").touch()
    wait_until(lambda: second not in launcher.states([second]))
    third = begin("c")
    for name in ("a", "c"):
        wait_until((tmp_path / name / "gpu").exists)
        (tmp_path / name / "end").touch()
    wait_until(lambda: not launcher.states([first, third]))
    seen = [(tmp_path / name / "gpu").read_text(encoding="utf-8") for name in "abc"]
    assert seen == ["5", "7", "7"]


def test_a_launcher_of_the_users_runs_a_table(
    rows: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    own = tmp_path / "plugins" / "launchers"
    own.mkdir(parents=True)
    (own / "herd.py").write_text(
        """'''Processes here, a name of its own.'''
from pathlib import Path
from pfl_bench.runs.launchers.local import LocalLauncher

class Herd(LocalLauncher):
    name = "herd"

def build(request):
    '''Build it.'''
    Path("asked.txt").write_text(f"{request.options} {request.cores} {request.devices}")
    return Herd(request.jobs, request.most or 1)
""",
        encoding="utf-8",
    )
    command = ["table", str(rows(row={})), "--out", "jobs", "--plugins", str(tmp_path / "plugins")]
    given = ["--launcher", "herd", "--launcher-option", "colour=red"]
    assert main([*command, *given]) == 0
    assert Path("asked.txt").read_text() == "['colour=red'] (1,) ('cpu',)"
    assert record("jobs/row/seed-3").launcher == "herd"
    assert main(["list", "launchers", "--plugins", str(tmp_path / "plugins")]) == 0
    assert "herd" in capsys.readouterr().out
    assert main([*command, *given, "--jobs", "0"]) == 2
    assert "--jobs 0: give 1 or more" in capsys.readouterr().err
    assert main([*command, "--launcher", "hard"]) == 2
    assert "no launcher named 'hard'; did you mean 'herd'" in capsys.readouterr().err
