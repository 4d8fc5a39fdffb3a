"""Columns and lists of names in the statistics of a store."""

import json

import h5py
import numpy as np
import pytest

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.report.statistics import format_statistics
from pfl_bench.report.statistics import store as store_module
from pfl_bench.types import DataError
from tests.pfl_bench.report.test_stats import statistics_of

FIELDS = {
    "inputs": FieldSpec("uint8", (1,)),
    "targets": FieldSpec("uint8"),
    "play": FieldSpec("uint16"),
    "smiling": FieldSpec("bool"),
    "tone": FieldSpec("int8"),
    "time": FieldSpec("int64"),
    "weight": FieldSpec("float32"),
}


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "s.h5"
    with StoreWriter(
        target,
        task="toy",
        variant="v",
        source="s",
        split_by="example",
        num_classes=2,
        input_shape=(1,),
        fields=FIELDS,
    ) as writer:
        for split, plays in (("train", [2, 2, 0]), ("test", [2])):
            count = len(plays)
            writer.append(
                split,
                "a",
                inputs=np.zeros((count, 1), np.uint8),
                targets=np.zeros(count, np.uint8),
                play=plays,
                smiling=np.arange(count) > 0,
                tone=np.arange(count) - 2,
                time=np.arange(count) + 10**12,
                weight=np.ones(count, np.float32),
            )
        writer.set_names("play", ["Hamlet", "Lear", "Macbeth"])
        writer.set_names("vocabulary", [f"word-{number}" for number in range(1234)])
    return target


@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_values_are_counted_by_split(path, monkeypatch, block):
    monkeypatch.setattr(store_module, "_BLOCK_EXAMPLES", block)
    result = statistics_of(path)
    assert json.loads(json.dumps(result)) == result
    assert result["name_lists"] == {"play": 3, "vocabulary": 1234}
    assert result["columns"] == {
        "play": {
            "named": 3,
            "splits": {
                "train": {"distinct": 2, "counts": {"Hamlet": 1, "Macbeth": 2}},
                "test": {"distinct": 1, "counts": {"Macbeth": 1}},
            },
        },
        "smiling": {
            "named": None,
            "splits": {
                "train": {"distinct": 2, "counts": {"0": 1, "1": 2}},
                "test": {"distinct": 1, "counts": {"0": 1}},
            },
        },
        "tone": {
            "named": None,
            "splits": {
                "train": {"distinct": 3, "counts": {"-2": 1, "-1": 1, "0": 1}},
                "test": {"distinct": 1, "counts": {"-2": 1}},
            },
        },
    }


def test_a_signed_column_may_have_names(tmp_path):
    described = {"task": "toy", "variant": "v", "source": "s", "split_by": "example"}
    described |= {"num_classes": 2, "input_shape": (1,)}
    fields = {"inputs": FIELDS["inputs"], "targets": FIELDS["targets"], "tone": FIELDS["tone"]}
    with StoreWriter(tmp_path / "s.h5", fields=fields, **described) as writer:
        writer.set_names("tone", ["low", "high"])
        zeros = np.zeros(3, np.uint8)
        writer.append("train", "a", inputs=zeros[:, None], targets=zeros, tone=[0, 1, 1])
    (counts,) = statistics_of(tmp_path / "s.h5")["columns"]["tone"]["splits"].values()
    assert counts == {"distinct": 2, "counts": {"low": 1, "high": 2}}


def test_columns_are_printed(path):
    lines = format_statistics(statistics_of(path)).split("\n")
    rows = [line.split() for line in lines]
    assert ["play", "3", "2", "1", "Macbeth:3", "Hamlet:1"] in rows
    assert ["tone", "-", "3", "1", "-2:2", "-1:1", "0:1"] in rows
    assert lines[-1] == "vocabulary: 1,234 names"


def test_a_number_without_a_name_is_refused(path):
    with h5py.File(path, "r+") as file:
        file["train/play"][1] = 3
    with pytest.raises(DataError, match=r"play 0 to 3 are not all within its 3 names"):
        statistics_of(path)


def test_a_mean_that_rounds_to_zero_has_no_sign(path):
    result = statistics_of(path)
    result["splits"]["train"]["labels"]["mean_total_variation"] = -1e-12
    assert "-0.000" not in format_statistics(result)
