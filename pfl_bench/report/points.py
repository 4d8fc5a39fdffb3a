"""Rows as points: computation against communication, and utility against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import PALETTE, Picture
from pfl_bench.report.costs import Price, bytes_text, flops_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNIT_MARKERS = {"user": "o", "example": "s"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


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
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        for place, point in enumerate(points):
            color = PALETTE[point.style % len(PALETTE)]
            # Nothing sent or computed has no place on a scale of powers.
            axes.plot(
                [max(point.price.bytes_up, 1.0)],
                [max(point.price.flops, 1.0)],
                marker=_MARKERS[point.style % len(_MARKERS)],
                linestyle="none",
                markersize=9,
                markeredgewidth=1.8,
                markeredgecolor=color,
                markerfacecolor=color if point.price.num_reached else "none",
                gid=f"point{place}",
                label=point.label if point.price.num_reached else f"{point.label} (not reached)",
            )
        axes.set(xscale="log", yscale="log")
        axes.margins(0.12)
        for axis, text in ((axes.xaxis, bytes_text), (axes.yaxis, flops_text)):
            low, high = axis.get_view_interval()
            # Less than three powers of ten have too few of them to read a value by.
            steps = (1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)
            axis.set_major_locator(LogLocator(subs=steps))
            axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="sent by all clients", ylabel="computed by all clients")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.02))

    titles = {f"point{place}": text for place, text in enumerate(texts)}
    return Picture(identifier, "; ".join(texts), paint, (6.8, 3.3), titles)


def draw_front(
    identifier: str, rows: Sequence[tuple[str, float, float, str, bool]], metric: str
) -> Picture:
    """Draw private rows: name, epsilon, utility, unit, and whether it is on the unit's front."""
    titles = {
        f"point{place}": f"{name}: {utility:.4g} at epsilon {epsilon:.4g}"
        for place, (name, epsilon, utility, _, _) in enumerate(rows)
    }

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        for color, (unit, marker) in zip(PALETTE, _UNIT_MARKERS.items(), strict=False):
            front = sorted((e, u) for _, e, u, whom, is_on in rows if whom == unit and is_on)
            if front:
                x, y = zip(*front, strict=True)
                axes.step(x, y, color=color, where="post", label=f"front, {unit}-level")
            for place, (_, epsilon, utility, whom, is_on) in enumerate(rows):
                if whom == unit:
                    axes.plot(
                        [epsilon],
                        [utility],
                        marker=marker,
                        linestyle="none",
                        markersize=6,
                        markeredgecolor=color,
                        markerfacecolor=color if is_on else "none",
                        gid=f"point{place}",
                    )
        axes.set_xscale("log")
        axes.margins(0.08)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="epsilon (simulated)", ylabel=metric)
        # Above the axes, where no point can lie under it.
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    return Picture(identifier, "; ".join(titles.values()), paint, (6.0, 3.0), titles)
