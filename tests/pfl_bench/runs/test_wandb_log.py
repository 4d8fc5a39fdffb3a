"""W&B logging for real, in processes of their own, read back from the files that wandb wrote."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pfl_bench.config.sections import WandbOptions
from pfl_bench.runs.trackers.wandb import _run_identifier
from tests.helpers import REPOSITORY

# 40 characters, as wandb demands of a key; no server ever sees it.
FAKE_KEY = "0123456789" * 4
DRIVER = """
import json, os, signal, sys, time
from pathlib import Path
from pfl_bench.config.sections import WandbOptions
from pfl_bench.runs.tracker import Tracked
from pfl_bench.runs.trackers import Trackers

job = json.loads(sys.argv[1])
notices = []
logger = Trackers.start(
    {"wandb": WandbOptions.model_validate(job["options"])},
    Tracked(
        folder=Path(job["run_dir"]),
        name="row, seed 0",
        config={"name": "row", "federated": {"num_rounds": 60, "tags": [1, 2]}, "none": None},
        table="flair/table1",
        row="private",
        labels=("flair/table1", "flair", "private_federated"),
        done=0,
    ),
    notices.append,
)
active = len(logger._active) == 1
for index in range(job["first"], job["last"] + 1):
    scalars = {"train/loss": 1 / index, "privacy/clip_norm": "inf" if index == 2 else 0.5}
    if index % 2 == 0:
        scalars["val/accuracy"] = index / 100
    if index == 3:
        scalars["train/loss"] = float("nan")
    logger.log(scalars, index)
if job.get("kill_after") is not None:
    time.sleep(job["kill_after"])
    os.kill(os.getpid(), signal.SIGKILL)
logger.conclude(
    {"unit": "user", "simulated": {"epsilon": 2.0}, "actual": {"epsilon": "inf"}},
    {"name": "row", "measured": [0.5, 0.6], "published": None},
    job.get("table", []),
)
said = notices.pop() if notices and notices[-1].startswith("W&B: ") else None
logger.finish()
logger.log({"late": 1.0}, 99)
Path(job["run_dir"], "result.json").write_text(
    json.dumps(
        {"notices": notices, "active": active, "wandb": "wandb" in sys.modules, "said": said}
    )
)
"""


def drive(run_dir: Path, environment: dict[str, str] | None = None, **job: Any) -> dict[str, Any]:
    """Log in a process of its own; warnings are errors there, and it must print nothing."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    clean |= {"HOME": str(run_dir.parent), "PYTHONPATH": str(REPOSITORY), **(environment or {})}
    job = {"run_dir": str(run_dir), "first": 1, "last": 4, **job}
    # wandb leaves the temporary folder of its tables to the interpreter's end.
    allowed = ["-W", "ignore:Implicitly cleaning up:ResourceWarning"] if "table" in job else []
    done = subprocess.run(
        [sys.executable, "-W", "error", *allowed, "-c", DRIVER, json.dumps(job)],
        env=clean,
        cwd=run_dir.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == ""
    if job.get("kill_after") is None:
        assert (done.returncode, done.stderr) == (0, "")
        result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
        return result
    assert done.returncode == -signal.SIGKILL
    return {}


def records(path: Path) -> Iterator[Any]:
    """Read a .wandb file: a seven-byte header, then LevelDB log records in 32 KiB blocks."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    assert content[:4] == b":W&B"
    position, pending = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        pending += content[position + 7 : position + 7 + length]
        position += 7 + length
        # Kinds: 1 whole record, 2 first part, 3 middle part, 4 last part.
        if kind in {1, 4}:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            pending = b""
            yield record


def name_of(item: Any) -> str:
    """Name of a config, summary or history item."""
    return item.key or "/".join(item.nested_key)


class Logged:
    """What a run's .wandb files hold, the files in the order in which they were written."""

    def __init__(self, run_dir: Path, pattern: str = "offline-run-*") -> None:
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: dict[int, dict[str, Any]] = {}
        self.identifiers: list[str] = []
        self.text = b""
        for path in sorted((run_dir / "wandb").glob(f"{pattern}/*.wandb")):
            self.text += path.read_bytes()
            for record in records(path):
                self._take(record)

    def _take(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.run = record.run
            self.identifiers.append(record.run.run_id)
            updates = record.run.config.update
            self.config |= {name_of(item): json.loads(item.value_json) for item in updates}
        elif kind == "config":
            updates = record.config.update
            self.config |= {name_of(item): json.loads(item.value_json) for item in updates}
        elif kind == "summary":
            updates = record.summary.update
            self.summary |= {name_of(item): json.loads(item.value_json) for item in updates}
        elif kind == "history":
            items = record.history.item
            row = {name_of(item): json.loads(item.value_json) for item in items}
            self.history[record.history.step.num] = row


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    return folder


def test_disabled_never_imports_wandb(run_dir: Path) -> None:
    result = drive(run_dir, options={})
    assert result == {"notices": [], "active": False, "wandb": False, "said": None}
    assert [path.name for path in run_dir.iterdir()] == ["result.json"]


def test_offline_holds_every_scalar_of_every_round(run_dir: Path) -> None:
    options = {"mode": "offline", "project": "p", "group": "g", "tags": ["a", "b"]}
    result = drive(run_dir, options=options)
    said = result.pop("said")
    assert result == {"notices": [], "active": True, "wandb": True}
    assert said.endswith(f"wandb sync '{run_dir / 'wandb'}'/offline-run-*")
    logged = Logged(run_dir)
    assert logged.config["federated"] == {"num_rounds": 60, "tags": [1, 2]}
    assert logged.config["name"] == "row"
    assert logged.config["privacy_statement"]["actual"] == {"epsilon": "inf"}
    assert sorted(logged.history) == [1, 2, 3, 4]
    for index, row in logged.history.items():
        assert row["round"] == row["_step"] == index
        assert row["val/accuracy"] == index / 100 if index % 2 == 0 else "val/accuracy" not in row
        assert row["privacy/clip_norm"] == (math.inf if index == 2 else 0.5)
    assert math.isnan(logged.history[3]["train/loss"])
    assert logged.history[4]["train/loss"] == 0.25
    assert logged.summary["statement/simulated/epsilon"] == 2.0
    assert logged.summary["statement/actual/epsilon"] == math.inf
    assert (logged.summary["row/name"], logged.summary["row/measured/1"]) == ("row", 0.6)
    assert "row/published" not in logged.summary
    assert (logged.run.project, logged.run.run_group) == ("p", "g")
    assert (logged.run.display_name, list(logged.run.tags)) == (
        "row, seed 0",
        ["a", "b", "flair/table1", "flair", "private_federated"],
    )
    stored = json.loads((run_dir / "wandb.json").read_text())
    assert stored == {"format_version": 1, "id": logged.run.run_id, "project": "p", "entity": None}
    assert {path.name for path in run_dir.iterdir()} == {"wandb", "wandb.json", "result.json"}


def test_the_group_and_the_table_are_the_row_s(run_dir: Path) -> None:
    lines = [
        {"metric": "test/accuracy", "published": 0.5, "measured": None, "verdict": "differs"},
        {"metric": "test/f1", "published": 1, "measured": 0.25, "verdict": "reproduced"},
    ]
    result = drive(run_dir, options={"mode": "offline"}, table=lines)
    assert result["notices"] == []
    logged = Logged(run_dir)
    assert logged.run.run_group == "flair/table1/private"
    assert list(logged.run.tags) == ["flair/table1", "flair", "private_federated"]
    table = logged.summary["table"]
    assert table["_type"] == "table-file"
    written = next((run_dir / "wandb").rglob("*.table.json"))
    assert json.loads(written.read_text()) == {
        "columns": ["metric", "published", "measured", "verdict"],
        "data": [["test/accuracy", 0.5, None, "differs"], ["test/f1", 1.0, 0.25, "reproduced"]],
    }


def test_nothing_is_written_below_home(run_dir: Path) -> None:
    # wandb's log of its service, and the copies it makes of a table's file.
    result = drive(
        run_dir,
        options={"mode": "offline"},
        environment={"HOME": "/dev/null", "WANDB_DATA_DIR": "/dev/null/data"},
        table=[{"metric": "test/accuracy", "measured": 0.5}],
    )
    assert result["notices"] == []
    logged = Logged(run_dir)
    assert logged.summary["table"]["nrows"] == 1
    assert str(run_dir / "wandb" / "artifacts").encode() in logged.text


def test_neither_code_nor_git_nor_host_details_are_taken(run_dir: Path) -> None:
    subprocess.run(["git", "init", "-q", str(run_dir.parent)], check=True)
    remote = ["remote", "add", "origin", "git@example.org:secret/project.git"]
    subprocess.run(["git", "-C", str(run_dir.parent), *remote], check=True)
    drive(run_dir, options={"mode": "offline"})
    logged = Logged(run_dir)
    assert b"secret" not in logged.text
    assert b"WandbOptions" not in logged.text
    assert logged.run.host == ""
    files = [path for path in (run_dir / "wandb").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".wandb", ".log"}


def test_a_killed_run_keeps_its_rounds_and_is_resumed(run_dir: Path) -> None:
    drive(run_dir, options={"mode": "offline"}, last=4, kill_after=2.5)
    assert sorted(Logged(run_dir).history) == [1, 2, 3, 4]
    # wandb names folders by the second.
    time.sleep(1.1)
    result = drive(run_dir, options={"mode": "offline"}, first=3, last=6)
    assert result["notices"] == []
    logged = Logged(run_dir)
    assert len(logged.identifiers) == 2
    assert len(set(logged.identifiers)) == 1
    assert logged.run.resume
    assert sorted(logged.history) == [1, 2, 3, 4, 5, 6]
    assert logged.history[6]["val/accuracy"] == 0.06


def test_without_a_login_it_goes_offline_and_says_so(run_dir: Path) -> None:
    result = drive(run_dir, options={"mode": "online"}, environment={"WANDB_BASE_URL": closed()})
    assert len(result["notices"]) == 1
    assert "logged offline. To upload it: `wandb login` once" in result["notices"][0]
    assert f"wandb sync '{run_dir / 'wandb'}'/offline-run-*" in result["notices"][0]
    assert sorted(Logged(run_dir).history) == [1, 2, 3, 4]


def test_a_missing_login_is_named_where_the_server_answers(run_dir: Path, server: str) -> None:
    result = drive(run_dir, options={"mode": "online"}, environment={"WANDB_BASE_URL": server})
    assert len(result["notices"]) == 1
    assert "No API key configured" in result["notices"][0]
    assert sorted(Logged(run_dir).history) == [1, 2, 3, 4]


def test_without_a_network_it_goes_offline_in_seconds(run_dir: Path) -> None:
    environment = {"WANDB_BASE_URL": closed(), "WANDB_API_KEY": FAKE_KEY}
    started = time.monotonic()
    result = drive(run_dir, options={"mode": "online"}, environment=environment)
    assert time.monotonic() - started < 30
    assert len(result["notices"]) == 1
    assert "could not start online (URLError" in result["notices"][0]
    assert FAKE_KEY not in result["notices"][0]
    assert sorted(Logged(run_dir).history) == [1, 2, 3, 4]


def test_a_server_that_answers_nonsense_does_not_hold_the_run(run_dir: Path, server: str) -> None:
    environment = {"WANDB_BASE_URL": server, "WANDB_API_KEY": FAKE_KEY}
    started = time.monotonic()
    result = drive(run_dir, options={"mode": "online"}, environment=environment)
    assert time.monotonic() - started < 40
    assert len(result["notices"]) == 1
    assert "could not start online" in result["notices"][0]
    assert sorted(Logged(run_dir).history) == [1, 2, 3, 4]


def test_a_damaged_identity_is_said_and_replaced(run_dir: Path) -> None:
    (run_dir / "wandb.json").write_text("{")
    result = drive(run_dir, options={"mode": "offline"}, last=1)
    assert len(result["notices"]) == 1
    assert "wandb.json is damaged" in result["notices"][0]
    assert json.loads((run_dir / "wandb.json").read_text())["id"] == Logged(run_dir).run.run_id


@pytest.mark.parametrize("content", ["[]", '{"id": 3}', "{}"])
def test_an_identity_of_another_form_is_damaged_too(tmp_path: Path, content: str) -> None:
    path, notices = tmp_path / "wandb.json", list[str]()
    path.write_text(content)
    identifier = _run_identifier(path, WandbOptions(), notices.append)
    assert "wandb.json is damaged" in notices[0]
    assert json.loads(path.read_text())["id"] == identifier
    assert _run_identifier(path, WandbOptions(), notices.append) == identifier
    assert len(notices) == 1


def test_another_project_is_another_run(run_dir: Path) -> None:
    drive(run_dir, options={"mode": "offline"}, last=1)
    before = json.loads((run_dir / "wandb.json").read_text())["id"]
    result = drive(run_dir, options={"mode": "offline", "project": "q"}, last=1)
    assert "is of another W&B project or entity" in result["notices"][0]
    assert json.loads((run_dir / "wandb.json").read_text())["id"] != before


@pytest.mark.skipif(
    not list(Path("/proc/self/task").glob("*/children")),
    reason="finds wandb's service process through Linux's /proc",
)
def test_a_dead_service_does_not_stop_the_run(run_dir: Path) -> None:
    code = DRIVER.replace(
        "for index in range",
        "for children in Path('/proc/self/task').glob('*/children'):\n"
        "    for child in children.read_text().split():\n"
        "        os.kill(int(child), signal.SIGKILL)\n"
        "time.sleep(0.5)\n"
        "for index in range",
        1,
    )
    job = {"run_dir": str(run_dir), "first": 1, "last": 4, "options": {"mode": "offline"}}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(job)],
        env={**clean, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notices = json.loads((run_dir / "result.json").read_text())["notices"]
    assert len(notices) == 1
    assert "the tracker 'wandb' stopped" in notices[0]
    assert f"to upload it: wandb sync '{run_dir / 'wandb'}'/*run-*" in notices[0]


def test_options_are_strict_and_take_lists() -> None:
    options = WandbOptions.model_validate({"mode": "offline", "tags": ["a"]})
    assert options.tags == ("a",)
    for wrong in ({"mode": "on"}, {"project": ""}, {"project": 3}, {"tags": "a"}, {"modes": "x"}):
        with pytest.raises(ValidationError):
            WandbOptions.model_validate(wrong)
    with pytest.raises(ValidationError):
        options.mode = "online"  # type: ignore[misc]


def closed() -> str:
    """Address of a port of this machine where nobody listens."""
    return "http://127.0.0.1:9"


@pytest.fixture
def server() -> Iterator[str]:
    """A web server that answers everything with "not found"."""
    code = (
        "import http.server as h\n"
        "class Q(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_error(404)\n"
        "    do_POST = do_GET\n"
        "    def log_message(self, *a): pass\n"
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), Q)\n"
        "print(s.server_port, flush=True)\n"
        "s.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        yield f"http://127.0.0.1:{int(run.stdout.readline())}"
        run.kill()
