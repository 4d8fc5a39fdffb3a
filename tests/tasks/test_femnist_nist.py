from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pfl_bench.data import Store
from tasks.femnist.nist import class_of_code
from tests.tasks.femnist_files import contents, pooled, prepared, refused, write_png

# Writer, type folder, hexadecimal code and class of what was written.
WRITTEN = [
    ("f0000_14", "d0000_14", "30", 0),
    ("f0000_14", "d0000_14", "39", 9),
    ("f0000_14", "u0000_14", "41", 10),
    ("f0000_14", "l0000_14", "61", 36),
    ("f0001_41", "u0001_41", "5a", 35),
    ("f0001_41", "l0001_41", "7a", 61),
]


def write_nist(root: Path) -> dict[int, Path]:
    """Write a small database; returns the image in by_write of each class."""
    images = {}
    for seed, (writer, kind, code, label) in enumerate(WRITTEN):
        path = write_png(root / "by_write" / "hsf_0" / writer / kind / f"{seed}.png", seed)
        copy = root / "by_class" / code / "hsf_0" / f"{code}_{seed}.png"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        images[label] = path
    return images


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_nist(tmp_path / "raw")
    return tmp_path / "raw"


def stored_labels(path: Path) -> dict[str, list[int]]:
    return {user: sorted(e[-1] for e in examples) for user, examples in pooled(path).items()}


def test_images_get_their_class_by_content(raw: Path, tmp_path: Path) -> None:
    facts = prepared(raw, tmp_path / "out.h5", train_fraction=1.0, val_fraction=0.0)
    assert facts["variant"] == "nist"
    assert (facts["by_write_images"], facts["by_class_images"]) == (6, 6)
    assert set(facts["left_out"].values()) == {0}
    assert stored_labels(tmp_path / "out.h5") == {
        "f0000_14": [0, 9, 10, 36],
        "f0001_41": [35, 61],
    }
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.num_classes == 62
        assert store.facts.split_by == "example"


def test_images_are_whole_shrunk_and_white(raw: Path, tmp_path: Path) -> None:
    prepared(raw, tmp_path / "out.h5", train_fraction=1.0, val_fraction=0.0)
    images, labels = contents(tmp_path / "out.h5")["train"]["f0001_41"]
    path = raw / "by_write" / "hsf_0" / "f0001_41" / "l0001_41" / "5.png"
    with Image.open(path) as image:
        expected = image.convert("L").resize((28, 28), Image.Resampling.LANCZOS)
    found = images[list(labels).index(61)]
    assert np.array_equal(found, np.asarray(expected))
    assert found[0, -1] == 255  # the ground
    assert found[14].min() == 0  # the ink


@pytest.mark.parametrize("nesting", ["raw_data", "data/raw_data", "a/b/c"])
def test_leafs_nesting_is_found(tmp_path: Path, nesting: str) -> None:
    write_nist(tmp_path / "raw" / nesting)
    assert prepared(tmp_path / "raw", tmp_path / "out.h5")["by_write_images"] == 6


def test_deeper_nesting_is_not_found(tmp_path: Path) -> None:
    write_nist(tmp_path / "raw" / "a/b/c/d")
    refused(tmp_path / "raw", tmp_path / "o", "no public form")


@pytest.mark.parametrize("missing", ["by_class", "by_write"])
def test_one_folder_alone_is_refused_with_the_reason(
    raw: Path, tmp_path: Path, missing: str
) -> None:
    shutil.rmtree(raw / missing)
    refused(raw, tmp_path / "o", f"folder {missing}", "which character", "side by side")


def test_what_cannot_be_used_is_counted_and_named(raw: Path, tmp_path: Path) -> None:
    folder = raw / "by_write" / "hsf_0" / "f0000_14" / "d0000_14"
    classes = raw / "by_class"
    write_png(folder / "alone.png", 500)
    write_png(folder / "small.png", 501, side=127)
    shutil.copy(folder / "small.png", classes / "30" / "hsf_0")
    (folder / "cut.png").write_bytes((folder / "alone.png").read_bytes()[:100])
    shutil.copy(folder / "cut.png", classes / "30" / "hsf_0")
    (folder / "empty.png").touch()
    shutil.copy(folder / "empty.png", classes / "30" / "hsf_0")
    write_png(folder / "zero_or_o.png", 502)
    for code in ("30", "39"):
        shutil.copy(folder / "zero_or_o.png", classes / code / "hsf_0")
    # A writer of whom nothing can be used.
    write_png(raw / "by_write" / "hsf_1" / "f0002_00" / "d0002_00" / "x.png", 503)
    facts = prepared(raw, tmp_path / "out.h5")
    assert facts["left_out"] == {"unmatched": 2, "ambiguous": 1, "unreadable": 2, "wrong_size": 1}
    assert facts["left_out_examples"]["ambiguous"] == ["hsf_0/f0000_14/d0000_14/zero_or_o.png"]
    assert facts["by_write_images"] == 12
    assert stored_labels(tmp_path / "out.h5")["f0000_14"] == [0, 9, 10, 36]
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.extra["left_out"] == facts["left_out"]


def test_mit_folders_are_no_images_of_their_own(raw: Path, tmp_path: Path) -> None:
    write_png(raw / "by_class" / "39" / "hsf_0.mit" / "x.png", 0)  # the same as the zero
    write_png(raw / "by_write" / "hsf_0.mit" / "f0009_00" / "d" / "x.png", 0)
    assert prepared(raw, tmp_path / "out.h5")["by_class_images"] == 6
    assert sorted(stored_labels(tmp_path / "out.h5")) == ["f0000_14", "f0001_41"]


def test_no_usable_image_is_refused(raw: Path, tmp_path: Path) -> None:
    for path in (raw / "by_class").rglob("*.png"):
        path.unlink()
    refused(raw, tmp_path / "o", "none of 6 images", "'unmatched': 6", "same release")


@pytest.mark.parametrize("name", ["2b", "digits", "7b"])
def test_a_folder_that_is_no_class_is_refused(raw: Path, tmp_path: Path, name: str) -> None:
    (raw / "by_class" / name).mkdir()
    refused(raw, tmp_path / "o", f"by_class/{name}", "hexadecimal")


def test_codes_give_leafs_classes() -> None:
    codes = [
        f"{ord(c):02x}" for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    ]
    assert [class_of_code(code) for code in codes] == list(range(62))
    assert class_of_code("4F") == class_of_code("4f") == 24


@given(st.text(max_size=4))
def test_other_codes_have_no_class(code: str) -> None:
    label = class_of_code(code)
    if label is not None:
        assert chr(int(code, 16)).isalnum()
        assert 0 <= label < 62
