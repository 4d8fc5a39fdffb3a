"""Exact average precision, and counts at thresholds, of many classes from sorted scores.

Everything that the metrics need is integer counts: how many examples, and how many positives, score
at least as high as each positive, or above each threshold. Counts depend neither on the order of
examples nor on the device. Only values are sorted, no labels with them: the positives, a small
part, are then looked up among the sorted scores of their class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.metrics._scores import Scores
from pfl_bench.profiling import one_thread


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Counts that each class's metrics follow from; meaningless for a class that is not finite.

    ``finite``, shape (K,): all scores of the class are. ``predicted`` and ``hits``, shape (K, T):
    examples that score above each threshold, and positives among those. ``average_precision``,
    shape (K,): NaN for a class without positives or not finite.
    """

    num_examples: int
    finite: NDArray[np.bool_]
    num_positives: NDArray[np.int64]
    predicted: NDArray[np.int64]
    hits: NDArray[np.int64]
    average_precision: NDArray[np.float64]


@one_thread()
def count_classes(scores: Scores, thresholds: NDArray[np.float32]) -> ClassCounts:
    """Rank each class's examples, class by class; ``thresholds``, shape (T,), rise."""
    num_classes = scores.num_classes
    classes, values = scores.positives()
    num_positives = np.bincount(classes, minlength=num_classes)
    starts = np.concatenate([[0], np.cumsum(num_positives)])
    finite = np.empty(num_classes, np.bool_)
    predicted = np.empty((num_classes, len(thresholds)), np.int64)
    at_least = np.empty(len(classes), np.int64)
    for first, block in scores.column_blocks():
        rows = _sort_rows(block)
        last = first + len(rows)
        # Sorted, a NaN or an infinity can only be at an end.
        ends = rows[:, 0].isfinite() & rows[:, -1].isfinite()
        finite[first:last] = ends.cpu().numpy()
        levels = torch.from_numpy(thresholds).to(rows.device).expand(len(rows), -1).contiguous()
        above = scores.num_rows - torch.searchsorted(rows, levels, right=True)
        predicted[first:last] = above.cpu().numpy()
        mine = slice(starts[first], starts[last])
        row = torch.from_numpy(classes[mine] - first).to(rows.device)
        wanted = torch.from_numpy(values[mine]).to(rows.device)
        at_least[mine] = _count_at_least(rows, row, wanted).cpu().numpy()
    average = _average_precision(classes, values, at_least, num_positives)
    # Positives of each class above each threshold.
    width = len(thresholds) + 1
    below = np.searchsorted(thresholds, values, side="left")
    histogram = np.bincount(classes * width + below, minlength=num_classes * width)
    histogram = histogram.reshape(num_classes, width)
    hits = np.asarray(histogram[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:])
    average = np.where(finite, average, np.nan)
    return ClassCounts(scores.num_rows, finite, num_positives, predicted, hits, average)


@one_thread()
def overall_average_precision(scores: Scores) -> float:
    """Average precision of all pairs of example and class, all finite, in one ranking.

    It is NaN where there are no positives.
    """
    values = np.sort(scores.positives()[1])
    at_least = np.zeros(len(values), np.int64)
    for segment in scores.segments():
        ranked = _sort_rows(segment.clone().view(1, -1))[0]
        wanted = torch.from_numpy(values).to(ranked.device)
        at_least += ranked.numel() - torch.searchsorted(ranked, wanted).cpu().numpy()
    one_class = np.zeros(len(values), np.int64)
    num_positives = np.array([len(values)])
    return float(_average_precision(one_class, values, at_least, num_positives)[0])


def _sort_rows(block: Tensor) -> Tensor:
    """Sort each row of a tensor that is ours to overwrite; NaN comes last."""
    if block.device.type == "cpu":
        # NumPy sorts values alone, with vector instructions; torch.sort carries indices along and
        # takes 13 times as long for 64 rows of 43,960.
        block.numpy().sort(axis=1)
        return block
    return block.sort(dim=1).values


def _count_at_least(rows: Tensor, row: Tensor, wanted: Tensor) -> Tensor:
    """Number of scores in its row that are at least each wanted one, which is among them.

    ``rows``: shape (B, N), each sorted; ``row``: shape (P,), where to look; ``wanted``: shape (P,).
    Returns shape (P,), int64.
    """
    # One binary search for all, since rows have different numbers of positives. The wanted score
    # is in the row, so the first place that is not below it exists.
    length = rows.shape[1]
    flat = rows.view(-1)
    low = row * length
    high = low + length - 1
    end = low + length
    for _ in range(length.bit_length()):
        middle = (low + high) // 2
        below = flat[middle] < wanted
        low = torch.where(below, middle + 1, low)
        high = torch.where(below, high, middle)
    return end - high


def _average_precision(
    classes: NDArray[np.int64],
    values: NDArray[np.float32],
    at_least: NDArray[np.int64],
    num_positives: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The mean, over a class's positives, of the precision among all that score at least as high.

    Positives that tie share one precision, which is what makes ties exact: it is the sum over
    distinct scores of the step in recall times the precision there.

    ``classes``, shape (P,), rise; ``values``, shape (P,), rise in each class; ``at_least``, shape
    (P,), counts the class's examples that score as high; ``num_positives`` has shape (K,). Returns
    shape (K,), NaN for a class without positives.
    """
    first_of_tie = np.ones(len(values), np.bool_)
    first_of_tie[1:] = (values[1:] != values[:-1]) | (classes[1:] != classes[:-1])
    first = np.maximum.accumulate(np.where(first_of_tie, np.arange(len(values)), 0))
    hits = np.cumsum(num_positives)[classes] - first
    total = np.bincount(classes, weights=hits / at_least, minlength=len(num_positives))
    average = np.full(len(num_positives), np.nan)
    np.divide(total, num_positives, out=average, where=num_positives > 0)
    return average
