from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.common.idx import read_idx
from tests.tasks.femnist_files import REAL_DATA, contents, pooled, prepared, refused, write_idx

REAL = REAL_DATA / "qmnist"
T10K = "t10k-images-idx3-ubyte"
TEST_LABELS = "qmnist-test-labels-idx2-int"


def images(count: int, first: int = 0) -> NDArray[np.uint8]:
    """Images of ground 0 whose first four pixels hold their number."""
    result = np.zeros((count, 28, 28), dtype=np.uint8)
    numbers = np.arange(first, first + count, dtype=">u4")
    result[:, 0, :4] = numbers.view(np.uint8).reshape(count, 4)
    return result


def labels(num_writers: int, first_writer: int = 0) -> NDArray[np.int32]:
    result = np.zeros((60_000, 8), dtype=np.int32)
    rows = np.arange(60_000)
    result[:, 0] = rows % 10
    result[:, 2] = first_writer + rows % num_writers
    return result


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """MNIST's test images with QMNIST's labels, uncompressed."""
    (tmp_path / "raw").mkdir()
    write_idx(tmp_path / "raw" / T10K, images(10_000))
    write_idx(tmp_path / "raw" / TEST_LABELS, labels(70))
    return tmp_path / "raw"


def numbers(path: Path) -> dict[str, list[int]]:
    """Numbers of the images that each writer has, read from the inverted pixels."""
    return {
        user: sorted(
            int.from_bytes(bytes(255 - v for v in example[:4]), "big") for example in examples
        )
        for user, examples in pooled(path).items()
    }


def test_images_go_to_their_writers(raw: Path, tmp_path: Path) -> None:
    facts = prepared(raw, tmp_path / "out.h5")
    assert facts["variant"] == "qmnist-digits"
    assert facts["parts_used"] == [T10K]
    assert facts["parts_absent"] == ["train-images-idx3-ubyte", "qmnist-test-images-idx3-ubyte"]
    found = numbers(tmp_path / "out.h5")
    assert found == {f"qmnist-{w:04d}": list(range(w, 10_000, 70)) for w in range(70)}
    stored, classes = contents(tmp_path / "out.h5")["train"]["qmnist-0003"]
    assert stored[0, 20, 20] == 255  # the ground is white, as LEAF's
    rows = [int.from_bytes(bytes(255 - image[0, :4]), "big") for image in stored]
    assert [row % 10 for row in rows] == list(classes)


def test_all_parts_together_use_no_digit_twice(raw: Path, tmp_path: Path) -> None:
    write_idx(raw / "train-images-idx3-ubyte.gz", images(60_000, first=100_000))
    write_idx(raw / "qmnist-train-labels-idx2-int.gz", labels(50, first_writer=40))
    write_idx(raw / "qmnist-test-images-idx3-ubyte.gz", images(60_000))
    facts = prepared(raw, tmp_path / "out.h5")
    assert facts["parts_absent"] == []
    found = numbers(tmp_path / "out.h5")
    assert sorted(number for user in found.values() for number in user) == [
        *range(60_000),
        *range(100_000, 160_000),
    ]
    # A writer of both files has the examples of both.
    assert found["qmnist-0040"] == [*range(40, 60_000, 70), *range(100_000, 160_000, 50)]
    assert found["qmnist-0089"] == list(range(100_049, 160_000, 50))


def test_qmnists_own_images_stand_in_for_absent_ones_of_mnist(raw: Path, tmp_path: Path) -> None:
    (raw / T10K).unlink()
    write_idx(raw / "qmnist-test-images-idx3-ubyte", images(60_000))
    facts = prepared(raw, tmp_path / "out.h5")
    assert T10K in facts["parts_absent"]
    assert sum(map(len, numbers(tmp_path / "out.h5").values())) == 60_000


def test_images_without_writers_are_refused(raw: Path, tmp_path: Path) -> None:
    (raw / TEST_LABELS).unlink()
    refused(raw, tmp_path / "o", TEST_LABELS, "who wrote", "QMNIST")


def test_writers_without_images_are_refused(raw: Path, tmp_path: Path) -> None:
    (raw / T10K).unlink()
    refused(raw, tmp_path / "o", "none of the image files", T10K)


def test_mnists_own_labels_must_agree(raw: Path, tmp_path: Path) -> None:
    classes = (np.arange(10_000) % 10).astype(np.uint8)
    path = write_idx(raw / "t10k-labels-idx1-ubyte", classes)
    prepared(raw, tmp_path / "out.h5")
    classes[[1234, 5000]] = 7
    write_idx(path, classes)
    refused(raw, tmp_path / "o", str(path), "image 1234 is a 7", "says 4", "2 rows differ")


@pytest.mark.parametrize(("column", "value"), [(0, 10), (0, -1), (2, -1)])
def test_labels_outside_their_range_are_refused(
    raw: Path, tmp_path: Path, column: int, value: int
) -> None:
    damaged = labels(70)
    damaged[77, column] = value
    path = write_idx(raw / TEST_LABELS, damaged)
    refused(raw, tmp_path / "o", str(path), "column 0", "column 2")


def test_an_image_file_of_another_length_is_refused(raw: Path, tmp_path: Path) -> None:
    write_idx(raw / T10K, images(9_999))
    refused(raw, tmp_path / "o", T10K, "(9999, 28, 28)", "(10000, 28, 28)")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_read_plain_and_packed(tmp_path: Path, suffix: str) -> None:
    values = np.array([[1, -2], [300, 70_000], [0, 5]], dtype=np.int32)
    path = write_idx(tmp_path / f"x{suffix}", values)
    found = read_idx(path, 0x0C, (3, 2))
    assert found.dtype == np.int32
    assert found.dtype.isnative
    assert np.array_equal(found, values)


IDX = struct.pack(">2x2B2I", 0x08, 2, 2, 3) + bytes(range(6))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an idx file"),
        (b"\0\0", "not an idx file"),
        (b"\x89PNG" + IDX, "not an idx file"),
        (b"\0\0\x07\x02" + IDX[4:], "not an idx file"),
        (b"\0\0\x0c\x02" + IDX[4:], "type 0x0c with 2 dimensions; expected 0x08"),
        (b"\0\0\x08\x03" + IDX[4:], "3 dimensions; expected 0x08 with 2"),
        (IDX[:9], "cut within its header, at byte 9"),
        (IDX[:8] + b"\0\0\0\4" + IDX[12:], r"shape \(2, 4\).*\(2, 3\)"),
        (IDX[:-1], "cut at 5 of the 6 bytes"),
        (IDX + b"x", "goes on after the 6 bytes"),
        (gzip.compress(IDX, mtime=0)[:-12], "cannot be read"),
        (gzip.compress(IDX, mtime=0)[:-6] + b"abcdef", "cannot be read"),
        (gzip.compress(IDX[:-2], mtime=0), "cut at 4 of the 6 bytes"),
        (b"\x1f\x8bnonsense", "cannot be read"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(path, 0x08, (2, 3))
    assert str(path) in str(caught.value)


def test_damage_to_packed_values_is_refused(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "x.gz", np.arange(250, dtype=np.uint8))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.gz"):
        read_idx(path, 0x08, (250,))


MNIST_TEST = (f"{T10K}.gz", "t10k-labels-idx1-ubyte.gz", f"{TEST_LABELS}.gz")
MNIST_TRAIN = ("train-labels-idx1-ubyte.gz", "qmnist-train-labels-idx2-int.gz")
TRAIN_IMAGES = REAL_DATA / "mnist_train" / "train-images-idx3-ubyte.gz"


def link_real(folder: Path, names: Sequence[str]) -> Path:
    """A folder with these of the real files and no others, whatever else lies beside them."""
    folder.mkdir()
    for name in names:
        path = REAL / name
        if not path.is_file():
            pytest.skip(f"real data not there: {path}")
        (folder / name).symlink_to(path.resolve())
    return folder


@pytest.fixture(scope="module")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qmnist")
    out = folder / "qmnist.h5"
    facts = prepared(link_real(folder / "raw", MNIST_TEST), out)
    assert facts["parts_used"] == [f"{T10K}.gz"]
    assert facts["splits"]["train"]["users"] == 297
    return out


def test_the_real_writers_are_the_published_ones(real_store: Path) -> None:
    counts = np.array([len(examples) for examples in pooled(real_store).values()])
    assert (len(counts), counts.sum()) == (297, 10_000)
    assert (counts.min(), counts.max()) == (8, 130)
    assert counts.mean() == pytest.approx(33.67, abs=0.005)
    assert counts.std() == pytest.approx(32.67, abs=0.005)


def test_the_real_digits_are_all_there_inverted(real_store: Path) -> None:
    with gzip.open(REAL / f"{T10K}.gz") as stream:
        original = np.frombuffer(stream.read()[16:], dtype=np.uint8).reshape(-1, 784)
    with gzip.open(REAL / "t10k-labels-idx1-ubyte.gz") as stream:
        classes = stream.read()[8:]
    expected = sorted(
        (255 - image).tobytes() + bytes([c]) for image, c in zip(original, classes, strict=True)
    )
    found = sorted(example for user in pooled(real_store).values() for example in user)
    assert found == expected
    assert np.frombuffer(b"".join(found), dtype=np.uint8).mean() > 200  # white ground


def test_the_real_source_is_not_called_femnist(real_store: Path) -> None:
    with Store(real_store) as store:
        assert "MNIST/QMNIST" in store.facts.source
        assert "FEMNIST" not in store.facts.source
        assert store.facts.variant == "qmnist-digits"
        assert store.facts.num_classes == 10
        assert store.facts.extra["parts_absent"]
        assert set(store.split("train").client_ids()) == set(store.split("test").client_ids())


def test_all_of_mnist_has_836_real_writers(tmp_path: Path) -> None:
    if not TRAIN_IMAGES.is_file():
        pytest.skip(f"real data not there: {TRAIN_IMAGES}")
    raw = link_real(tmp_path / "raw", (*MNIST_TEST, *MNIST_TRAIN))
    (raw / TRAIN_IMAGES.name).symlink_to(TRAIN_IMAGES.resolve())
    facts = prepared(raw, tmp_path / "out.h5")
    assert facts["parts_used"] == [TRAIN_IMAGES.name, f"{T10K}.gz"]
    assert facts["parts_absent"] == ["qmnist-test-images-idx3-ubyte"]
    counts = np.array([len(examples) for examples in pooled(tmp_path / "out.h5").values()])
    assert (len(counts), counts.sum()) == (836, 70_000)
    assert facts["splits"]["train"]["users"] == 836


def test_real_labels_of_mnist_that_disagree_are_refused(tmp_path: Path) -> None:
    raw = link_real(tmp_path / "raw", MNIST_TEST)
    path = raw / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[8] = (content[8] + 1) % 10
    path.unlink()
    path.write_bytes(gzip.compress(bytes(content)))
    refused(raw, tmp_path / "o", str(path), "image 0 is a 8", "says 7")
