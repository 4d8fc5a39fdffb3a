"""What the store refuses, and that a refusal leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from pfl_bench.store import FieldSpec, Store, StoreWriter
from pfl_bench.store_columns import Descriptor, open_column
from pfl_bench.types import DataError

REPOSITORY = Path(__file__).resolve().parents[2]
FIELDS = {
    "inputs": FieldSpec("uint8", (4,)),
    "targets": FieldSpec("uint8"),
    "tags": FieldSpec("int32", ragged=True),
}


def writer(path, split_by="user", **changes):
    arguments = {
        "task": "toy",
        "variant": "v",
        "source": "s",
        "split_by": split_by,
        "num_classes": 3,
        "input_shape": (4,),
        "fields": FIELDS,
    }
    return StoreWriter(path, **{**arguments, **changes})


def data(count=2, value=1, **changes):
    arrays = {
        "inputs": np.full((count, 4), value, np.uint8),
        "targets": np.arange(count) % 3,
        "tags": [[value] * index for index in range(count)],
    }
    return {**arrays, **changes}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "toy.h5"
    with writer(file) as store:
        for user in range(30):
            store.append("test" if user > 20 else "train", f"u{user:02d}", **data(3, user))
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
    with pytest.raises(DataError) as error, writer(path) as store:
        store.append("train", "fine", **data())
        store.append(split, client, **arrays)
    for word in [str(path), repr(split), repr(client), *words]:
        assert word in message(error)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["toy.h5"]


def test_values_that_wrap_round_are_seen(tmp_path):
    fields = {"big": FieldSpec("int64"), "exact": FieldSpec("float32")}
    with writer(tmp_path / "w.h5", fields=fields) as store:
        with pytest.raises(DataError, match="18446744073709551615"):
            store.append("train", "a", big=np.array([2**64 - 1], np.uint64), exact=[1])
        with pytest.raises(DataError, match="0.1"):
            store.append("train", "a", big=[1], exact=[0.1])
        with pytest.raises(DataError, match=str(2**24 + 1)):
            store.append("train", "a", big=[1], exact=[2**24 + 1])
        store.append("train", "a", big=[-(2**63)], exact=[np.inf])


def test_a_user_in_two_splits_is_named_with_both(tmp_path):
    with pytest.raises(DataError) as error, writer(tmp_path / "toy.h5") as store:
        store.append("train", "ann", **data())
        store.append("val", "bob", **data())
        store.append("test", "ann", **data())
    assert all(word in message(error) for word in ("'ann'", "'train'", "'test'", "'example'"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("splits", [(), ("test",)])
def test_a_store_needs_training_clients(tmp_path, splits):
    with pytest.raises(DataError, match="no client was put in split 'train'"):
        with writer(tmp_path / "toy.h5") as store:
            for split in splits:
                store.append(split, "a", **data())
    assert os.listdir(tmp_path) == []


def fill_shared(path, test_of_b):
    with writer(path, "example") as store:
        store.append("train", "a", **data(2, 1))
        store.append("train", "a", **data(1, 2))
        store.append("train", "b", **data(2, 3))
        store.append("train", "only-train", **data(2, 3))
        store.append("test", "a", **data(1, 2))
        store.append("test", "a", **data(2, 1))
        store.append("test", "b", **test_of_b)


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interruption_leaves_the_old_file(path, error):
    before = path.read_bytes()
    with pytest.raises(error), writer(path) as store:
        store.append("train", "a", **data())
        assert len(os.listdir(path.parent)) == 2
        raise error
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["toy.h5"]


def test_an_append_broken_off_midway_cannot_be_finished(tmp_path):
    class Interrupting:
        def __array__(self, dtype=None, copy=None):
            return np.zeros((1, 4), np.uint8)

    with pytest.raises(DataError, match="interrupted"), writer(tmp_path / "toy.h5") as store:
        store.append("train", "a", **data())
        spool = store._spools["train"]
        with pytest.raises(KeyError):
            spool.append("a", 1, {"inputs": np.zeros((1, 4), np.uint8)})
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


FULL_DISK_SCRIPT = """
import resource, signal, sys
import numpy as np
from pfl_bench.store import FieldSpec, StoreWriter
from pfl_bench.types import DataError

limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
row = np.zeros((40, 1000), np.uint8)
fields = {"a": FieldSpec("uint8", (1000,)), "b": FieldSpec("uint8", (1000,))}
phase = "append"
try:
    with StoreWriter(sys.argv[1], task="t", variant="v", source="s", split_by="user",
                     num_classes=1, input_shape=(1,), fields=fields) as writer:
        for user in range(100):
            writer.append("train", str(user), a=row, b=row)
        phase = "finalise"
except DataError as error:
    print(phase, error)
"""


def run_full_disk(file, limit):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL_DISK_SCRIPT, str(file), str(limit)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on file sizes")
@pytest.mark.parametrize(("limit", "phase"), [(1_000_000, "append"), (6_000_000, "finalise")])
def test_file_that_cannot_grow(tmp_path, limit, phase):
    (tmp_path / ".toy.h5.partial-1-x").mkdir()
    output = run_full_disk(tmp_path / "toy.h5", limit)
    assert output.startswith(phase)
    assert "File too large" in output
    assert "Free space" in output
    assert "Killed runs left" in output
    assert os.listdir(tmp_path) == [".toy.h5.partial-1-x"]


@pytest.mark.parametrize(("size", "phase"), [("4m", "append"), ("12m", "finalise")])
def test_full_disk(tmp_path, size, phase):
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system needs root")
    try:
        output = run_full_disk(tmp_path / "toy.h5", 0)
        assert output.startswith(phase)
        assert "[Errno 28]" in output
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_missing_foreign_and_unreadable_files(tmp_path):
    with pytest.raises(DataError, match=r"no such file.*data prepare"):
        Store(tmp_path / "none.h5")
    with pytest.raises(DataError, match="is a folder"):
        Store(tmp_path)
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


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


BOUNDS = np.append(0, np.cumsum(np.tile([0, 1, 2], 21)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (attribute("layout_version", 2), r"layout version 2, .* reads version 1"),
        (lambda file: file.attrs.__delitem__("layout_version"), "layout version None"),
        (attribute("format", 3), "not a store"),
        (lambda file: file.attrs.__delitem__("task"), "'task' is missing"),
        (attribute("extra", "{"), "'extra' is not JSON"),
        (attribute("counts", "[]"), "'counts' is not a JSON dict"),
        (attribute("counts", '{"test": 1}'), "no split 'train'"),
        (attribute("counts", '{"train": {"users": 1, "examples": 1}}'), "announces"),
        (attribute("fields", '{"inputs": {"dtype": "O", "shape": [], "ragged": false}}'), "'O'"),
        (attribute("fields", '{"inputs": 3}'), "'fields' is malformed"),
        (attribute("num_classes", 0), "'num_classes'"),
        (attribute("split_by", "x"), "'split_by'"),
        (attribute("input_shape", '["a"]'), "'input_shape'"),
        (replace("test"), "announces a split 'test' but has none"),
        (replace("test/offsets"), "'offsets' is missing"),
        (replace("test/offsets", data=[0]), "no users"),
        (replace("test/offsets", data=[0, 5, 5, 27]), "user 1 has 0 examples"),
        (replace("test/offsets", data=[1, 5, 27]), "offsets start at 1"),
        (replace("test/offsets", data=[0, 27]), "announces"),
        (replace("train/targets", data=np.zeros(63, np.int64)), "dtype int64"),
        (replace("train/targets", data=np.zeros(62, np.uint8)), r"shape \(62,\)"),
        (replace("train/targets", data=["x"] * 63, dtype=h5py.string_dtype()), "only numbers"),
        (replace("train/inputs", shape=(63, 4), dtype="uint8"), "no data of its own"),
        (replace("train/tags", data=np.zeros(64, np.int32)), "items 0:63 belong"),
    ],
)
def test_damaged_stores_are_refused(path, change, words):
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=words) as error:
        Store(path)
    assert str(path) in message(error)


def test_damage_that_only_reading_can_see(path):
    with h5py.File(path, "r+") as file:
        file["train/tags_offsets"][5] = 40
        file["train/inputs"][0] = 99
        del file["test/client_ids"]
    with Store(path) as store:
        with pytest.raises(DataError, match=r"bounds of examples 3:8 are damaged"):
            store.split("train").read("tags", 3, 8)
        with pytest.raises(DataError, match="client_ids are missing"):
            store.split("test").client_ids()


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
