"""The ledger: each released round is counted once, and tampering shows."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from privacy.errors import LedgerError
from privacy.ledger import Ledger, canonical_line, iterate_ledger, read_ledger


def entry(number: int, **changes: Any) -> dict[str, Any]:
    return {"round": number, "clip_norm": 0.1 / number, "cohort": {"size": 3}, **changes}


def write(path: Path, rounds: int) -> list[bytes]:
    with Ledger(path) as ledger:
        for number in range(1, rounds + 1):
            ledger.append(entry(number))
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize("what", ["removed", "replaced", "cut", "written"])
def test_a_file_that_is_no_longer_the_open_one_takes_no_round(what: str, path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(entry(1))
        content = path.read_bytes()
        if what in ("removed", "replaced"):
            path.unlink()
        if what == "replaced":
            path.write_bytes(content)
        elif what == "cut":
            path.write_bytes(content[:-2])
        elif what == "written":
            path.write_bytes(content + b"{}\n")
        for number in (1, 2):
            with pytest.raises(LedgerError, match="changed by" if what[0] in "cw" else "removed"):
                ledger.append(entry(number))
    path.write_bytes(content)
    with Ledger(path) as ledger:
        ledger.append(entry(2))
    assert len(read_ledger(path)) == 2


def test_rounds_are_chained(path: Path) -> None:
    write(path, 3)
    entries = read_ledger(path)
    assert [e["round"] for e in entries] == [1, 2, 3]
    assert entries[0]["previous"] == "0" * 64
    assert len({e["previous"] for e in entries}) == 3


def test_lines_are_canonical(path: Path) -> None:
    lines = write(path, 1)
    assert lines[0] == canonical_line(dict(reversed(entry(1).items())), "0" * 64)
    assert b" " not in lines[0]


def test_a_replay_gives_the_same_file(path: Path) -> None:
    write(path, 5)
    before = path.read_bytes()
    with Ledger(path) as ledger:
        assert ledger.last_round == 5
        for number in (3, 4, 5):
            ledger.append(entry(number))
        assert path.read_bytes() == before
        ledger.append(entry(6))
    assert read_ledger(path)[-1]["round"] == 6


def test_a_replay_that_differs_is_refused(path: Path) -> None:
    write(path, 3)
    before = path.read_bytes()
    with Ledger(path) as ledger:
        with pytest.raises(LedgerError, match=r"in clip_norm\).*without any noise"):
            ledger.append(entry(2, clip_norm=0.3))
        with pytest.raises(LedgerError, match="in extra"):
            ledger.append(entry(3, extra=1))
    assert path.read_bytes() == before


def test_a_gap_is_refused(path: Path) -> None:
    write(path, 2)
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="cannot follow round 2"):
        ledger.append(entry(4))


@pytest.mark.parametrize("torn", [1, 20, -1])
def test_a_torn_last_line_is_mended(path: Path, torn: int) -> None:
    lines = write(path, 3)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:torn])
    assert len(read_ledger(path)) == 2
    assert path.read_bytes() != b"".join(lines[:2])
    with Ledger(path) as ledger:
        assert ledger.last_round == 2
        assert path.read_bytes() == b"".join(lines[:2])
        ledger.append(entry(3))
    assert path.read_bytes() == b"".join(lines)


def test_a_last_line_that_was_not_flushed_is_mended(path: Path) -> None:
    lines = write(path, 2)
    path.write_bytes(lines[0] + b"\0" * 50)
    with Ledger(path) as ledger:
        assert ledger.last_round == 1


def test_a_damaged_last_line_is_no_torn_one(path: Path) -> None:
    lines = write(path, 3)
    path.write_bytes(b"".join(lines[:2]) + lines[2].replace(b'"round"', b'"rou"d"'))
    with pytest.raises(LedgerError, match="line 3"):
        Ledger(path)


def test_a_run_resumes_only_under_the_constants_of_its_ledger(path: Path) -> None:
    write(path, 3)
    recorded = read_ledger(path)[-1]
    with Ledger(path) as ledger:
        ledger.check_resume(3, {"clip_norm": recorded["clip_norm"]})
        with pytest.raises(LedgerError, match="ends with round 3"):
            ledger.check_resume(4, {})
        with pytest.raises(LedgerError, match=r"clip_norm: .* -> 9\.0"):
            ledger.check_resume(2, {"clip_norm": 9.0})


def test_damage_elsewhere_names_the_line(path: Path) -> None:
    lines = write(path, 4)
    path.write_bytes(lines[0] + lines[1][:10] + b"\n" + lines[2] + lines[3])
    with pytest.raises(LedgerError, match="line 2: not a line"):
        Ledger(path)


def test_an_altered_line_breaks_the_chain(path: Path) -> None:
    lines = write(path, 4)
    path.write_bytes(lines[0] + lines[1].replace(b"0.05", b"0.01") + lines[2] + lines[3])
    with pytest.raises(
        LedgerError, match=r"line 3: does not follow .* line 2 was altered, or this"
    ):
        read_ledger(path)
    with pytest.raises(LedgerError, match="line 3: does not follow"):
        Ledger(path)
    path.write_bytes(lines[0].replace(b"000000", b"111111"))
    with pytest.raises(LedgerError, match=r"line 1: does not follow .*; it was altered\."):
        read_ledger(path)


@pytest.mark.parametrize("order", [(0, 2, 3), (1, 2, 3), (0, 0, 1), (0, 2, 1)])
def test_dropped_doubled_and_moved_lines_are_found(path: Path, order: tuple[int, ...]) -> None:
    lines = write(path, 4)
    path.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(LedgerError, match="was dropped, doubled or moved"):
        read_ledger(path)


@pytest.mark.parametrize("number", [0, -1, 1.0, True, None, "1"])
def test_rounds_that_are_no_rounds(path: Path, number: Any) -> None:
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="round is"):
        ledger.append({"round": number})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_values_that_are_not_json(path: Path, value: Any) -> None:
    with Ledger(path) as ledger:
        with pytest.raises(LedgerError, match="cannot be recorded"):
            ledger.append(entry(1, norm=value))
        assert ledger.last_round == 0
    assert path.read_bytes() == b""


def test_previous_is_the_ledgers_own(path: Path) -> None:
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="previous"):
        ledger.append(entry(1, previous="0" * 64))


def test_a_closed_ledger_says_so(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.append(entry(1))


def test_files_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot read"):
        read_ledger(tmp_path / "missing.jsonl")
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger(tmp_path / "no folder" / "ledger.jsonl")


def test_opening_a_hundred_thousand_rounds_is_quick(path: Path) -> None:
    import hashlib

    previous, lines = "0" * 64, []
    padding = {f"key_{i}": i * 0.1 for i in range(15)}
    for number in range(1, 100_001):
        line = canonical_line({**entry(number), **padding}, previous)
        previous = hashlib.sha256(line[:-1]).hexdigest()
        lines.append(line)
    path.write_bytes(b"".join(lines))
    start = time.process_time()
    with Ledger(path) as ledger:
        assert ledger.last_round == 100_000
    assert time.process_time() - start < 3.0


def test_the_file_is_json_lines(path: Path) -> None:
    for line in write(path, 3):
        assert isinstance(json.loads(line), dict)


def test_streaming_gives_what_comes_before_the_damage(path: Path) -> None:
    lines = write(path, 5)
    lines[3] = lines[3].replace(b'"round":4', b'"round":9')
    path.write_bytes(b"".join(lines))
    stream = iterate_ledger(path)
    seen = [(one["round"], len(digest)) for one, digest in itertools.islice(stream, 3)]
    assert seen == [(1, 64), (2, 64), (3, 64)]
    with pytest.raises(LedgerError, match="line 4"):
        next(stream)


def test_a_checkpoint_of_another_ledger_is_refused(path: Path) -> None:
    write(path, 3)
    with Ledger(path) as ledger:
        ledger.check_resume(2, {}, ledger.digest(2))
        with pytest.raises(LedgerError, match="of another run"):
            ledger.check_resume(2, {}, ledger.digest(3))


def test_no_round_yet_has_the_digest_that_the_first_line_begins_from(path: Path) -> None:
    lines = write(path, 2)
    with Ledger(path) as ledger:
        assert ledger.digest(0) == read_ledger(path)[0]["previous"]
        assert ledger.digest(1) == read_ledger(path)[1]["previous"]
    # A true in the place of round 1 equals it in Python.
    path.write_bytes(lines[0].replace(b'"round":1', b'"round":true'))
    with pytest.raises(LedgerError, match="holds round True where 1 belongs"):
        read_ledger(path)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_ledger_that_is_gone_is_named_and_not_left_empty(rounds: int, path: Path) -> None:
    with pytest.raises(LedgerError, match=f"is missing, but the checkpoint has {rounds} rounds"):
        Ledger(path).check_resume(rounds, {})
    assert not path.exists()


def test_a_checkpoint_of_no_round_names_its_ledger_too(path: Path) -> None:
    write(path, 1)
    with Ledger(path) as ledger:
        ledger.check_resume(0, {}, ledger.digest(0))
        with pytest.raises(LedgerError, match="its round 0 is not the one"):
            ledger.check_resume(0, {}, ledger.digest(1))


def test_a_constant_that_the_recorded_lines_lack_is_another_setting(path: Path) -> None:
    write(path, 2)
    with Ledger(path) as ledger, pytest.raises(LedgerError, match=r"plugins: None -> \{\}"):
        ledger.check_resume(2, {"plugins": {}})


def test_a_torn_first_line_is_no_round(path: Path) -> None:
    path.write_bytes(write(path, 1)[0][:-1])
    assert read_ledger(path) == []
    with Ledger(path) as ledger:
        assert (ledger.last_round, path.read_bytes()) == (0, b"")


def test_a_line_of_a_hundred_thousand_brackets_is_damage(path: Path) -> None:
    path.write_bytes(b"[" * 100_000 + b"\n")
    with pytest.raises(LedgerError, match="line 1: not a line of a ledger"):
        read_ledger(path)


def test_a_file_that_may_never_end_is_refused() -> None:
    with pytest.raises(LedgerError, match="no regular file"):
        read_ledger("/dev/null")


def test_a_line_is_on_disk_and_whole_before_its_round_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_sync, synced = os.write, os.fsync, list[int]()

    def synchronise(descriptor: int) -> None:
        real_sync(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", synchronise)
    with Ledger(path) as ledger:
        assert len(synced) == 1, "the folder's new entry"
        monkeypatch.setattr(os, "write", lambda file, data: real_write(file, data[:7]))
        ledger.append(entry(1))
        assert (len(read_ledger(path)), len(synced)) == (1, 2)

        def fill_up(file: int, data: bytes) -> int:
            real_write(file, data[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

        content = path.read_bytes()
        monkeypatch.setattr(os, "write", fill_up)
        with pytest.raises(LedgerError, match="No space left"):
            ledger.append(entry(2))
        assert path.read_bytes() == content
        monkeypatch.setattr(os, "write", real_write)
        ledger.append(entry(2))
    assert len(read_ledger(path)) == 2
