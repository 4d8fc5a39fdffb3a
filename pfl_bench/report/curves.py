"""Learning curves as small pictures that follow the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import PALETTE, Picture, dashes
from pfl_bench.report.series import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Values so far apart would press most of them onto the axis of a linear scale.
_LOG_FROM = 50.0
# So many points of a picture's every row are drawn, and fewer where a page has many rows.
_MAX_POINTS, _FEWEST_POINTS, _ALL_POINTS = 200, 40, 2000
SMALL, WIDE = (4.1, 2.5), (9.0, 3.4)


@dataclass(frozen=True)
class Line:
    """One curve; ``style`` is the index of its row. Non-finite values are not drawn."""

    x: Sequence[float]
    y: Sequence[float]
    style: int
    label: str = ""


@dataclass(frozen=True)
class Band:
    """A range around a curve, from low to high, over the same x."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: int


@dataclass(frozen=True)
class Plot:
    """Content of one picture; ``counts``: the horizontal axis has marks at whole numbers alone.

    ``y_limits`` is the range of the vertical axis; a None fits an end to the data. On a logarithmic
    one values up to 0 are not drawn.
    """

    x_label: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    y_limits: tuple[float | None, float | None] | None = None
    log: bool = False
    counts: bool = True
    points: int = _MAX_POINTS


def lines_and_bands(rows: Sequence[tuple[Curve, int, str]]) -> tuple[list[Line], list[Band]]:
    """Curves of rows by style and label, and the ranges of their seeds where there are several."""
    lines = [Line(curve.x, curve.y, style, label) for curve, style, label in rows]
    several = [(curve, style) for curve, style, _ in rows if curve.num_runs > 1]
    return lines, [Band(curve.x, curve.low, curve.high, style) for curve, style in several]


def draw(
    identifier: str, description: str, plot: Plot, size: tuple[float, float] = SMALL
) -> Picture:
    """Draw curves over rounds, or over time; ``size`` is width and height in inches."""

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for band in plot.bands:
            color = PALETTE[band.style % len(PALETTE)]
            places = _places(len(band.x), plot.points // 2)
            x, low, high = ([s[i] for i in places] for s in (band.x, band.low, band.high))
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        for line in plot.lines:
            x, y = thin(*_finite(line.x, line.y), plot.points)
            axes.plot(
                x,
                y,
                color=PALETTE[line.style % len(PALETTE)],
                linewidth=1.9,
                linestyle=(0, dashes(line.style)) if dashes(line.style) else "solid",
                marker="o" if len(x) == 1 else None,
                markersize=4,
                label=line.label,
            )
        axes.set_xlabel(plot.x_label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=plot.counts))
        if plot.log:
            axes.set_yscale("log")
        else:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.02)
        if plot.y_limits is not None:
            axes.set_ylim(*plot.y_limits)

    return Picture(identifier, description, paint, size)


def limits(values: Sequence[float]) -> tuple[float, float] | None:
    """A vertical range with five percent of air that holds all finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    air = 0.05 * (max(finite) - min(finite)) or 0.05 * abs(finite[0]) or 0.05
    return min(finite) - air, max(finite) + air


def wants_log(curves: Sequence[Curve]) -> bool:
    """Whether values are so far apart that a linear axis would hide most of them."""
    values = [value for curve in curves for value in curve.y]
    # What is at most 1, such as an accuracy, is read on a linear axis.
    return bool(values) and min(values) > 0 and max(values) > max(1.0, _LOG_FROM * min(values))


def points_for(num_rows: int) -> int:
    """Number of points of a curve on a page of so many rows."""
    return min(_MAX_POINTS, max(_FEWEST_POINTS, _ALL_POINTS // num_rows))


def thin(
    x: Sequence[float], y: Sequence[float], most: int = _MAX_POINTS
) -> tuple[list[float], list[float]]:
    """Keep, of many points, the lowest and the highest of each stretch, in their order."""
    if len(x) <= most:
        return list(x), list(y)
    kept = {0, len(x) - 1}
    stretch = -(-2 * len(x) // most)
    for start in range(0, len(x), stretch):
        places = range(start, min(start + stretch, len(x)))
        kept |= {min(places, key=y.__getitem__), max(places, key=y.__getitem__)}
    return [x[place] for place in sorted(kept)], [y[place] for place in sorted(kept)]


def _places(length: int, most: int) -> list[int]:
    """At most so many places of a band, evenly, with the last."""
    stride = max(1, -(-length // most))
    return sorted({*range(0, length, stride), length - 1})


def _finite(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Drop points that cannot be drawn."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    return [a for a, _ in pairs], [b for _, b in pairs]
