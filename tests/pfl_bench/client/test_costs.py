"""Costs: FLOPs against products counted by hand, bytes, and what reaching a value took."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.costs import CostMeter, StepFlops, measure_step
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.sections import BudgetTarget
from pfl_bench.federated.parts import build_forward, build_model, build_task
from pfl_bench.files import read_metrics
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, Examples, UserInputError
from tests.helpers import make_config

CPU = torch.device("cpu")
DIGITS_FLOPS = 2 * 2 * 64 * 10  # softmax regression: forward, and the weights' gradient


class OneUser:
    """A split of one user with one example."""

    name = "train"
    num_users = num_examples = 1
    offsets = np.array([0, 1])

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs.unsqueeze(0)

    def client_ids(self) -> list[str]:
        return ["one"]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        return self.read_range(0, 1)

    def read_range(self, start: int, stop: int) -> Examples:
        return Examples(self._inputs[start:stop], torch.zeros(stop - start, dtype=torch.int64))

    def read_examples(self, indices: Any, rng: np.random.Generator) -> Examples:
        return Examples(self._inputs[indices], torch.zeros(len(indices), dtype=torch.int64))


class LastOutput(nn.Module):
    """What an LSTM gives at the last place, to a linear layer."""

    def __init__(self, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=0.5)
        self.out = nn.Linear(hidden, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.lstm(self.embedding(tokens))[0][:, -1])
        return outputs


class _Loss:
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)


def measured(module: nn.Module, inputs: Tensor, precision: str = "float32") -> StepFlops:
    model = FlatModel(module, CPU)
    task: Any = _Loss()
    return measure_step(Forward(model.module, task, CPU, precision), model, OneUser(inputs))


def test_a_linear_layer_takes_two_products() -> None:
    assert measured(nn.Linear(7, 5), torch.randn(7)) == StepFlops(0, 2 * 2 * 7 * 5)


def test_a_module_may_be_given_a_parameter() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(7, 5))
    assert measured(layer, torch.randn(7)) == StepFlops(0, 2 * 2 * 7 * 5)


class Own(nn.Linear):
    """A layer that says what it costs beside its products: an operation for each input."""

    def own_flops(self, inputs: Tensor) -> int:
        return inputs.numel()


def test_what_a_model_says_of_itself_is_of_each_example() -> None:
    assert measured(Own(7, 5), torch.randn(7)) == StepFlops(0, 2 * 2 * 7 * 5 + 7)


def test_flops_are_of_the_steps_and_examples_that_were_processed() -> None:
    """Those of clients whose update was lost, too."""
    meter = CostMeter(StepFlops(100, 10), [])
    kept = {"train/num_steps": 1.0, "train/num_examples": 2.0}
    scalars = meter.add({**kept, "systems/steps": 3.0, "systems/examples": 5.0})
    assert (scalars["systems/flops"], scalars["systems/total_flops"]) == (350, 350)
    assert meter.add({**kept, "systems/examples": 1.0})["systems/total_flops"] == 360


def test_what_is_kept_for_the_backward_pass_is_counted_once() -> None:
    network = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    # Inputs, the outputs of the activation, log-probabilities, and a target.
    assert measured(network, torch.randn(7)).saved_bytes == 4 * (7 + 5 + 3) + 8


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_lstm_is_counted_step_by_step(precision: str) -> None:
    length, embedding, hidden = 6, 3, 4
    gates = 4 * hidden
    first = 2 * gates * length * (2 * hidden + 3 * embedding)  # the embedding wants a gradient too
    second = 2 * gates * length * (2 * hidden + 3 * hidden)
    # Gradients go back to each state but the first, which is zeros.
    back = 2 * 2 * gates * hidden * (length - 1)
    out = 3 * 2 * hidden * 11
    found = measured(LastOutput(embedding, hidden, 2), torch.arange(length), precision)
    assert found == StepFlops(0, first + second + back + out)


def test_a_convolutional_network_is_counted_layer_by_layer() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, 6),
    )
    first = 2 * 3 * 8 * 25 * 10 * 10
    second = 2 * 8 * 4 * 9 * 3 * 3
    last = 2 * 36 * 6
    # The first layer's input needs no gradient.
    expected = StepFlops(0, 2 * first + 3 * second + 3 * last)
    assert measured(network, torch.randn(3, 10, 10)) == expected


def test_frozen_layers_cost_no_gradient_of_their_weights() -> None:
    network = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    network[0].requires_grad_(False)
    assert measured(network, torch.randn(7)) == StepFlops(0, 2 * 7 * 5 + 2 * 2 * 5 * 3)


class _Merged(nn.Module):
    """A product of weights, once a step whatever the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(7, 2))
        self.right = nn.Parameter(torch.randn(2, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ (self.left @ self.right)


def test_what_a_step_needs_whatever_its_batch_is_told_apart() -> None:
    found = measured(_Merged(), torch.randn(7))
    assert found == StepFlops(per_step=3 * 2 * 7 * 2 * 5, per_example=2 * 2 * 7 * 5)
    assert found.of(steps=3, examples=20) == 3 * 420 + 20 * 140


def test_what_is_not_finite_has_not_moved_by_that() -> None:
    model = FlatModel(nn.BatchNorm1d(2), CPU)
    for value in model.module.buffers():
        if value.is_floating_point():
            value[0] = torch.nan
    before = model.fixed()
    assert model.moved(before) is None
    model.module.get_buffer("running_var")[1] = 2.0
    assert model.moved(before) == "buffer 'running_var'"


def test_measuring_leaves_no_trace() -> None:
    network = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)
    ).eval()
    network[1].train()
    model, inputs = FlatModel(network, CPU), torch.randn(4)
    vector, buffers, stream = model.vector.clone(), model.buffers(), torch.get_rng_state()
    modes = [module.training for module in network.modules()]
    kept = model.parameters[0].grad = torch.ones(6, 4)
    settings = torch.backends.mkldnn.enabled, torch.get_num_threads()
    task: Any = _Loss()
    measure_step(Forward(network, task, CPU), model, OneUser(inputs))
    assert torch.equal(torch.get_rng_state(), stream)
    assert torch.equal(model.vector, vector)
    assert all(torch.equal(model.buffers()[name], value) for name, value in buffers.items())
    assert [module.training for module in network.modules()] == modes
    assert model.parameters[0].grad is kept
    assert torch.equal(kept, torch.ones(6, 4))
    assert all(parameter.grad is None for parameter in model.parameters[1:])
    assert (torch.backends.mkldnn.enabled, torch.get_num_threads()) == settings


@pytest.mark.parametrize("setting", ["federated", "central_dp"])
def test_a_run_trains_to_the_same_bits_without_it(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(setting, model__name="mlp")
    run(config, tmp_path / "with")
    monkeypatch.setattr("pfl_bench.runs.preparing.measure_step", lambda *parts: StepFlops(0, 0))
    run(config, tmp_path / "without")
    states = [load_latest(tmp_path / name / "checkpoints") for name in ("with", "without")]
    vectors = [state["trainer"]["central"] for state in states if state is not None]
    assert torch.equal(*vectors)


def test_federated_costs_are_those_of_the_cohort(tmp_path: Path) -> None:
    summary = run(make_config("federated", federated__local_epochs=3), tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    parameters = summary["num_parameters"]
    total = dict.fromkeys(("flops", "bytes_down", "bytes_up"), 0)
    for row in rows:
        assert row["systems/examples"] <= 4 * row["systems/steps"]
        assert row["systems/flops"] == row["systems/examples"] * DIGITS_FLOPS
        size = row["train/cohort_size"] * parameters * 4
        assert row["systems/bytes_down"] == row["systems/bytes_up"] == size
        for name in total:
            total[name] += row[f"systems/{name}"]
            assert row[f"systems/total_{name}"] == total[name]
    assert summary["systems"] == total
    assert summary["budgets"] == []
    assert any(row["systems/examples"] > row["train/num_examples"] for row in rows)


def test_processed_examples_are_those_that_went_through_steps(tmp_path: Path) -> None:
    task = build_task(make_config("federated"), CPU)
    config = make_config(
        "federated",
        federated__sampling="full",
        federated__cohort_size=60,
        federated__num_rounds=1,
        federated__local_epochs=2,
        federated__local_steps=3,
    )
    run(config, tmp_path)
    expected = 0
    for size in np.diff(task.split("train").offsets).tolist():
        epoch = [4] * (size // 4) + [size % 4] * (size % 4 > 0)
        expected += sum((epoch * 2)[:3])
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["systems/examples"] == expected


@pytest.mark.parametrize("setting", ["central", "central_dp"])
def test_central_training_costs_flops_alone(setting: str, tmp_path: Path) -> None:
    summary = run(make_config(setting), tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    seen = sum(row["train/num_examples"] for row in rows)
    assert summary["systems"] == {"flops": seen * DIGITS_FLOPS, "bytes_down": 0, "bytes_up": 0}


def test_clients_whose_update_is_lost_have_had_the_cost(tmp_path: Path) -> None:
    changes = {"federated__local_learning_rate": 1e38, "federated__num_rounds": 1}
    run(make_config("federated", **changes), tmp_path)
    row = read_metrics(tmp_path / "metrics.jsonl")[0]
    assert row["train/num_nonfinite"] > 0
    assert row["systems/examples"] > row["train/num_examples"]
    assert row["systems/steps"] > row["train/num_steps"]


BUDGETS = [
    {"metric": "val/accuracy", "value": 0.4},
    {"metric": "val/loss", "value": 2.0},
    {"metric": "val/accuracy", "value": 0.99999},
]


def test_budgets_say_when_and_at_what_cost_a_value_was_first_reached(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"evaluation__budgets": BUDGETS, "evaluation__every": 1}
    summary = run(make_config("federated", **changes), tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    for budget, wanted in zip(summary["budgets"], BUDGETS, strict=True):
        assert (budget["metric"], budget["target"]) == (wanted["metric"], wanted["value"])
        sign = -1 if wanted["metric"].endswith("loss") else 1
        enough = [r for r in rows if sign * r[wanted["metric"]] >= sign * wanted["value"]]
        assert budget["reached"] == bool(enough)
        first = enough[0] if enough else {}
        assert budget["index"] == first.get("round")
        assert budget["value"] == first.get(wanted["metric"])
        for name in ("flops", "bytes_down", "bytes_up"):
            assert budget[name] == first.get(f"systems/total_{name}")
    assert [budget["reached"] for budget in summary["budgets"]] == [True, True, False]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_a_cut_run_reaches_its_budgets_at_the_same_cost(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"evaluation__budgets": BUDGETS, "evaluation__every": 1}
    changes["checkpoint"] = {"every": 2, "keep": 10}
    config = make_config("private_federated", **changes)
    whole = run(config, tmp_path / "whole")
    run(config, tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    for path in (tmp_path / "cut" / "checkpoints").iterdir():
        if path.name != "step-00000004.pt":
            path.unlink()
    resumed = run(config, tmp_path / "cut", resume=True)
    assert resumed["systems"] == whole["systems"]
    assert resumed["budgets"] == whole["budgets"]
    assert any(budget["reached"] and budget["index"] <= 4 for budget in whole["budgets"])


def test_a_budget_of_what_is_not_measured_is_refused_before_training(tmp_path: Path) -> None:
    budgets = [{"metric": "val/acuracy", "value": 0.5}]
    with pytest.raises(ConfigError, match=r"budgets\.0.*did you mean 'val/accuracy'"):
        run(make_config("federated", evaluation__budgets=budgets), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_meter_takes_flops_from_a_trainer_that_knows_them_better() -> None:
    meter = CostMeter(StepFlops(1, 1), [BudgetTarget(metric="val/perplexity", value=10.0)])
    scalars = meter.add({"systems/flops": 7.0, "systems/steps": 100.0, "systems/bytes_up": 3.0})
    assert (scalars["systems/flops"], scalars["systems/total_bytes_up"]) == (7, 3)
    assert scalars["systems/bytes_down"] == 0
    meter.watch(1, {"val/perplexity": float("nan")})
    meter.watch(1, {})
    assert not meter.budgets()[0]["reached"]
    meter.watch(2, {"val/perplexity": 9.5})
    meter.add({"systems/flops": 7.0})
    meter.watch(3, {"val/perplexity": 5.0})
    assert meter.budgets() == [
        {
            "metric": "val/perplexity",
            "target": 10.0,
            "reached": True,
            "index": 2,
            "value": 9.5,
            "flops": 7,
            "bytes_down": 0,
            "bytes_up": 3,
        }
    ]


def test_measuring_the_model_of_a_row_takes_no_time() -> None:
    resolved = make_config("federated", model__name="mlp")
    task = build_task(resolved, CPU)
    model = build_model(resolved, task, CPU)
    forward = build_forward(resolved, task, model)
    measure_step(forward, model, task.split("train"))  # imports
    started = time.perf_counter()
    measure_step(forward, model, task.split("train"))
    assert time.perf_counter() - started < 1


def test_what_is_no_module_and_layers_without_a_size_are_refused() -> None:
    function: Any = lambda inputs: inputs  # noqa: E731
    with pytest.raises(UserInputError, match="the model is a function, but has to be a Module"):
        FlatModel(function, CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of lazy layers
        lazy = nn.LazyLinear(2)
    with pytest.raises(UserInputError, match=r"without shape: \['weight', 'bias'\]; give sizes"):
        FlatModel(lazy, CPU)
