"""Batches, order, workers and devices do not matter, and what is kept stays as it was."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from pfl_bench.metrics import _scores
from pfl_bench.metrics.multilabel import MultiLabel
from pfl_bench.types import UserInputError

NAMES = ("one", "two", "three")


def draw(num_examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits with ties inside and across classes, and rare and common targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(num_examples, 3, generator=generator) < torch.tensor([0.1, 0.4, 0.8])
    logits = torch.randn(num_examples, 3, generator=generator) + targets
    return (logits * 4).round() / 4, targets.float()


def measure(parts: list[tuple[Tensor, Tensor]]) -> MultiLabel:
    metric = MultiLabel(NAMES)
    for logits, targets in parts:
        metric.update(logits, targets)
    return metric


def assert_same(one: MultiLabel, other: MultiLabel) -> None:
    """Every metric bit for bit; a batch's losses may be summed in another order inside a row."""
    left, right = one.compute(), other.compute()
    assert list(left) == list(right)
    for name, value in left.items():
        if name == "loss":
            assert right[name] == pytest.approx(value, rel=1e-6, nan_ok=True)
        else:
            assert right[name] == value or (math.isnan(value) and math.isnan(right[name])), name


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of seven rows and blocks of one class, so that small data meet every border."""
    monkeypatch.setattr(_scores, "SEGMENT_VALUES", 21)


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 1000), num_examples=st.integers(1, 60))
def test_batches_order_and_workers_do_not_matter(
    data: st.DataObject, seed: int, num_examples: int
) -> None:
    logits, targets = draw(num_examples, seed)
    whole = measure([(logits, targets)])
    order = torch.tensor(data.draw(st.permutations(range(num_examples))))
    cuts = sorted(data.draw(st.lists(st.integers(0, num_examples), max_size=6)))
    bounds = list(zip([0, *cuts], [*cuts, num_examples], strict=True))
    batches = [(logits[order[a:b]], targets[order[a:b]]) for a, b in bounds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scores, "SEGMENT_VALUES", data.draw(st.sampled_from([1, 8, 21, 1 << 20])))
        assert_same(measure(batches), whole)
        workers = [MultiLabel(NAMES) for _ in range(3)]
        for batch in batches:
            workers[data.draw(st.integers(0, 2))].update(*batch)
        first, *others = data.draw(st.permutations(workers))
        for other in others:
            first.merge(other)
        assert_same(first, whole)


@pytest.mark.usefixtures("small_segments")
def test_blocks_and_segments_agree_with_scikit_learn() -> None:
    logits, targets = draw(100, 0)
    result = measure([(logits[:5], targets[:5]), (logits[5:], targets[5:])]).compute()
    truth, scores = targets.numpy(), logits.numpy()
    assert result["c_ap"] == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    micro = average_precision_score(truth, scores, average="micro")
    assert result["o_ap"] == pytest.approx(micro, abs=1e-12)


@pytest.mark.usefixtures("small_segments")
def test_workers_go_on_after_a_merge_without_touching_each_other() -> None:
    logits, targets = draw(60, 1)
    left, right = MultiLabel(NAMES), MultiLabel(NAMES)
    left.update(logits[:10], targets[:10])
    right.update(logits[10:24], targets[10:24])
    left.merge(right)
    right.update(logits[40:], targets[40:])
    left.update(logits[24:40], targets[24:40])
    assert_same(left, measure([(logits[:40], targets[:40])]))
    order = [*range(10, 24), *range(40, 60)]
    assert_same(right, measure([(logits[order], targets[order])]))
    empty = MultiLabel(NAMES)
    empty.merge(right)
    right.update(logits[:10], targets[:10])
    empty.update(logits[24:40], targets[24:40])
    assert_same(empty, measure([(logits[10:], targets[10:])]))
    empty.merge(MultiLabel(NAMES))
    assert_same(empty, measure([(logits[10:], targets[10:])]))


def test_a_worker_travels_between_processes() -> None:
    logits, targets = draw(30, 2)
    left, right = measure([(logits[:9], targets[:9])]), measure([(logits[9:], targets[9:])])
    left.merge(pickle.loads(pickle.dumps(right)))
    assert_same(left, measure([(logits, targets)]))


def test_other_classes_are_not_merged() -> None:
    for names in (("one", "two"), ("one", "two", "four")):
        with pytest.raises(UserInputError, match="cannot be merged"):
            MultiLabel(NAMES).merge(MultiLabel(names))


def test_computing_twice_and_reusing_a_buffer_change_nothing() -> None:
    logits, targets = draw(30, 3)
    whole = measure([(logits.clone(), targets.clone())])
    metric = MultiLabel(NAMES)
    values = metric.update(logits, targets)
    logits.fill_(7.0)
    targets.zero_()
    values["loss"].zero_()
    assert_same(metric, whole)
    assert_same(metric, whole)


def test_computing_leaves_the_number_of_threads_as_it_was() -> None:
    torch.set_num_threads(2)
    measure([draw(20, 7)]).compute()
    assert torch.get_num_threads() == 2


def test_an_empty_batch_is_legal() -> None:
    logits, targets = draw(20, 4)
    metric = measure([(logits, targets)])
    assert metric.update(logits[:0], targets[:0])["loss"].shape == (0,)
    assert_same(metric, measure([(logits, targets)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_other_precision_and_with_gradients_are_taken(dtype: torch.dtype) -> None:
    logits, targets = draw(40, 5)
    metric = MultiLabel(NAMES)
    # Quarters are exact in all of them, so the result is that of float32.
    values = metric.update(logits.to(dtype).requires_grad_(), targets)
    assert not values["loss"].requires_grad
    assert_same(metric, measure([(logits, targets)]))


def test_what_is_kept_is_the_scores_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scores, "SEGMENT_VALUES", 3 * 64)
    metric = MultiLabel(NAMES)
    for start in range(0, 1000, 10):
        metric.update(*draw(10, start))
    segments = metric._scores._segments
    kept = sum(segment.numel() for segment in segments)
    assert 3000 <= kept <= 3000 + 3 * 64
    # Segments, not batches: a hundred batches must not become a hundred pieces.
    assert len(segments) <= 25


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_what_the_cpu_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = draw(5000, 6)
    parts = list(zip(logits.split(512), targets.split(512), strict=True))
    on_gpu = [(scores.cuda(), truth.cuda()) for scores, truth in parts]
    on_cpu = measure(parts)
    held = measure(on_gpu)
    assert all(segment.is_cuda for segment in held._scores.segments())
    assert_same(held, on_cpu)
    mixed = measure(on_gpu[:3])
    mixed.merge(measure(parts[3:]))
    assert_same(mixed, on_cpu)
    monkeypatch.setattr(_scores, "SEGMENT_VALUES", 1024)
    moved = measure(on_gpu[:5])
    monkeypatch.setattr(_scores, "HEADROOM_BYTES", 1 << 60)
    for batch in on_gpu[5:]:
        moved.update(*batch)
    assert not any(segment.is_cuda for segment in moved._scores.segments())
    assert_same(moved, on_cpu)
    logits[3, 1] = math.nan
    broken = measure([(logits.cuda(), targets.cuda())])
    assert_same(broken, measure([(logits, targets)]))
