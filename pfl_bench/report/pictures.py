"""Pictures that are no curves: rows as points, boxes over clients, and of attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_bench.metrics import PERSONAL
from pfl_bench.report.canvas import DASHES, GRID, INK, PALETTE, Picture, cut, write_figure
from pfl_bench.report.costs import Price, bytes_text, flops_text
from pfl_bench.report.run_folder import RunRecord
from privacy.statement.statement import round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from torch import Tensor

    from pfl_bench.runs.gradient_inversion import Inverted

_UNIT_MARKERS = {"user": "o", "example": "s"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_PERCENTILES = (10, 25, 50, 75, 90)
# What matplotlib calls the percentiles of a box, and the mean; and what a reader does.
_PARTS = ("whislo", "q1", "med", "q3", "whishi", "mean")
_NAMES = ("p10", "p25", "median", "p75", "p90", "mean")
_MEDIAN, _MEAN = PALETTE[1], PALETTE[2]
_CONFIDENCE = 0.95
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Point:
    """One row; if it did not reach the value, its price is what it had paid at its end."""

    label: str
    price: Price
    style: int


def draw_points(identifier: str, points: Sequence[Point]) -> Picture:
    """Draw rows as points; hollow ones did not reach the value and stand for all that they used."""
    texts = [
        f"{point.label}: {flops_text(point.price.flops)}, {bytes_text(point.price.bytes_up)} sent"
        + ("" if point.price.num_reached else ", not reached")
        for point in points
    ]

    def paint(axes: Axes) -> None:
        for place, point in enumerate(points):
            color = PALETTE[point.style % len(PALETTE)]
            # Nothing sent or computed has no place on a scale of powers.
            x, y = max(point.price.bytes_up, 1.0), max(point.price.flops, 1.0)
            is_full, marker = point.price.num_reached > 0, _MARKERS[point.style % len(_MARKERS)]
            label = point.label if is_full else f"{point.label} (not reached)"
            look = {"markersize": 9, "markeredgewidth": 1.8, "label": label}
            _mark(axes, place, (x, y), color, is_full, marker=marker, **look)
        axes.set(xscale="log", yscale="log")
        axes.margins(0.12)
        _label_powers(axes.xaxis, bytes_text)
        _label_powers(axes.yaxis, flops_text)
        axes.set(xlabel="sent by all clients", ylabel="computed by all clients")
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02))

    titles = {f"point{place}": text for place, text in enumerate(texts)}
    return Picture(identifier, "; ".join(texts), paint, (6.8, 3.3), titles)


def _mark(
    axes: Axes, place: int, at: tuple[float, float], color: str, is_full: bool, **look: Any
) -> None:
    """Draw the mark of the row at a place, which is that of its title too."""
    face = color if is_full else "none"
    look |= {"linestyle": "none", "markeredgecolor": color, "markerfacecolor": face}
    axes.plot(*at, gid=f"point{place}", **look)


def _label_powers(axis: Axis, text_of: Callable[[float], str]) -> None:
    """Label a logarithmic axis, densely where it has less than three powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value)))
    axis.set_minor_formatter(NullFormatter())


def draw_front(
    identifier: str, rows: Sequence[tuple[str, float, float, str, bool]], metric: str
) -> Picture:
    """Draw private rows: name, epsilon, utility, unit, and whether it is on the unit's front."""
    titles = {
        f"point{place}": f"{name}: {utility:.4g} at epsilon {round_up(epsilon, 4)}"
        for place, (name, epsilon, utility, _, _) in enumerate(rows)
    }

    def paint(axes: Axes) -> None:
        for color, (unit, marker) in zip(PALETTE, _UNIT_MARKERS.items(), strict=False):
            front = sorted((e, u) for _, e, u, whom, is_on in rows if whom == unit and is_on)
            if front:
                x, y = zip(*front, strict=True)
                axes.step(x, y, color=color, where="post", label=f"front, {unit}-level")
            for place, (_, epsilon, utility, whom, is_on) in enumerate(rows):
                if whom == unit:
                    at = (epsilon, utility)
                    _mark(axes, place, at, color, is_on, marker=marker, markersize=6)
        axes.set_xscale("log")
        axes.margins(0.08)
        low, high = axes.get_xlim()
        if high < 4 * low:  # of epsilons that are nearly equal, all ticks would read alike
            axes.set_xlim((low * high) ** 0.5 / 2, (low * high) ** 0.5 * 2)
        _label_powers(axes.xaxis, "{:g}".format)
        axes.set(xlabel="epsilon (simulated)", ylabel=metric)
        # Above the axes, where no point can lie under it.
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    return Picture(identifier, "; ".join(titles.values()), paint, (6.0, 3.0), titles)


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
    name = base.removeprefix(PERSONAL)
    whose = PERSONAL if name != base else ""
    percentiles = (f"{split}/{whose}client_{name}_p{percent}" for percent in _PERCENTILES)
    return (*percentiles, f"{split}/{base}_by_client")


def box_of(label: str, runs: Sequence[RunRecord], metric: str) -> Box | None:
    """Make a row's box of a metric; None if no finished run has all of its numbers."""
    found = []
    for run in runs:
        values = [run.summary.metrics.get(key) for key in box_keys(metric)]
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
            dict(zip((*_PARTS, "label"), (*box.percentiles, box.mean, cut(box.label)), strict=True))
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


def roc_picture(found: Mapping[str, Any]) -> Picture:
    """Draw a membership attack's ROC curve beside what the claim allows.

    ``found`` is one kind of ``attack.json``. Bands: Clopper-Pearson, 95 %, of independent trials.
    """
    from privacy.empirical.membership import clopper_pearson

    false = np.array(found["roc"]["false_positives"])
    true = np.array(found["roc"]["true_positives"])
    outs, ins = found["trials"]["out"], found["trials"]["in"]
    bands = np.array([clopper_pearson(int(count), ins, _CONFIDENCE) for count in true])
    smallest = 10.0 ** math.floor(math.log10(0.5 / outs))

    def paint(axes: Axes) -> None:
        rates = false / outs
        axes.plot(rates, true / ins, color=PALETTE[0], label=f"attack {found['kind']}")
        axes.fill_between(rates, bands[:, 0], bands[:, 1], color=PALETTE[0], alpha=0.2)
        chance = np.array([smallest, 1.0])
        axes.plot(chance, chance, color=INK, dashes=DASHES[2], label="chance")
        curve = found["curve"]
        if curve is not None:
            axes.plot(
                curve["false_positive_rate"],
                curve["true_positive_rate"],
                color=PALETTE[1],
                dashes=DASHES[1],
                label="most that the claim allows",
            )
        axes.set(xscale="log", yscale="log", xlim=(smallest, 1.0), ylim=(smallest, 1.0))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(fontsize=7)

    rates = ", ".join(
        f"true positive rate {one['true_positive_rate']:.3g} at {one['false_positive_rate']:g}"
        for one in found["rates"]
    )
    described = f"ROC curve of the attack {found['kind']}: area {found['auc']:.3f}, {rates}"
    return Picture(f"attack-{found['kind']}", described, paint, (4.1, 3.2))


def save_picture(inverted: Inverted, path: Path) -> None:
    """Write a gradient inversion as a PNG: a column an example.

    A row has the originals, and one each reconstruction.
    """
    from matplotlib.figure import Figure

    rows: dict[str, Tensor] = {"original": inverted.originals}
    for name, one in inverted.found.items():
        rows[f"{name}\n{one.psnr:.1f} dB"] = one.images
    shown = min(_MOST_SHOWN, len(inverted.originals))
    figure = Figure(figsize=(1.6 + 1.1 * shown, 1.15 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), shown, squeeze=False)
    low, high = inverted.pixel_range
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images[:shown], strict=True):
            pixels = ((image - low) / (high - low)).clamp(0.0, 1.0).permute(1, 2, 0).numpy()
            axes.imshow(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels, cmap="gray")
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    write_figure(figure, path, dpi=150, metadata={"Software": None})
