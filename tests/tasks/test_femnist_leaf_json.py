from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ijson
import numpy as np
import pytest

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tests.tasks.femnist_files import (
    REAL_DATA,
    contents,
    leaf_document,
    make_users,
    pairs,
    pooled,
    prepared,
    refused,
    write_leaf,
)

USERS = make_users({"f0000_14": 4, "f0001_41": 3, "f0002_04": 5})
DOCUMENT = leaf_document(USERS)
REAL_FILE = REAL_DATA / "leaf_json" / "synthetic_1_1_mytest.json"


def write(path: Path, document: Any) -> Path:
    """Write a document and return the folder ``raw`` around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("folder", ["", "all_data", "data", "data/all_data"])
def test_all_data_is_found_and_read_exactly(tmp_path: Path, folder: str) -> None:
    write_leaf(tmp_path / "raw" / folder / "all_data_0.json", USERS)
    facts = prepared(tmp_path / "raw", tmp_path / "out.h5")
    assert facts["variant"] == "leaf-json"
    assert facts["largest_rounding_error_grey_levels"] < 1e-9
    assert "warning" not in facts
    assert pooled(tmp_path / "out.h5") == {user: pairs(*data) for user, data in USERS.items()}
    with Store(tmp_path / "out.h5") as store:
        assert (store.task, store.facts.num_classes) == ("femnist", 62)


@pytest.mark.parametrize("base", ["", "data"])
def test_published_splits_inside_users_are_kept(tmp_path: Path, base: str) -> None:
    parts = {name: make_users({"a": 3, "b": 2}, seed=k) for k, name in enumerate(("train", "test"))}
    for name, users in parts.items():
        write_leaf(tmp_path / "raw" / base / name / f"all_data_0_{name}.json", users)
    # LEAF leaves the unsplit files beside the split ones.
    write_leaf(tmp_path / "raw" / base / "all_data" / "all_data_0.json", USERS)
    facts = prepared(tmp_path / "raw", tmp_path / "out.h5")
    assert facts["split"] == {"by": "example", "as": "published"}
    stored = contents(tmp_path / "out.h5")
    for name, users in parts.items():
        for user, (images, labels) in users.items():
            assert np.array_equal(stored[name][user][0], images)  # in the published order
            assert np.array_equal(stored[name][user][1], labels)


def test_published_splits_of_users_are_kept(tmp_path: Path) -> None:
    for name, user in (("train", "a"), ("val", "b"), ("test", "c")):
        write_leaf(tmp_path / "raw" / name / "x.json", make_users({user: 2}))
    assert prepared(tmp_path / "raw", tmp_path / "out.h5")["split"]["by"] == "user"
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.split_by == "user"
        assert store.split_names == ("train", "val", "test")


def test_splits_that_share_some_users_are_refused(tmp_path: Path) -> None:
    write_leaf(tmp_path / "raw" / "train" / "x.json", make_users({"a": 2, "b": 2, "c": 2}))
    write_leaf(tmp_path / "raw" / "test" / "x.json", make_users({"b": 2, "c": 2, "d": 2}, seed=1))
    refused(tmp_path / "raw", tmp_path / "o", "2 users are in several", "'b'", "1 are not", "'d'")


def test_a_test_split_that_repeats_train_is_refused(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_leaf(tmp_path / "raw" / name / "x.json", USERS)
    refused(tmp_path / "raw", tmp_path / "o", "test", "train", "same examples")


@pytest.mark.parametrize(("there", "missing"), [("train", "test"), ("test", "train")])
def test_half_a_split_is_refused(tmp_path: Path, there: str, missing: str) -> None:
    write_leaf(tmp_path / "raw" / there / "x.json", USERS)
    refused(tmp_path / "raw", tmp_path / "o", f"without {missing}/*.json")


def test_users_may_recur_across_files(tmp_path: Path) -> None:
    first, second = make_users({"a": 4, "b": 1}), make_users({"c": 2, "a": 3}, seed=1)
    write_leaf(tmp_path / "raw" / "all_data_0.json", first)
    write_leaf(tmp_path / "raw" / "all_data_1.json", second)
    facts = prepared(tmp_path / "raw", tmp_path / "out.h5")
    assert facts["files"] == 2
    assert pooled(tmp_path / "out.h5")["a"] == sorted(pairs(*first["a"]) + pairs(*second["a"]))


def test_keys_may_come_in_any_order_with_others_between(tmp_path: Path) -> None:
    document = {
        "notes": [["x"], ["users"]],
        "user_data": DOCUMENT["user_data"],
        "num_samples": DOCUMENT["num_samples"],
        "users": DOCUMENT["users"],
    }
    write(tmp_path / "raw" / "all_data_0.json", document)
    prepared(tmp_path / "raw", tmp_path / "out.h5")
    assert pooled(tmp_path / "out.h5") == {user: pairs(*data) for user, data in USERS.items()}


def test_pixels_that_are_not_whole_grey_levels_are_reported(tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["user_data"]["f0001_41"]["x"][1][5] = 100.25 / 255
    write(tmp_path / "raw" / "all_data_0.json", document)
    facts = prepared(tmp_path / "raw", tmp_path / "out.h5")
    assert facts["largest_rounding_error_grey_levels"] == pytest.approx(0.25)
    assert "not lossless" in facts["warning"]
    with Store(tmp_path / "out.h5") as store:
        assert "not lossless" in store.facts.extra["warning"]


Change = Callable[[dict[str, Any]], Any]
USER = "f0001_41"


def set_pixel(value: Any) -> Change:
    return lambda d: d["user_data"][USER]["x"][1].__setitem__(7, value)


def set_label(value: Any) -> Change:
    return lambda d: d["user_data"][USER]["y"].__setitem__(1, value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["num_samples"].__setitem__(1, 4), (USER, "4 examples", "3 in 'x'")),
        (lambda d: d["num_samples"].__setitem__(1, None), (USER, "num_samples")),
        (lambda d: d["num_samples"].pop(), ("3 users", "2 entries of 'num_samples'")),
        (lambda d: d["user_data"].pop(USER), (USER, "no data")),
        (lambda d: (d["users"].pop(1), d["num_samples"].pop(1)), (USER, "not in 'users'")),
        (lambda d: d["users"].__setitem__(0, USER), ("none twice", "1 repeated")),
        (lambda d: d["users"].__setitem__(0, 5), ("'users' must be strings",)),
        (lambda d: d.pop("users"), ("no list 'users'",)),
        (lambda d: d.pop("num_samples"), ("no list 'num_samples'",)),
        (lambda d: d.pop("user_data"), ("f0000_14", "no data")),
        (lambda d: d.update(users=[], num_samples=[], user_data={}), ("no list 'users'",)),
        (lambda d: d["user_data"][USER]["x"][2].pop(), (USER, "image 2", "783 values", "784")),
        (lambda d: d["user_data"][USER]["x"].__setitem__(0, 3), (USER, "image 0", "int")),
        (lambda d: d["user_data"][USER]["y"].pop(), (USER, "3 in 'x'", "2 in 'y'")),
        (lambda d: d["user_data"][USER].pop("y"), (USER, "lists 'x'")),
        (lambda d: d["user_data"].__setitem__(USER, [1]), (USER, "lists 'x'")),
        (lambda d: d["user_data"][USER].update(x=[], y=[]), (USER, "at least 1")),
        (set_pixel(1.01), (USER, "example 1", "1.01", "0..1")),
        (set_pixel(-0.5), (USER, "-0.5", "0..1")),
        (set_pixel("0.5"), (USER, "not all numbers")),
        (set_pixel(None), (USER, "not all numbers")),
        (set_pixel([0.5]), (USER, "not all numbers")),
        (set_label(3.5), (USER, "example 1", "3.5", "0..61")),
        (set_label(62), (USER, "62", "0..61")),
        (set_label(-1), (USER, "-1", "0..61")),
        (set_label("a"), (USER, "labels are not all numbers")),
        (set_label(None), (USER, "labels are not all numbers")),
        (set_label([1, 2]), (USER, "labels are not all numbers")),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Change, words: tuple[str, ...]
) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    path = write(tmp_path / "raw" / "all_data_0.json", document)
    refused(path.parent, tmp_path / "o", str(path), *words)


def test_a_user_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT).replace('"f0002_04": {', f'"{USER}": {{')
    path = write(tmp_path / "raw" / "all_data_0.json", text)
    refused(path.parent, tmp_path / "o", str(path), USER, "twice")


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", "{}", "null", '{"users": ["a"], "num_samples": [1]', "\ufeff{}", "NaN"],
)
def test_a_file_that_is_no_leaf_json_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "raw" / "all_data_0.json", text)
    refused(path.parent, tmp_path / "o", str(path))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.9999])
def test_a_cut_file_is_refused_with_the_position(tmp_path: Path, share: float) -> None:
    text = json.dumps(DOCUMENT)
    text = text[: int(len(text) * share)]
    path = write(tmp_path / "raw" / "all_data_0.json", text)
    refused(path.parent, tmp_path / "o", str(path), f"byte {len(text)} of {len(text)}", "cut")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "0.5.5", '"\xff'])
def test_malformed_values_are_refused_with_the_position(tmp_path: Path, text: str) -> None:
    document = json.dumps(DOCUMENT).replace("0.0,", f"{text},", 1)
    path = tmp_path / "raw" / "all_data_0.json"
    path.parent.mkdir()
    path.write_bytes(document.encode("latin-1"))
    refused(path.parent, tmp_path / "o", str(path), "not valid JSON", "byte")


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    sound = json.dumps(leaf_document(make_users({"a": 1, "b": 1}))).encode()
    path = write(tmp_path / "raw" / "all_data_0.json", "")
    draw = random.Random(0)
    refusals = []
    for _ in range(150):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b'{}[]",:0eE-x\\\xff\0')
        path.write_bytes(damaged)
        try:
            prepared(path.parent, tmp_path / "out.h5")
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert all(str(path) in message for message in refusals)


def test_a_real_leaf_file_of_another_task_is_refused(tmp_path: Path) -> None:
    if not REAL_FILE.is_file():
        pytest.skip(f"real data not there: {REAL_FILE}")
    path = tmp_path / "raw" / "all_data_0.json"
    path.parent.mkdir()
    shutil.copy(REAL_FILE, path)
    refused(path.parent, tmp_path / "o", str(path), "user 'f_00013'", "60 values", "784")


def test_ijson_reads_in_c() -> None:
    # The pure Python backend takes hours for FEMNIST.
    assert ijson.backend == "yajl2_c"


# The peak by the kernel: getrusage's includes the parent's from before exec.
MEASURE = """
import re, sys
from pathlib import Path
from tasks.femnist.prepare import Options, prepare
import ijson, h5py, numpy
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
facts = prepare(Path(sys.argv[1]), Path(sys.argv[2]), Options(), lambda *step: None)
print(before, peak(), sum(split["examples"] for split in facts["splits"].values()))
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory needs Linux's /proc"
)
@pytest.mark.slow
def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    images, _ = make_users({"a": 50})["a"]
    rows = [json.dumps((image.reshape(784) / 255).tolist()) for image in images]
    per_user, num_users = 200, 0
    raw = tmp_path / "raw"
    raw.mkdir()
    chosen = random.Random(0)
    with (raw / "all_data_0.json").open("w") as file:
        num_users = 80
        users = [f"f{user:04d}_00" for user in range(num_users)]
        file.write(f'{{"users": {json.dumps(users)}, "num_samples": {[per_user] * num_users}, ')
        file.write('"user_data": {')
        for user in users:
            x = ", ".join(chosen.choice(rows) for _ in range(per_user))
            y = [float(chosen.randrange(62)) for _ in range(per_user)]
            comma = "" if user == users[0] else ", "
            file.write(f'{comma}"{user}": {{"x": [{x}], "y": {y}}}')
        file.write("}}")
    assert (raw / "all_data_0.json").stat().st_size > 200e6
    out = subprocess.run(
        [sys.executable, "-c", MEASURE, str(raw), str(tmp_path / "out.h5")],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    before, after, examples = map(int, out.stdout.split())
    assert examples == per_user * num_users
    # 21 MiB when this was written, for a file of 125 MB as for one of 500 MB.
    assert after - before < 100 * 1024, f"{(after - before) / 1024:.0f} MiB above the baseline"
