"""Learning curves as small inline SVG pictures that follow the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import PALETTE as PALETTE
from pfl_bench.report.canvas import dashes, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        x: Rounds, epochs or hours.
        y: Values there; non-finite ones are not drawn.
        style: Index of the row, which fixes colour and dashes.
        thin: Whether it is one seed behind a mean.
    """

    x: Sequence[float]
    y: Sequence[float]
    style: int
    thin: bool = False


@dataclass(frozen=True)
class Band:
    """A range around a curve, from low to high, over the same x.

    Attributes:
        x: Rounds or epochs.
        low: Lower edge.
        high: Upper edge.
        style: Index of the row.
    """

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: int


def mean_curve(
    curves: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> tuple[list[int], list[float]]:
    """Average curves at the rounds at which every one of them has a finite value.

    Args:
        curves: Pairs of rounds and values.

    Returns:
        Rounds and means.
    """
    if not curves:
        return [], []
    tables = [dict(zip(x, y, strict=True)) for x, y in curves]
    common = [
        x for x in tables[0] if all(math.isfinite(table.get(x, math.nan)) for table in tables)
    ]
    return common, [math.fsum(table[x] for table in tables) / len(tables) for x in common]


# Eight parameters: what is drawn, and four ways of drawing it that most callers leave alone.
def draw(
    identifier: str,
    description: str,
    x_label: str,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    y_limits: tuple[float, float] | None = None,
    log: bool = False,
    counts: bool = True,
) -> str:
    """Draw curves over rounds, or over time.

    Args:
        identifier: Prefix that keeps this picture's ids apart from the page's other pictures.
        description: What a reader who cannot see the picture is told.
        x_label: What the horizontal axis has: "round", "epoch" or "simulated hours".
        lines: Curves, drawn in this order.
        bands: Ranges, drawn below the curves.
        y_limits: Fixed range of the vertical axis; None fits it to the data.
        log: Whether the vertical axis is logarithmic; values up to 0 are then not drawn.
        counts: Whether the horizontal axis counts, and has marks at whole numbers alone.

    Returns:
        An ``svg`` element without references to anything outside the page.
    """

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for band in bands:
            color = PALETTE[band.style % len(PALETTE)]
            axes.fill_between(band.x, band.low, band.high, color=color, alpha=0.18, linewidth=0)
        for line in lines:
            x, y = _finite(line.x, line.y)
            single = len(x) == 1
            axes.plot(
                x,
                y,
                color=PALETTE[line.style % len(PALETTE)],
                linewidth=0.8 if line.thin else 1.9,
                alpha=0.45 if line.thin else 1.0,
                linestyle=(0, dashes(line.style)) if dashes(line.style) else "solid",
                marker="o" if single else None,
                markersize=4,
            )
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=counts))
        if log:
            axes.set_yscale("log")
        else:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.02)
        if y_limits is not None:
            axes.set_ylim(*y_limits)

    return render(identifier, description, paint)


def limits(values: Sequence[float]) -> tuple[float, float] | None:
    """A vertical range with five percent of air that holds all finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    air = 0.05 * (max(finite) - min(finite)) or 0.05 * abs(finite[0]) or 0.05
    return min(finite) - air, max(finite) + air


def _finite(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Drop points that cannot be drawn."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    return [a for a, _ in pairs], [b for _, b in pairs]
