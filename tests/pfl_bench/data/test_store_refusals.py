"""What the writer refuses, and that a refusal leaves nothing behind."""

import contextlib
import os

import numpy as np
import pytest

from pfl_bench.data import FieldSpec, Store
from pfl_bench.types import DataError
from tests.pfl_bench.data.store_samples import data, fill, fill_users, writer


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "toy.h5"
    fill_users(file)
    return file


def message(error) -> str:
    return str(error.value)


@pytest.mark.parametrize(
    ("split", "client", "arrays", "words"),
    [
        ("train", "a", data(0), ["zero examples", "leave the client out"]),
        ("train", "a", data(targets=[0, 3]), ["label 3", "0..2", "'targets'"]),
        ("train", "a", data(targets=[-1, 0]), ["-1", "uint8"]),
        ("train", "a", data(targets=[0.0, 1.0]), ["float64", "uint8", "convert"]),
        ("train", "a", data(targets=["0", "1"]), ["uint8", "convert"]),
        ("train", "a", data(targets=[0, 1, 2]), ["'targets': 3", "'inputs': 2"]),
        ("train", "a", data(tags=[[1]]), ["'tags': 1", "differ in their number"]),
        ("train", "a", data(inputs=np.zeros((2, 5), np.uint8)), ["(2, 5)", "(4,)"]),
        ("train", "a", data(inputs=np.zeros((2, 4, 1), np.uint8)), ["(2, 4, 1)"]),
        ("train", "a", data(inputs=np.full((2, 4), 256)), ["256", "wider"]),
        ("train", "a", data(inputs=np.full((2, 4), 0.5)), ["float64"]),
        ("train", "a", data(inputs=np.full((2, 4), None)), ["object"]),
        ("train", "a", data(tags=np.zeros((2, 1), np.int32)), ["list", "ndarray"]),
        ("train", "a", data(tags=[[1], [[2]]]), ["example 1", "1-d"]),
        ("train", "a", data(tags=[[1], [2**40]]), [str(2**40)]),
        ("train", "a", {"inputs": np.zeros((1, 4), np.uint8)}, ["missing", "targets", "tags"]),
        ("train", "a", data(more=[1, 2]), ["unknown fields ['more']"]),
        ("train", "", data(), ["non-empty"]),
        ("train", "a\0b", data(), ["NUL"]),
        ("train", "\ud800", data(), ["Unicode"]),
        ("train", 7, data(), ["string"]),
    ],
)
def test_append_refuses(tmp_path, split, client, arrays, words):
    path = tmp_path / "toy.h5"
    path.write_text("precious")
    with pytest.raises(DataError) as error:
        fill(path, ("train", "fine", data()), (split, client, arrays))
    for word in [str(path), repr(split), repr(client), *words]:
        assert word in message(error)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["toy.h5"]


def test_values_that_wrap_round_are_seen(tmp_path):
    path = tmp_path / "w.h5"
    fields = {"big": FieldSpec("int64"), "exact": FieldSpec("float32")}
    with (
        pytest.raises(DataError, match=str(2**53 + 1)),
        writer(path, fields={"value": FieldSpec("float64")}) as store,
    ):
        store.append("train", "a", value=[2**53 + 1])
    with writer(path, fields=fields) as store:
        with pytest.raises(DataError, match="18446744073709551615"):
            store.append("train", "a", big=np.array([2**64 - 1], np.uint64), exact=[1])
        with pytest.raises(DataError, match=r"value 0\.1 "):
            store.append("train", "a", big=[1], exact=[0.1])
        with pytest.raises(DataError, match=str(2**24 + 1)):
            store.append("train", "a", big=[1], exact=[2**24 + 1])
        store.append("train", "a", big=[-(2**63)], exact=[np.inf])


def test_a_user_in_two_splits_is_named_with_both(tmp_path):
    pieces = [("train", "ann", data()), ("val", "bob", data()), ("test", "ann", data())]
    with pytest.raises(DataError) as error:
        fill(tmp_path / "toy.h5", *pieces)
    assert all(word in message(error) for word in ("'ann'", "'train'", "'test'", "'example'"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("splits", [(), ("test",)])
def test_a_store_needs_training_clients(tmp_path, splits):
    with pytest.raises(DataError, match="no client was put in split 'train'"):
        fill(tmp_path / "toy.h5", *[(split, "a", data()) for split in splits])
    assert os.listdir(tmp_path) == []


def fill_shared(path, test_of_b):
    fill(
        path,
        ("train", "a", data(2, 1)),
        ("train", "a", data(1, 2)),
        ("train", "b", data(2, 3)),
        ("train", "only-train", data(2, 3)),
        ("test", "a", data(1, 2)),
        ("test", "a", data(2, 1)),
        ("test", "b", test_of_b),
        split_by="example",
    )


def test_test_that_repeats_train_is_refused(tmp_path):
    with pytest.raises(DataError, match="'test' repeats split 'train': all 2 clients"):
        fill_shared(tmp_path / "toy.h5", data(2, 3))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "other", [data(2, 4), data(1, 3), data(2, 3, targets=[1, 1]), data(2, 3, tags=[[3], []])]
)
def test_one_difference_makes_splits_legal(tmp_path, other):
    fill_shared(tmp_path / "toy.h5", other)
    with Store(tmp_path / "toy.h5") as store:
        assert store.split("train").client_ids() == ["a", "b", "only-train"]


def interrupted(path, error):
    with writer(path) as store:
        store.append("train", "a", **data())
        assert len(os.listdir(path.parent)) == 2
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interruption_leaves_the_old_file(path, error):
    before = path.read_bytes()
    with pytest.raises(error):
        interrupted(path, error)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["toy.h5"]


def broken_off(path):
    with writer(path) as store:
        store.append("train", "a", **data())
        with contextlib.suppress(KeyError):
            store._spools["train"].append("a", 1, {"inputs": np.zeros((1, 4), np.uint8)})


def test_an_append_broken_off_midway_cannot_be_finished(tmp_path):
    with pytest.raises(DataError, match="interrupted"):
        broken_off(tmp_path / "toy.h5")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fields": {}}, "fields is empty"),
        ({"fields": {"offsets": FieldSpec("uint8")}}, "reserved"),
        ({"fields": {"a_offsets": FieldSpec("uint8")}}, "reserved"),
        ({"fields": {"a/b": FieldSpec("uint8")}}, "'a/b' is not a name"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"split_by": "client"}, "'user' or 'example'"),
        ({"task": ""}, "task"),
        ({"extra": {"x": float("nan")}}, "'x' is not JSON"),
        ({"extra": {"x": object()}}, "'x' is not JSON"),
    ],
)
def test_writer_arguments(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        writer(tmp_path / "toy.h5", **changes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("O",), "cannot be stored"),
        (("complex128",), "cannot be stored"),
        (("U5",), "cannot be stored"),
        (("nonsense",), "not a NumPy dtype"),
        (("uint8", (0,)), "positive"),
        (("uint8", (3,), True), "ragged"),
    ],
)
def test_field_specs(arguments, words):
    with pytest.raises(ValueError, match=words):
        FieldSpec(*arguments)


def test_target_folder(tmp_path):
    with pytest.raises(DataError, match=r"missing does not exist. Create"):
        writer(tmp_path / "missing" / "toy.h5")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file is not a folder"):
        writer(tmp_path / "file" / "toy.h5")
    with pytest.raises(DataError, match="is a folder; name the file"):
        writer(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="cannot write"), writer(tmp_path / "toy.h5"):
        pass
    tmp_path.chmod(0o700)


def test_writer_must_be_open(tmp_path):
    with pytest.raises(ValueError, match="with StoreWriter"):
        writer(tmp_path / "toy.h5").append("train", "a", **data())
    with pytest.raises(ValueError, match="split 'a/b' is not a name"), writer(tmp_path / "t") as w:
        w.append("a/b", "a", **data())


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(DataError, match="/dev/null is a device or pipe, which is not replaced"):
        writer("/dev/null")


def test_a_file_that_is_hdf5_by_its_first_bytes_alone(tmp_path) -> None:
    path = tmp_path / "toy.h5"
    fill_users(path)
    content = bytearray(path.read_bytes())
    content[8:40] = b"\xff" * 32
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"toy\.h5: cannot be opened \(.*copy or prepare it again"):
        Store(path)
