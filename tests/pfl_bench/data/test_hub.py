"""Downloads by huggingface_hub from a stand-in of the Hub on the loopback interface."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from pfl_bench.cli.main import main
from pfl_bench.data.hub import download_from_hub
from pfl_bench.types import DataError, HubDataset
from tasks.femnist import prepare as femnist
from tasks.flair import prepare as flair
from tests.tasks.flair_files import make_pictures, write_parquet

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

COMMIT = "df739a2" * 5 + "aaaaa"
NAMES = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
BASES = tuple(name.removeprefix("data/") for name in NAMES)
DATASET = HubDataset("owner/name", "data/*.parquet", 4_000, "The note.")


class Handler(BaseHTTPRequestHandler):
    """The two endpoints of the Hub that a download of a dataset asks."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((self.command, path, self.headers.get("Range")))
        repository = f"/api/datasets/{self.server.repository}"
        resolve = f"/datasets/{self.server.repository}/resolve/{COMMIT}/"
        if self.server.refusal is not None:
            self._answer(*self.server.refusal)
        elif path == repository:
            self._answer(200, json.dumps(self.server.listing()).encode())
        elif path.startswith(resolve) and path.removeprefix(resolve) in self.server.files:
            self._file(path.removeprefix(resolve))
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _file(self, name: str) -> None:
        content = self.server.sent.get(name, self.server.files[name])
        etag = hashlib.sha256(self.server.files[name]).hexdigest()
        headers = {
            "ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"', "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)), "Accept-Ranges": "bytes",
        }  # fmt: skip
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.server.cuts.pop(0) if self.server.cuts and self.command == "GET" else None
        self._answer(206 if asked else 200, content[start:], headers, cut)

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Hub(ThreadingHTTPServer):
    """A repository of files.

    Attributes:
        sent: What is sent in place of a file's content.
        cuts: After so many bytes each answer with a file breaks off, as long as there are any.
        refusal: Status, body and headers of every answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repository = "owner/name"
        self.gated: str | bool = False
        self.files: dict[str, bytes] = {}
        self.sent: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.refusal: tuple[int, bytes, dict[str, str]] | None = None
        self.requests: list[tuple[str, str, str | None]] = []

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            found: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith(".parquet"):
                digest = hashlib.sha256(content).hexdigest()
                found["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(found)
        return {"id": self.repository, "sha": COMMIT, "gated": self.gated, "siblings": siblings}

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is what some tests do."""

    def fetched(self) -> list[str | None]:
        """The ranges that GET requests for files had."""
        return [r for command, path, r in self.requests if command == "GET" and "/resolve/" in path]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for number, name in enumerate(NAMES):
            column = pa.array(np.random.default_rng(number).random(2_000))
            path = tmp_path / "some.parquet"
            parquet.write_table(pa.table({"x": column}), path)
            server.files[name] = path.read_bytes()
            path.unlink()
        server.files["README.md"] = b"A card."
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_the_files_come_with_progress_and_are_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    paths = download_from_hub(DATASET, tmp_path, lambda *what: told.append(what))
    assert [path.read_bytes() for path in paths] == [hub.files[name] for name in NAMES]
    assert not (tmp_path / "README.md").exists()
    for name, content in zip(BASES, hub.files.values(), strict=False):
        size = len(content)
        assert told[[what[0] for what in told].index(name)][2] == size
        assert max(done for what, done, _ in told if what == name) == size
    assert len(hub.fetched()) == 2
    assert download_from_hub(DATASET, tmp_path, lambda *_: None) == paths
    assert len(hub.fetched()) == 2


def test_a_repository_that_the_user_names_is_fetched_and_prepared(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.files = {}
    for split in ("train", "test"):
        lines = [f"{split} {n % 7},{n % 3},user {n % 9}" for n in range(90)]
        hub.files[f"a/{split}/0.csv"] = "\n".join(["text,y,user", *lines]).encode()
    assert main(["data", "download", "hub", "dataset=owner/name"]) == 2
    assert "has no file *.parquet at http" in capsys.readouterr().err
    assert main(["data", "download", "hub", "dataset=owner/name", "kind=csv"]) == 0
    said = capsys.readouterr().out
    assert "next: pfl-bench data prepare hub --source data/owner-name --out hub.h5" in said
    assert {path.name for path in (tmp_path / "data" / "owner-name").glob("*.csv")} == {
        "a-train-0.csv", "a-test-0.csv",
    }  # fmt: skip
    columns = ["input=text", "label=y", "user=user"]
    prepare = ["data", "prepare", "hub", "--source", "data/owner-name", "--out", "hub.h5"]
    assert main([*prepare, *columns]) == 0
    assert '"test"' in capsys.readouterr().out
    hub.sent["a/train/0.csv"] = b"text,y,user\n"
    (tmp_path / "data" / "owner-name" / "a-train-0.csv").unlink()
    assert main(["data", "download", "hub", "dataset=owner/name", "kind=csv"]) == 2
    assert main(["data", "download", "mnist", "a=b"]) == 2
    assert "a=b: this task's files need no options" in capsys.readouterr().err


def test_what_broke_off_is_taken_up_by_the_next_call(hub: Hub, tmp_path: Path) -> None:
    size = len(hub.files[NAMES[0]])

    def stop(what: str, done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    # The first bytes come, and the person at the keyboard stops it.
    hub.cuts = [size // 2]
    with pytest.raises(KeyboardInterrupt):
        download_from_hub(DATASET, tmp_path, stop)
    assert not (tmp_path / BASES[0]).exists()
    already = (tmp_path / f".{BASES[0]}.partial").stat().st_size
    assert 0 < already < size
    paths = download_from_hub(DATASET, tmp_path, lambda *_: None)
    assert [path.read_bytes() for path in paths] == [hub.files[name] for name in NAMES]
    assert f"bytes={already}-" in hub.fetched()


def test_a_file_with_another_digest_is_refused_and_removed(hub: Hub, tmp_path: Path) -> None:
    content = hub.files[NAMES[1]]
    hub.sent[NAMES[1]] = content[:-9] + bytes(9)
    with pytest.raises(DataError, match="another or a damaged file came: expected sha256"):
        download_from_hub(DATASET, tmp_path, lambda *_: None)
    assert (tmp_path / BASES[0]).exists()
    assert not (tmp_path / BASES[1]).exists()


def test_a_foreign_file_is_left_alone(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / BASES[1]).write_text("mine")
    with pytest.raises(DataError, match="is there, but is not the published file"):
        download_from_hub(DATASET, tmp_path, lambda *_: None)
    assert (tmp_path / BASES[1]).read_text() == "mine"
    assert hub.fetched() == []


def test_what_has_no_digest_or_is_no_parquet_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lists no SHA-256 of README.md"):
        download_from_hub(replace(DATASET, pattern="README.md"), tmp_path, lambda *_: None)
    hub.files = {"data/x.parquet": b"no parquet"}
    with pytest.raises(DataError, match="is what the Hub has, but no parquet file"):
        download_from_hub(DATASET, tmp_path, lambda *_: None)


def test_rows_are_counted(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"its 2 files hold 4,000 rows, but 4,001 were published"):
        download_from_hub(replace(DATASET, num_rows=4_001), tmp_path, lambda *_: None)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((404, b"{}", {"X-Error-Code": "RepoNotFound"}), "could not be listed at http"),
        ((500, b"no", {}), "could not be listed at http"),
        ((200, b"[]", {}), "could not be listed at http"),
    ],
)
def test_what_the_hub_refuses_is_said(
    refusal: tuple[int, bytes, dict[str, str]], words: str, hub: Hub, tmp_path: Path
) -> None:
    hub.refusal = refusal
    with pytest.raises(DataError, match=words) as caught:
        download_from_hub(DATASET, tmp_path / "new", lambda *_: None, "Go on so.")
    assert str(caught.value).endswith("Go on so.")
    assert "owner/name" in str(caught.value)


def test_a_gated_repository_is_fetched_by_its_own_command(hub: Hub, tmp_path: Path) -> None:
    hub.gated = "auto"
    with pytest.raises(DataError, match="hf download owner/name --repo-type dataset"):
        download_from_hub(DATASET, tmp_path, lambda *_: None)


def test_another_repository_layout_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"README.md": b"Moved."}
    with pytest.raises(DataError, match=r"has no file data/\*.parquet at http"):
        download_from_hub(DATASET, tmp_path, lambda *_: None)


def test_the_command_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "femnist", "--from", "hub"]) == 2
    error = capsys.readouterr().err
    assert "flwrlabs/femnist: could not be listed at http://127.0.0.1:9" in error
    assert "Without network: put data/train-*.parquet of https://huggingface.co/datasets/" in error
    assert "pfl-bench data prepare femnist --source DIR --out FILE.h5" in error
    assert "Traceback" not in error


def test_the_command_without_the_package_or_a_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "reddit", "--from", "hub"]) == 2
    assert "names no copy on the Hugging Face Hub" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["data", "download", "flair", "--from", "hub"]) == 2
    assert "pip install 'pfl-bench[hub]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_femnist_s_copy_is_downloaded_and_prepared(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.full((28, 28), 255, np.uint8)).save(stream, "PNG")
    rows = [
        {
            "image": {"bytes": stream.getvalue(), "path": "x.png"},
            "writer_id": f"f{index % 20:04d}_00",
            "hsf_id": 0,
            "character": index % 62,
        }
        for index in range(200)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    hub.repository = femnist.HUB.repository
    hub.files = {"data/train-00000-of-00001.parquet": (tmp_path / "x.parquet").read_bytes()}
    monkeypatch.setattr(femnist, "HUB", replace(femnist.HUB, num_rows=200))
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "femnist", "--from", "hub", "--out", "raw"]) == 0
    printed = capsys.readouterr()
    assert "downloaded and verified: 1 files in raw" in printed.err
    assert printed.out.rstrip().endswith("prepare femnist --source raw --out femnist.h5")
    assert main(["data", "prepare", "femnist", "--source", "raw", "--out", "f.h5"]) == 0


def test_flair_s_copy_is_downloaded_and_found(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_parquet(tmp_path / "hf", make_pictures())
    hub.repository = flair.HUB.repository
    hub.files = {
        path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*.parquet")
    }
    monkeypatch.setattr(flair, "HUB", replace(flair.HUB, num_rows=len(make_pictures())))
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "flair", "--from", "hub"]) == 0
    found = sorted(Path("data/flair-hub").rglob("*.parquet"))
    assert sorted(path.read_bytes() for path in found) == sorted(hub.files.values())


def test_the_declarations_are_those_of_the_cards() -> None:
    assert femnist.HUB.num_rows == 814_277
    assert flair.HUB.num_rows == 429_078
    # The path of the card's split.
    assert fnmatch("data/train-00000-of-00001.parquet", femnist.HUB.pattern)
