from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.evaluation.evaluator import Evaluator
from pfl_bench.evaluation.splits import initial_loss, measure, measured_names
from pfl_bench.federated.parts import build_task
from pfl_bench.metrics.classification import Classification
from pfl_bench.types import FederatedSplit, Task, UserInputError
from tests.helpers import make_config

CPU = torch.device("cpu")


def digits() -> tuple[Task, FederatedSplit]:
    task = build_task(make_config("federated"), CPU)
    return task, task.split("val")


def through(module: nn.Module, task: Task) -> Forward:
    return Forward(module, task, CPU)


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(64, 10)


def evaluate(module: nn.Module, task: Task, split: FederatedSplit, size: int) -> dict[str, float]:
    return measure(through(module, task), split, [Classification()], size).result(split, False)


def test_metrics_agree_with_scikit_learn_and_with_each_client_alone() -> None:
    task, split = digits()
    module = linear()
    result = evaluate(module, task, split, 32)
    examples = split.read_range(0, split.num_examples)
    with torch.no_grad():
        logits = module(examples.inputs)
    predicted, truth = logits.argmax(1).numpy(), examples.targets.numpy()
    assert result["val/accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    probabilities = logits.double().softmax(1).numpy()
    assert result["val/loss"] == pytest.approx(
        log_loss(truth, probabilities, labels=range(10)), rel=1e-5
    )
    bounds = zip(split.offsets[:-1], split.offsets[1:], strict=True)
    per_client = [accuracy_score(truth[a:b], predicted[a:b]) for a, b in bounds]
    assert result["val/accuracy_by_client"] == pytest.approx(np.mean(per_client))
    for percentile in (10, 25, 50, 75, 90):
        expected = np.percentile(per_client, percentile)
        assert result[f"val/client_accuracy_p{percentile}"] == pytest.approx(expected)
    assert result["val/client_accuracy_sd"] == pytest.approx(np.std(per_client))
    # A client of three examples counts as three clients of one.
    repeated = np.repeat(per_client, np.diff(split.offsets))
    assert repeated.mean() == pytest.approx(result["val/accuracy"])
    assert result["val/client_accuracy_weighted_sd"] == pytest.approx(repeated.std())
    for percentile in (10, 25, 50, 75, 90):
        expected = np.percentile(repeated, percentile, method="inverted_cdf")
        assert result[f"val/client_accuracy_weighted_p{percentile}"] == pytest.approx(expected)
    assert result["val/num_examples"] == split.num_examples


@settings(deadline=None, max_examples=15)
@given(batch_size=st.integers(1, 400))
def test_the_batch_size_does_not_matter(batch_size: int) -> None:
    task, split = digits()
    module = linear()
    reference = evaluate(module, task, split, 400)
    other = evaluate(module, task, split, batch_size)
    assert other == pytest.approx(reference, rel=1e-6)


def test_merging_equals_one_pass_in_any_order() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(40, 10), torch.randint(0, 10, (40,))
    whole, left, right = Classification(), Classification(), Classification()
    whole.update(outputs, targets)
    order = torch.randperm(40)
    left.update(outputs[order[:13]], targets[order[:13]])
    right.update(outputs[order[13:]], targets[order[13:]])
    right.merge(left)
    assert right.compute() == pytest.approx(whole.compute(), rel=1e-6)


def test_a_model_that_is_not_finite_scores_nothing() -> None:
    metric = Classification()
    values = metric.update(torch.full((3, 10), float("nan")), torch.zeros(3, dtype=torch.int64))
    assert values["accuracy"].sum() == 0
    assert metric.compute()["accuracy"] == 0
    assert np.isnan(metric.compute()["loss"])


def test_no_examples_is_an_error_not_a_number() -> None:
    with pytest.raises(UserInputError, match="zero examples"):
        Classification().compute()


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [((4, 1), torch.zeros(4, 1)), ((4,), torch.zeros(4).long()), ((4, 3), torch.zeros(4))],
    ids=["regression", "one number", "floats"],
)
def test_what_are_no_classes_is_refused(outputs: tuple[int, ...], targets: torch.Tensor) -> None:
    with pytest.raises(UserInputError, match=r"take outputs of shape \(n, K\).*name a metric"):
        Classification().update(torch.zeros(outputs), targets)


@pytest.mark.parametrize("is_training", [True, False])
def test_evaluation_leaves_the_mode_as_it_was(is_training: bool) -> None:
    task, split = digits()
    module = linear().train(is_training)
    evaluate(module, task, split, 64)
    assert module.training == is_training


def test_evaluation_is_without_dropout_and_gradients() -> None:
    class Watching(Classification):
        def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            assert not outputs.requires_grad
            return super().update(outputs, targets)

    task, split = digits()
    module = nn.Sequential(linear(), nn.Dropout()).train()
    found = measure(through(module, task), split, [Watching()], 64).result(split, False)
    assert found == evaluate(module[0], task, split, 64)


def test_names_are_found_out_in_evaluation_mode() -> None:
    """A batch norm in training would have nothing to go by on one example."""
    task, split = digits()
    module = nn.Sequential(linear(), nn.BatchNorm1d(10)).train()
    names = measured_names(through(module, task), split, [Classification()])
    assert set(names) == set(evaluate(module, task, split, 64))
    assert module.training


@pytest.mark.parametrize(
    "adaptation", [None, {"num_steps": 1, "batch_size": 2, "learning_rate": 0.1}]
)
def test_evaluation_leaves_the_weights_that_reading_moves(adaptation: Any) -> None:
    config = make_config("federated", evaluation__adaptation=adaptation).config
    task, _ = digits()
    module = linear()
    model = FlatModel(module, CPU)

    def halve(*_: Any) -> None:
        model.vector.mul_(0.5)

    module.register_forward_pre_hook(halve)
    evaluator = Evaluator(config, task, model, through(module, task), None)
    before = model.vector.clone()
    found, _ = evaluator.evaluate(["val"])
    assert torch.equal(model.vector, before)
    assert set(found) == set(evaluator.names("val"))


def test_only_what_is_measured_has_a_name() -> None:
    class Weighted(Classification):
        def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            values = super().update(outputs, targets)
            return {**values, "weight": torch.ones(len(targets))}

    task, split = digits()
    forward = through(linear(), task)
    found = measure(forward, split, [Weighted()], 64)
    plain = evaluate(forward.module, task, split, 64)
    assert found.result(split, False) == plain
    own = found.result(split, True)
    assert own.keys() - plain.keys() == {"val/num_clients_without_examples"}


def test_the_loss_at_the_start_is_without_dropout() -> None:
    task, split = digits()
    module = nn.Sequential(linear(), nn.Dropout()).train()
    wanted = initial_loss(through(module[0], task), split)
    assert initial_loss(through(module, task), split) == wanted
    first = split.read_range(0, 16)
    loss = task.loss(module[0](first.inputs), first.targets).detach()
    assert wanted == pytest.approx(float(loss))
    assert module.training
