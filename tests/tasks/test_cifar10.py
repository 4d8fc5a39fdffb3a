"""CIFAR-10 from its binary files, packed or not, and from copies as JPEGs."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.cifar10 import prepare as cifar10
from tasks.cifar10.prepare import ARCHIVE, CLASSES, FOLDER
from tests.tasks.cifar10_files import BATCHES, ROWS, write_archive, write_batches
from tests.tasks.femnist_files import silent


def write_jpegs(folder: Path) -> Path:
    """Five images a class in train, one in test; red says the class, green the number."""
    for split, count in (("train", 5), ("test", 1)):
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((32, 32, 3), (20 * label, 40 * number, 0), np.uint8)
                path = folder / split / name / f"{number:04d}.jpg"
                Image.fromarray(pixels).save(path, "JPEG", quality=95)
    return folder


def contents(path: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    with Store(path) as store:
        part = store.split(split)
        columns = [part.read(field, 0, part.num_examples) for field in ("inputs", "targets")]
    return columns[0], columns[1]


def prepared(source: Path, out: Path) -> dict[str, object]:
    return cifar10.prepare(source, out, cifar10.Options(), silent)


@pytest.mark.parametrize("form", ["archive", "folder", "files"])
def test_binary_files_are_read_in_their_order(tmp_path: Path, form: str) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    if form == "archive":
        write_archive(source / ARCHIVE)
    else:
        write_batches(source / FOLDER if form == "folder" else source)
    facts = prepared(source, tmp_path / "cifar10.h5")
    assert facts["variant"] == "cifar10-partial"
    assert facts["examples"] == {"train": 20, "test": 4}
    for split, names in (("train", BATCHES[:5]), ("test", BATCHES[5:])):
        inputs, targets = contents(tmp_path / "cifar10.h5", split)
        rows = np.concatenate([ROWS[name] for name in names])
        assert np.array_equal(targets, rows[:, 0])
        assert np.array_equal(inputs.reshape(len(rows), -1), rows[:, 1:])


def test_as_many_images_as_published_are_cifar10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "PUBLISHED", {"train": 20, "test": 4})
    facts = prepared(write_batches(tmp_path / "raw"), tmp_path / "cifar10.h5")
    assert facts["variant"] == "cifar10"
    monkeypatch.setattr(cifar10, "PUBLISHED", {"train": 50, "test": 10})
    facts = prepared(write_jpegs(tmp_path / "jpegs"), tmp_path / "copy.h5")
    assert facts["variant"] == "cifar10-jpeg-copy"


@pytest.mark.parametrize("packed", [False, True])
def test_a_copy_as_jpegs_is_called_so(tmp_path: Path, packed: bool) -> None:
    source = write_jpegs(tmp_path / "raw")
    if packed:
        (tmp_path / "tar").mkdir()
        with tarfile.open(tmp_path / "tar" / "images.tar.xz", "w:xz") as tar:
            tar.add(source, arcname=".")
        source = tmp_path / "tar"
    facts = prepared(source, tmp_path / "copy.h5")
    assert facts["variant"] == "cifar10-jpeg-copy-partial"
    assert "JPEG copy" in str(facts["source"])
    inputs, targets = contents(tmp_path / "copy.h5", "train")
    assert targets.tolist() == np.repeat(np.arange(10), 5).tolist()
    # Class by class, by name; a lossy copy is off by a little.
    assert np.abs(inputs[:, 0, 16, 16].astype(int) - 20 * targets.astype(int)).max() <= 3
    assert np.abs(inputs[:, 1, 16, 16].astype(int) - 40 * np.tile(np.arange(5), 10)).max() <= 3


def damaged_jpeg(source: Path, content: bytes) -> Path:
    (source / "train" / "cat" / "0003.jpg").write_bytes(content)
    return source


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    out = tmp_path / "o.h5"

    def refused(source: Path, words: str) -> None:
        with pytest.raises(DataError, match=words):
            prepared(source, out)
        assert not out.exists()

    source = write_batches(tmp_path / "raw")
    (source / "data_batch_2.bin").write_bytes(ROWS["data_batch_2.bin"].tobytes()[:-1])
    refused(source, r"data_batch_2.bin: has 12291 bytes, not 3073 an image")
    wrong = ROWS["data_batch_2.bin"].copy()
    wrong[2, 0] = 10
    (source / "data_batch_2.bin").write_bytes(wrong.tobytes())
    refused(source, "image 2 has the label 10")
    (source / "data_batch_2.bin").unlink()
    refused(source, r"has no data_batch_2.bin")
    (tmp_path / "cut").mkdir()
    archive = write_archive(tmp_path / "cut" / ARCHIVE)
    archive.write_bytes(archive.read_bytes()[:-500])
    refused(tmp_path / "cut", "cannot be read")
    jpegs = write_jpegs(tmp_path / "jpegs")
    refused(damaged_jpeg(jpegs, b"nonsense"), r"train/cat/0003.jpg: is no JPEG of 32 x 32")
    picture = io.BytesIO()
    Image.new("RGB", (31, 32)).save(picture, "JPEG")
    refused(damaged_jpeg(jpegs, picture.getvalue()), "it is 31 x 32 pixels")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds no public form of CIFAR-10")
    (tmp_path / "other" / "train").mkdir(parents=True)
    refused(tmp_path / "other", "has no image train/CLASS/NAME.jpg")
