"""Statistics of a store, against direct computation."""

import json

import h5py
import numpy as np
import pytest
from scipy.stats import skew

from pfl_bench.data import FieldSpec, Store, StoreWriter
from pfl_bench.report.statistics import format_statistics, store_statistics
from pfl_bench.report.statistics import store as store_module
from pfl_bench.types import DataError

BYTE = FieldSpec("uint8")


def write(path, splits, targets=BYTE, num_classes=10, split_by="user", extra=None):
    """Write a store of {split: [labels of a user, ...]}; inputs are zeros."""
    with StoreWriter(
        path,
        task="toy",
        variant="toy-small",
        source="made by a test",
        split_by=split_by,
        num_classes=num_classes,
        input_shape=(1,),
        fields={"inputs": FieldSpec("uint8", (1,)), "targets": targets},
        extra=extra,
    ) as writer:
        for split, users in splits.items():
            prefix = split if split_by == "user" else "both"
            for user, labels in enumerate(users):
                inputs = np.zeros((len(labels), 1), np.uint8)
                writer.append(split, f"{prefix}-{user:05d}", inputs=inputs, targets=labels)


def statistics_of(path):
    with Store(path) as store:
        return store_statistics(store)


def label_statistics(users, num_classes):
    """Mean distinct labels and mean total-variation distance, by the definitions."""
    users = [np.asarray(user).reshape(-1) for user in users]
    pooled = np.bincount(np.concatenate(users), minlength=num_classes)
    share = pooled / pooled.sum()
    own = [np.bincount(user, minlength=num_classes) / len(user) for user in users]
    variation = [0.5 * np.abs(shares - share).sum() for shares in own]
    return np.mean([len(set(user.tolist())) for user in users]), np.mean(variation)


@pytest.mark.parametrize("block", [1, 7, 1 << 17])
def test_against_direct_computation(tmp_path, monkeypatch, block):
    monkeypatch.setattr(store_module, "_BLOCK_EXAMPLES", block)
    rng = np.random.default_rng(0)
    users = [rng.integers(0, rng.integers(1, 11), rng.integers(1, 30)) for _ in range(50)]
    write(tmp_path / "s.h5", {"train": users, "test": [[1, 1]]})
    result = statistics_of(tmp_path / "s.h5")
    assert json.loads(json.dumps(result)) == result
    sizes = np.array([len(user) for user in users])
    train = result["splits"]["train"]
    assert (train["users"], train["examples"]) == (50, sizes.sum())
    per_user = train["examples_per_user"]
    assert per_user["mean"] == pytest.approx(sizes.mean())
    assert per_user["sd"] == pytest.approx(sizes.std(ddof=0))
    assert (per_user["min"], per_user["max"]) == (sizes.min(), sizes.max())
    assert per_user["skewness"] == pytest.approx(skew(sizes))
    for rank in (10, 25, 50, 75, 90):
        assert per_user["percentiles"][str(rank)] == pytest.approx(np.percentile(sizes, rank))
    distinct, variation = label_statistics(users, 10)
    labels = train["labels"]
    assert labels["mean_distinct_per_user"] == pytest.approx(distinct)
    assert labels["mean_total_variation"] == pytest.approx(variation)
    values, counts = np.unique(np.concatenate(users), return_counts=True)
    assert labels["counts"] == {str(v): c for v, c in zip(values, counts, strict=True)}
    for value in values:
        having = np.mean([value in user for user in users])
        assert labels["share_of_users"][str(value)] == pytest.approx(having)
    # One user more, who has one class: all splits together are not any one of them.
    together = result["all_splits"]
    assert (together["users"], together["examples"]) == (51, sizes.sum() + 2)
    distinct, variation = label_statistics([*users, [1, 1]], 10)
    assert together["labels"]["mean_distinct_per_user"] == pytest.approx(distinct)
    assert together["labels"]["mean_total_variation"] == pytest.approx(variation)
    assert result["facts"]["variant"] == "toy-small"
    assert result["facts"]["input_shape"] == [1]


def test_label_skew_has_its_known_extremes(tmp_path):
    # Alike users: distance 0. k users with a label each of their own: 1 - 1/k.
    write(tmp_path / "s.h5", {"train": [[0, 1]] * 4, "test": [[0], [1], [2], [3]]})
    splits = statistics_of(tmp_path / "s.h5")["splits"]
    assert splits["train"]["labels"]["mean_total_variation"] == pytest.approx(0, abs=1e-12)
    assert splits["test"]["labels"]["mean_total_variation"] == pytest.approx(3 / 4)
    assert splits["train"]["examples_per_user"]["skewness"] is None
    assert splits["train"]["examples_per_user"]["sd"] == 0


def test_targets_of_a_shape_count_every_element(tmp_path):
    users = [np.array([[0, 1, 1], [2, 2, 2]]), np.array([[0, 0, 5]])]
    write(tmp_path / "s.h5", {"train": users}, FieldSpec("int32", (3,)))
    labels = statistics_of(tmp_path / "s.h5")["splits"]["train"]["labels"]
    assert labels["counts"] == {"0": 3, "1": 2, "2": 3, "5": 1}
    distinct, variation = label_statistics(users, 10)
    assert labels["mean_distinct_per_user"] == pytest.approx(distinct)
    assert labels["mean_total_variation"] == pytest.approx(variation)


def test_ragged_targets_and_users_without_labels(tmp_path):
    users = [[[3], [], [3, 4]], [[], []], [[4]]]
    write(tmp_path / "s.h5", {"train": users, "val": [[[]]]}, FieldSpec("uint8", ragged=True))
    splits = statistics_of(tmp_path / "s.h5")["splits"]
    labels = splits["train"]["labels"]
    assert labels["counts"] == {"3": 2, "4": 2}
    assert labels["share_of_users"] == pytest.approx({"3": 1 / 3, "4": 2 / 3})
    distinct, variation = label_statistics([[3, 3, 4], [4]], 10)
    assert labels["mean_distinct_per_user"] == pytest.approx(distinct)
    assert labels["mean_total_variation"] == pytest.approx(variation)
    assert splits["val"]["labels"]["mean_total_variation"] is None
    assert "val" in format_statistics(statistics_of(tmp_path / "s.h5"))


@pytest.mark.parametrize("targets", [FieldSpec("uint8", (3,)), FieldSpec("uint8", ragged=True)])
def test_padding_is_no_label(tmp_path, targets):
    padded = [[[2, 1, 0], [1, 0, 0]], [[3, 3, 1]], [[0, 0, 0]]]
    users = [[np.array(text, np.uint8) for text in texts] for texts in padded]
    write(tmp_path / "s.h5", {"train": users}, targets, extra={"pad_id": 0})
    labels = statistics_of(tmp_path / "s.h5")["splits"]["train"]["labels"]
    assert labels["counts"] == {"1": 3, "2": 1, "3": 2}
    assert labels["share_of_users"] == pytest.approx({"1": 2 / 3, "2": 1 / 3, "3": 1 / 3})
    distinct, variation = label_statistics([[2, 1, 1], [3, 3, 1]], 10)
    assert labels["mean_distinct_per_user"] == pytest.approx(distinct)
    assert labels["mean_total_variation"] == pytest.approx(variation)


def test_real_targets_have_no_label_statistics(tmp_path):
    write(tmp_path / "s.h5", {"train": [[0.5, 0.25]]}, FieldSpec("float32"))
    result = statistics_of(tmp_path / "s.h5")
    assert result["splits"]["train"]["labels"] is None
    assert "labels" not in format_statistics(result)


@pytest.mark.parametrize("label", [10, 200])
def test_labels_damaged_after_writing(tmp_path, label):
    write(tmp_path / "s.h5", {"train": [[1, 2]]})
    with h5py.File(tmp_path / "s.h5", "r+") as file:
        file["train/targets"][1] = label
    with pytest.raises(DataError, match=rf"labels 1 to {label} are not all within 0\.\.9"):
        statistics_of(tmp_path / "s.h5")


def test_the_table_shows_what_leaf_publishes(tmp_path):
    users = [[label] * (label % 3 + 1) for label in range(30)]
    write(tmp_path / "s.h5", {"train": users, "test": [[0]]}, num_classes=30)
    text = format_statistics(statistics_of(tmp_path / "s.h5"))
    assert "toy-small, 30 classes, split by user" in text
    assert "sha256:" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    size_row = next(line for line in text.splitlines() if line.startswith("train"))
    assert size_row.split()[:5] == ["train", "30", "60", "2.000", "0.816"]
    assert ["test", "1", "1", "1.000", "0.000", "0:1"] in [
        line.split() for line in text.split("\n")
    ]
    assert rows["test"] == ["test", "100.0%", "100.0%", "0:100.0%"]
    assert "2:3 5:3 8:3" in text
    assert "and 10 more" in text
    assert all(line == line.rstrip() and "\t" not in line for line in text.splitlines())
