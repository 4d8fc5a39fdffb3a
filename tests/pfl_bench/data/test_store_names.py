"""Lists of names in a store: written, read, digested, damaged, refused."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tests.pfl_bench.data.store_samples import data, fill, writer

WORDS = ["<PAD>", "<UNK>", "caf\u00e9", "\u4e2d\u6587", "a b", "\U0001f600", "x" * 500]


def store_with(path, **lists):
    with writer(path) as store:
        store.append("train", "a", **data())
        for name, values in lists.items():
            store.set_names(name, values)
    return path


def checksum(path):
    with Store(path) as store:
        store.verify()
        return store.facts.checksum


def test_names_are_read_back_in_their_order(tmp_path):
    path = store_with(tmp_path / "s.h5", vocabulary=WORDS, play=("Hamlet", "Lear"), none=[])
    with Store(path) as store:
        assert store.name_lists == ("none", "play", "vocabulary")
        assert store.names("vocabulary") == WORDS
        assert store.names("play") == ["Hamlet", "Lear"]
        assert store.names("none") == []
        assert store.split_names == ("train",)
        store.verify()
        with pytest.raises(DataError, match=r"no names 'role'; .*\['none', 'play', 'vocabulary'\]"):
            store.names("role")
    with pytest.raises(ValueError, match="closed"):
        store.names("play")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True))
def test_any_text_survives(tmp_path_factory, values):
    path = store_with(tmp_path_factory.mktemp("names") / "s.h5", words=values)
    with Store(path) as store:
        assert store.names("words") == values


def test_more_names_than_an_attribute_holds(tmp_path):
    values = [f"token-{number}" for number in range(70_000)]
    path = store_with(tmp_path / "s.h5", vocabulary=values)
    with Store(path) as store:
        assert store.names("vocabulary") == values


def test_a_store_without_names_is_what_it_always_was(tmp_path):
    path = store_with(tmp_path / "s.h5")
    # Computed before stores had names; a change of it is a change of the format.
    assert checksum(path) == (
        "sha256:dcba2d979f1951709f497f87949378ae59cf34a6c760f291b5fffd1d41f79779"
    )
    with Store(path) as store:
        assert store.name_lists == ()
    with h5py.File(path) as file:
        assert "names" not in file
        assert "names" not in file.attrs


def test_names_are_content(tmp_path):
    found = [
        checksum(store_with(tmp_path / "s.h5", **lists))
        for lists in (
            {},
            {"a": ["x", "y"]},
            {"a": ["y", "x"]},
            {"a": ["xy"]},
            {"b": ["x", "y"]},
            {"a": ["x", "y"], "b": []},
        )
    ]
    assert len(set(found)) == len(found)
    again = checksum(store_with(tmp_path / "s.h5", b=[], a=["x", "y"]))
    assert again == found[-1]  # whatever order they were set in


def test_a_later_list_of_that_name_replaces_the_earlier(tmp_path):
    with writer(tmp_path / "s.h5") as store:
        store.append("train", "a", **data())
        store.set_names("play", ["Hamlet"])
        store.set_names("play", ["Lear"])
    with Store(tmp_path / "s.h5") as store:
        assert store.names("play") == ["Lear"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", "b", "a"], "'a' is name 0 and name 2"),
        (["a", ""], "name 1 is ''"),
        (["a", 3], "name 1 is 3"),
        (["a", b"b"], "name 1 is b'b'"),
        (["a", "\ud800"], "name 1.*not valid Unicode"),
    ],
)
def test_names_that_cannot_stand_for_numbers_are_refused(tmp_path, values, words):
    with (
        pytest.raises(DataError, match=rf"s\.h5: names 'play': .*{words}"),
        writer(tmp_path / "s.h5") as store,
    ):
        store.set_names("play", values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "1st", "a/b", "play_offsets", "\u00e9", None])
def test_malformed_names_of_lists_are_refused(tmp_path, name):
    with writer(tmp_path / "s.h5") as store:
        with pytest.raises(ValueError, match="list of names"):
            store.set_names(name, ["a"])
        store.append("train", "a", **data())


def test_a_split_cannot_be_called_names(tmp_path):
    with pytest.raises(ValueError, match="split 'names'"):
        fill(tmp_path / "s.h5", ("names", "a", data()))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("names/play_offsets", 1), 0, "do not divide the names"),
        (("names/play_offsets", 2), -1, "do not divide the names"),
        (("names/play_offsets", 2), 2**62, "do not divide the names"),
        (("names/play_offsets", 0), 1, "do not divide the names"),
        (("names/play", 0), 0xFF, "not UTF-8"),
        (("names/play", 1), ord("a"), "comes twice"),
    ],
)
def test_damaged_names_are_refused_and_found(tmp_path, place, value, words):
    path = store_with(tmp_path / "s.h5", play=["a", "b", "c"])
    with h5py.File(path, "r+") as file:
        file[place[0]][place[1]] = value
    with Store(path) as store:
        with pytest.raises(DataError, match=rf"s\.h5: names 'play': .*{words}"):
            store.names("play")
        with pytest.raises(DataError, match="damaged"):
            store.verify()


def test_a_changed_name_is_found_by_the_digest(tmp_path):
    path = store_with(tmp_path / "s.h5", play=["a", "b"])
    with h5py.File(path, "r+") as file:
        file["names/play"][1] = ord("c")
    with Store(path) as store:
        assert store.names("play") == ["a", "c"]
        with pytest.raises(DataError, match="SHA-256"):
            store.verify()


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        (None, "attribute 'names' is missing"),
        ("{", "not JSON"),
        ("[1]", "group 'names'"),
        ('{"play": 4}', "shape"),
        ('{"play": -1}', "announces -1 names"),
        ('{"play": "2"}', "announces '2' names"),
        ('{"a/b": 2}', "a/b"),
        ('{"role": 2}', "'role' is missing"),
    ],
)
def test_damaged_announcements_of_names_are_refused(tmp_path, attribute, words):
    path = store_with(tmp_path / "s.h5", play=["a", "b"])
    with h5py.File(path, "r+") as file:
        del file.attrs["names"]
        if attribute is not None:
            file.attrs["names"] = np.bytes_(attribute)
    with pytest.raises(DataError, match=rf"s\.h5.*{words}"):
        Store(path)


def test_names_that_were_cut_out_of_the_file_are_missed(tmp_path):
    path = store_with(tmp_path / "s.h5", play=["a", "b"])
    with h5py.File(path, "r+") as file:
        del file["names"]
    with pytest.raises(DataError, match="group 'names' is missing"):
        Store(path)
