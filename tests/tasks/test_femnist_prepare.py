from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from pfl_bench.data import Store
from pfl_bench.types import ConfigError
from tasks.femnist.prepare import Options, prepare
from tests import warm
from tests.helpers import REPOSITORY
from tests.tasks.femnist_files import (
    contents,
    make_users,
    pairs,
    pooled,
    prepared,
    refused,
    silent,
    write_leaf,
    write_tff,
)

COUNTS = {"a": 1, "b": 2, "c": 10, "d": 25, "e": 40}
USERS = make_users(COUNTS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_leaf(tmp_path / "raw" / "all_data_0.json", USERS).parent


def test_splitting_by_example_keeps_all_and_divides_each_writer(
    source: Path, tmp_path: Path
) -> None:
    facts = prepared(source, tmp_path / "out.h5")
    splits = contents(tmp_path / "out.h5")
    sizes = {
        name: {user: len(labels) for user, (_, labels) in users.items()}
        for name, users in splits.items()
    }
    assert sizes == {
        "train": {"a": 1, "b": 2, "c": 8, "d": 20, "e": 32},
        "val": {"c": 1, "d": 2, "e": 4},
        "test": {"c": 1, "d": 3, "e": 4},
    }
    assert pooled(tmp_path / "out.h5") == {user: pairs(*data) for user, data in USERS.items()}
    assert facts["splits"] == {
        "train": {"users": 5, "examples": 63},
        "val": {"users": 3, "examples": 7},
        "test": {"users": 3, "examples": 8},
    }
    assert facts["split"] == {
        "by": "example",
        "as": "prepared here",
        "train_fraction": 0.8,
        "val_fraction": 0.1,
        "rounding": "systematic",
        "split_seed": 0,
    }


def test_splitting_by_user_keeps_writers_whole(source: Path, tmp_path: Path) -> None:
    prepared(source, tmp_path / "out.h5", split_by="user", train_fraction=0.6, val_fraction=0.2)
    splits = contents(tmp_path / "out.h5")
    assert {name: len(users) for name, users in splits.items()} == {
        "train": 3,
        "val": 1,
        "test": 1,
    }
    for users in splits.values():
        for user, data in users.items():
            assert pairs(*data) == pairs(*USERS[user])
    assert sorted(user for users in splits.values() for user in users) == list(COUNTS)
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.split_by == "user"


@pytest.mark.parametrize("split_by", ["example", "user"])
def test_the_split_depends_on_the_seed_and_not_on_how_files_are_cut(
    source: Path, tmp_path: Path, split_by: str
) -> None:
    pieces = tmp_path / "pieces"
    halves = {user: len(labels) // 2 for user, (_, labels) in USERS.items()}
    late = {user: (x[: halves[user]], y[: halves[user]]) for user, (x, y) in USERS.items()}
    early = {user: (x[halves[user] :], y[halves[user] :]) for user, (x, y) in USERS.items()}
    write_leaf(pieces / "all_data_1.json", {u: late[u] for u in reversed(late) if u != "a"})
    write_leaf(pieces / "all_data_0.json", early)
    checksums = []
    for folder, seed in ((source, 0), (pieces, 0), (source, 1)):
        prepared(folder, tmp_path / "out.h5", split_by=split_by, split_seed=seed)
        with Store(tmp_path / "out.h5") as store:
            checksums.append(store.facts.checksum)
    assert checksums[0] == checksums[1] != checksums[2]


def test_small_writers_are_dropped_and_counted(source: Path, tmp_path: Path) -> None:
    facts = prepared(source, tmp_path / "out.h5", min_examples=10)
    assert (facts["min_examples"], facts["users_dropped"]) == (10, 2)
    assert sorted(pooled(tmp_path / "out.h5")) == ["c", "d", "e"]
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.extra["users_dropped"] == 2


def test_dropping_counts_the_examples_of_all_published_splits(tmp_path: Path) -> None:
    train, test = make_users({"a": 3, "b": 2}), make_users({"a": 2, "b": 2}, seed=1)
    write_leaf(tmp_path / "raw" / "train" / "0.json", train)
    write_leaf(tmp_path / "raw" / "test" / "0.json", test)
    assert prepared(tmp_path / "raw", tmp_path / "out.h5", min_examples=5)["users_dropped"] == 1
    assert list(pooled(tmp_path / "out.h5")) == ["a"]


def test_dropping_everyone_is_refused(source: Path, tmp_path: Path) -> None:
    refused(source, tmp_path / "o", "min_examples = 41", "all 5 users", min_examples=41)


@pytest.mark.parametrize(
    "option",
    [{"split_by": "user"}, {"train_fraction": 0.7}, {"val_fraction": 0.0}, {"split_seed": 1}],
)
def test_split_options_are_refused_for_data_that_come_split(
    tmp_path: Path, option: dict[str, object]
) -> None:
    (tmp_path / "raw").mkdir()
    train, test = make_users({"a": 3}), make_users({"a": 2}, seed=1)
    write_tff(tmp_path / "raw", "fed_emnist", train=train, test=test)
    refused(
        tmp_path / "raw",
        tmp_path / "o",
        next(iter(option)),
        "split by its publisher",
        "leave",
        error=ConfigError,
        **option,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_fraction": 0.0},
        {"train_fraction": 0.95, "val_fraction": 0.1},
        {"val_fraction": -0.1},
        {"split_seed": -1},
        {"min_examples": 1.5},
        {"variant": "emnist"},
        {"fraction": 0.5},
    ],
)
def test_options_outside_their_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Options(**wrong)  # type: ignore[arg-type]


def test_a_folder_with_nothing_known_lists_what_was_looked_for_and_found(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    refused(raw, tmp_path / "o", "all_data", "Found: nothing")
    for number in range(12):
        (raw / f"{number:02d}.txt").touch()
    message = refused(raw, tmp_path / "o", "00.txt, 01.txt", "2 more", str(raw))
    for part in ("train/ and test/", "fed_emnist_train.h5", "by_write", "qmnist-test-labels"):
        assert part in message
    refused(raw, tmp_path / "o", "fed_emnist_digitsonly_train.h5", form="tff-digits")


def test_a_folder_with_two_forms_needs_the_variant(source: Path, tmp_path: Path) -> None:
    users = make_users({"a": 3}), make_users({"a": 2}, seed=1)
    write_tff(source, "fed_emnist", train=users[0], test=users[1])
    refused(source, tmp_path / "o", "several forms: leaf-json, tff", "form=NAME")
    facts = prepared(source, tmp_path / "out.h5", form="tff")
    assert prepared(source, tmp_path / "old.h5", variant="tff") == facts
    assert facts["variant"] == "tff"
    assert facts["splits"]["train"] == {"users": 1, "examples": 3}


def test_a_source_that_is_no_folder_is_refused(source: Path, tmp_path: Path) -> None:
    refused(tmp_path / "none", tmp_path / "o", "does not exist", "--source")
    refused(source / "all_data_0.json", tmp_path / "o", "is a file", "--source")


def test_an_output_that_cannot_be_written_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write the store: its folder .*absent"):
        prepared(source, tmp_path / "absent" / "out.h5")
    with pytest.raises(ValueError, match=r"is a folder; name the file"):
        prepared(source, tmp_path)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from pfl_bench.types import DataError
from tasks.femnist.prepare import Options, prepare
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    prepare(Path(sys.argv[1]), Path(sys.argv[2]), Options(), lambda *step: None)
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes on Windows")
def test_a_full_disk_is_said_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    # The examples are 61,230 bytes.
    (tmp_path / "o").mkdir()
    command = ("-c", LIMITED, str(source), str(tmp_path / "o" / "x.h5"), "20000")
    out = warm.python(*command, cwd=REPOSITORY, check=True)
    assert "cannot write temporary data" in out.stdout
    assert "free space" in out.stdout
    assert list((tmp_path / "o").iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    for stage in ("reading", "writing"):

        def interrupt(what: str, done: int, total: int | None, stage: str = stage) -> None:
            if what.startswith(stage) and done >= 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(source, tmp_path / "o" / "out.h5", Options(), interrupt)
        assert list((tmp_path / "o").iterdir()) == []


def test_progress_grows_to_its_total(source: Path, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int | None]]] = {}

    def note(what: str, done: int, total: int | None) -> None:
        seen.setdefault(what, []).append((done, total))

    prepare(source, tmp_path / "out.h5", Options(), note)
    for steps in seen.values():
        done = [step for step, _ in steps]
        assert done == sorted(done)
        assert done[-1] == steps[-1][1]


def test_relative_paths_work(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(Path("raw"), Path("out.h5"), Options(), silent)
    assert (tmp_path / "out.h5").is_file()
