"""Pickles: plain data of every protocol come through, whatever else is in one never runs."""

from __future__ import annotations

import collections
import copyreg
import datetime
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_bench.data.safe_pickle import load_builtin_pickle
from pfl_bench.types import DataError

PLAIN = {
    1: {"computation": 162.0, "communication": 5648.109619499134},
    "lists": [0, -1, 2**31, 2**100, 1.5e300, float("inf"), None, True, False],
    "tuples": ((), (1,), (1, 2, 3, 4)),
    "sets": [{1, 2}, frozenset({"a"}), set()],
    "text": "caf\u00e9 \u4f60",
    ("key", 2): 1 + 2j,
}


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


class Evil:
    """Runs a command where it is unpickled carelessly."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


class Plain:
    """A class of ours, harmless, and refused all the same."""


class WithReference(pickle.Pickler):
    """Writes references to objects elsewhere."""

    def persistent_id(self, value: object) -> object:
        return "elsewhere" if value == "x" else None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_come_through(protocol: int, tmp_path: Path) -> None:
    path = written(tmp_path / "plain", pickle.dumps(PLAIN, protocol=protocol))
    assert load_builtin_pickle(path) == PLAIN


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bytes_come_through(protocol: int, tmp_path: Path) -> None:
    path = written(tmp_path / "bytes", pickle.dumps([b"\x00\xff"], protocol=protocol))
    assert load_builtin_pickle(path) == [b"\x00\xff"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_never_runs(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps({"a": [1, Evil(mark)]}, protocol=protocol)
    with pytest.raises(DataError, match=r"asks for (posix|nt)\.system"):
        load_builtin_pickle(written(tmp_path / "evil", data))
    assert not mark.exists()
    # The same file does run where it is read in the ordinary way: the test can fail.
    pickle.loads(data)
    assert mark.exists()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Plain(), r"\.Plain"),
        (Plain, r"\.Plain"),
        (datetime.date(2022, 1, 1), r"datetime\.date"),
        (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (collections.Counter("aab"), r"collections\.Counter"),
        (np.float64(1.5), r"numpy\."),
        (np.arange(3), r"numpy\."),
        (print, r"builtin(s|__)\.print"),
        (eval, r"builtin(s|__)\.eval"),
        (getattr, r"builtin(s|__)\.getattr"),
        (int, r"builtin(s|__)\.(int|long)"),
        (range(3), r"builtin(s|__)\.x?range"),
        (bytearray(b"a"), r"builtin(s|__)\.bytearray"),
    ],
)
def test_anything_else_is_refused_by_name(value: object, name: str, tmp_path: Path) -> None:
    # Protocol 2 has no code of its own for any of them.
    path = written(tmp_path / "other", pickle.dumps([value], protocol=2))
    with pytest.raises(DataError, match=f"other: the pickle asks for .*{name}"):
        load_builtin_pickle(path)


def test_old_names_of_builtins_lead_nowhere_else(tmp_path: Path) -> None:
    for module, name in (("__builtin__", "eval"), ("exceptions", "Exception"), ("os", "system")):
        data = f"c{module}\n{name}\n(S'1'\ntR.".encode()
        with pytest.raises(DataError, match="asks for"):
            load_builtin_pickle(written(tmp_path / "old", data))


def test_dotted_names_lead_nowhere(tmp_path: Path) -> None:
    data = b"\x80\x04\x8c\x08builtins\x8c\x0dset.__class__\x93."
    with pytest.raises(DataError, match=r"builtins\.set\.__class__"):
        load_builtin_pickle(written(tmp_path / "dotted", data))


@pytest.mark.parametrize("protocol", [0, 4])
def test_references_elsewhere_are_refused(protocol: int, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    WithReference(buffer, protocol).dump(["x"])
    with pytest.raises(DataError, match="persistent reference 'elsewhere'"):
        load_builtin_pickle(written(tmp_path / "reference", buffer.getvalue()))


def test_extension_codes_are_refused(tmp_path: Path) -> None:
    code = 0x7FFFFF01
    data = b"\x80\x02\x84" + struct.pack("<i", code) + b")R."
    path = written(tmp_path / "extension", data)
    with pytest.raises(DataError, match="unregistered extension code"):
        load_builtin_pickle(path)
    copyreg.add_extension("collections", "OrderedDict", code)
    try:
        # Read in the ordinary way once, the class is kept by its number.
        assert pickle.loads(data) == collections.OrderedDict()
        with pytest.raises(DataError, match=r"collections\.OrderedDict"):
            load_builtin_pickle(path)
    finally:
        copyreg.remove_extension("collections", "OrderedDict", code)


@pytest.mark.parametrize("data", [b"", b"{}", b"\x80\x09.", b"\x80\x04}", b"(lp0\n", b"\x93."])
def test_damage_is_named(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="damaged: no pickle, or a damaged one"):
        load_builtin_pickle(written(tmp_path / "damaged", data))


def test_what_follows_the_end_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "two", pickle.dumps(1) + pickle.dumps(2))
    with pytest.raises(DataError, match="more behind the end"):
        load_builtin_pickle(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: cannot be read"):
        load_builtin_pickle(tmp_path / "absent")


def test_a_state_cannot_be_put_on_the_admitted_types(tmp_path: Path) -> None:
    # BUILD on the type itself: {"pop": ...} as its attributes.
    data = b"\x80\x02cbuiltins\nset\nN}X\x03\x00\x00\x00popK\x01s\x86b."
    with pytest.raises(DataError):
        load_builtin_pickle(written(tmp_path / "build", data))
    assert callable(set.pop)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60))
def test_no_bytes_make_another_error(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    # Memo indices and lengths beyond the file would take memory; they have tests of nobody.
    if any(code in data for code in (b"r", b"\x8d", b"\x8e", b"\x96", b"\x95", b"p")):
        return
    path = written(tmp_path_factory.getbasetemp() / "random", data)
    try:
        value = load_builtin_pickle(path)
    except DataError:
        return
    assert type(value).__module__ == "builtins"


def test_a_pickle_that_announces_an_exabyte(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pkl", b"\x80\x05\x8e" + struct.pack("<Q", 2**60) + b"x.")
    with pytest.raises(DataError, match=r"a\.pkl: .*more memory .* copy it again"):
        load_builtin_pickle(path)
