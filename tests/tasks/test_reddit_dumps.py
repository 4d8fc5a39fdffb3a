"""Raw dumps: every packing, damage by file and line, authors brought together."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.types import ConfigError, DataError
from tasks.reddit.buckets import AuthorBuckets, Cleaned
from tasks.reddit.dumps import Comment, find_dumps, read_comments
from tests.helpers import REPOSITORY

REAL = REPOSITORY.parent / "shared" / "data" / "reddit"


def line(**changes: Any) -> str:
    row = {"author": "ann", "body": "hello", "subreddit": "pics", "created_utc": 7, "id": "c1"}
    return json.dumps({key: value for key, value in (row | changes).items() if value is not ...})


def zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    half = len(data) // 2
    packer = zstandard.ZstdCompressor()
    # Two frames, as some published dumps have.
    return bytes(packer.compress(data[:half]) + packer.compress(data[half:]))


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    ".json": lambda data: data,
    ".json.gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zst,
}


@pytest.mark.parametrize("suffix", PACKINGS)
def test_every_packing_gives_the_same_comments(tmp_path: Path, suffix: str) -> None:
    text = line() + "\n\n" + line(created_utc="8", id=None, body="x" * 300_000) + "\n"
    path = tmp_path / f"RC_2017-12{suffix}"
    path.write_bytes(PACKINGS[suffix](text.encode()))
    assert list(read_comments(path)) == [
        Comment("ann", "hello", "pics", 7, "c1"),
        Comment("ann", "x" * 300_000, "pics", 8, None),
    ]


@pytest.mark.parametrize("suffix", PACKINGS)
def test_a_cut_dump_is_an_error_that_names_file_and_line(tmp_path: Path, suffix: str) -> None:
    rows = "".join(line(id=f"c{number}", body=str(number) * 50) + "\n" for number in range(400))
    path = tmp_path / f"RC_2017-12{suffix}"
    path.write_bytes(PACKINGS[suffix](rows.encode())[:-30])
    with pytest.raises(DataError, match=r"RC_2017-12.*line \d+.*cut|RC_2017-12.*cut.*line \d+"):
        list(read_comments(path))


@pytest.mark.parametrize("suffix", [".json.gz", ".bz2", ".xz", ".zst"])
def test_what_a_cut_dump_holds_before_its_end_is_read(tmp_path: Path, suffix: str) -> None:
    # Of random words, so that the packed file is long and the first half can be unpacked.
    rng = random.Random(5)
    rows = (line(id=f"c{n}", body=rng.randbytes(2000).hex()) for n in range(1000))
    packed = PACKINGS[suffix]("\n".join(rows).encode())
    path = tmp_path / f"RC_2017-12{suffix}"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    with pytest.raises(DataError, match=r"cannot be read after line [67]\d\d"):
        list(read_comments(path))


def test_a_zst_dump_that_is_cut_between_two_lines_is_an_error_too(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    frame = zstandard.ZstdCompressor().compress((line() + "\n").encode())
    path = tmp_path / "RC.zst"
    path.write_bytes(frame + frame[:-4])
    with pytest.raises(DataError, match=r"RC.zst: cannot be read after line 1"):
        list(read_comments(path))
    path.write_bytes(frame + frame)
    assert len(list(read_comments(path))) == 2


def test_a_zst_dump_with_damage_inside_is_told(tmp_path: Path) -> None:
    path = tmp_path / "RC.zst"
    path.write_bytes(zst((line() + "\n").encode()) + b"no frame")
    with pytest.raises(DataError, match=r"RC.zst: cannot be read after line 1 \(zstd"):
        list(read_comments(path))


def test_foreign_bytes_are_an_error(tmp_path: Path) -> None:
    for suffix in (".json", ".json.gz", ".bz2", ".xz"):
        path = tmp_path / f"RC{suffix}"
        path.write_bytes(b"\x00\xffnothing of this kind\n" * 5)
        with pytest.raises(DataError, match=rf"RC{suffix}"):
            list(read_comments(path))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"body": ...}, "line 2: lacks body"),
        ({"author": None, "subreddit": None}, "line 2: lacks author, subreddit"),
        ({"author": ""}, "line 2: author or subreddit is empty"),
        ({"author": "\ud800"}, "surrogates not allowed"),
        ({"created_utc": "soon"}, "line 2: created_utc is 'soon'"),
        ({"created_utc": 1.5}, "created_utc is '1.5'"),
        ({"created_utc": float("inf")}, "Infinity is no JSON number"),
        ({"created_utc": float("nan")}, "NaN is no JSON number"),
        ({"body": 3}, "line 2: body is no text"),
    ],
)
def test_a_comment_that_lacks_something_is_told_not_fatal(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "RC_x"
    path.write_text("\n".join((line(), line(**changes), line())))
    first, told, last = read_comments(path)
    assert isinstance(first, Comment)
    assert isinstance(last, Comment)
    assert isinstance(told, str)
    assert says in told


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "RC_x.json"
    path.write_text(line() + "\n{'author': \n" + line())
    with pytest.raises(DataError, match=r"RC_x.json, line 2: not JSON"):
        list(read_comments(path))


def test_without_zstandard_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "RC.zst").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"needs the package zstandard.*--long=31"):
        list(read_comments(tmp_path / "RC.zst"))


def test_files_with_a_dumps_name_come_before_others(tmp_path: Path) -> None:
    for name in ("leaf_vocab.json", "b.jsonl", "notes.txt", "weights.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in find_dumps(tmp_path, None)] == ["b.jsonl", "leaf_vocab.json"]
    for name in ("RC_2017-12", "RC_2017-11.zst"):
        (tmp_path / name).touch()
    found = [path.name for path in find_dumps(tmp_path, None)]
    assert found == ["RC_2017-11.zst", "RC_2017-12"]
    assert [path.name for path in find_dumps(tmp_path, "*.jsonl")] == ["b.jsonl"]


@pytest.mark.parametrize("buckets", [1, 7])
def test_authors_come_together_in_time_and_repetitions_go(tmp_path: Path, buckets: int) -> None:
    with AuthorBuckets(tmp_path, buckets) as grouped:
        grouped.add("ann", Cleaned(5, 0, "c3", "third"))
        grouped.add("bob", Cleaned(1, 1, None, "same"))
        grouped.add("ann", Cleaned(2, 0, "c1", "first"))
        grouped.add("ann", Cleaned(5, 1, "c4", "fourth"))
        grouped.add("ann", Cleaned(5, 0, "c3", "third"))
        grouped.add("bob", Cleaned(1, 1, None, "same"))
        found = {author: (comments, times) for author, comments, times in grouped.authors()}
    texts = [comment.text for comment in found["ann"][0]]
    assert texts == ["first", "third", "fourth"]
    assert found["ann"][1] == 1
    # Without identifiers nobody can tell a repetition from a comment that was written twice.
    assert len(found["bob"][0]) == 2
    assert not list(tmp_path.iterdir())


def test_the_real_dump_is_the_same_in_both_packings() -> None:
    files = [REAL / "RC_2005-12.json.gz", REAL / "RC_2005-12.zst"]
    if not all(path.is_file() for path in files):
        pytest.skip(f"{REAL} is not here")
    pytest.importorskip("zstandard")
    packed, other = ({c.identifier: c for c in read_comments(path)} for path in files)  # type: ignore[union-attr]
    assert len(packed) == 1075
    assert packed == other
