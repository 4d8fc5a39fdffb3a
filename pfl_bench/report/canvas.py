"""What all pictures of the page share: colours, dashes, and turning a figure into inline SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that people with colour-blindness can tell apart (Okabe and Ito, 2008, without black and
# yellow). The page defines --s0.. for light and dark; these values only mark the places.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Dashes in points, so that rows differ in print without colour too.
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (1.5, 2), (8, 2.5, 1.5, 2.5))
INK = "#0a0b0c"
GRID = "#0d0e0f"


def color_name(style: int) -> str:
    """The page's name for a row's colour."""
    return f"var(--s{style % len(PALETTE)})"


def dashes(style: int) -> tuple[float, ...]:
    """A row's dashes, in points; empty for a solid line."""
    # The dashes move on with every colour and once more after a full turn of the colours, so that
    # twelve rows have twelve looks.
    return DASHES[(style + style // len(PALETTE)) % len(DASHES)]


def render(
    identifier: str,
    description: str,
    paint: Callable[[Axes], None],
    size: tuple[float, float] = (4.1, 2.5),
) -> str:
    """Draw one picture.

    Args:
        identifier: Prefix that keeps this picture's ids apart from the page's other pictures.
        description: What a reader who cannot see the picture is told.
        paint: Draws on the axes it is given, with the colours of this module alone.
        size: Width and height in inches.

    Returns:
        An ``svg`` element without references to anything outside the page.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # matplotlib types the keys as one long Literal, of which older releases know nothing.
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": identifier,
        "lines.scale_dashes": False,
        "font.size": 9.0,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(INK)
        paint(axes)
        axes.tick_params(length=0, which="both")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), identifier, description, size[0])


def _inline(svg: str, identifier: str, description: str, width: float) -> str:
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
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    text = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    # Wider than this, its letters would be larger than the page's.
    style = f"max-width: {6.5 * width:.1f}rem"
    svg = svg.replace("<svg", f'<svg role="img" style="{style}" aria-label="{text}"', 1)
    return re.sub(r"\n\s*", "\n", svg)
