"""Downloads from a real server on the loopback interface, with the failures that servers have."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from pfl_bench.cli.main import main
from pfl_bench.data import download as download_module
from pfl_bench.data.checksums import CHUNK_BYTES
from pfl_bench.data.download import LOCK, download
from pfl_bench.types import DataError, PluginError, RemoteFile
from tasks.cifar10 import prepare as cifar10_prepare
from tasks.fashion_mnist import prepare as fashion_prepare
from tasks.femnist import prepare
from tasks.flair import prepare as flair_prepare
from tasks.mnist import prepare as mnist_prepare
from tests.tasks.cifar10_files import write_archive
from tests.tasks.femnist_files import write_idx
from tests.tasks.flair_files import make_pictures, write_tarballs

CONTENT = np.random.default_rng(5).bytes(300_000)
OTHER = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
NAME = "digits.gz"
PARTIAL = f".{NAME}.partial"


class Handler(BaseHTTPRequestHandler):
    """Answers the n-th request of a path as the n-th word says; the last word goes for the rest."""

    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        words = self.server.script.get(self.path, ["missing"])
        word = words.pop(0) if len(words) > 1 else words[0]
        content = self.server.contents.get(self.path, CONTENT)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if word.isdecimal() or word == "missing":
            self.send_error(404 if word == "missing" else int(word))
        elif word == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        elif word == "stall":
            time.sleep(0.5)
        elif word == "redirect":
            self.send_response(302)
            self.send_header("Location", "/a")
            self.end_headers()
        elif word == "whole":
            self.answer(200, content)
        elif word == "unsized":
            self.answer(200, content, sized=False)
        elif word == "digits":
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", "9" * 5000)
            self.send_header("Content-Range", f"bytes {start}-1/{'9' * 5000}")
            self.end_headers()
            self.wfile.write(content[start:])
        elif word == "wrong":
            self.answer(206 if asked else 200, OTHER[start:], start)
        elif start >= len(content):
            self.send_error(416)
        elif word == "shifted":
            self.answer(206, content[start - 1 :], start - 1)
        elif word == "cut":
            self.answer(206 if asked else 200, content[start:], start, sent=100_000)
        else:
            self.answer(206 if asked else 200, content[start:], start)

    def answer(
        self,
        status: int,
        body: bytes,
        start: int = 0,
        *,
        sent: int | None = None,
        sized: bool = True,
    ) -> None:
        self.send_response(status)
        if sized:
            self.send_header("Content-Length", str(len(body)))
        if status == 206:
            end = start + len(body)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.end_headers()
        self.wfile.write(body[:sent])

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.script: dict[str, list[str]] = {}
        self.contents: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []

    def handle_error(self, *_: object) -> None:
        """A client that hangs up in the middle is what some tests do."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(download_module, "PAUSES_S", (0.01, 0.01))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "digits"


class Progress:
    """Keeps the calls; ``stop_at``: Ctrl-C once so many bytes are there."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, int, int | None]] = []
        self._stop_at = stop_at

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self.calls.append((what, done, total))
        if self._stop_at is not None and done >= self._stop_at:
            raise KeyboardInterrupt


def remote(
    server: Server, *paths: str, size: int | None = len(CONTENT), name: str = NAME
) -> RemoteFile:
    urls = tuple(f"{server.url}{path}" for path in paths or ("/a",))
    return RemoteFile(name, urls, size, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")


def refused(file: RemoteFile, target: Path, *words: str) -> str:
    with pytest.raises(DataError) as caught:
        download([file], target, Progress(), "ADVICE")
    message = str(caught.value)
    assert all(word in message for word in (file.name, *words)), message
    assert not (target / file.name).exists()
    assert not (target / LOCK).exists()
    return message


def is_whole(target: Path) -> bool:
    """The file is there, and nothing else."""
    names = [path.name for path in target.iterdir()]
    return names == [NAME] and (target / NAME).read_bytes() == CONTENT


def test_a_file_comes_with_progress(server: Server, target: Path) -> None:
    server.script["/a"] = ["range"]
    progress = Progress()
    assert download([remote(server)], target, progress) == [target / NAME]
    assert is_whole(target)
    done = [call[1] for call in progress.calls]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(CONTENT))
    assert len(done) > 3
    assert {(call[0], call[2]) for call in progress.calls} == {(NAME, len(CONTENT))}


@pytest.mark.parametrize("size", [None, len(CONTENT)])
@pytest.mark.parametrize("word", ["whole", "unsized", "redirect"])
def test_servers_may_say_less(server: Server, target: Path, word: str, size: int | None) -> None:
    server.script |= {"/r": [word], "/a": ["range"]}
    progress = Progress()
    download([remote(server, "/r", size=size)], target, progress)
    assert is_whole(target)
    known = word != "unsized" or size is not None
    assert progress.calls[-1] == (NAME, len(CONTENT), len(CONTENT) if known else None)


def test_md5_serves_too(server: Server, target: Path) -> None:
    server.script["/a"] = ["range"]
    digest = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    download([dataclasses.replace(remote(server), digest=digest)], target, Progress())
    assert is_whole(target)


def test_what_is_there_is_not_fetched_again(server: Server, target: Path) -> None:
    server.script["/a"] = ["range"]
    files = [remote(server), remote(server, name="second")]
    download(files[:1], target, Progress())
    progress = Progress()
    assert download(files, target, progress) == [target / NAME, target / "second"]
    assert len(server.requests) == 2
    assert progress.calls[0] == (NAME, len(CONTENT), len(CONTENT))


def test_a_foreign_file_of_that_name_is_left_alone(server: Server, target: Path) -> None:
    target.mkdir(parents=True)
    (target / NAME).write_bytes(OTHER)
    files = [remote(server, name="first"), remote(server)]
    with pytest.raises(DataError, match=r"not the published file.*delete it.*another --out") as e:
        download(files, target, Progress())
    assert str(target / NAME) in str(e.value)
    assert hashlib.sha256(OTHER).hexdigest() in str(e.value)
    assert (target / NAME).read_bytes() == OTHER
    assert server.requests == []


def test_folders_and_files_in_the_way_are_named(server: Server, target: Path) -> None:
    (target / NAME).mkdir(parents=True)
    with pytest.raises(DataError, match="is no file"):
        download([remote(server)], target, Progress())
    for name in ("x", "x/y"):
        (target / "x").touch()
        with pytest.raises(DataError, match="is a file; give --out a folder"):
            download([remote(server)], target / name, Progress())


def test_a_cut_connection_is_taken_up_where_it_broke(server: Server, target: Path) -> None:
    server.script["/a"] = ["cut", "503", "range"]
    download([remote(server)], target, Progress())
    assert is_whole(target)
    assert server.requests == [("/a", None), ("/a", "bytes=100000-"), ("/a", "bytes=100000-")]


def test_a_later_call_goes_on_and_counts_from_there(server: Server, target: Path) -> None:
    server.script["/a"] = ["cut", "404"]
    message = refused(remote(server), target, "HTTP 404", "goes on from there. ADVICE")
    assert "(2 tries)" in message
    assert (target / PARTIAL).read_bytes() == CONTENT[:100_000]
    server.script["/a"] = ["range"]
    progress = Progress()
    download([remote(server)], target, progress)
    assert is_whole(target)
    assert server.requests[-1] == ("/a", "bytes=100000-")
    assert progress.calls[0] == (NAME, 100_000, len(CONTENT))


def test_ctrl_c_keeps_the_partial_file(server: Server, target: Path) -> None:
    server.script["/a"] = ["range"]
    with pytest.raises(KeyboardInterrupt):
        download([remote(server)], target, Progress(stop_at=150_000))
    kept = (target / PARTIAL).read_bytes()
    assert 150_000 <= len(kept) < len(CONTENT)
    assert kept == CONTENT[: len(kept)]
    download([remote(server)], target, Progress())
    assert is_whole(target)
    assert server.requests[-1] == ("/a", f"bytes={len(kept)}-")


@pytest.mark.parametrize("word", ["whole", "416", "shifted", "range"])
def test_a_part_that_cannot_be_continued_is_fetched_anew(
    server: Server, target: Path, word: str
) -> None:
    target.mkdir(parents=True)
    # "range" continues this damaged beginning, and finds out at the end.
    (target / PARTIAL).write_bytes((OTHER[::-1] if word == "range" else CONTENT)[:120_000])
    server.script["/a"] = [word, "range"]
    download([remote(server)], target, Progress())
    assert is_whole(target)
    again = [] if word == "whole" else [("/a", None)]
    assert server.requests == [("/a", "bytes=120000-"), *again]


@pytest.mark.parametrize("size", [None, len(CONTENT)])
@pytest.mark.parametrize("kept", [OTHER, CONTENT + b"x"])
def test_a_partial_file_that_is_too_long_or_wrong_is_fetched_anew(
    server: Server, target: Path, kept: bytes, size: int | None
) -> None:
    target.mkdir(parents=True)
    (target / PARTIAL).write_bytes(kept)
    server.script["/a"] = ["range"]
    download([remote(server, size=size)], target, Progress())
    assert is_whole(target)


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_whole_partial_file_needs_no_request(
    server: Server, target: Path, size: int | None
) -> None:
    target.mkdir(parents=True)
    (target / PARTIAL).write_bytes(CONTENT)
    download([remote(server, size=size)], target, Progress())
    assert is_whole(target)
    assert server.requests == []


def test_wrong_bytes_are_refused_and_removed(server: Server, target: Path) -> None:
    server.script["/a"] = ["wrong"]
    file = remote(server)
    got = f"got sha256:{hashlib.sha256(OTHER).hexdigest()} (300000 bytes)"
    refused(file, target, f"expected {file.digest} (300000 bytes)", got, file.urls[0])
    assert not target.exists()
    assert len(server.requests) == 1


def test_a_file_of_another_size_is_not_even_read(server: Server, target: Path) -> None:
    server.script["/a"] = ["whole"]
    refused(remote(server, size=299_999), target, "expected 299999 bytes, got 300000")
    assert not target.exists()


def test_an_endless_answer_is_stopped_at_the_size(server: Server, target: Path) -> None:
    server.script["/a"] = ["unsized"]
    message = refused(remote(server, size=1_000), target, "(1000 bytes), got")
    assert "(65536 bytes)" in message
    assert not target.exists()


def test_mirrors_are_tried_in_order_and_share_the_partial(server: Server, target: Path) -> None:
    server.script |= {"/b": ["cut", "404"], "/c": ["range"]}
    download([remote(server, "/a", "/b", "/c", "/d")], target, Progress())
    assert is_whole(target)
    ranged = "bytes=100000-"
    assert server.requests == [("/a", None), ("/b", None), ("/b", ranged), ("/c", ranged)]


def test_a_bad_mirror_does_not_spoil_the_next(server: Server, target: Path) -> None:
    server.contents["/a"] = OTHER[::-1]
    server.script |= {"/a": ["cut", "404"], "/b": ["range"]}
    download([remote(server, "/a", "/b")], target, Progress())
    assert is_whole(target)


@pytest.mark.parametrize("word", ["503", "429", "reset", "stall"])
def test_passing_failures_are_tried_again(
    server: Server, target: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "TIMEOUT_S", 0.2)
    server.script["/a"] = [word, word, "range"]
    download([remote(server)], target, Progress())
    assert is_whole(target)


def test_every_url_is_named_with_its_failure(server: Server, target: Path) -> None:
    server.script |= {"/gone": ["404"], "/ill": ["503"], "/cut": ["reset"], "/none": ["204"]}
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unheard.getsockname()[1]}/x"
        file = remote(server, "/gone", "/ill", "/cut", "/none")
        file = dataclasses.replace(file, urls=(*file.urls, closed, "http://no.such.invalid:x/"))
        message = refused(file, target, str(target), "ADVICE")
    assert all(f"\n  - {url}: " in message for url in file.urls)
    for words in ("HTTP 404", "HTTP 503", "(3 tries)", "Connection reset", "HTTP 204", "refused"):
        assert words in message
    assert not target.exists()


def test_a_folder_that_is_made_for_nothing_goes_again(server: Server, target: Path) -> None:
    server.script["/gone"] = ["404"] * 2
    refused(remote(server, "/gone"), target)
    assert not target.parent.exists()
    target.mkdir(parents=True)
    refused(remote(server, "/gone"), target)
    assert target.exists()


def test_the_environments_proxy_is_used(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://files.invalid/a"
    monkeypatch.setenv("http_proxy", server.url)
    server.script[url] = ["range"]
    download([dataclasses.replace(remote(server), urls=(url,))], target, Progress())
    assert is_whole(target)


def test_two_downloads_into_one_folder_are_refused(server: Server, target: Path) -> None:
    target.mkdir(parents=True)
    with (
        FileLock(target / LOCK),
        pytest.raises(DataError, match="another pfl-bench data download"),
    ):
        download([remote(server)], target, Progress())
    assert server.requests == []


def test_a_full_disk_is_an_os_error_with_the_files_name(server: Server, target: Path) -> None:
    server.script["/a"] = ["range"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match=PARTIAL):
            download([remote(server)], target, Progress())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    download([remote(server)], target, Progress())
    assert is_whole(target)
    assert server.requests[-1] == ("/a", "bytes=200000-")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../x"}, "plain file name"),
        ({"name": ".x"}, "plain file name"),
        ({"urls": ()}, "http or https"),
        ({"urls": ("file:///etc/hosts",)}, "http or https"),
        ({"digest": "md5:12"}, "md5:HEX"),
        ({"digest": "crc32:00000000"}, "md5:HEX"),
    ],
)
def test_a_wrong_declaration_is_refused(
    tmp_path: Path, change: dict[str, str | tuple[str, ...]], words: str
) -> None:
    file = RemoteFile("x", ("http://127.0.0.1/x",), None, f"md5:{'0' * 32}")
    with pytest.raises(PluginError, match=words):
        download([dataclasses.replace(file, **change)], tmp_path / "x", Progress())  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="used once"):
        download([file, file], tmp_path / "x", Progress())
    assert list(tmp_path.iterdir()) == []


PACKED = gzip.compress(CONTENT, mtime=0)


def digestless(
    server: Server, name: str = "a.tar.gz", content: bytes = PACKED, size: int | None = None
) -> RemoteFile:
    """A file of which neither digest nor, by default, size is published."""
    server.contents[f"/{name}"] = content
    server.script.setdefault(f"/{name}", ["range"])
    return RemoteFile(name, (f"{server.url}/{name}",), size, None)


def sums(*contents: tuple[str, bytes]) -> str:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents)


def test_files_without_digest_come_and_their_sums_are_recorded(
    server: Server, target: Path
) -> None:
    documents = (("a.tar.gz", PACKED), ("b.json", b'[{"x": 1e3}]'), ("c.txt", b"a -> b\n"))
    files = [digestless(server, name, data) for name, data in reversed(documents)]
    progress = Progress()
    download(files, target, progress)
    for name, data in documents:
        assert (target / name).read_bytes() == data
    assert (target / "SHA256SUMS").read_text() == sums(*documents)
    assert sorted(path.name for path in target.iterdir()) == [
        "SHA256SUMS",
        "a.tar.gz",
        "b.json",
        "c.txt",
    ]
    assert progress.calls[-1] == ("a.tar.gz", len(PACKED), len(PACKED))
    download(files, target, Progress())
    assert len(server.requests) == 3


def test_a_cut_transfer_without_digest_resumes(server: Server, target: Path) -> None:
    server.script["/a.tar.gz"] = ["cut", "404"]
    file = digestless(server)
    refused(file, target, "goes on from there")
    assert (target / ".a.tar.gz.partial").read_bytes() == PACKED[:100_000]
    server.script["/a.tar.gz"] = ["cut", "range"]
    download([file], target, Progress())
    assert (target / "a.tar.gz").read_bytes() == PACKED
    assert [asked for _, asked in server.requests] == [
        None,
        "bytes=100000-",
        "bytes=100000-",
        "bytes=200000-",
    ]


@pytest.mark.parametrize(
    ("name", "damaged", "words"),
    [
        ("a.tar.gz", PACKED[:90_000] + b"x" + PACKED[90_001:], "not a sound gzip file"),
        ("a.tar.gz", PACKED[:-9], "not a sound gzip file"),
        ("a.tgz", b"<html>", "not a sound gzip file"),
        # A block of no type that there is.
        ("a.tgz", PACKED[:10] + b"\xff" + PACKED[11:], "not a sound gzip file"),
        ("b.json", b'[{"x": 1}', "not valid JSON"),
        ("b.json", b"<html>", "not valid JSON"),
        ("b.json", b'["\xff"]', "not valid JSON"),
        # A surrogate, which no UTF-8 has.
        ("b.json", b'["\xed\xa0\x80"]', "not valid JSON"),
    ],
)
def test_damage_without_digest_is_refused_and_fetched_again(
    server: Server, target: Path, name: str, damaged: bytes, words: str
) -> None:
    file = digestless(server, name, damaged)
    refused(file, target, words, "(3 tries)")
    assert not target.exists()
    whole = b"[1, 2]" if name == "b.json" else PACKED
    download([digestless(server, name, whole)], target, Progress())
    assert (target / name).read_bytes() == whole


def test_a_damaged_beginning_without_digest_is_fetched_anew(server: Server, target: Path) -> None:
    target.mkdir(parents=True)
    (target / ".a.tar.gz.partial").write_bytes(b"x" * 120_000)
    download([digestless(server)], target, Progress())
    assert (target / "a.tar.gz").read_bytes() == PACKED
    assert server.requests == [("/a.tar.gz", "bytes=120000-"), ("/a.tar.gz", None)]


def test_a_file_of_unknown_length_and_content_cannot_be_trusted(
    server: Server, target: Path
) -> None:
    server.script |= {name: ["unsized"] for name in ("/c.bin", "/a.tar.gz", "/a.tgz")}
    refused(digestless(server, "c.bin", b"a -> b\n"), target, "unknown length")
    for name in ("a.tar.gz", "a.tgz"):
        download([digestless(server, name)], target, Progress())
        assert (target / name).read_bytes() == PACKED
    download([digestless(server, "c.bin", b"a -> b\n", size=7)], target, Progress())
    refused_size = digestless(server, "d.txt", b"a -> b\n", size=8)
    server.script["/d.txt"] = ["unsized"]
    refused(refused_size, target, "ended at 7 of 8")


@pytest.mark.parametrize(
    "text",
    [
        b"a -> b\n",
        "caf\u00e9 -> b".encode(),
        b"\xef\xbb\xbfa",
        pytest.param(b"a" + b"\n" * CHUNK_BYTES, id="blank at the end"),
    ],
)
def test_a_text_of_unknown_length_is_read_through(
    server: Server, target: Path, text: bytes
) -> None:
    server.script["/c.txt"] = ["unsized"]
    download([digestless(server, "c.txt", text)], target, Progress())
    assert (target / "c.txt").read_bytes() == text
    assert (target / "SHA256SUMS").read_text() == sums(("c.txt", text))


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"", "without any line"),
        (b" \r\n\n", "without any line"),
        (b"\xef\xbb\xbf\n", "without any line"),
        ("caf\u00e9".encode()[:-1], "not a text in UTF-8"),
        (CONTENT, "not a text"),
        (bytes(20), "NUL"),
    ],
)
def test_a_damaged_text_of_unknown_length_is_refused(
    server: Server, target: Path, damaged: bytes, words: str
) -> None:
    server.script["/c.txt"] = ["unsized"]
    refused(digestless(server, "c.txt", damaged), target, words, "(3 tries)")
    assert not target.exists()


def test_recorded_sums_catch_later_damage(server: Server, target: Path) -> None:
    file = digestless(server)
    download([file], target, Progress())
    other = gzip.compress(OTHER, mtime=0)
    (target / "a.tar.gz").write_bytes(other)
    with pytest.raises(DataError, match=r"SHA256SUMS beside it records.*delete it") as caught:
        download([file], target, Progress())
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    (target / "a.tar.gz").unlink()
    # Another file under the address is not taken either, before the record is deleted.
    message = refused(digestless(server, content=other), target, "delete its line there")
    assert hashlib.sha256(PACKED).hexdigest() in message
    (target / "SHA256SUMS").unlink()
    download([file], target, Progress())
    assert (target / "SHA256SUMS").read_text() == sums(("a.tar.gz", other))


def test_files_put_there_by_hand_are_checked_and_recorded(server: Server, target: Path) -> None:
    target.mkdir(parents=True)
    file = digestless(server)
    (target / "a.tar.gz").write_bytes(PACKED[:-1])
    with pytest.raises(DataError, match=r"is there, but is not a sound gzip file.*delete it"):
        download([file], target, Progress())
    (target / "a.tar.gz").write_bytes(PACKED)
    download([file], target, Progress())
    assert (target / "SHA256SUMS").read_text() == sums(("a.tar.gz", PACKED))
    assert server.requests == []


def test_sums_that_are_none_are_refused(server: Server, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "SHA256SUMS").write_text(f"{'0' * 64}  x\nnonsense\n")
    with pytest.raises(DataError, match="SHA256SUMS, line 2: 'nonsense'"):
        download([digestless(server)], target, Progress())


def test_what_flair_declares_can_be_prepared(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pictures = make_pictures(side=256)
    raw = write_tarballs(tmp_path / "published", pictures, count=12)
    # The JSON, the relationship file and the first twelve of the 43 tarballs.
    declared = flair_prepare.FILES[:14]
    files = [digestless(server, f.name, (raw / f.name).read_bytes()) for f in declared]
    monkeypatch.setattr(flair_prepare, "FILES", tuple(files))
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "flair"]) == 0
    printed = capsys.readouterr().out
    assert "No digests of these files are published" in printed
    assert "CC BY-NC 4.0" in printed
    command = "pfl-bench data prepare flair --source data/flair --out flair.h5"
    assert printed.rstrip().endswith(command)
    assert main(command.split()[1:]) == 0
    assert '"train": {"users": 3, "examples": 8}' in capsys.readouterr().out


def published(server: Server, declared: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files that a task declares, by name, with the server's content."""
    files = []
    for file in declared:
        path = f"/{file.name}"
        server.script[path] = ["range"]
        content = server.contents[path]
        digest = f"md5:{hashlib.md5(content).hexdigest()}"
        changed = {"urls": (server.url + path,), "size": len(content), "digest": digest}
        files.append(dataclasses.replace(file, **changed))  # type: ignore[arg-type]
    return tuple(files)


def test_what_femnist_declares_can_be_prepared(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = np.zeros((60_000, 8), dtype=np.int32)
    labels[:, 2] = np.arange(60_000) % 40
    for part in ("train", "qmnist-test"):
        path = write_idx(tmp_path / "x.gz", np.zeros((60_000, 28, 28), dtype=np.uint8))
        server.contents[f"/{part}-images-idx3-ubyte.gz"] = path.read_bytes()
    for part in ("train", "test"):
        path = write_idx(tmp_path / "x.gz", labels)
        server.contents[f"/qmnist-{part}-labels-idx2-int.gz"] = path.read_bytes()
        labels[:, 2] += 40
    monkeypatch.setattr(prepare, "FILES", published(server, prepare.FILES))
    monkeypatch.chdir(tmp_path)

    assert main(["data", "download", "femnist", "--out", "raw files"]) == 0
    printed = capsys.readouterr()
    assert "4 files in raw files" in printed.err
    assert "MNIST/QMNIST digits with their real writers" in printed.out
    assert "not FEMNIST" in printed.out
    following = "pfl-bench data prepare femnist --source 'raw files' --out femnist.h5"
    assert printed.out.rstrip().endswith(following)

    assert main(["data", "prepare", "femnist", "--source", "raw files", "--out", "f.h5"]) == 0
    splits = capsys.readouterr().out.split("splits: ")[1].partition("\n")[0]
    counts = json.loads(splits).values()
    assert sum(count["examples"] for count in counts) == 120_000
    assert {count["users"] for count in counts} == {80}


def test_what_cifar10_declares_can_be_prepared(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = write_archive(tmp_path / cifar10_prepare.ARCHIVE)
    server.contents[f"/{archive.name}"] = archive.read_bytes()
    monkeypatch.setattr(cifar10_prepare, "FILES", published(server, cifar10_prepare.FILES))
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "cifar10"]) == 0
    command = "pfl-bench data prepare cifar10 --source data/cifar10 --out cifar10.h5"
    assert capsys.readouterr().out.rstrip().endswith(command)
    assert main(command.split()[1:]) == 0
    assert '"train": 20, "test": 4' in capsys.readouterr().out


@pytest.mark.parametrize(
    "files",
    [prepare.FILES, mnist_prepare.FILES, fashion_prepare.FILES, cifar10_prepare.FILES],
    ids=["femnist", "mnist", "fashion_mnist", "cifar10"],
)
def test_real_declarations_are_in_order(files: Sequence[RemoteFile]) -> None:
    download_module.check_declaration(files)
    assert all(file.digest is not None for file in files)


def test_femnists_note_says_that_the_files_are_not_femnist() -> None:
    assert "MNIST/QMNIST" in prepare.FILES_NOTE


def test_the_command_says_how_to_go_on_without_network(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(prepare, "FILES", (remote(server),))
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "femnist"]) == 2
    error = capsys.readouterr().err
    assert f"{NAME}: could not be fetched into data/femnist:" in error
    assert f"put the files ({NAME}) into a folder DIR yourself" in error
    assert "pfl-bench data prepare femnist --source DIR --out FILE.h5" in error
    assert "Traceback" not in error


def test_a_task_without_files_points_to_its_readme(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(prepare, "FILES")
    assert main(["data", "download", "femnist"]) == 2
    assert "tasks/femnist/README.md" in capsys.readouterr().err


@pytest.mark.parametrize("there", [0, 100])
def test_a_length_of_thousands_of_digits_is_none(server: Server, target: Path, there: int) -> None:
    target.mkdir(parents=True)
    (target / PARTIAL).write_bytes(CONTENT[:there])
    server.script["/a"] = ["digits"]
    download([remote(server)], target, Progress())
    assert is_whole(target)


def test_nothing_is_fetched_through_a_link(server: Server, target: Path, tmp_path: Path) -> None:
    target.mkdir(parents=True)
    (tmp_path / "outside").write_bytes(CONTENT[:100])
    (target / PARTIAL).symlink_to(tmp_path / "outside")
    server.script["/a"] = ["good"]
    download([remote(server)], target, Progress())
    assert is_whole(target)
    assert not (target / NAME).is_symlink()
    assert (tmp_path / "outside").read_bytes() == CONTENT[:100]
