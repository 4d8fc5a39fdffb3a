"""What HDF5 lays out in memory is, with the arrays put in, a file that HDF5 reads."""

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_bench.data.assembly import _Recorder, make_structure

DTYPES = ("u1", "?", "<i8", "<f4")


@settings(max_examples=50, deadline=None)
@given(
    datasets=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(DTYPES), st.integers(0, 3000)), max_size=20
    ),
    # NumPy takes zeros at the end of a text for padding.
    text=st.text(max_size=50).map(lambda text: text.rstrip("\0")),
    repeats=st.sampled_from([0, 1, 20, 3000]),
)
def test_a_file_put_together_by_hand(datasets, text, repeats):
    attributes = {"text": text * repeats, "number": 7}
    named = [(f"{group}/{i}", np.dtype(d), (n, 2)) for i, (group, d, n) in enumerate(datasets)]
    structure = make_structure(named, attributes)
    assert structure == make_structure(named, attributes)
    file = bytearray(structure.size)
    taken = np.zeros(structure.size, dtype=bool)
    for index, ((_, dtype, shape), start) in enumerate(
        zip(named, structure.positions, strict=True)
    ):
        data = np.full(shape, index, dtype).tobytes()
        assert not taken[start : start + len(data)].any()
        taken[start : start + len(data)] = True
        file[start : start + len(data)] = data
    for start, piece in structure.pieces:
        assert not taken[start : start + len(piece)].any()
        file[start : start + len(piece)] = piece
    recorder = _Recorder()
    recorder.write(bytes(file[: len(file) // 2]))
    recorder.write(bytes(file[len(file) // 2 :]))
    with h5py.File(recorder) as opened:
        assert opened.attrs["number"] == 7
        assert opened.attrs["text"] == (text * repeats).encode()
        for index, (name, dtype, shape) in enumerate(named):
            np.testing.assert_array_equal(opened[name][:], np.full(shape, index, dtype))


def test_a_huge_file_costs_no_memory():
    structure = make_structure([("train/x", np.dtype("u1"), (10**13, 1000))], {})
    assert structure.size > 10**16
    assert sum(len(piece) for _, piece in structure.pieces) < 10_000


def test_text_of_the_same_length_keeps_the_layout():
    datasets = [("train/x", np.dtype("<i8"), (1000,)), ("test/x", np.dtype("<i8"), (10,))]
    one, two = (make_structure(datasets, {"digest": digit * 64}) for digit in "ab")
    assert (one.positions, one.size) == (two.positions, two.size)
    assert one != two
