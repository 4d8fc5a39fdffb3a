"""Files that are no store, or are one no longer: each is refused by name."""

import os

import h5py
import numpy as np
import pytest

from pfl_bench.data import Store
from pfl_bench.data.columns import Descriptor, open_column
from pfl_bench.types import DataError
from tests.pfl_bench.data.store_samples import FIELDS, fill_users


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "toy.h5"
    fill_users(file)
    return file


def test_missing_foreign_and_unreadable_files(tmp_path):
    with pytest.raises(DataError, match=r"no such file.*data prepare"):
        Store(tmp_path / "none.h5")
    with pytest.raises(DataError, match="is a folder"):
        Store(tmp_path)
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(DataError, match="no regular file"):
        Store(tmp_path / "pipe.h5")
    fill_users(tmp_path / "linked.h5")
    with h5py.File(tmp_path / "linked.h5", "r+") as file:
        del file["train/inputs"]
        file["train/inputs"] = h5py.ExternalLink(str(tmp_path / "pipe.h5"), "/x")
    with pytest.raises(DataError, match="dataset 'inputs' is missing"):
        Store(tmp_path / "linked.h5")
    for content in (b"", b"\x89HDF", b"PK" + bytes(5000)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(DataError, match="not an HDF5 file"):
            Store(tmp_path / "other")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["examples/f0000_14/label"] = np.zeros(3, np.int32)
    with pytest.raises(DataError, match="not a store of this toolkit"):
        Store(tmp_path / "foreign.h5")


def test_cut_anywhere_is_refused(path):
    content = path.read_bytes()
    for size in [*range(0, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=str(path)):
            Store(path)


def test_cut_while_open(path):
    with Store(path) as store:
        split = store.split("train")
        os.truncate(path, 100)
        with pytest.raises(DataError, match=r"'inputs': cannot be read.*file ends"):
            split.read("inputs", 0, split.num_examples)


def test_data_past_the_end_of_the_file(path):
    with h5py.File(path) as file:
        group = file["train"]
        held = group["inputs"]  # keeps the metadata in HDF5's cache
        assert len(held) == 63
        descriptor = Descriptor(file)
        os.truncate(path, 1000)
        with pytest.raises(DataError, match=r"the file is cut: .* 1000"):
            open_column(group, "inputs", FIELDS["inputs"], 63, descriptor, "toy.h5")


def replace(name, **arguments):
    def change(file):
        del file[name]
        if arguments:
            file.create_dataset(name, **arguments)

    return change


def virtual(file):
    source = file["train/inputs"]
    layout = h5py.VirtualLayout(source.shape, source.dtype)
    layout[:] = h5py.VirtualSource(source)
    file.move("train/inputs", "train/elsewhere")
    file["train"].create_virtual_dataset("inputs", layout)


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def deep(name):
    """An attribute of 100,000 brackets, which only a variable length holds."""
    text = "[" * 100_000 + "]" * 100_000
    return lambda file: file.attrs.create(name, text, dtype=h5py.string_dtype())


BOUNDS = np.append(0, np.cumsum(np.tile([0, 1, 2], 21)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (attribute("layout_version", 2), r"layout version 2, .* reads version 1"),
        (attribute("layout_version", [1, 1]), r"layout version \[1 1\]"),
        (lambda file: file.attrs.__delitem__("layout_version"), "layout version None"),
        (attribute("format", 3), "not a store"),
        (lambda file: file.attrs.__delitem__("task"), "'task' is missing"),
        (attribute("extra", "{"), "'extra' is not JSON"),
        (attribute("counts", "[]"), "'counts' is not a JSON dict"),
        (attribute("counts", '{"test": 1}'), "no split 'train'"),
        (attribute("counts", '{"train": {"users": 1, "examples": 1}}'), "announces"),
        (attribute("fields", '{"inputs": {"dtype": "O", "shape": [], "ragged": false}}'), "'O'"),
        (attribute("fields", '{"inputs": 3}'), "'fields' is malformed"),
        (attribute("extra", '{"a": ' + "[" * 900 + "]" * 900 + "}"), "'extra' is not JSON .*deep"),
        (deep("extra"), "'extra' is not JSON .*deep"),
        (deep("names"), "'names' is missing or not JSON .*deep"),
        (attribute("num_classes", 0), "'num_classes'"),
        (attribute("num_classes", 10**9), "'num_classes' is .*1000000000"),
        (attribute("num_classes", 2**62), "'num_classes'"),
        (attribute("input_shape", "[-1]"), "'input_shape'"),
        (attribute("input_shape", "[1000000, 1000000]"), "'input_shape'"),
        (attribute("split_by", "x"), "'split_by'"),
        (attribute("input_shape", '["a"]'), "'input_shape'"),
        (replace("test"), "announces a split 'test' but has none"),
        (replace("test/offsets"), "'offsets' is missing"),
        (replace("test/offsets", data=[0]), "no users"),
        (replace("test/offsets", data=[0, 5, 5, 27]), "user 1 has 0 examples"),
        (replace("test/offsets", data=[1, 5, 27]), "offsets start at 1"),
        (replace("test/offsets", data=[0, 27]), "announces"),
        (replace("test/offsets", data=[0, 2**63 - 1, -2, 27]), "user 1 has -"),
        (replace("test/client_ids"), "'client_ids' is missing"),
        (replace("test/client_ids_offsets", data=[0, 27]), r"\(10,\) was announced"),
        (replace("test/client_ids", data=["u21"] * 9, dtype=h5py.string_dtype()), "only numbers"),
        (replace("train/targets", data=np.zeros(63, np.int64)), "dtype int64"),
        (replace("train/targets", data=np.zeros(62, np.uint8)), r"shape \(62,\)"),
        (replace("train/targets", data=["x"] * 63, dtype=h5py.string_dtype()), "only numbers"),
        (replace("train/inputs", shape=(63, 4), dtype="uint8"), "no data of its own"),
        (
            replace("train/inputs", shape=(63, 4), dtype="uint8", external=[("raw", 0, 252)]),
            "no data of its own",
        ),
        (virtual, "no data of its own"),
        (replace("train/tags", data=np.zeros(64, np.int32)), "items 0:63 belong"),
    ],
)
def test_damaged_stores_are_refused(path, change, words):
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=words) as error:
        Store(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("place", "value"), [(0, 1), (-1, 0)])
def test_items_that_belong_to_no_example(path, place, value):
    with h5py.File(path, "r+") as file:
        file["train/tags_offsets"][place] = value
    with pytest.raises(DataError, match=r"field 'tags': items \d+:\d+ belong to examples"):
        Store(path)


def test_damage_that_only_reading_can_see(path):
    with h5py.File(path, "r+") as file:
        file["train/tags_offsets"][5] = 40
        file["train/inputs"][0] = 99
    with Store(path) as store, pytest.raises(DataError, match="bounds of examples 3:8 are damaged"):
        store.split("train").read("tags", 3, 8)


@pytest.mark.parametrize(
    ("name", "index", "value", "words"),
    [
        ("client_ids", 4, 0xFF, r"client id b'u\\xff2' is not UTF-8"),
        ("client_ids", 5, ord("1"), "'u21' follows 'u21'; they ascend"),
        ("client_ids", 4, ord("1"), "'u12' follows 'u21'; they ascend"),
        ("client_ids_offsets", 0, 1, "do not divide"),
        ("client_ids_offsets", 3, 6, "do not divide"),
        ("client_ids_offsets", 3, -(2**63), "do not divide"),
        ("client_ids_offsets", slice(1, 3), [2**63 - 1, -2], "do not divide"),
        ("client_ids_offsets", 9, 26, "do not divide"),
        ("client_ids_offsets", 9, 2**63 - 1, "do not divide"),
    ],
)
def test_damaged_identifiers(path, name, index, value, words):
    with h5py.File(path, "r+") as file:
        file["test"][name][index] = value
    with Store(path) as store:
        with pytest.raises(DataError, match=words) as error:
            store.split("test").client_ids()
        assert f"{path}: split 'test'" in str(error.value)
        with pytest.raises(DataError, match="content has SHA-256"):
            store.verify()


def test_verify_sees_one_changed_value(path):
    with Store(path) as store:
        store.verify()
    with h5py.File(path, "r+") as file:
        file["train/inputs"][0, 0] = 99
    with Store(path) as store, pytest.raises(DataError, match="content has SHA-256"):
        store.verify()


def test_asking_for_what_is_not_there(path):
    with Store(path) as store:
        with pytest.raises(DataError, match=r"no split 'val'.*'train', 'test'"):
            store.split("val")
        split = store.split("train")
        with pytest.raises(ValueError, match=r"no field 'pixels'.*'inputs'"):
            split.read("pixels", 0, 1)
        for start, stop in ((-1, 2), (3, 2), (0, 64)):
            with pytest.raises(ValueError, match="not within 0:63"):
                split.read("inputs", start, stop)
    with pytest.raises(ValueError, match="store is closed"):
        split.read("inputs", 0, 1)
    with pytest.raises(ValueError, match="store is closed"):
        split.client_ids()


@pytest.mark.parametrize("name", ["offsets", "client_ids", "inputs", "tags_offsets"])
def test_a_header_that_declares_more_than_the_file_holds(path, name):
    """As a damaged or hostile header does: it must not be asked of the memory."""
    with h5py.File(path, "r+") as file:
        dataset = file["train"][name]
        dtype, shape = dataset.dtype, dataset.shape
        del file["train"][name]
        rows = 2**60 if len(shape) == 1 else shape[0]
        rest = (1024,) if len(shape) == 1 else (1, *shape[1:])
        created = file["train"].create_dataset(name, (rows, *shape[1:]), dtype, chunks=rest)
        created[: shape[0] - 1] = 1  # of the inputs, one chunk is not there
    with pytest.raises(DataError, match=rf"'{name}'.*damaged"):
        Store(path)


def test_compressed_columns_of_a_store_that_is_closed_or_was_damaged(path):
    with h5py.File(path, "r+") as file:
        whole = file["train/inputs"][:]
        del file["train/inputs"]
        made = file["train"].create_dataset("inputs", data=whole, chunks=True, compression="gzip")
        place = made.id.get_chunk_info(0).byte_offset
    with Store(path) as store:
        split = store.split("train")
        assert np.array_equal(split.read("inputs", 0, split.num_examples), whole)
    with pytest.raises(ValueError, match="store is closed"):
        split.read("inputs", 0, split.num_examples)
    with path.open("r+b") as damage:
        damage.seek(place)
        damage.write(bytes(20))
    with Store(path) as store, pytest.raises(DataError, match=r"'inputs': cannot be read.*again"):
        store.split("train").read("inputs", 0, split.num_examples)
