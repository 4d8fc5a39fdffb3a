"""FEMNIST in FedScale's layout, on pictures drawn here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl_bench.data import Store
from pfl_bench.types import ConfigError
from tasks.femnist.nist import class_of_code
from tasks.femnist.pictures import CODES
from tests import warm
from tests.helpers import REPOSITORY
from tests.tasks.femnist_files import contents, prepared, refused, write_leaf, write_png

HEADER = "client_id,sample_path,label_name,label_id\n"
PATH = "data/raw_data/by_write/hsf_0/f{writer:04d}_26/u{writer:04d}_26/u{writer:04d}_26_{n:05d}.png"
# Client, label_name and label_id; the last three columns of FedScale's tutorial among them.
ROWS = {
    "train": [(980, "44", 6), (980, "58", 38), (980, "4c", 40), (12, "30", 0), (980, "7a", 61)],
    "val": [(13, "30", 0)],
    "test": [(14, "61", 7), (14, "39", 9)],
}


def write_layout(root: Path, side: int = 128) -> dict[str, list[str]]:
    """Mappings with their pictures; returns the samples' paths."""
    paths: dict[str, list[str]] = {}
    for split, rows in ROWS.items():
        lines = []
        for n, (client, name, number) in enumerate(rows):
            path = PATH.format(writer=client, n=n)
            write_png(root / path, seed=10 * client + n, side=side)
            lines.append(f"{client},{path},{name},{number}\n")
            paths.setdefault(split, []).append(path)
        mapping = root / "client_data_mapping" / f"{split}.csv"
        mapping.parent.mkdir(parents=True, exist_ok=True)
        mapping.write_text(HEADER + "".join(lines))
    return paths


def change(root: Path, old: str, new: str, split: str = "train") -> None:
    mapping = root / "client_data_mapping" / f"{split}.csv"
    text = mapping.read_text()
    assert old in text
    mapping.write_text(text.replace(old, new, 1))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_layout(tmp_path / "raw")
    return tmp_path / "raw"


def test_codes_are_in_leafs_order() -> None:
    assert [class_of_code(code) for code in CODES] == list(range(62))


def test_splits_writers_and_classes_are_fedscales_and_leafs(raw: Path, tmp_path: Path) -> None:
    facts = prepared(raw, tmp_path / "out.h5")
    splits = contents(tmp_path / "out.h5")
    labels = {
        split: {user: y.tolist() for user, (_, y) in users.items()}
        for split, users in splits.items()
    }
    # D, X, L and z; a and 9: LEAF's numbers, not FedScale's.
    assert labels == {
        "train": {"980": [13, 33, 21, 61], "12": [0]},
        "val": {"13": [0]},
        "test": {"14": [36, 9]},
    }
    assert facts["variant"] == "fedscale"
    assert facts["bad_samples"] == {"left_out": 0, "first": []}
    assert facts["table5"]["train"] == {"clients": 2, "samples": 5}
    assert facts["differs_from_published"] is None
    with Store(tmp_path / "out.h5") as store:
        assert (store.facts.split_by, store.facts.num_classes) == ("user", 62)


def test_large_pictures_are_made_small_as_nists_are(raw: Path, tmp_path: Path) -> None:
    prepared(raw, tmp_path / "out.h5")
    images = contents(tmp_path / "out.h5")["test"]["14"][0]
    with Image.open(raw / PATH.format(writer=14, n=1)) as picture:
        expected = picture.convert("L").resize((28, 28), Image.Resampling.LANCZOS)
    assert np.array_equal(images[1], np.asarray(expected))
    # White ground, black ink.
    assert images[1, -1, -1] == 255
    assert images[1].min() < 20


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_small_pictures_keep_their_pixels(mode: str, raw: Path, tmp_path: Path) -> None:
    pixels = np.full((28, 28), 255, np.uint8)
    pixels[5:20, 9:12] = 0
    Image.fromarray(pixels).convert(mode).save(raw / PATH.format(writer=14, n=0))
    prepared(raw, tmp_path / "out.h5")
    assert np.array_equal(contents(tmp_path / "out.h5")["test"]["14"][0][0], pixels)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("44,6", "44,62", ("train.csv, line 2", "label_id 62", "0 to 61")),
        ("44,6", "62,6x", ("train.csv, line 2", "label_id is '6x'")),
        ("44,6", "4g,6", ("train.csv, line 2", "label_name '4g'", "41, 42")),
        ("44,6", ",6", ("train.csv, line 2", "label_name ''")),
        ("44,6", "44,38", ("train.csv, line 3", "label_id 38 is '58', but '44'")),
        ("_00002.png", "_00009.png", ("train.csv, line 4", "_00009.png' is not in")),
        ("data/raw", "../raw", ("train.csv, line 2", "leads out")),
        ("12,data", "14,data", ("share some users but not all",)),
    ],
)
def test_wrong_rows_are_named(
    old: str, new: str, words: tuple[str, ...], raw: Path, tmp_path: Path
) -> None:
    change(raw, old, new)
    if new.startswith("14"):  # A writer of train and test, others of one of them.
        change(raw, "14,data", "15,data", "test")
    refused(raw, tmp_path / "o", *words)


def spoil(path: Path, how: str) -> None:
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif how == "text":
        path.write_text("no picture")
    elif how == "jpeg":
        Image.new("L", (28, 28), 255).save(path, format="JPEG")
    elif how == "sixteen bits":
        Image.fromarray(np.full((28, 28), 65_535, np.uint16)).save(path)
    else:
        Image.new("L", (28, 27), 255).save(path)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", ""),
        ("text", "it is no PNG"),
        ("jpeg", "it is no PNG"),
        ("sixteen bits", "of kind I;16"),
        ("28 x 27", "28 x 27 pixels; FEMNIST's are 28 x 28, or 128 x 128"),
    ],
)
def test_bad_pictures_are_named_or_left_out(
    how: str, words: str, raw: Path, tmp_path: Path
) -> None:
    spoil(raw / PATH.format(writer=980, n=1), how)
    reason = refused(raw, tmp_path / "o", "train.csv, line 3", "u0980_26_00001.png", words)
    assert "bad_samples=leave_out" in reason
    facts = prepared(raw, tmp_path / "out.h5", bad_samples="leave_out")
    assert facts["bad_samples"]["left_out"] == 1
    assert words in facts["bad_samples"]["first"][0]
    elsewhere = shutil.copytree(raw, tmp_path / "elsewhere")
    moved = prepared(elsewhere, tmp_path / "moved.h5", bad_samples="leave_out")
    assert moved["bad_samples"] == facts["bad_samples"]
    assert contents(tmp_path / "out.h5")["train"]["980"][1].tolist() == [13, 21, 61]


def test_nothing_readable_is_refused(raw: Path, tmp_path: Path) -> None:
    for client, n in ((980, 0), (980, 1), (980, 2), (12, 3), (980, 4)):
        spoil(raw / PATH.format(writer=client, n=n), "text")
    refused(raw, tmp_path / "o", "no picture of train", "line 2", bad_samples="leave_out")


def test_white_ink_is_refused(raw: Path, tmp_path: Path) -> None:
    for path in (raw / "data").rglob("*.png"):
        with Image.open(path) as picture:
            turned = picture.point(lambda grey: 255 - grey)
        turned.save(path)
    refused(raw, tmp_path / "o", "dark", "black ink on a white ground")


def test_options_of_the_split_and_of_other_forms_are_refused(raw: Path, tmp_path: Path) -> None:
    refused(raw, tmp_path / "o", "split_by", "by its publisher", error=ConfigError, split_by="user")
    users = {"a": (np.full((3, 28, 28), 255, np.uint8), np.arange(3, dtype=np.uint8))}
    other = write_leaf(tmp_path / "leaf" / "all_data_0.json", users).parent
    words = "bad_samples", "leaf-json", "only for fedscale"
    refused(other, tmp_path / "o", *words, error=ConfigError, bad_samples="leave_out")


def test_small_writers_can_be_left_out_and_others_dealt_anew(raw: Path, tmp_path: Path) -> None:
    facts = prepared(raw, tmp_path / "out.h5", min_examples=2, partition="iid")
    assert (facts["users_dropped"], facts["artificial_users"]) == (2, True)
    assert facts["splits"]["train"]["examples"] == 4


def test_the_command_says_what_is_wrong_and_writes_nothing(raw: Path, tmp_path: Path) -> None:
    change(raw, "44,6", "44,62")
    given = ["data", "prepare", "femnist", "--source", str(raw), "--out", str(tmp_path / "f.h5")]
    failed = warm.python("-m", "pfl_bench", *given, cwd=REPOSITORY)
    assert failed.returncode == 2
    assert "train.csv, line 2" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    change(raw, "44,62", "44,6")
    done = warm.python("-m", "pfl_bench", *given, cwd=REPOSITORY, check=True)
    assert "variant: fedscale" in done.stdout
    shown = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert json.loads(shown["splits"])["train"] == {"users": 2, "examples": 5}
