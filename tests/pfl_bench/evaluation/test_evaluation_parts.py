"""Evaluation in parts, as several processes do it: merged, the parts are the whole."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from pfl_bench.client.forward import Forward
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.evaluation.per_client import GroupSums
from pfl_bench.evaluation.splits import Measured, examples_at_once, measure
from pfl_bench.evaluation.strata import Strata
from pfl_bench.federated.parts import build_forward, build_model, build_task
from pfl_bench.metrics.classification import Classification
from pfl_bench.types import ConfigError, Examples, FederatedSplit, PluginError, UserInputError
from tests.helpers import make_config

CPU = torch.device("cpu")
PLAYS = ("Hamlet", "Lear", "Tempest")


class Scores:
    """A family that takes the model's outputs for values, the targets for weights."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        values, weight = outputs[:, 0].double(), targets.double()
        self._sum += float((values * weight).sum())
        self._weight += float(weight.sum())
        return {"score": values, "weight": weight}

    def merge(self, other: Scores) -> None:
        self._sum += other._sum
        self._weight += other._weight

    def compute(self) -> dict[str, float]:
        if not self._weight:
            raise UserInputError("nothing was measured")
        return {"score": self._sum / self._weight}


class Again(Scores):
    """A second family with a value of the first's name."""


def test_a_value_that_two_families_return_is_refused_with_both() -> None:
    families: list[Any] = [Scores(), Again()]
    for family in families:
        family.update(torch.ones(2, 1), torch.ones(2))
    split: Any = None
    both = r"\.py: Scores\.compute and .*\.py: Again\.compute: two values are named 'score'"
    with pytest.raises(PluginError, match=both):
        Measured(families, [], []).result(split, is_personal=False)


class Counts(Scores):
    """A family with a value of its own for what each split counts."""

    def compute(self) -> dict[str, float]:
        return {"num_clients": 3.0}


def test_a_count_of_a_family_s_own_is_refused() -> None:
    split: Any = None
    with pytest.raises(
        PluginError, match=r"\.py: Counts\.compute: two values are named 'num_clients'"
    ):
        Measured([Counts()], [], []).result(split, is_personal=False)


class Lines:
    """A task of lines of plays in memory, and its only split.

    Args:
        sizes: Examples of each client.
    """

    name = "test"
    metrics = ("classification",)
    split_names = ("test",)
    column_names = ("play",)

    def __init__(self, sizes: Sequence[int]) -> None:
        rng = np.random.default_rng(len(sizes))
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.num_users, self.num_examples = len(sizes), int(sum(sizes))
        self.inputs = torch.from_numpy(rng.normal(size=(self.num_examples, 1)))
        self.weights = torch.from_numpy(rng.integers(1, 4, self.num_examples))
        self.play = rng.integers(0, len(PLAYS), self.num_examples)

    def client_ids(self) -> list[str]:
        return [str(user) for user in range(self.num_users)]

    def read_range(self, start: int, stop: int) -> Examples:
        return Examples(self.inputs[start:stop], self.weights[start:stop])

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        return self.play[start:stop]

    def column_values(self, name: str) -> Sequence[str] | None:
        return PLAYS

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


class Shifted:
    """Gives user u the model that adds u, and holds back the first of more than one example."""

    def __init__(self, module: nn.Linear) -> None:
        self._module = module

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        with torch.no_grad():
            self._module.bias.fill_(user)
        count = split.offsets[user + 1] - split.offsets[user]
        return np.arange(int(count > 1), count)


def sent(measured: Measured) -> Measured:
    """What arrives of what another process has measured."""
    copy: Measured = pickle.loads(pickle.dumps(measured))
    return copy


def measured_in(
    data: Lines,
    batch_size: int,
    parts: int,
    by_play: bool,
    is_personal: bool,
    at_once: int | None = None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """All numbers and tables of an evaluation in so many parts."""
    task: Any = data
    module = nn.Linear(1, 1).double()
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(0.0)

    def check(_: nn.Module, given: tuple[Tensor]) -> None:
        assert len(given[0]) <= min(batch_size, at_once or batch_size)

    module.register_forward_pre_hook(check)
    personal = Shifted(module) if is_personal else None
    whole: Measured | None = None
    own_strata: Strata | None = None
    for part in range(parts):
        strata = Strata(task, ["play"] if by_play else [])
        measured = measure(
            Forward(module, task, CPU),
            task,
            [Scores()],
            batch_size,
            strata=strata if by_play else None,
            personal=personal,
            part=(part, parts),
            at_once=at_once,
        )
        if whole is None:
            whole, own_strata = measured, strata
        else:
            whole.merge(sent(measured))
    assert whole is not None
    assert own_strata is not None
    return whole.result(task, is_personal), own_strata.tables()


sizes_of_clients = st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any)


@given(sizes_of_clients, st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_micro_batches_change_no_bit(
    sizes: list[int], batch_size: int, at_once: int, by_play: bool, is_personal: bool
) -> None:
    data = Lines(sizes)
    expected = measured_in(data, batch_size, 1, by_play, is_personal)
    found = measured_in(data, batch_size, 1, by_play, is_personal, at_once)
    # As text, where NaN equals itself and all digits are compared.
    assert repr(found) == repr(expected)


def test_large_inputs_go_through_a_cpu_in_micro_batches() -> None:
    assert examples_at_once((3, 224, 224), CPU) == 55
    assert examples_at_once((1 << 30,), CPU) == 1
    assert examples_at_once((28, 28), CPU) == (1 << 23) // 784
    assert examples_at_once((3, 224, 224), torch.device("cuda")) is None


# The first client lies across the border of two parts.
@example([4, 2], 1, False, False)
@given(sizes_of_clients, st.integers(1, 9), st.booleans(), st.booleans())
def test_the_parts_together_are_the_whole(
    sizes: list[int], batch_size: int, by_play: bool, is_personal: bool
) -> None:
    data = Lines(sizes)
    expected, expected_tables = measured_in(data, batch_size, 1, by_play, is_personal)
    # As many clients have examples as have some that are not held back.
    assert expected["test/num_clients"] == sum(size > 0 for size in sizes)
    for parts in (2, 3, 4, 5):
        found, tables = measured_in(data, batch_size, parts, by_play, is_personal)
        assert found.keys() == expected.keys()
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
        for name in ("test/num_examples", "test/num_clients"):
            assert found[name] == expected[name]
        assert list(tables) == list(expected_tables)
        for column, table in expected_tables.items():
            assert list(tables[column]) == list(table)
            for value, row in table.items():
                assert tables[column][value] == pytest.approx(row, rel=1e-12, abs=1e-12)
                for count in ("examples", "clients"):
                    assert tables[column][value][count] == row[count]


class Reads:
    """A split that writes down what is read of it."""

    def __init__(self, data: Lines) -> None:
        self._data = data
        self.read: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def read_range(self, start: int, stop: int) -> Examples:
        self.read.append((start, stop))
        return self._data.read_range(start, stop)


@given(sizes_of_clients, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_every_example_is_in_one_part_and_parts_are_about_equal(
    sizes: list[int], parts: int, batch_size: int, by_play: bool
) -> None:
    data = Lines(sizes)
    task: Any = data
    seen: list[int] = []
    lengths = []
    for part in range(parts):
        split: Any = Reads(data)
        strata = Strata(task, ["play"]) if by_play else None
        measure(
            Forward(nn.Identity(), task, CPU),
            split,
            [Scores()],
            batch_size,
            strata=strata,
            part=(part, parts),
        )
        places = [place for start, stop in split.read for place in range(start, stop)]
        lengths.append(len(places))
        seen += places
        owners = np.searchsorted(data.offsets, places, side="right")
        if by_play and places:
            # No client is in two parts.
            assert len(places) == sum(sizes[owner - 1] for owner in set(owners.tolist()))
    assert seen == list(range(data.num_examples))
    room = max(sizes) if by_play else 1
    assert max(lengths) <= data.num_examples / parts + room


def evaluator_of(**changes: Any) -> tuple[Evaluator, Any]:
    resolved = make_config("federated", model__name="mlp", **changes)
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    return Evaluator(resolved.config, task, model, forward, None), task


ADAPTATION = {"num_steps": 3, "batch_size": 2, "learning_rate": 0.3, "fraction": 0.5}


@pytest.mark.parametrize("adaptation", [None, ADAPTATION])
def test_a_real_model_s_parts_come_to_its_numbers(adaptation: dict[str, Any] | None) -> None:
    evaluator, task = evaluator_of(evaluation__adaptation=adaptation)
    splits = ["val", "test"]
    before = evaluator._model.vector.clone()
    expected, _ = evaluator.evaluate(splits)
    for size in (2, 3, 5):
        parts = [evaluator.measure(splits, rank, size) for rank in range(size)]
        for place, name in enumerate(splits):
            whole = parts[0][place][0]
            for other in parts[1:]:
                whole.merge(sent(other[place][0]))
            found = whole.result(task.split(name), adaptation is not None)
            assert found.keys() == {key for key in expected if key.startswith(f"{name}/")}
            for key, value in found.items():
                if "accuracy" in key or "num_" in key:
                    # Counts of examples, over counts.
                    assert value == pytest.approx(expected[key], rel=1e-12), key
                else:
                    # Other batches go through the model together: float32.
                    assert value == pytest.approx(expected[key], rel=2e-5), key
    assert torch.equal(evaluator._model.vector, before)


class Halves:
    """The digits, whose examples have a column; and a group whose other processes measure it."""

    column_names = ("half",)
    rank, size, description = 0, 3, "three processes"

    def __init__(self, task: Any) -> None:
        self._task = task
        self.evaluator: Any = None
        self.asked: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def read_column(self, split: str, name: str, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop) % 2

    def column_values(self, name: str) -> Sequence[str] | None:
        return ("even", "odd")

    def broadcast(self, message: Any, vector: Tensor | None = None) -> None:
        self.asked = message

    def receive(self, rank: int) -> tuple[Any, Any]:
        own = self.evaluator.measure(self.asked.splits, rank, self.size)
        return [measured for measured, _ in own], iter(())


def test_an_evaluation_by_processes_is_that_of_one() -> None:
    resolved = make_config("federated", evaluation__strata=["half"])
    task: Any = Halves(build_task(resolved, CPU))
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    alone, shared = (
        Evaluator(resolved.config, task, model, forward, None, group) for group in (None, task)
    )
    task.evaluator = alone
    splits = ("val", "test", "train")
    expected, tables = alone.evaluate(splits)
    found, parts = shared.evaluate(splits)
    assert task.asked.splits == splits
    assert found == pytest.approx(expected, rel=2e-5)
    assert list(tables) == list(parts) == list(splits)
    for name in splits:
        counts = {half: row["examples"] for half, row in tables[name]["half"].items()}
        number = task.split(name).num_examples
        assert counts == {"even": number - number // 2, "odd": number // 2}
        for half, row in tables[name]["half"].items():
            assert parts[name]["half"][half] == pytest.approx(row, rel=2e-5)


def test_a_published_number_is_of_a_split_that_its_statistic_is_measured_on() -> None:
    entry = {"value": 0.7, "tolerance": 0.1, "source": "nobody"}
    last = {**entry, "metric": "test/accuracy"}
    best = {**entry, "metric": "val/accuracy", "statistic": "best_over_rounds"}
    splits = {"evaluation__splits": ["val"], "evaluation__final_splits": ["test"]}
    evaluator_of(expected=[last, best], **splits)
    with pytest.raises(ConfigError, match=r"expected\.1\.metric: 'val/accuracy' is not measured"):
        evaluator_of(expected=[last, {**entry, "metric": "val/accuracy"}], **splits)


def test_more_parts_than_examples() -> None:
    data = Lines([0, 2, 0])
    expected, tables = measured_in(data, 4, 1, True, False)
    assert measured_in(data, 4, 7, True, False) == (pytest.approx(expected), tables)
    assert measured_in(data, 4, 7, False, False)[0]["test/num_clients"] == 1


def test_parts_that_were_merged_are_a_part_again() -> None:
    data: Any = Lines([4, 2])
    forward = Forward(nn.Identity(), data, CPU)
    first, *others = (measure(forward, data, [Scores()], 2, part=(n, 3)) for n in range(3))
    rest = Measured([Scores()], [GroupSums()], [])
    for part in others:
        rest.merge(part)
    first.merge(rest)
    # The client that the first two parts share is counted once.
    assert (first.num_clients, first.num_examples) == (2, 6)


def test_parts_that_measured_nothing_are_no_number() -> None:
    whole = Measured([Classification()], [], [])
    whole.merge(Measured([Classification()], [], []))
    with pytest.raises(UserInputError, match="zero examples"):
        whole.metrics[0].compute()
    assert whole.first_client == whole.last_client == -1


def test_a_metric_that_is_not_finite_in_one_part_is_not_in_the_whole() -> None:
    data = Lines([2, 2, 2])
    data.inputs[5] = math.nan
    result, _ = measured_in(data, 2, 3, False, False)
    assert math.isnan(result["test/score"])
    assert math.isnan(result["test/client_score_p50"])
