from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from pfl_bench.data import Store
from tests.tasks.femnist_files import contents, make_users, prepared, refused, write_tff

TRAIN = make_users({"f0000_14": 4, "f0001_41": 3})
TEST = make_users({"f0000_14": 2, "f0001_41": 1}, seed=1)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return write_tff(tmp_path / "raw", "fed_emnist", train=TRAIN, test=TEST)


def test_the_published_split_is_kept_to_the_last_bit(raw: Path, tmp_path: Path) -> None:
    facts = prepared(raw, tmp_path / "out.h5")
    assert facts["variant"] == "tff"
    assert facts["split"] == {"by": "example", "as": "published"}
    assert facts["largest_rounding_error_grey_levels"] < 1e-4  # float32
    assert "warning" not in facts
    stored = contents(tmp_path / "out.h5")
    assert list(stored) == ["train", "test"]
    for name, users in (("train", TRAIN), ("test", TEST)):
        assert list(stored[name]) == list(users)
        for user, (images, labels) in users.items():
            assert np.array_equal(stored[name][user][0], images)
            assert np.array_equal(stored[name][user][1], labels)


def test_digits_only_has_ten_classes(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    train, test = make_users({"a": 3}, num_classes=10), make_users({"a": 2}, 10, seed=1)
    write_tff(tmp_path / "raw", "fed_emnist_digitsonly", train=train, test=test)
    assert prepared(tmp_path / "raw", tmp_path / "out.h5")["variant"] == "tff-digits"
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.num_classes == 10
        assert "digits only" in store.facts.source


def test_digits_only_refuses_letters(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    users = {"a": (TRAIN["f0000_14"][0], np.array([1, 2, 10, 3], dtype=np.uint8))}
    write_tff(tmp_path / "raw", "fed_emnist_digitsonly", train=users, test=users)
    refused(tmp_path / "raw", tmp_path / "o", "train.h5", "user 'a'", "label 10", "0..9")


@pytest.mark.parametrize("split", ["train", "test"])
def test_half_a_pair_is_refused(raw: Path, tmp_path: Path, split: str) -> None:
    (raw / f"fed_emnist_{split}.h5").unlink()
    refused(raw, tmp_path / "o", f"fed_emnist_{split}.h5 is missing")


def test_a_pair_without_a_common_writer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    write_tff(tmp_path / "raw", "fed_emnist", train=TRAIN, test=make_users({"b": 2}))
    refused(tmp_path / "raw", tmp_path / "o", "no writer is in both", "not a pair")


def replace_with(key: str, values: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        group = file["examples/f0001_41"]
        if key in group:
            del group[key]
        if values is not None:
            group[key] = values

    return change


def drop_examples(file: h5py.File) -> None:
    del file["examples"]
    file["other"] = 1


def make_writer_an_array(file: h5py.File) -> None:
    del file["examples/f0001_41"]
    file["examples/f0001_41"] = np.zeros(3)


WHITE = np.ones((3, 28, 28), dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_examples, ("no group 'examples'", "other")),
        (make_writer_an_array, ("f0001_41", "'pixels' and 'label'")),
        (replace_with("pixels", None), ("f0001_41", "'pixels' and 'label'")),
        (replace_with("label", None), ("f0001_41", "'pixels' and 'label'")),
        (replace_with("pixels", WHITE[:2]), ("f0001_41", "(2, 28, 28)", "(3,)")),
        (replace_with("pixels", WHITE[:, 1:]), ("f0001_41", "(3, 27, 28)")),
        (replace_with("label", np.zeros((3, 1))), ("f0001_41", "(3, 1)")),
        (replace_with("label", 3), ("f0001_41", "labels of shape ()")),
        (replace_with("pixels", WHITE * 255), ("f0001_41", "255.0", "0..1")),
        (replace_with("pixels", WHITE * np.nan), ("f0001_41", "nan", "0..1")),
        (replace_with("label", np.array([1, 62, 3])), ("f0001_41", "label 62", "0..61")),
        (replace_with("label", np.array(["a", "b", "c"], dtype="S1")), ("not all numbers",)),
    ],
)
def test_damaged_content_is_refused(
    raw: Path, tmp_path: Path, change: Callable[[h5py.File], None], words: tuple[str, ...]
) -> None:
    path = raw / "fed_emnist_train.h5"
    with h5py.File(path, "r+") as file:
        change(file)
    refused(raw, tmp_path / "o", str(path), *words)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.95])
def test_a_cut_file_is_refused(raw: Path, tmp_path: Path, share: float) -> None:
    path = raw / "fed_emnist_test.h5"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(raw, tmp_path / "o", str(path), "cut", "get it anew")


def test_a_packed_file_is_refused(raw: Path, tmp_path: Path) -> None:
    (raw / "fed_emnist_train.h5").write_bytes(b"BZh9" + bytes(1000))
    refused(raw, tmp_path / "o", "not a readable HDF5 file", "unpack")
