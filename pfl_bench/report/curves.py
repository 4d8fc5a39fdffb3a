"""Learning curves as small pictures that follow the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Panel:
    """One picture, and the chart that the page's script draws in its place (None: it stays)."""

    title: str
    picture: Picture
    chart: Chart | None = None

    @property
    def svg(self) -> str:
        """The picture as an element of the page."""
        return self.picture.svg


def live_panel(
    identifier: str,
    title: str,
    description: str,
    chart: Chart,
    lines: Sequence[Line],
    points: int = MAX_POINTS,
    size: tuple[float, float] = SMALL,
) -> Panel:
    """Draw lines on a chart that is yet without them; at most so many points each, size in inches.

    A range is drawn around the curves of a chart with a band, and around those of several seeds.
    """

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for line in lines:
            curve, color = thin(line.curve, points), PALETTE[line.style % len(PALETTE)]
            if chart.band is not None or curve.num_runs > 1:
                axes.fill_between(
                    curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0
                )
            axes.plot(
                curve.x,
                curve.y,
                color=color,
                linewidth=1.9,
                linestyle=(0, dashes(line.style)) if dashes(line.style) else "solid",
                marker="o" if len(curve.x) == 1 else None,
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

    chart = replace(chart, lines=tuple((one.runs, one.name, one.style) for one in lines))
    return Panel(title, Picture(identifier, description, paint, size), chart)


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


def thin(curve: Curve, most: int = MAX_POINTS) -> Curve:
    """Keep, of many points, the lowest and the highest of each stretch, in their order."""
    length = len(curve.x)
    if length <= most:
        return curve
    kept = {0, length - 1}
    stretch = -(-2 * length // most)
    for start in range(0, length, stretch):
        places = range(start, min(start + stretch, length))
        kept |= {min(places, key=curve.low.__getitem__), max(places, key=curve.high.__getitem__)}
    columns = (curve.x, curve.y, curve.low, curve.high)
    x, y, low, high = ([column[place] for place in sorted(kept)] for column in columns)
    return Curve(x, y, low, high, curve.num_runs)
