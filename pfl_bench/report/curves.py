"""Learning curves as small inline SVG pictures that follow the page's colours."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Colours that people with colour-blindness can tell apart (Okabe and Ito, 2008, without black and
# yellow). The page defines --s0.. for light and dark; these values only mark the places.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Dashes in points, so that rows differ in print without colour too.
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (1.5, 2), (8, 2.5, 1.5, 2.5))
_INK = "#0a0b0c"
_GRID = "#0d0e0f"


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        x: Rounds or epochs.
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


def color_name(style: int) -> str:
    """The page's name for a row's colour."""
    return f"var(--s{style % len(PALETTE)})"


def dashes(style: int) -> tuple[float, ...]:
    """A row's dashes, in points; empty for a solid line."""
    # The dashes move on with every colour and once more after a full turn of the colours, so that
    # twelve rows have twelve looks.
    return DASHES[(style + style // len(PALETTE)) % len(DASHES)]


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


def draw(
    identifier: str,
    description: str,
    x_label: str,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    y_limits: tuple[float, float] | None = None,
) -> str:
    """Draw curves over rounds.

    Args:
        identifier: Prefix that keeps this picture's ids apart from the page's other pictures.
        description: What a reader who cannot see the picture is told.
        x_label: "round" or "epoch".
        lines: Curves, drawn in this order.
        bands: Ranges, drawn below the curves.
        y_limits: Fixed range of the vertical axis; None fits it to the data.

    Returns:
        An ``svg`` element without references to anything outside the page.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # matplotlib types the keys as one long Literal, of which older releases know nothing.
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": identifier,
        "lines.scale_dashes": False,
        "font.size": 9.0,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(4.1, 2.5), layout="constrained")
        axes = figure.add_subplot()
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
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.grid(color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_INK)
        axes.tick_params(length=0)
        axes.margins(x=0.02)
        if y_limits is not None:
            axes.set_ylim(*y_limits)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), identifier, description)


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


def _inline(svg: str, identifier: str, description: str) -> str:
    """Cut the picture out of its document and hand its colours and fonts to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{identifier}-', svg)
    svg = svg.replace("url(#", f"url(#{identifier}-").replace('href="#', f'href="#{identifier}-')
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    for index, color in enumerate(PALETTE):
        svg = svg.replace(color, f"var(--s{index})")
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    text = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{text}"', 1)
    return re.sub(r"\n\s*", "\n", svg)
