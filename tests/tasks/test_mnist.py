"""MNIST and Fashion-MNIST from their published files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.common.idx import read_split
from tasks.fashion_mnist import prepare as fashion
from tasks.mnist import prepare as mnist
from tasks.mnist.prepare import deskewed
from tests.tasks.femnist_files import REAL_DATA, silent, write_idx

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
WRITERS = ("qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int")
REAL = [REAL_DATA / "mnist_train" / f"{TRAIN}.gz", *sorted((REAL_DATA / "qmnist").glob("*.gz"))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, as many rows as published; the first bytes of an image are its number."""
    folder = tmp_path_factory.mktemp("mnist")
    for name, count, labels in ((TRAIN, 60_000, WRITERS[0]), (TEST, 10_000, WRITERS[1])):
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 0, :4] = np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 4)
        write_idx(folder / name, images)
        classes = np.arange(count) % 10
        write_idx(folder / name.replace("images-idx3", "labels-idx1"), classes.astype(np.uint8))
        rows = np.zeros((60_000, 8), np.int32)
        rows[:, 0] = np.arange(60_000) % 10
        rows[:, 2] = np.arange(60_000) % 539 + (0 if name == TRAIN else 539)
        write_idx(folder / labels, rows)
    return folder


def linked(whole: Path, folder: Path, *left_out: str) -> Path:
    folder.mkdir(exist_ok=True)
    for path in whole.iterdir():
        if path.name not in left_out:
            (folder / path.name).symlink_to(path)
    return folder


def test_a_store_has_both_files_in_their_order(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "mnist.h5"
    facts = mnist.prepare(whole, out, mnist.Options(), silent)
    assert facts["examples"] == {"train": 60_000, "test": 10_000}
    assert facts["writers"] == 1078
    with Store(out) as store:
        assert store.task == "mnist"
        # MNIST's names, and not its content.
        assert store.facts.variant == "mnist-other"
        assert store.facts.source == "other data in files of MNIST's names, with QMNIST's writers"
        for name, count in facts["examples"].items():
            split = store.split(name)
            assert split.num_examples == count
            numbers = split.read("inputs", 0, count)[:, 0, :4].copy().view(">u4").ravel()
            assert np.array_equal(numbers, np.arange(count))
            assert np.array_equal(split.read("targets", 0, count), np.arange(count) % 10)
        assert store.split("test").read("writer", 0, 3).tolist() == [539, 540, 541]


def test_writers_are_optional_but_not_half_of_them(whole: Path, tmp_path: Path) -> None:
    plain = linked(whole, tmp_path / "plain", *WRITERS)
    facts = mnist.prepare(plain, tmp_path / "plain.h5", mnist.Options(), silent)
    assert "writers" not in facts
    with Store(tmp_path / "plain.h5") as store:
        assert set(store.fields) == {"inputs", "targets"}
    half = linked(whole, tmp_path / "half", WRITERS[1])
    with pytest.raises(DataError, match=f"has {WRITERS[0]}, but not {WRITERS[1]}"):
        mnist.prepare(half, tmp_path / "half.h5", mnist.Options(), silent)
    assert not (tmp_path / "half.h5").exists()


def test_files_that_are_missing_or_disagree_are_refused(whole: Path, tmp_path: Path) -> None:
    folder = linked(whole, tmp_path / "raw", TEST, "train-labels-idx1-ubyte")
    wrong = (np.arange(60_000) % 10).astype(np.uint8)
    wrong[123] = 9
    labels = write_idx(folder / "train-labels-idx1-ubyte", wrong)
    with pytest.raises(DataError, match=r"image 123 is a 9, but .* says 3 \(1 rows differ\)"):
        mnist.prepare(folder, tmp_path / "o.h5", mnist.Options(), silent)
    wrong[123] = 10
    write_idx(labels, wrong)
    with pytest.raises(DataError, match="image 123 has the label 10"):
        mnist.prepare(folder, tmp_path / "o.h5", mnist.Options(), silent)
    wrong[123] = 3
    write_idx(labels, wrong)
    with pytest.raises(DataError, match=f"{TEST} is missing, with .gz or without"):
        mnist.prepare(folder, tmp_path / "o.h5", mnist.Options(), silent)
    assert not (tmp_path / "o.h5").exists()


def test_fashion_mnist_is_read_from_files_of_the_same_names(whole: Path, tmp_path: Path) -> None:
    facts = fashion.prepare(whole, tmp_path / "fashion.h5", fashion.Options(), silent)
    assert facts["examples"] == {"train": 60_000, "test": 10_000}
    with Store(tmp_path / "fashion.h5") as store:
        assert store.task == "fashion_mnist"
        assert store.facts.variant == "fashion-mnist-other"
        assert store.names("targets")[9] == "Ankle boot"
        assert set(store.fields) == {"inputs", "targets"}


def test_the_real_digits_have_836_writers(tmp_path: Path) -> None:
    absent = [path for path in REAL if not path.is_file()]
    if absent or len(REAL) != 6:
        pytest.skip(f"real data not there: {absent or REAL_DATA}")
    (tmp_path / "raw").mkdir()
    for path in REAL:
        (tmp_path / "raw" / path.name).symlink_to(path.resolve())
    facts = mnist.prepare(tmp_path / "raw", tmp_path / "mnist.h5", mnist.Options(), silent)
    assert facts["writers"] == 836
    assert facts["variant"] == "mnist"
    with Store(tmp_path / "mnist.h5") as store:
        first = store.split("train").read("targets", 0, 10).tolist()
        images = store.split("train").read("inputs", 0, 60_000)
        counts = np.bincount(store.split("train").read("targets", 0, 60_000))
    assert first == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    header = b"\0\0\x08\x03" + np.array([60_000, 28, 28], ">u4").tobytes()
    # The published file, unpacked.
    digest = hashlib.md5(header + images.tobytes(), usedforsecurity=False).hexdigest()
    assert digest == "6bbc9ace898e44ae57da46a324031adb"


def test_a_label_that_differs_makes_other_data(tmp_path: Path) -> None:
    """Of the real digits: the published test labels with one of them changed."""
    absent = [path for path in REAL if not path.is_file()]
    if absent or len(REAL) != 6:
        pytest.skip(f"real data not there: {absent or REAL_DATA}")
    raw = tmp_path / "raw"
    raw.mkdir()
    for path in REAL:
        if not path.name.startswith(("qmnist", "t10k-labels")):
            (raw / path.name).symlink_to(path.resolve())
    real = read_split(REAL_DATA / "qmnist", "test").targets.copy()
    for changed, variant in ((False, "mnist"), (True, "mnist-other")):
        real[5] += changed
        write_idx(raw / "t10k-labels-idx1-ubyte", real)
        facts = mnist.prepare(raw, tmp_path / f"{variant}.h5", mnist.Options(), silent)
        assert facts["variant"] == variant


def test_what_is_downloaded_is_what_is_read(whole: Path) -> None:
    assert {file.name for file in mnist.FILES} == {f"{path.name}.gz" for path in whole.iterdir()}
    assert {file.name for file in fashion.FILES} == {file.name for file in mnist.FILES[:4]}
    assert not {file.digest for file in fashion.FILES} & {file.digest for file in mnist.FILES}


def bar(shear: float, half: int = 9) -> np.ndarray:
    """A bar, 3 columns wide, whose lines move by ``shear`` columns each; shape (28, 28)."""
    image = np.zeros((28, 28), np.uint8)
    for row in range(13 - half, 14 + half):
        middle = 13 + round(shear * (row - 13))
        image[row, middle - 1 : middle + 2] = 200
    return image


def slant(image: np.ndarray) -> float:
    """Columns by which the ink moves from a line to the next."""
    rows, columns = np.nonzero(image)
    weights = image[rows, columns].astype(float)
    rows = rows - np.average(rows, weights=weights)
    return float((weights * rows * columns).sum() / (weights * rows**2).sum())


def test_deskewing_takes_the_slant_out_and_leaves_the_rest() -> None:
    images = np.stack([bar(0.0), bar(0.4), bar(-0.7), np.zeros((28, 28), np.uint8), bar(0.0).T])
    assert slant(images[1]) == pytest.approx(0.4, abs=0.02)
    assert slant(images[2]) == pytest.approx(-0.7, abs=0.02)
    made = deskewed(images)
    assert made.dtype == np.uint8
    # An upright bar, and what is symmetric, only come to the middle: half a pixel.
    assert (
        np.abs(made[[0, 4]].sum((1, 2), dtype=int) - images[[0, 4]].sum((1, 2), dtype=int)).max()
        < 60
    )
    for upright in made[[0, 1, 2]]:
        assert abs(slant(upright)) < 0.02
        rows, columns = np.nonzero(upright)
        weights = upright[rows, columns]
        assert np.average(rows, weights=weights) == pytest.approx(13.5, abs=0.05)
        assert np.average(columns, weights=weights) == pytest.approx(13.5, abs=0.05)
        # As narrow as before, but for what linear interpolation smears.
        assert (upright.sum(0, dtype=int) > 400).sum() <= 6
    assert not made[3].any()


def test_a_store_without_slant_says_so(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "deskewed.h5"
    mnist.prepare(whole, out, mnist.Options(deskew=True), silent)
    images = read_split(whole, "test").inputs
    with Store(out) as store:
        assert store.facts.variant == "mnist-other-deskewed"
        assert store.facts.source.endswith("with QMNIST's writers, without slant")
        held = store.split("test").read("inputs", 0, 300)
    np.testing.assert_array_equal(held, deskewed(images[:300]))
    assert (held != images[:300]).any()
