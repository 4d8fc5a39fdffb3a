"""Utility against epsilon, as points, and the front that no other row improves on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pfl_bench.report.canvas import PALETTE, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = {"user": "o", "example": "s"}


def draw_front(
    identifier: str, rows: Sequence[tuple[str, float, float, str, bool]], metric: str
) -> Picture:
    """Draw private rows as points; those on the front of a unit are full, and joined by a line.

    A row is its name, epsilon, utility, unit and whether it is on the front.
    """
    titles = {
        f"point{place}": f"{name}: {utility:.4g} at epsilon {epsilon:.4g}"
        for place, (name, epsilon, utility, _, _) in enumerate(rows)
    }

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        for color, (unit, marker) in zip(PALETTE, _MARKERS.items(), strict=False):
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
        axes.set_xlabel("epsilon (simulated)")
        axes.set_ylabel(metric)
        # Above the axes, where no point can lie under it.
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    return Picture(identifier, "; ".join(titles.values()), paint, (6.0, 3.0), titles)
