"""Definitions: scikit-learn, a literal 200-threshold loop and hand-made cases as referees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score
from torch import Tensor

from pfl_bench import plugins
from pfl_bench.metrics.multilabel import HALF, THRESHOLDS, MultiLabel, Options, build
from pfl_bench.types import DataFacts, UserInputError

NAMES = tuple("abcdefgh")
AVERAGES = ("c_ap", "c_ap_200", "c_p", "c_r", "c_f1", "c_f1_mean")
AVERAGES += ("o_ap", "o_ap_200", "o_p", "o_r", "o_f1")


def compute(logits: Tensor, targets: Tensor) -> dict[str, float]:
    metric = MultiLabel(NAMES[: logits.shape[1]])
    metric.update(logits, targets)
    return metric.compute()


def sample(kind: str, seed: int = 0, num_examples: int = 400) -> tuple[Tensor, Tensor]:
    """Logits of seven classes that know something of targets of growing frequency."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.tensor([0.005, 0.02, 0.05, 0.1, 0.3, 0.6, 0.95])
    targets = (torch.rand(num_examples, 7, generator=generator) < frequency).float()
    targets[0], targets[1] = 1, 0
    logits = torch.randn(num_examples, 7, generator=generator) + 2 * targets - 1
    if kind == "ties":
        logits = logits.round()
    if kind == "constant":
        logits = torch.full_like(logits, -0.25)
    if kind == "saturated":
        # A float32 sigmoid makes all of these 1; their order must count all the same.
        logits = logits + 40
    return logits, targets


KINDS = ("continuous", "ties", "constant", "saturated")


@pytest.mark.parametrize("kind", KINDS)
def test_average_precision_is_scikit_learns(kind: str) -> None:
    logits, targets = sample(kind)
    result = compute(logits, targets)
    truth, scores = targets.numpy(), logits.numpy()
    for index, name in enumerate(NAMES[:7]):
        expected = average_precision_score(truth[:, index], scores[:, index])
        assert result[f"ap_{name}"] == pytest.approx(expected, abs=1e-12)
    macro = average_precision_score(truth, scores, average="macro")
    micro = average_precision_score(truth, scores, average="micro")
    assert result["c_ap"] == pytest.approx(macro, abs=1e-12)
    assert result["o_ap"] == pytest.approx(micro, abs=1e-12)
    assert result["num_classes_without_positives"] == 0


def test_a_tie_is_one_step_whatever_the_order_of_its_examples() -> None:
    logits = torch.zeros(10, 1)
    for place in range(7):
        targets = torch.zeros(10, 1)
        targets[place : place + 3] = 1
        # Ranked one by one, the positives at the front would have 1, at the end about 0.2.
        assert compute(logits, targets)["ap_a"] == pytest.approx(0.3, abs=1e-12)


def test_a_negative_zero_ties_with_zero() -> None:
    logits, targets = torch.tensor([[0.0], [-0.0], [-0.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    result = compute(logits, targets)
    assert result["ap_a"] == result["o_ap"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_precision_recall_and_f1_are_scikit_learns(kind: str) -> None:
    logits, targets = sample(kind)
    targets[:, 2] = 0  # absent
    logits[:, 4] = -1  # never predicted
    result = compute(logits, targets)
    truth, predicted = targets.numpy(), (logits > 0).numpy()
    for prefix, average in (("c", "macro"), ("o", "micro")):
        arguments = {"average": average, "zero_division": 0}
        precision = precision_score(truth, predicted, **arguments)
        recall = recall_score(truth, predicted, **arguments)
        assert result[f"{prefix}_p"] == pytest.approx(precision)
        assert result[f"{prefix}_r"] == pytest.approx(recall)
        total = precision + recall
        harmonic = 2 * precision * recall / total if total else 0
        assert result[f"{prefix}_f1"] == pytest.approx(harmonic)
    mean_of_f1 = f1_score(truth, predicted, average="macro", zero_division=0)
    assert result["c_f1_mean"] == pytest.approx(mean_of_f1)
    assert result["o_f1"] == pytest.approx(
        f1_score(truth, predicted, average="micro", zero_division=0)
    )


def test_the_two_macro_f1_differ_and_the_papers_cell_comes_out_of_the_first() -> None:
    # Table 1, centralized, fine-tuned: C-P 72.79, C-R 48.24, C-F1 58.03.
    rng = np.random.default_rng(0)
    logits, targets = sample("continuous")
    result = compute(logits, targets)
    assert abs(result["c_f1"] - result["c_f1_mean"]) > 0.01
    # 10,000 predictions with 7,279 hits among 15,089 positives are such a class.
    truth = np.repeat([1.0, 0.0, 1.0], [7279, 2721, 15089 - 7279])
    scores = np.repeat([1.0, 1.0, -1.0], [7279, 2721, 15089 - 7279])
    order = rng.permutation(len(truth))
    one = compute(
        torch.from_numpy(scores[order]).float()[:, None],
        torch.from_numpy(truth[order]).float()[:, None],
    )
    assert one["c_p"] == pytest.approx(0.7279)
    assert one["c_r"] == pytest.approx(0.4824, abs=5e-5)
    assert one["c_f1"] == pytest.approx(0.5803, abs=5e-5)


def literal_200(probability: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """The paper's code read aloud: one class, one threshold after another."""
    thresholds = [0 - 1e-7, *[i / 199 for i in range(1, 199)], 1 + 1e-7]
    precision, recall = [], []
    for threshold in thresholds:
        tp = fp = fn = 0
        for score, present in zip(probability, truth, strict=True):
            if score > threshold and present:
                tp += 1
            elif score > threshold:
                fp += 1
            elif present:
                fn += 1
        precision.append(tp / (tp + fp) if tp + fp else 0.0)
        recall.append(tp / (tp + fn) if tp + fn else 0.0)
    return sum((recall[i] - recall[i + 1]) * precision[i] for i in range(199))


@pytest.mark.parametrize("kind", KINDS)
def test_200_thresholds_are_the_papers(kind: str) -> None:
    logits, targets = sample(kind, num_examples=120)
    targets[:, 1] = 0
    result = compute(logits, targets)
    probability, truth = logits.double().sigmoid().numpy(), targets.double().numpy()
    expected = [literal_200(probability[:, i], truth[:, i]) for i in range(7)]
    for name, value in zip(NAMES, expected, strict=False):
        assert result[f"ap_200_{name}"] == pytest.approx(value, abs=1e-12)
    assert result["ap_200_b"] == 0
    # The absent class counts: the mean is over seven, not six.
    assert result["c_ap_200"] == pytest.approx(sum(expected) / 7, abs=1e-12)
    overall = literal_200(probability.reshape(-1), truth.reshape(-1))
    assert result["o_ap_200"] == pytest.approx(overall, abs=1e-12)


def test_the_thresholds_are_exact_to_the_next_float() -> None:
    assert len(THRESHOLDS) == 201
    assert THRESHOLDS[HALF] == 0
    papers = np.delete(THRESHOLDS, HALF)[1:-1]
    wanted = np.arange(1, 199) / 199
    for logit, probability in zip(papers, wanted, strict=True):
        above = np.nextafter(logit, np.float32(np.inf))
        assert 1 / (1 + math.exp(-float(logit))) <= probability
        assert 1 / (1 + math.exp(-float(above))) > probability


def test_exact_and_200_thresholds_differ_where_scores_lie_between_thresholds() -> None:
    logits = torch.tensor([[6.2], [6.1], [6.0], [-3.0]])
    targets = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    result = compute(logits, targets)
    assert result["ap_a"] == pytest.approx((1 + 2 / 3) / 2)
    assert result["ap_200_a"] == pytest.approx(2 / 3)
    # No threshold lies between 99/199 and 100/199: that of precision and recall is not among them.
    result = compute(torch.tensor([[0.002], [-0.002]]), torch.tensor([[1.0], [0.0]]))
    assert result["c_p"] == result["ap_a"] == 1
    assert result["ap_200_a"] == pytest.approx(0.5)


def test_absent_classes_are_left_out_of_the_exact_mean_alone() -> None:
    logits, targets = sample("continuous")
    targets[:, 3] = 0
    result = compute(logits, targets)
    kept = [i for i in range(7) if i != 3]
    macro = average_precision_score(targets[:, kept].numpy(), logits[:, kept].numpy())
    assert result["c_ap"] == pytest.approx(macro, abs=1e-12)
    assert math.isnan(result["ap_d"])
    assert result["num_classes_without_positives"] == 1
    everywhere = compute(logits[:, kept], targets[:, kept])
    assert result["c_r"] == pytest.approx(everywhere["c_r"] * 6 / 7)
    assert result["c_ap_200"] == pytest.approx(everywhere["c_ap_200"] * 6 / 7)


def test_no_positive_at_all_leaves_average_precision_undefined() -> None:
    result = compute(torch.randn(5, 3), torch.zeros(5, 3))
    assert math.isnan(result["c_ap"])
    assert math.isnan(result["o_ap"])
    assert result["o_r"] == result["c_f1"] == result["c_ap_200"] == result["o_ap_200"] == 0
    assert result["num_classes_without_positives"] == 3


def test_all_positive_is_perfect() -> None:
    result = compute(torch.randn(6, 3).abs() + 0.1, torch.ones(6, 3))
    assert all(result[name] == pytest.approx(1) for name in AVERAGES)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("present", [0.0, 1.0])
def test_a_logit_that_is_not_finite_is_never_a_number(bad: float, present: float) -> None:
    logits, targets = sample("continuous")
    clean = compute(logits, targets)
    logits[17, 4], targets[17, 4] = bad, present
    result = compute(logits, targets)
    assert math.isnan(result["ap_e"])
    assert math.isnan(result["ap_200_e"])
    assert all(math.isnan(result[name]) for name in AVERAGES)
    assert not math.isfinite(result["loss"])
    for name in "abcdfg":
        assert result[f"ap_{name}"] == clean[f"ap_{name}"]
        assert result[f"ap_200_{name}"] == clean[f"ap_200_{name}"]


@pytest.mark.parametrize("kind", KINDS)
def test_of_one_class_per_class_is_overall(kind: str) -> None:
    logits, targets = sample(kind)
    result = compute(logits[:, 4:5], targets[:, 4:5])
    for name in AVERAGES[:5]:
        assert result[name] == result["o_" + name[2:]]
    assert result["ap_a"] == result["c_ap"]
    assert result["c_f1"] == pytest.approx(result["c_f1_mean"])


def test_the_loss_is_that_of_examples_and_labels_alike() -> None:
    logits, targets = sample("continuous")
    metric = MultiLabel(NAMES[:7])
    values = metric.update(logits, targets)
    assert set(values) == {"loss"}
    assert values["loss"].shape == (400,)
    probability = logits.double().sigmoid()
    chosen = torch.where(targets == 1, probability, 1 - probability)
    torch.testing.assert_close(values["loss"].double(), -chosen.log().mean(1), rtol=1e-5, atol=0)
    assert metric.compute()["loss"] == pytest.approx(float(-chosen.log().mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2), r"\(n, 3\); got \(2, 3\) and \(2,\)"),
        (torch.zeros(2, 4), torch.zeros(2, 4), r"3 classes .* got \(2, 4\)"),
        (torch.zeros(2, 3), torch.zeros(3, 3), r"got \(2, 3\) and \(3, 3\)"),
        (torch.zeros(3), torch.zeros(3), r"got \(3,\)"),
        (torch.zeros(2, 3), torch.full((2, 3), 0.5), "targets of 0 and 1 alone"),
        (torch.zeros(2, 3), torch.full((2, 3), math.nan), "targets of 0 and 1 alone"),
        (torch.zeros(2, 3), torch.tensor([[0, 2, 1], [0, 0, 0]]), "targets of 0 and 1 alone"),
    ],
)
def test_wrong_batches_are_refused_and_leave_nothing(
    outputs: Tensor, targets: Tensor, message: str
) -> None:
    metric = MultiLabel(NAMES[:3])
    with pytest.raises(UserInputError, match=message):
        metric.update(outputs, targets)
    with pytest.raises(UserInputError, match="zero examples"):
        metric.compute()


def facts(num_classes: int, names: tuple[str, ...]) -> DataFacts:
    return DataFacts(
        source="test",
        variant="test",
        checksum="sha256:0",
        num_classes=num_classes,
        input_shape=(1,),
        split_by="user",
        class_names=names,
    )


def test_the_family_is_found_and_names_classes_as_the_data_do() -> None:
    family = plugins.load(plugins.METRIC, "multilabel")
    metric = family.build(family.Options(), facts(2, ("plant", "outdoor")))
    metric.update(torch.randn(4, 2), torch.ones(4, 2))
    names = {name for name in metric.compute() if name.startswith("ap_")}
    assert names == {"ap_plant", "ap_outdoor", "ap_200_plant", "ap_200_outdoor"}
    unnamed = build(Options(), facts(2, ()))
    unnamed.update(torch.randn(4, 2), torch.ones(4, 2))
    assert {"ap_0", "ap_1"} <= set(unnamed.compute())
    with pytest.raises(UserInputError, match="3 classes and 2 class names"):
        build(Options(), facts(3, ("plant", "outdoor")))


def test_many_classes_are_averaged_and_not_listed() -> None:
    for num_classes, listed in ((64, 64), (65, 0)):
        metric = build(Options(), facts(num_classes, ()))
        metric.update(torch.randn(8, num_classes), torch.ones(8, num_classes))
        result = metric.compute()
        assert sum(name.startswith("ap_200_") for name in result) == listed
        assert result["c_ap"] == pytest.approx(1)
