"""LEAF's JSON files: found, read user by user, and refused where they contradict themselves."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.types import DataError
from tasks.common.leaf.json_files import LeafUser, check_splits, find_files, read_users
from tests.helpers import REPOSITORY

REAL_FILE = REPOSITORY.parent / "shared/data/leaf_json/synthetic_1_1_mytest.json"
DOCUMENT: dict[str, Any] = {
    "users": ["ann", "bob", "\u00e9va"],
    "num_samples": [2, 1, 1],
    "user_data": {
        "ann": {"x": ["a b", "c"], "y": [0, 1]},
        "bob": {"x": [[["<BOS>", "hi"]]], "y": [{"subreddit": "s", "score": 1.5}]},
        "\u00e9va": {"x": [[0.5, 1]], "y": [None]},
    },
}
HIERARCHIES = ["Hamlet", "Lear", "Hamlet"]


def write(folder: Path, document: Any) -> Path:
    path = folder / "x.json"
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        list(read_users(path))
    assert all(word in str(caught.value) for word in (str(path), *words)), str(caught.value)


# Finding


@pytest.mark.parametrize("base", ["", "data"])
def test_split_files_are_found_before_the_others(tmp_path: Path, base: str) -> None:
    for name in ("train/b", "train/a", "test/a", "all_data/all_data_0"):
        path = tmp_path / base / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = tmp_path / base
    assert find_files(tmp_path) == {
        "train": [folder / "train/a.json", folder / "train/b.json"],
        "test": [folder / "test/a.json"],
    }


@pytest.mark.parametrize("base", ["", "data/all_data", "all_data", "data"])
def test_unsplit_files_are_found(tmp_path: Path, base: str) -> None:
    (tmp_path / base).mkdir(parents=True, exist_ok=True)
    for number in (1, 0):
        (tmp_path / base / f"all_data_{number}.json").touch()
    (tmp_path / base / "other.json").touch()
    found = find_files(tmp_path)
    assert list(found) == ["all"]
    assert [path.name for path in found["all"]] == ["all_data_0.json", "all_data_1.json"]
    check_splits(tmp_path, found)


def test_half_a_split_is_refused(tmp_path: Path) -> None:
    assert find_files(tmp_path) == {}
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.json").touch()
    with pytest.raises(DataError, match=r"without train/\*\.json"):
        check_splits(tmp_path, find_files(tmp_path))


# Reading


def test_users_are_read_as_they_are(tmp_path: Path) -> None:
    users = list(read_users(write(tmp_path, DOCUMENT)))
    assert users == [
        LeafUser("ann", ["a b", "c"], [0, 1], None),
        LeafUser("bob", [[["<BOS>", "hi"]]], [{"subreddit": "s", "score": 1.5}], None),
        LeafUser("\u00e9va", [[0.5, 1]], [None], None),
    ]
    assert isinstance(users[2].x[0][0], float)


@given(order=st.permutations(["users", "num_samples", "hierarchies", "user_data", "other"]))
def test_keys_may_come_in_any_order(tmp_path_factory: Any, order: list[str]) -> None:
    document = {**DOCUMENT, "hierarchies": HIERARCHIES, "other": {"users": ["x"], "y": [[]]}}
    path = write(tmp_path_factory.mktemp("leaf"), {key: document[key] for key in order})
    users = list(read_users(path))
    assert [user.user for user in users] == DOCUMENT["users"]
    assert [user.hierarchy for user in users] == HIERARCHIES


def test_positions_grow_to_the_size_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, DOCUMENT)
    positions: list[int] = []
    for number, _ in enumerate(read_users(path, positions.append)):
        assert len(positions) == number
    assert positions == sorted(positions)
    assert positions[-1] == path.stat().st_size


def test_one_user_is_read_at_a_time(tmp_path: Path) -> None:
    # What comes later is not looked at before it is asked for, but for the block of 64 KiB.
    large = {"x": ["long"] * 40_000, "y": [0] * 40_000}
    document = {"users": ["a", "b"], "num_samples": [40_000] * 2}
    text = json.dumps({**document, "user_data": {"a": large, "b": large}})
    users = read_users(write(tmp_path, text[:-100]))
    assert len(next(users).x) == 40_000
    with pytest.raises(DataError, match="cut: get it anew") as caught:
        next(users)
    assert "after user 'a'" in str(caught.value)
    assert f"byte {len(text) - 100} of {len(text) - 100}" in str(caught.value)


def test_a_real_file_is_read() -> None:
    if not REAL_FILE.is_file():
        pytest.skip(f"real data not there: {REAL_FILE}")
    users = list(read_users(REAL_FILE))
    assert (len(users), sum(len(user.y) for user in users)) == (30, 1084)
    assert {len(row) for user in users for row in user.x} == {60}
    assert {label for user in users for label in user.y} <= set(map(float, range(10)))


# What LEAF's own scripts leave in split files


def test_users_who_were_too_small_to_be_split_are_passed_over(tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENT)
    data = document["user_data"]
    document["user_data"] = {"zoe": {"x": [], "y": []}, **data, "yan": {"x": [], "y": []}}
    document["hierarchies"] = ["Macbeth", *HIERARCHIES, "Macbeth"]
    users = list(read_users(write(tmp_path, document)))
    assert [user.user for user in users] == DOCUMENT["users"]
    assert [user.hierarchy for user in users] == HIERARCHIES


def windows(count: int, length: int = 80) -> dict[str, Any]:
    return {"x": ["x" * length] * count, "y": ["y"] * count}


def test_windows_that_were_left_out_after_they_were_counted_are_passed_over(tmp_path: Path) -> None:
    document = {"users": ["a"], "num_samples": [84], "user_data": {"a": windows(5)}}
    (user,) = read_users(write(tmp_path, document))
    assert len(user.x) == 5
    for wrong in (windows(4), windows(6), windows(5, length=79)):
        document["user_data"] = {"a": wrong}
        refused(write(tmp_path, document), "'a'", "84 examples")


# What is wrong

Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["num_samples"].__setitem__(1, 4), ("'bob'", "4 examples", "1 in 'x'")),
        (lambda d: d["num_samples"].__setitem__(1, None), ("'bob'", "num_samples")),
        (lambda d: d["num_samples"].__setitem__(1, "1"), ("'bob'", "num_samples")),
        (lambda d: d["num_samples"].pop(), ("3 users", "2 entries of 'num_samples'")),
        (lambda d: d["user_data"].pop("bob"), ("'bob'", "no data")),
        (lambda d: (d["users"].pop(1), d["num_samples"].pop(1)), ("'bob'", "not in 'users'")),
        (lambda d: d["users"].__setitem__(0, "bob"), ("none twice", "1 repeated")),
        (lambda d: d["users"].__setitem__(0, 5), ("'users' must be strings",)),
        (lambda d: d.update(users={"ann": 2}), ("no list 'users'",)),
        (lambda d: d.pop("users"), ("no list 'users'",)),
        (lambda d: d.pop("num_samples"), ("no list 'num_samples'",)),
        (lambda d: d.pop("user_data"), ("'ann'", "no data")),
        (lambda d: d.update(user_data=[1, 2]), ("'ann'", "no data")),
        (lambda d: d.update(users=[], num_samples=[], user_data={}), ("no list 'users'",)),
        (lambda d: d["user_data"]["ann"]["y"].pop(), ("'ann'", "2 in 'x'", "1 in 'y'")),
        (lambda d: d["user_data"]["ann"].pop("y"), ("'ann'", "lists 'x'")),
        (lambda d: d["user_data"]["ann"].update(x="ab"), ("'ann'", "lists 'x'")),
        (lambda d: d["user_data"].update(ann=None), ("'ann'", "lists 'x'")),
        (lambda d: d["user_data"]["ann"].update(x=[], y=[]), ("'ann'", "at least 1")),
        (lambda d: d.update(hierarchies=["a", "b"]), ("'hierarchies'", "at least 3 strings")),
        (lambda d: d.update(hierarchies=["a", 1, "b"]), ("'hierarchies'", "strings")),
        (lambda d: d.update(hierarchies="abc"), ("'hierarchies'",)),
        (lambda d: d.update(hierarchies=None), ("'hierarchies'",)),
        (lambda d: d.update(hierarchies=list("abcd")), ("'hierarchies' has 4", "has 3 users")),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Change, words: tuple[str, ...]
) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    refused(write(tmp_path, document), *words)


def test_a_user_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT).replace('"bob": {', '"ann": {')
    refused(write(tmp_path, text), "'ann'", "twice")


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", "null", "\ufeff{}", "NaN", '{"users": ['])
def test_a_file_that_is_no_leaf_json_is_refused(tmp_path: Path, text: str) -> None:
    refused(write(tmp_path, text))


def test_every_cut_is_refused_with_the_position(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT)
    for length in range(len(text) - 1):
        path = write(tmp_path, text[:length])
        refused(path, "byte" if length > 1 else "")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    refused(tmp_path / "x.json", "cannot be read")


# Nesting


@pytest.mark.parametrize("text", ["[", '{"users": ', '["[\\"]", {"a": '])
def test_nesting_that_would_fill_the_memory_is_refused(tmp_path: Path, text: str) -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "from pathlib import Path; from tasks.common.leaf.json_files import read_users\n"
        "list(read_users(Path(sys.argv[1])))"
    )
    path = write(tmp_path, text * 100_000)
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert f"DamagedInputError: {path}: before byte" in done.stderr, done.stderr


def test_brackets_of_texts_and_of_neighbours_are_no_nesting(tmp_path: Path) -> None:
    users = [f"{number}" for number in range(3000)]
    x = ['[{["[\\' * 40, "\\", "]"]
    data = {user: {"x": x, "y": [0, 0, 0]} for user in users}
    document = {"users": users, "num_samples": [3] * len(users), "user_data": data}
    read = list(read_users(write(tmp_path, document)))
    assert [user.x for user in read] == [x] * len(users)
