"""Multi-label classification: average precision, precision, recall and F1, by class and overall.

Scores are logits: a label is predicted where its logit is above 0 (its probability above 1/2), and
logits are ranked, since a float32 sigmoid ties what logits tell apart. "c_" averages over classes,
each weighing the same (macro); "o_" pools all pairs of image and label (micro). A class is absent
when no example has it.

============  =================================================  ==============================
key           definition                                         an absent class
============  =================================================  ==============================
c_ap          mean of exact average precisions                   left out
c_p, c_r      means of precision and of recall                   counts as 0 (recall has no
                                                                 positives to find)
c_f1          harmonic mean of c_p and c_r (the paper's C-F1)    counts as 0 in both
c_f1_mean     mean of each class's F1 (scikit-learn's macro-F1)  counts as 0
c_ap_200      mean of average precisions at 200 thresholds       counts as 0
o_ap, o_p,    the same of all pairs together; o_f1 is both the   adds its false predictions
o_r, o_f1,    harmonic mean of o_p and o_r and the micro-F1
o_ap_200
ap_<class>    exact average precision of one class (at most 64)  NaN
ap_200_...    at 200 thresholds                                  0
============  =================================================  ==============================

Exact average precision is the sum over distinct scores, from the highest, of the step in recall
times the precision there: scikit-learn's ``average_precision_score``, ties included. At thresholds
it is the sum of the same products over the paper's 200 probabilities; its code compares them with
float32 probabilities, so a score within their rounding of a threshold can fall on the other side.
Precision is 0 where nothing is predicted, F1 where there is neither a positive nor a prediction.
Without any positive at all, c_ap and o_ap are NaN.

A logit that is NaN or infinite makes its class's values NaN, and with them every average; the loss
is then not finite.

Source: Song et al. 2022 (FLAIR), tables 1 and 2; thresholds: that paper's published code.
"""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pfl_bench.config.training import NoOptions
from pfl_bench.metrics._average_precision import (
    ClassCounts,
    count_classes,
    overall_average_precision,
)
from pfl_bench.metrics._scores import Growing, Scores
from pfl_bench.types import DataFacts, UserInputError

MOST_CLASSES_BY_NAME = 64


def _logits_of_thresholds() -> NDArray[np.float32]:
    """The paper's 200 thresholds, as logits, and that of probability 1/2 among them.

    The paper's are a little less than 0, then i/199 for i = 1..198, then a little more than 1. A
    float32 logit is above the float32 number next below a limit exactly where it is above the
    limit, so comparing logits has no rounding in it.
    """
    probability = np.arange(1, 199) / 199
    exact = np.sort(np.append(np.log(probability / (1 - probability)), 0.0))
    rounded = exact.astype(np.float32)
    below = np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return np.concatenate([[-np.inf], below, [np.inf]]).astype(np.float32)


THRESHOLDS = _logits_of_thresholds()
HALF = int(np.flatnonzero(THRESHOLDS == 0)[0])

LOWER_IS_BETTER = frozenset({"loss"})
HEADLINES = ("c_ap", "o_ap")

Options = NoOptions


class MultiLabel:
    """The family's accumulator: keeps the logits, since exact ranking needs them all."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._class_names = class_names
        self._scores = Scores(len(class_names))
        self._losses = Growing(np.float64)

    @torch.no_grad()
    def update(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Take a batch in.

        Args:
            outputs: Shape (n, K), logits; float64 is rounded to float32.
            targets: Shape (n, K), 1 where the label is present, else 0.

        Returns:
            "loss" (binary cross entropy, nats, mean over labels) of each example, shape (n,).

        Raises:
            UserInputError: Shapes do not fit, or a target is neither 0 nor 1.
        """
        expected = (len(outputs), len(self._class_names))
        if outputs.shape != expected or targets.shape != expected:
            raise UserInputError(
                f"multi-label metrics of {expected[1]} classes take outputs and targets of shape "
                f"(n, {expected[1]}); got {tuple(outputs.shape)} and {tuple(targets.shape)}"
            )
        if not ((targets == 0) | (targets == 1)).all():
            raise UserInputError(
                "multi-label metrics take targets of 0 and 1 alone: one row an example, 1 for "
                "each label that it has, 0 elsewhere"
            )
        loss = functional.binary_cross_entropy_with_logits(
            outputs.float(), targets.float(), reduction="none"
        ).mean(dim=1)
        self._scores.append(outputs, targets)
        self._losses.append(loss.cpu().numpy())
        return {"loss": loss}

    def merge(self, other: MultiLabel) -> None:
        """Take in what another instance has seen; UserInputError if it has other classes."""
        if other._class_names != self._class_names:
            raise UserInputError(
                f"multi-label metrics of other classes cannot be merged: {len(self._class_names)} "
                f"here, {len(other._class_names)} there, or other names"
            )
        self._scores.extend(other._scores)
        self._losses.append(other._losses.values())

    def compute(self) -> dict[str, float]:
        """The metrics that the module lists, in 0..1, and two more.

        "loss" is the mean over examples and labels, in nats; "num_classes_without_positives" says
        how many classes c_ap leaves out.
        """
        if self._scores.num_rows == 0:
            raise UserInputError("multi-label metrics over zero examples are undefined")
        counts = count_classes(self._scores, THRESHOLDS)
        # Each class's average precision at 200 thresholds, shape (K,).
        by_threshold = _binned(counts.hits, counts.predicted, counts.num_positives[:, None])
        by_threshold = np.where(counts.finite, by_threshold, np.nan)
        result = _averages(counts, by_threshold)
        if counts.finite.all():
            result["o_ap"] = overall_average_precision(self._scores)
        else:
            result = dict.fromkeys([*result, "o_ap"], math.nan)
        # Summed exactly, so that neither the order of examples nor of workers matters.
        result["loss"] = fmean(self._losses.values().tolist())
        result["num_classes_without_positives"] = int((counts.num_positives == 0).sum())
        if len(self._class_names) <= MOST_CLASSES_BY_NAME:
            columns = zip(self._class_names, counts.average_precision, by_threshold, strict=True)
            for name, exact, binned in columns:
                result[f"ap_{name}"] = float(exact)
                result[f"ap_200_{name}"] = float(binned)
        return result


def _averages(counts: ClassCounts, average_precision_200: NDArray[np.float64]) -> dict[str, float]:
    hits, predicted = counts.hits[:, HALF], counts.predicted[:, HALF]
    positives = counts.num_positives
    present = positives > 0
    c_p = float(_ratio(hits, predicted).mean())
    c_r = float(_ratio(hits, positives).mean())
    o_p = float(_ratio(hits.sum(), predicted.sum()))
    o_r = float(_ratio(hits.sum(), positives.sum()))
    average = counts.average_precision[present]
    return {
        "c_ap": float(average.mean()) if present.any() else math.nan,
        "c_ap_200": float(average_precision_200.mean()),
        "c_p": c_p,
        "c_r": c_r,
        "c_f1": _harmonic_mean(c_p, c_r),
        "c_f1_mean": float(_ratio(2 * hits, predicted + positives).mean()),
        "o_ap_200": float(_binned(counts.hits.sum(0), counts.predicted.sum(0), positives.sum())),
        "o_p": o_p,
        "o_r": o_r,
        "o_f1": _harmonic_mean(o_p, o_r),
    }


def _binned(
    hits: NDArray[np.int64], predicted: NDArray[np.int64], positives: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sum over thresholds of the recall lost at the next one times the precision here."""
    # The threshold 1/2 is for the other metrics; the 200 do not have it.
    hits, predicted = np.delete(hits, HALF, axis=-1), np.delete(predicted, HALF, axis=-1)
    recall, precision = _ratio(hits, positives), _ratio(hits, predicted)
    return np.asarray(-(np.diff(recall, axis=-1) * precision[..., :-1]).sum(axis=-1))


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ratio of parts to wholes; 0 where both are 0."""
    return np.asarray(part / np.maximum(whole, 1))


def _harmonic_mean(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


def build(options: Options, facts: DataFacts) -> MultiLabel:
    """Build an empty accumulator for the data's classes; classes without names go by number."""
    names = facts.class_names or tuple(str(index) for index in range(facts.num_classes))
    if len(names) != facts.num_classes:
        raise UserInputError(
            f"the data have {facts.num_classes} classes and {len(names)} class names"
        )
    return MultiLabel(names)
