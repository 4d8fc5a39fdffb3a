"""Learning curves as small pictures that follow the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import PALETTE, Picture, dashes
from pfl_bench.report.series import STEP, Chart, Curve, Rows, curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Values so far apart would press most of them onto the axis of a linear scale.
_LOG_FROM = 50.0
# So many points of a picture's every row are drawn, and fewer where a page has many rows.
MAX_POINTS, _FEWEST_POINTS, _ALL_POINTS = 200, 40, 2000
SMALL, WIDE = (4.1, 2.5), (9.0, 3.4)


@dataclass(frozen=True)
class Line:
    """A row's curve and the index of the row; ``runs`` is its name in the page's numbers."""

    name: str
    runs: str
    style: int
    curve: Curve


def lines_of(rows: Rows, y: str, x: str = STEP, scale: float = 1.0) -> list[Line]:
    """The curves of rows that have one; arguments are those of ``curve_of``."""
    return [
        Line(name, runs[0].name, style, curve)
        for style, (name, runs) in enumerate(rows.items())
        if (curve := curve_of(runs, y, x, scale)) is not None
    ]


def draw(
    identifier: str,
    description: str,
    chart: Chart,
    lines: Sequence[Line],
    points: int = MAX_POINTS,
    size: tuple[float, float] = SMALL,
) -> Picture:
    """Draw lines as a chart has them, with at most so many points each; ``size`` is in inches.

    A range is drawn around the curves of a chart with a band, and around those of several seeds.
    """

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for line in lines:
            curve = line.curve
            if chart.band is None and curve.num_runs == 1:
                continue
            color = PALETTE[line.style % len(PALETTE)]
            places = _places(len(curve.x), points // 2)
            x, low, high = ([s[i] for i in places] for s in (curve.x, curve.low, curve.high))
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        for line in lines:
            x, y = thin(line.curve.x, line.curve.y, points)
            axes.plot(
                x,
                y,
                color=PALETTE[line.style % len(PALETTE)],
                linewidth=1.9,
                linestyle=(0, dashes(line.style)) if dashes(line.style) else "solid",
                marker="o" if len(x) == 1 else None,
                markersize=4,
                label=line.name,
            )
        axes.set_xlabel(chart.x_label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=chart.x == STEP))
        if chart.log:
            axes.set_yscale("log")
        else:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.02)
        if chart.limits is not None:
            axes.set_ylim(*chart.limits)

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
    return min(MAX_POINTS, max(_FEWEST_POINTS, _ALL_POINTS // num_rows))


def thin(
    x: Sequence[float], y: Sequence[float], most: int = MAX_POINTS
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
