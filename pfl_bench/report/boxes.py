"""Box plots of a metric's distribution over clients, from percentiles that runs have kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import GRID, INK, PALETTE, Picture
from pfl_bench.report.run_folder import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PERCENTILES = (10, 25, 50, 75, 90)
# What matplotlib calls the percentiles of a box, and the mean; and what a reader does.
_PARTS = ("whislo", "q1", "med", "q3", "whishi", "mean")
_NAMES = ("p10", "p25", "median", "p75", "p90", "mean")
_MEDIAN, _MEAN = PALETTE[1], PALETTE[2]


@dataclass(frozen=True)
class Box:
    """p10, p25, p50, p75, p90 and mean over clients, each weighing the same; means over seeds."""

    label: str
    percentiles: tuple[float, ...]
    mean: float
    num_runs: int


def box_keys(metric: str) -> tuple[str, ...]:
    """Names in a summary's metrics that a box of a metric is made of; the mean's is the last."""
    split, _, base = metric.partition("/")
    percentiles = (f"{split}/client_{base}_p{percent}" for percent in _PERCENTILES)
    return (*percentiles, f"{split}/{base}_by_client")


def box_of(label: str, runs: Sequence[RunRecord], metric: str) -> Box | None:
    """Make a row's box of a metric; None if no finished run has all of its numbers."""
    found = []
    for run in runs:
        values = [run.metrics.get(key) for key in box_keys(metric)]
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if len(numbers) == len(values):
            found.append(numbers)
    if not found:
        return None
    *percentiles, mean = map(fmean, zip(*found, strict=True))
    return Box(label, tuple(percentiles), mean, len(found))


def draw_boxes(identifier: str, metric: str, boxes: Sequence[Box]) -> Picture:
    """Draw boxes side by side: p25 to p75, whiskers p10 to p90, line the median, mark the mean."""
    texts = []
    for box in boxes:
        named = zip(_NAMES, (*box.percentiles, box.mean), strict=True)
        texts.append(f"{box.label}: " + ", ".join(f"{name} {one:.4g}" for name, one in named))

    def paint(axes: Axes) -> None:
        ink = {"color": INK, "linewidth": 1.1}
        mean = {"marker": "^", "markersize": 7, "markerfacecolor": _MEAN, "markeredgecolor": _MEAN}
        numbers = [
            dict(zip((*_PARTS, "label"), (*box.percentiles, box.mean, box.label), strict=True))
            for box in boxes
        ]
        axes.bxp(
            numbers,
            widths=0.5,
            showfliers=False,
            showmeans=True,
            boxprops=ink,
            whiskerprops=ink,
            capprops=ink,
            medianprops={"color": _MEDIAN, "linewidth": 2.2},
            meanprops=mean,
        )
        for place in range(len(boxes)):
            # A pointer anywhere over a box finds its numbers.
            axes.axvspan(place + 0.6, place + 1.4, color=INK, alpha=0.01, gid=f"box{place}")
        axes.set_ylabel(metric)
        axes.grid(visible=False, axis="x")
        axes.grid(visible=True, axis="y", color=GRID, linewidth=0.6)
        if len(boxes) > 4 or max(len(box.label) for box in boxes) > 14:
            for text in axes.get_xticklabels():
                text.set(rotation=25, horizontalalignment="right", rotation_mode="anchor")

    width = min(9.0, max(3.6, 0.85 * len(boxes) + 1.2))
    text = f"{metric} over clients. " + "; ".join(texts)
    titles = {f"box{place}": one for place, one in enumerate(texts)}
    return Picture(identifier, text, paint, (width, 3.0), titles)
