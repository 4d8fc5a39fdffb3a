"""Results by client and by column: weights, strata, models of clients' own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import resolve
from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.evaluation.per_client import (
    PERCENTILES,
    GroupSums,
    over_clients,
    weighted_spread,
)
from pfl_bench.evaluation.splits import measure, measured_names
from pfl_bench.evaluation.strata import Strata, Stratum
from pfl_bench.files import read_metrics
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataError, Examples, FederatedSplit, UserInputError
from tests.helpers import make_config

CPU = torch.device("cpu")
SIZES = (3, 0, 5, 1, 8, 2)  # one client has nothing
PLAYS = ("Hamlet", "Lear", "Hamlet", "Tempest")  # two plays are called alike


class Values:
    """A family that takes the model's outputs for values, the targets for weights."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        values, weight = outputs[:, 0].double(), targets.double()
        self._sum += float((values * weight).sum())
        self._weight += float(weight.sum())
        return {"score": values, "weight": weight}

    def merge(self, other: Values) -> None:
        self._sum += other._sum
        self._weight += other._weight

    def compute(self) -> dict[str, float]:
        if not self._weight:
            raise UserInputError("nothing was measured")
        return {"score": self._sum / self._weight}


class Plays:
    """A task with a column in memory, and its only split."""

    name = "test"
    metrics = ("classification",)
    split_names = ("test",)
    column_names = ("play", "line")

    def __init__(self) -> None:
        rng = np.random.default_rng(4)
        self.offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
        self.num_users, self.num_examples = len(SIZES), sum(SIZES)
        self.inputs = torch.from_numpy(rng.normal(size=(self.num_examples, 1)))
        self.weights = torch.from_numpy(rng.integers(0, 4, self.num_examples))
        self.play = rng.integers(0, 4, self.num_examples)

    def client_ids(self) -> list[str]:
        return [str(user) for user in range(self.num_users)]

    def read_range(self, start: int, stop: int) -> Examples:
        return Examples(self.inputs[start:stop], self.weights[start:stop])

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        assert split == self.name
        whole = self.play if name == "play" else np.arange(self.num_examples) * 1000
        return whole[start:stop]

    def column_values(self, name: str) -> Sequence[str] | None:
        return PLAYS if name == "play" else None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


def parts(data: Plays) -> tuple[Forward, FederatedSplit, Any]:
    task: Any = data
    return Forward(nn.Identity(), task, CPU), task, task


@settings(deadline=None, max_examples=20)
@given(batch_size=st.integers(1, 25), data_workers=st.integers(0, 2))
def test_every_number_is_what_the_whole_columns_give(batch_size: int, data_workers: int) -> None:
    data = Plays()
    forward, split, task = parts(data)
    strata = Strata(task, ["play"])
    measured = measure(forward, split, [Values()], batch_size, data_workers, strata)
    result = measured.result(split, is_personal=False)
    values, weights = data.inputs[:, 0].numpy(), data.weights.numpy().astype(float)
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    counted = [user for user in range(len(SIZES)) if weights[owners == user].sum()]
    means = [np.average(values[owners == u], weights=weights[owners == u]) for u in counted]
    assert result["test/score"] == pytest.approx(np.average(values, weights=weights))
    assert result["test/score_by_client"] == pytest.approx(np.mean(means))
    assert result["test/client_score_sd"] == pytest.approx(np.std(means))
    repeated = np.repeat(means, [int(weights[owners == user].sum()) for user in counted])
    assert result["test/client_score_weighted_sd"] == pytest.approx(np.std(repeated))
    for p in PERCENTILES:
        assert result[f"test/client_score_p{p}"] == pytest.approx(np.percentile(means, p))
        expected = np.percentile(repeated, p, method="inverted_cdf")
        assert result[f"test/client_score_weighted_p{p}"] == pytest.approx(expected)
    assert (result["test/num_examples"], result["test/num_clients"]) == (19, 5)
    table = strata.tables()["play"]
    assert list(table) == ["Hamlet", "Lear", "Hamlet (2)", "Tempest"]
    by_play = []
    for number, row in enumerate(table.values()):
        chosen = data.play == number
        by_play.append(np.average(values[chosen], weights=weights[chosen]))
        assert row["score"] == pytest.approx(by_play[-1])
        assert row["examples"] == chosen.sum()
        assert row["clients"] == len(set(owners[chosen]))
    assert result["test/stratum_play_score_mean"] == pytest.approx(np.mean(by_play))
    assert result["test/stratum_play_score_sd"] == pytest.approx(np.std(by_play))
    assert result["test/stratum_play_score_p25"] == pytest.approx(np.percentile(by_play, 25))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 6)), min_size=1, max_size=30))
def test_weights_are_repetitions(clients: list[tuple[int, int]]) -> None:
    means = np.array([mean / 7 for mean, _ in clients])
    weights = np.array([weight for _, weight in clients], float)
    found = weighted_spread(means, weights)
    repeated = np.repeat(means, weights.astype(int))
    assert found["sd"] == pytest.approx(repeated.std())
    for p in PERCENTILES:
        assert found[f"p{p}"] == np.percentile(repeated, p, method="inverted_cdf")


def test_examples_that_weigh_nothing_do_not_matter_whatever_their_value() -> None:
    sums = GroupSums(3)
    values = {"loss": np.array([1.0, np.nan, 3.0, np.inf])}
    sums.add(np.array([0, 0, 1, 2]), values, np.array([0.5, 0.0, 2.0, 0.0]))
    result = over_clients(sums)
    assert result["loss_by_client"] == 2
    assert result["client_loss_p50"] == 2
    assert result["client_loss_weighted_p50"] == 3
    assert np.isnan(sums.means("loss")[2])


def test_a_value_of_a_column_whose_examples_weigh_nothing_is_in_no_spread() -> None:
    stratum = Stratum("play")
    values, weights = {"v": np.array([1.0, 3.0, 9.0])}, np.array([1.0, 1.0, 0.0])
    stratum.add(np.array([4, 5, 6]), np.arange(3), [(values, weights)])
    found = stratum.scalars()
    assert (found["stratum_play_v_mean"], found["stratum_play_v_p90"]) == (2.0, pytest.approx(2.8))
    assert np.isnan(stratum.table(None)["6"]["v"])


def test_a_client_that_is_not_finite_leaves_no_spread() -> None:
    sums = GroupSums(2)
    sums.add(np.array([0, 1]), {"loss": np.array([1.0, np.inf])}, np.ones(2))
    result = over_clients(sums)
    assert result["loss_by_client"] == np.inf
    assert np.isnan(result["client_loss_sd"])
    assert np.isnan(result["client_loss_weighted_p90"])


def test_many_values_of_a_column_make_room_for_themselves() -> None:
    data = Plays()
    forward, split, task = parts(data)
    strata = Strata(task, ["line"])
    measure(forward, split, [Values()], 4, 0, strata)
    table = strata.tables()["line"]
    assert list(table) == [str(1000 * line) for line in range(19)]
    assert all(row["examples"] == row["clients"] == 1 for row in table.values())


def test_columns_are_read_of_the_evaluated_split() -> None:
    data = Plays()
    data.name = "val"
    forward, split, task = parts(data)
    strata = Strata(task, ["play"])
    measure(forward, split, [Values()], 4, 0, strata)
    rows = strata.tables()["play"].values()
    assert sum(row["examples"] for row in rows) == data.num_examples


def test_without_any_weight_there_is_no_mean() -> None:
    sums = GroupSums(2)
    sums.add(np.array([0, 1]), {"loss": np.ones(2)}, np.zeros(2))
    assert all(np.isnan(value) for value in over_clients(sums).values())


@pytest.mark.parametrize("number", [-1, 4])
def test_a_value_without_a_name_is_refused(number: int) -> None:
    stratum = Stratum("play")
    stratum.add(np.array([number]), np.array([0]), [({"v": np.ones(1)}, np.ones(1))])
    with pytest.raises(DataError, match=f"column 'play': an example has {number}"):
        stratum.table(PLAYS)


class Shifted:
    """Gives user u the model that adds u, and holds back all examples at even places.

    It leaves the model in the mode of training.
    """

    def __init__(self, module: nn.Sequential) -> None:
        self._module = module

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        self._module.train()
        with torch.no_grad():
            self._module[0].bias.fill_(user)
        return np.arange(1, split.offsets[user + 1] - split.offsets[user], 2)


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_clients_are_evaluated_with_their_own_models_on_their_own_part(batch_size: int) -> None:
    data = Plays()
    module = nn.Sequential(nn.Linear(1, 1), nn.Dropout()).double()
    with torch.no_grad():
        module[0].weight.fill_(1.0)
    task: Any = data
    forward, split = Forward(module, task, CPU), task
    data.weights += 1  # they tell whose they are, and none is 0
    strata = Strata(task, ["play"])
    measured = measure(
        forward, split, [Values()], batch_size, strata=strata, personal=Shifted(module)
    )
    result = measured.result(split, is_personal=True)
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    places = np.concatenate([np.arange(size) for size in SIZES])
    held = places % 2 == 1
    values, weights = data.inputs[:, 0].numpy() + owners, data.weights.numpy()
    assert result["test/score"] == pytest.approx(np.average(values[held], weights=weights[held]))
    assert result["test/num_examples"] == held.sum()
    assert result["test/num_clients"] == 4
    assert result["test/num_clients_without_examples"] == 2  # one has nothing, one a single example
    own = [held & (owners == user) for user in (0, 2, 4, 5)]
    by_client = [np.average(values[part], weights=weights[part]) for part in own]
    assert result["test/score_by_client"] == pytest.approx(np.mean(by_client))
    for number, row in zip(
        np.unique(data.play[held]), strata.tables()["play"].values(), strict=True
    ):
        chosen = held & (data.play == number)
        assert (row["examples"], row["clients"]) == (chosen.sum(), len(set(owners[chosen])))
        assert row["score"] == pytest.approx(np.average(values[chosen], weights=weights[chosen]))
    names = measured_names(forward, split, [Values()], Strata(task, ["play"]), True)
    assert set(names) == set(result)
    assert module.training


def test_a_column_that_the_data_do_not_have_is_refused_with_those_they_have(tmp_path: Path) -> None:
    task: Any = Plays()
    with pytest.raises(ConfigError, match=r"no column 'act'.*there are: play, line"):
        Strata(task, ["act"])
    with pytest.raises(ConfigError, match=r"no column 'play'.*there are: none"):
        run(make_config("federated", evaluation__strata=["play"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def write_comments(path: Path) -> None:
    """A store of eight authors with a few sequences each, of noise in the shape of Reddit's."""
    rng = np.random.default_rng(0)
    with StoreWriter(
        path,
        task="reddit",
        variant="generated",
        source="noise",
        split_by="example",
        num_classes=12,
        input_shape=(10,),
        fields={
            "tokens": FieldSpec("uint16", (10,)),
            "targets": FieldSpec("uint16", (10,)),
            "counted": FieldSpec("uint16"),
            "first": FieldSpec("bool"),
            "subreddit": FieldSpec("uint32"),
        },
        extra={"pad_id": 0, "unk_id": 1},
    ) as writer:
        writer.set_names("vocabulary", ["<PAD>", "<UNK>", *"abcdefghij"])
        writer.set_names("subreddit", ["cats", "dogs", "fish"])
        for user in range(8):
            for split in ("train", "val", "test"):
                count = 2 + user % 3
                writer.append(
                    split,
                    f"user-{user}",
                    tokens=rng.integers(0, 12, (count, 10), dtype=np.uint16),
                    targets=rng.integers(0, 12, (count, 10), dtype=np.uint16),
                    counted=(1 << rng.integers(1, 11, count)).astype(np.uint16) - 1,
                    first=np.ones(count, bool),
                    subreddit=rng.integers(0, 3, count, dtype=np.uint32),
                )


def test_a_run_on_sequences_leaves_its_strata(tmp_path: Path) -> None:
    write_comments(tmp_path / "store.h5")
    tree = {
        "version": 1,
        "name": "strata",
        "device": "cpu",
        "num_threads": 1,
        "task": {"name": "reddit", "data": str(tmp_path / "store.h5")},
        "model": {"name": "stacked_lstm", "embedding_size": 4, "hidden_size": 5},
        "federated": {
            "num_rounds": 4,
            "cohort_size": 4,
            "local_batch_size": 5,
            "local_learning_rate": 0.3,
        },
        "evaluation": {
            "every": 1,
            "splits": ["val"],
            "final_splits": ["val", "test"],
            "strata": ["subreddit", "first"],
            "select_best": "val/perplexity",
            "budgets": [{"metric": "val/perplexity", "value": 100.0}],
        },
    }
    summary = run(resolve(tree, Path("row.yaml"), ()), tmp_path / "run")
    metrics, rows = summary["metrics"], read_metrics(tmp_path / "run" / "metrics.jsonl")
    lowest = min(row["val/perplexity"] for row in rows)
    assert summary["selection"]["value"] == metrics["val/perplexity"] == lowest
    assert metrics["test/perplexity"] == pytest.approx(np.exp(metrics["test/loss"]))
    assert summary["budgets"][0]["index"] == 1
    assert summary["budgets"][0]["flops"] > 0
    tables = json.loads((tmp_path / "run" / "strata.json").read_text())
    assert list(tables) == ["val", "test"]
    assert set(tables["test"]["subreddit"]) == {"cats", "dogs", "fish"}
    assert set(tables["test"]["first"]) == {"1"}
    for split, columns in tables.items():
        assert columns["first"]["1"]["loss"] == pytest.approx(metrics[f"{split}/loss"])
        for table in columns.values():
            counts = [row["examples"] for row in table.values()]
            assert sum(counts) == metrics[f"{split}/num_examples"]
    losses = [row["loss"] for row in tables["test"]["subreddit"].values()]
    assert metrics["test/stratum_subreddit_loss_mean"] == pytest.approx(np.mean(losses))
    assert all("val/stratum_subreddit_accuracy_sd" in row for row in rows)


ADAPTATION = {"num_steps": 3, "batch_size": 4, "learning_rate": 0.1, "fraction": 0.5}


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_fine_tuning_before_evaluation_changes_no_bit_of_training(
    setting: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"evaluation__select_best": "val/accuracy"}
    plain = run(make_config(setting, **changes), tmp_path / "plain")
    changes["evaluation__adaptation"] = ADAPTATION
    adapted = run(make_config(setting, **changes), tmp_path / "adapted")
    for name in ("train/loss", "train/update_norm", "systems/total_flops"):
        values = [
            [row[name] for row in read_metrics(tmp_path / run_name / "metrics.jsonl")]
            for run_name in ("plain", "adapted")
        ]
        assert values[0] == values[1]
    # One half of each client's examples is what it adapts on.
    assert adapted["metrics"]["test/num_examples"] < plain["metrics"]["test/num_examples"]
    assert adapted["metrics"]["test/num_clients_without_examples"] == 0
    selected = adapted["selection"]
    logged = read_metrics(tmp_path / "adapted" / "metrics.jsonl")[selected["index"] - 1]
    assert selected["value"] == logged["val/accuracy"]


def test_the_final_evaluation_is_of_the_selected_model_fine_tuned(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "evaluation__select_best": "val/loss",
        "evaluation__adaptation": ADAPTATION,
        "evaluation__final_splits": ["val", "test"],
        "evaluation__every": 1,
    }
    summary = run(make_config("federated", **changes), tmp_path)
    assert summary["metrics"]["val/loss"] == summary["selection"]["value"]


def test_fine_tuning_of_central_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.adaptation.*'central'"):
        run(make_config("central", evaluation__adaptation=ADAPTATION), tmp_path / "run")
