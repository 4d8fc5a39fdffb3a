from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, HasColumns, Task
from tasks.synthetic import models
from tasks.synthetic.generator import counts
from tasks.synthetic.task import Options, SyntheticTask, build
from tests.helpers import REPOSITORY

REAL = REPOSITORY.parent / "shared" / "data" / "leaf_json" / "synthetic_1_1_mytest.json"


@pytest.fixture(scope="module")
def task() -> SyntheticTask:
    return build(Options())


def rows_of(task: SyntheticTask, name: str) -> set[tuple[bytes, int]]:
    split = task.split(name)
    examples = split.read_range(0, split.num_examples)
    inputs, targets = examples.inputs.numpy(), examples.targets.tolist()
    return {(row.tobytes(), label) for row, label in zip(inputs, targets, strict=True)}


def test_the_default_is_the_paper_s_setting(task: SyntheticTask) -> None:
    typed: Task = task  # the type checker holds the Protocols
    assert typed.metrics == ("classification",)
    assert task.split_names == ("train", "val", "test")
    assert task.facts.num_classes == 5
    assert task.facts.input_shape == (60,)
    assert task.facts.split_by == "example"
    assert task.facts.variant == "synthetic-paper"
    assert task.facts.extra["examples_per_user"] == {
        "users": 1000,
        "examples": 107_553,
        "mean": pytest.approx(107.553),
        "sd": pytest.approx(213.2155, abs=1e-3),
    }
    sizes = {name: task.split(name).num_examples for name in task.split_names}
    assert sum(sizes.values()) == 107_553
    assert sizes["train"] / 107_553 == pytest.approx(0.6, abs=0.005)
    # Every user has an example in every split: the smallest has five in all.
    for name in task.split_names:
        split = task.split(name)
        assert split.client_ids() == [str(user) for user in range(1000)]
        assert np.diff(split.offsets).min() >= 1


def test_splits_share_no_example_and_lose_none(task: SyntheticTask) -> None:
    rows = [rows_of(task, name) for name in task.split_names]
    assert sum(map(len, rows)) == len(set().union(*rows)) == 107_553


def test_the_checksum_depends_on_the_options_and_on_no_global_state() -> None:
    first = build(Options(num_tasks=20)).facts.checksum
    np.random.seed(1)  # noqa: NPY002 (no global state may matter)
    torch.manual_seed(1)
    assert build(Options(num_tasks=20)).facts.checksum == first
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"style": "code"},
        {"split_seed": 1},
        {"partition": "iid"},
        {"split_by": "user"},
        {"num_classes": 6},
        {"cluster_probabilities": [0.5, 0.5]},
        {"side_dimension": 2},
    ]
    sums = {build(Options(**{"num_tasks": 20, **other})).facts.checksum for other in others}
    assert len(sums | {first}) == len(others) + 1


def test_reading_gives_fresh_tensors_and_draws_nothing(task: SyntheticTask) -> None:
    split = task.split("test")
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    own = split.read_user(3, rng)
    assert rng.bit_generator.state == state
    assert own.inputs.dtype == torch.float32
    assert own.targets.dtype == torch.int64
    start = int(split.offsets[3])
    own.inputs.zero_()
    again = split.read_range(start, start + len(own))
    assert again.inputs.abs().sum() > 0
    chosen = split.read_examples(np.array([start, start]), rng)
    assert torch.equal(chosen.inputs[0], again.inputs[0])
    assert torch.equal(chosen.inputs[1], again.inputs[0])
    with pytest.raises(IndexError):
        split.read_user(1000, rng)
    with pytest.raises(IndexError):
        split.read_range(0, split.num_examples + 1)
    with pytest.raises(IndexError):
        split.read_examples(np.array([-1]), rng)
    with pytest.raises(DataError, match="choose from train, val, test"):
        task.split("validation")


def test_clusters_are_a_column(task: SyntheticTask) -> None:
    two = build(Options(num_tasks=50, cluster_probabilities=[0.5, 0.5]))
    columns: HasColumns = two
    assert columns.column_names == ("cluster",)
    split = two.split("train")
    clusters = two.read_column("train", "cluster", 0, split.num_examples)
    assert set(clusters.tolist()) == {0, 1}
    for user in range(50):  # a task is of one cluster
        own = clusters[split.offsets[user] : split.offsets[user + 1]]
        assert len(set(own.tolist())) == 1
    with pytest.raises(ConfigError, match="there are: cluster"):
        two.read_column("train", "play", 0, 1)


def test_iid_users_share_the_same_examples_evenly(task: SyntheticTask) -> None:
    iid = build(Options(partition="iid"))
    for name in task.split_names:
        sizes = np.diff(iid.split(name).offsets)
        assert len(sizes) == 1000
        assert sizes.max() - sizes.min() <= 1
        assert rows_of(iid, name) == rows_of(task, name)


def test_a_split_by_user_shares_no_user() -> None:
    users = build(Options(num_tasks=100, split_by="user", train_fraction=0.5, val_fraction=0.25))
    ids = [users.split(name).client_ids() for name in users.split_names]
    assert [len(own) for own in ids] == [50, 25, 25]
    assert len(set().union(*map(set, ids))) == 100


def test_artificial_users_of_a_split_by_user_are_in_one_split() -> None:
    task = build(Options(num_tasks=100, split_by="user", partition="iid"))
    ids = [name for split in task.split_names for name in task.split(split).client_ids()]
    assert len(ids) == len(set(ids)) == 100


def test_small_users_are_dropped_and_counted(task: SyntheticTask) -> None:
    kept = build(Options(min_examples=100))
    sizes = sum(np.diff(kept.split(name).offsets) for name in kept.split_names)
    assert sizes.min() >= 100
    assert kept.facts.extra["users_dropped"] == 1000 - len(sizes) > 0
    with pytest.raises(ConfigError, match="min_examples 1001"):
        build(Options(min_examples=1001))


@given(
    st.integers(1, 2000),
    st.floats(0.01, 1.0),
    st.floats(0.0, 0.99),
)
def test_every_split_that_is_wanted_gets_something_from_three_examples_on(
    total: int, train_fraction: float, share: float
) -> None:
    val_fraction = share * (1 - train_fraction)
    train, val, test = counts(total, train_fraction, val_fraction)
    assert train + val + test == total
    assert train >= 1
    assert val >= 0
    assert test >= 0
    if total >= 3:
        assert val >= (val_fraction > 0)
        assert test >= (1 - train_fraction - val_fraction > 1e-9)


def test_counts_are_leaf_s() -> None:
    assert counts(5, 0.6, 0.2) == (3, 1, 1)
    assert counts(7, 0.6, 0.2) == (4, 1, 2)
    assert counts(1000, 0.6, 0.2) == (600, 200, 200)
    assert counts(10, 0.8, 0.1) == (8, 1, 1)
    assert counts(5, 0.8, 0.2) == (4, 1, 0)
    assert counts(2, 0.6, 0.2) == (1, 0, 1)
    assert counts(1, 0.6, 0.2) == (1, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cluster_probabilities": [0.5, 0.4]}, "sum to 1"),
        ({"cluster_probabilities": [1.5, -0.5]}, "positive"),
        ({"cluster_probabilities": []}, "positive"),
        ({"train_fraction": 0.9, "val_fraction": 0.2}, "sum to more than 1"),
        ({"data": "x.json", "num_classes": 10}, "num_classes: are for generated data"),
        ({"num_tasks": 0}, "greater than or equal to 1"),
        ({"style": "papers"}, "paper"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Options(**wrong)


def write_json(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(data))


GOOD: dict[str, tuple[list[Any], list[Any]]] = {
    "f_0": ([[0.5, 1], [2, 3], [4, 5.25]], [0.0, 2.0, 1.0]),
    "f_1": ([[6, 7], [8, 9], [1, 1]], [1, 0, 0]),
}


def test_leaf_json_is_read_from_a_file_or_a_published_split(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", GOOD)
    whole = build(Options(data=str(tmp_path / "a.json")))
    assert whole.facts.num_classes == 3
    assert whole.facts.input_shape == (2,)
    assert whole.facts.variant == "synthetic-json"
    assert whole.column_names == ()
    assert {n: whole.split(n).num_examples for n in whole.split_names} == dict.fromkeys(
        ("train", "val", "test"), 2
    )
    for name in ("train", "test"):
        write_json(tmp_path / "split" / name / "b.json", GOOD)
    split = build(Options(data=str(tmp_path / "split")))
    assert split.split_names == ("train", "test")
    examples = split.split("train").read_range(0, 6)
    assert examples.inputs[2].tolist() == [4.0, 5.25]
    assert examples.targets.tolist() == [0, 2, 1, 1, 0, 0]
    assert split.split("test").client_ids() == ["f_0", "f_1"]
    assert split.facts.split_by == "example"
    with pytest.raises(ConfigError, match=r"train_fraction: .* is split by its publisher"):
        build(Options(data=str(tmp_path / "split"), train_fraction=0.5))
    with pytest.raises(ConfigError, match="split_seed"):
        build(Options(data=str(tmp_path / "split"), split_seed=1))
    iid = build(Options(data=str(tmp_path / "split"), split_seed=1, partition="iid"))
    assert np.diff(iid.split("train").offsets).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"u": ([[1, 2], [3]], [0, 1])}, r"a\.json, user 'u': the features are not all"),
        ({"u": ([[1, 2], [3, "4"]], [0, 1])}, "user 'u': the features"),
        ({"u": ([[1, 2], [3, 4]], [0, 1.5])}, r"user 'u': the label 1\.5"),
        ({"u": ([[1, 2], [3, 4]], [0, -1])}, "user 'u': the label -1"),
        ({"u": ([[1, 2], [3, 4]], [0, 99999])}, "user 'u': the label 99999"),
        ({"u": ([[1, 2]], [0]), "v": ([[1, 2, 3]], [0])}, "user 'v': has 3 features where .* 2"),
        ({"u": ([1, 2], [0, 1])}, "list of the same number of features"),
        ({"u": (["abc"], ["d"])}, "not text"),
    ],
)
def test_wrong_json_is_refused_with_file_and_user(
    users: dict[str, tuple[list[Any], list[Any]]], message: str, tmp_path: Path
) -> None:
    write_json(tmp_path / "a.json", users)
    with pytest.raises(DataError, match=message):
        build(Options(data=str(tmp_path / "a.json")))


def test_missing_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        build(Options(data=str(tmp_path / "none.json")))
    with pytest.raises(DataError, match=r"holds no data\. Looked for LEAF JSON"):
        build(Options(data=str(tmp_path)))


@pytest.mark.skipif(not REAL.is_file(), reason="no real LEAF JSON in ../shared/data/leaf_json")
def test_the_real_leaf_json_is_read() -> None:
    task = build(Options(data=str(REAL)))
    assert task.facts.num_classes == 10
    assert task.facts.input_shape == (60,)
    assert task.facts.extra["examples_per_user"]["users"] == 30
    assert sum(task.split(name).num_examples for name in task.split_names) == 1084


def test_the_models_are_a_linear_layer_and_leaf_s_perceptron(task: SyntheticTask) -> None:
    inputs = task.split("test").read_range(0, 50).inputs
    targets = task.split("test").read_range(0, 50).targets
    torch.manual_seed(0)
    softmax = models.build(models.Options(name="softmax"), task.facts)
    torch.manual_seed(0)
    perceptron = models.build(models.Options(name="perceptron"), task.facts)
    assert sum(p.numel() for p in perceptron.parameters()) == 61 * 5
    outputs = perceptron(inputs)
    assert torch.equal(outputs, torch.sigmoid(softmax(inputs)))
    # LEAF hands the sigmoids to its cross entropy as logits: at best log(1 + 4 / e).
    assert torch.equal(task.loss(outputs, targets), functional.cross_entropy(outputs, targets))
    best = functional.one_hot(targets, 5).float()
    assert task.loss(best, targets).item() == pytest.approx(np.log1p(4 / np.e), rel=1e-5)


def test_a_row_on_generated_data_runs_and_wrong_options_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = tmp_path / "row.yaml"
    row.write_text(
        "version: 1\nname: small\ndevice: cpu\nnum_threads: 1\n"
        "task: {name: synthetic, num_tasks: 60, style: code}\nmodel: {name: softmax}\n"
        "federated: {num_rounds: 20, cohort_size: 10, sampling: fixed_size, local_batch_size: 5, "
        "local_learning_rate: 0.1}\nevaluation: {every: 20}\n"
    )
    summary = run(load_config(row), tmp_path / "run")
    assert summary["metrics"]["test/accuracy"] > 0.4  # five classes
    capsys.readouterr()
    wrong = ["run", str(row), "task.style=papers", "--out", str(tmp_path / "no")]
    assert main(wrong) == 2
    assert "style" in capsys.readouterr().err
