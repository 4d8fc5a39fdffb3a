"""The store: what is written is read, whatever the order of writing and the way of reading."""

import os
import pickle
import random
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.types import DataError
from tests.forking import fork
from tests.helpers import REPOSITORY

FIELDS = {
    "inputs": FieldSpec("uint8", (2, 3)),
    "weights": FieldSpec("float32"),
    "targets": FieldSpec("int16"),
    "tags": FieldSpec("int32", ragged=True),
}
CLIENTS = ("b", "a", "zoë", "a/b", "10", "9", "日本")


def writer(path: Path, split_by="example", **changes) -> StoreWriter:
    arguments = {
        "task": "toy",
        "variant": "toy-small",
        "source": "made by a test — ünïcode",
        "split_by": split_by,
        "num_classes": 10,
        "input_shape": (2, 3),
        "fields": FIELDS,
    }
    return StoreWriter(path, **{**arguments, **changes})


def piece(seed: int, count: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "inputs": rng.integers(0, 256, (count, 2, 3), dtype=np.uint8),
        "weights": rng.normal(size=count).astype(np.float32),
        "targets": rng.integers(0, 10, count),
        "tags": [rng.integers(-5, 5, rng.integers(0, 4), dtype=np.int32) for _ in range(count)],
    }


def write_pieces(path: Path, pieces) -> None:
    with writer(path) as store:
        for split, client_id, seed, count in pieces:
            store.append(split, client_id, **piece(seed, count))


def some_pieces():
    return [("train" if i < 10 else "test", CLIENTS[i % 7], 100 + i, 1 + i % 3) for i in range(18)]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "toy.h5"
    write_pieces(file, some_pieces())
    return file


def check_content(path: Path, pieces) -> None:
    with Store(path) as store:
        store.verify()
        for name in store.split_names:
            split = store.split(name)
            assert split.client_ids() == sorted({p[1] for p in pieces if p[0] == name})
            for user, client_id in enumerate(split.client_ids()):
                start, stop = split.offsets[user : user + 2].tolist()
                parts = [piece(p[2], p[3]) for p in pieces if p[:2] == (name, client_id)]
                for field, spec in FIELDS.items():
                    got = split.read(field, start, stop)
                    if spec.ragged:
                        expected = [item for part in parts for item in part[field]]
                        assert [item.tolist() for item in got] == [i.tolist() for i in expected]
                        assert {item.dtype for item in got} == {np.dtype(spec.dtype)}
                    else:
                        expected = np.concatenate([part[field] for part in parts])
                        np.testing.assert_array_equal(got, expected)
                        assert got.dtype == spec.dtype
                        assert got.flags.writeable


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from(["train", "val", "test"]),
            st.sampled_from(CLIENTS),
            st.integers(0, 10**6),
            st.integers(1, 4),
        ),
        max_size=25,
    )
)
def test_what_is_appended_is_read_back(pieces):
    # A test split that repeats train is refused: so one seed is never the same in both.
    pieces = [(s, client, seed + 1000 * (s == "test"), n) for s, client, seed, n in pieces]
    pieces = [("train", "first", 1, 2), *pieces, ("test", "last", 2, 2)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.h5"
        write_pieces(path, pieces)
        check_content(path, pieces)
        assert os.listdir(folder) == ["toy.h5"]


def test_order_of_users_changes_nothing(tmp_path):
    pieces = [
        (split, client, i, 2) for split in ("train", "test") for i, client in enumerate("dacb")
    ]
    pieces = [(s, c, seed + 10 * (s == "test"), n) for s, c, seed, n in pieces]
    write_pieces(tmp_path / "1.h5", pieces)
    random.Random(0).shuffle(pieces)
    write_pieces(tmp_path / "2.h5", pieces)
    with Store(tmp_path / "1.h5") as one, Store(tmp_path / "2.h5") as two:
        assert one.facts == two.facts
        assert one.split_names == two.split_names == ("train", "test")


def test_checksum_sees_values_owners_and_names(tmp_path):
    def checksum(*pieces):
        write_pieces(tmp_path / "c.h5", pieces)
        with Store(tmp_path / "c.h5") as store:
            return store.facts.checksum

    base = checksum(("train", "a", 1, 2), ("train", "b", 2, 2))
    assert base == checksum(("train", "a", 1, 2), ("train", "b", 2, 2))
    assert base != checksum(("train", "a", 1, 2), ("train", "b", 3, 2))
    assert base != checksum(("train", "a", 1, 2), ("train", "c", 2, 2))
    assert base != checksum(("train", "a", 1, 2), ("train", "a", 2, 2))
    assert base != checksum(("train", "a", 1, 2), ("val", "b", 2, 2))


def test_facts_and_attributes(tmp_path):
    with writer(tmp_path / "f.h5", extra={"files": ["x"]}) as store:
        store.append("train", "a", **piece(0, 3))
        store.append("extra", "b", **piece(1, 1))
        store.set_extra("rounding", 0.5)
        store.set_extra("long", "é" * 100_000)
    with Store(tmp_path / "f.h5") as store:
        assert store.path == tmp_path / "f.h5"
        assert store.task == "toy"
        assert store.facts.source == "made by a test — ünïcode"
        assert store.facts.variant == "toy-small"
        assert store.facts.num_classes == 10
        assert store.facts.input_shape == (2, 3)
        assert store.facts.split_by == "example"
        assert store.facts.checksum.startswith("sha256:")
        assert store.facts.extra == {"files": ["x"], "rounding": 0.5, "long": "é" * 100_000}
        assert store.split_names == ("train", "extra")
        assert store.attributes["counts"]["train"] == {"users": 1, "examples": 3}
        assert store.split("train").offsets.dtype == np.int64


def test_layout_is_contiguous_datasets_a_split(path):
    with h5py.File(path) as file:
        assert set(file) == {"train", "test"}
        offsets = {"offsets", "client_ids_offsets", "tags_offsets"}
        assert set(file["train"]) == {"client_ids", *FIELDS, *offsets}
        assert all(file["train"][name].chunks is None for name in file["train"])
        assert all(file["train"][name].dtype == np.int64 for name in offsets)
        assert file["train/client_ids"].dtype == np.uint8
        assert bytes(file["train/client_ids"][:]).decode() == "".join(sorted(CLIENTS))
        lengths = [len(client_id.encode()) for client_id in sorted(CLIENTS)]
        assert np.diff(file["train/client_ids_offsets"]).tolist() == lengths


def test_lossless_values_of_other_dtypes_are_taken(tmp_path):
    values = {"inputs": np.zeros((2, 2, 3), np.int64), "weights": [1, 2], "targets": [0, 9]}
    with writer(tmp_path / "l.h5") as store:
        store.append("train", "a", **values, tags=[[], [1, 2]])
        store.append("train", "a", **{**values, "weights": np.array([np.nan, 0.5])}, tags=[[3], []])
    with Store(tmp_path / "l.h5") as store:
        split = store.split("train")
        np.testing.assert_array_equal(split.read("weights", 0, 4), [1, 2, np.nan, 0.5])
        assert [tag.tolist() for tag in split.read("tags", 0, 4)] == [[], [1, 2], [3], []]


def test_ragged_field_without_any_item(tmp_path):
    with writer(tmp_path / "r.h5") as store:
        store.append("train", "a", **{**piece(0, 2), "tags": [[], []]})
    with Store(tmp_path / "r.h5") as store:
        store.verify()
        assert [tag.size for tag in store.split("train").read("tags", 0, 2)] == [0, 0]
        assert store.split("train").read("tags", 1, 1) == []


def test_reading_through_hdf5_gives_the_same(path, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    check_content(path, some_pieces())


def test_what_one_call_does_not_read_the_next_ones_do(path, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda file, parts, position: read(file, [parts[0][:3]], position)
    )
    check_content(path, some_pieces())


def test_chunked_and_big_endian_datasets_are_read(path):
    with h5py.File(path, "r+") as file:
        values = file["train/inputs"][:]
        del file["train/inputs"]
        file["train"].create_dataset("inputs", data=values, chunks=(2, 2, 3), compression="gzip")
        weights = file["train/weights"][:]
        del file["train/weights"]
        file["train"].create_dataset("weights", data=weights, dtype=">f4")
    check_content(path, some_pieces())


def test_a_range_reads_over_users_and_is_fresh(path):
    with Store(path) as store:
        split = store.split("train")
        whole = split.read("inputs", 0, split.num_examples)
        assert whole.shape == (split.num_examples, 2, 3)
        assert split.read("inputs", 3, 3).shape == (0, 2, 3)
        np.testing.assert_array_equal(split.read("inputs", 2, 5), whole[2:5])
        first = split.read("inputs", 0, 1)
        first[:] = ~first
        np.testing.assert_array_equal(split.read("inputs", 0, 1), whole[:1])


def test_store_and_splits_survive_pickling_threads_and_fork(path):
    with Store(path) as store:
        split = store.split("train")
        expected = split.read("inputs", 0, split.num_examples)
        other = pickle.loads(pickle.dumps(split))
        np.testing.assert_array_equal(other.read("inputs", 0, other.num_examples), expected)
        with pickle.loads(pickle.dumps(store)) as again:
            assert again.facts == store.facts
        ranges = [(i % 8, i % 8 + 2) for i in range(400)]
        with ThreadPoolExecutor(4) as pool:
            for (start, stop), got in zip(
                ranges, pool.map(lambda r: split.read("inputs", *r), ranges), strict=True
            ):
                np.testing.assert_array_equal(got, expected[start:stop])
        if hasattr(os, "fork"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads, idle here
                child = fork()
            if child == 0:
                same = np.array_equal(split.read("inputs", 0, split.num_examples), expected)
                os._exit(0 if same else 1)
            assert os.waitpid(child, 0)[1] == 0


def test_unpickling_another_content_is_refused(path):
    with Store(path) as store:
        pickled = pickle.dumps(store)
    write_pieces(path, [("train", "a", 5, 2)])
    with pytest.raises(DataError, match="another content"):
        pickle.loads(pickled)


def test_an_open_store_does_not_see_its_replacement(path):
    with Store(path) as store:
        before = store.split("train").read("inputs", 0, 5)
        write_pieces(path, [("train", "a", 5, 9)])
        np.testing.assert_array_equal(store.split("train").read("inputs", 0, 5), before)


MEMORY_SCRIPT = """
import sys
import numpy as np
from pfl_bench.data import FieldSpec, Store, StoreWriter

def peak_mb():
    return next(int(l.split()[1]) / 1e3 for l in open("/proc/self/status") if l[:5] == "VmHWM")

x, y = np.full((50, 28, 28), 7, np.uint8), np.zeros(50, int)
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of importing
before = peak_mb()
with StoreWriter(sys.argv[1], task="t", variant="v", source="s", split_by="user", num_classes=10,
                 input_shape=(28, 28), fields={"inputs": FieldSpec("uint8", (28, 28)),
                 "targets": FieldSpec("uint8")}) as writer:
    for i in np.random.default_rng(0).permutation(5200):
        writer.append("train", f"u{i:05d}", inputs=x, targets=y)
written = peak_mb()
with Store(sys.argv[1]) as store:
    split = store.split("train")
    for user in range(split.num_users):
        split.read("inputs", *split.offsets[user : user + 2].tolist())
    store.verify()
print(split.num_examples * 785 / 1e6, written - before, peak_mb() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_data(tmp_path):
    output = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path / "big.h5")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    data, written, read = map(float, output.split())
    assert data > 200
    assert written < 64
    assert read < 64
