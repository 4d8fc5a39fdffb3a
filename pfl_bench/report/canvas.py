"""Shared by all pictures of the page: colours, dashes, and turning a figure into inline SVG."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that people with colour-blindness can tell apart (Okabe and Ito, 2008, without black and
# yellow). The page defines --s0.. for light and dark; these values only mark the places.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Dashes in points, so that rows differ in print without colour too.
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (1.5, 2), (8, 2.5, 1.5, 2.5))
INK = "#0a0b0c"
GRID = "#0d0e0f"
# In points, of which no screen shows a hundredth.
_COORDINATES = re.compile(r'\s(?:d|x|y|x1|x2|y1|y2|width|height|points|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"(\d\.\d)\d+")
# Of a row's label in a picture, in letters.
_LONGEST_LABEL = 32
# Places are marked by colours that are not the ones shown.
_PRINTED_GRID = "#dfe3e8"


def dashes(style: int) -> tuple[float, ...]:
    """A row's dashes, in points; empty for a solid line."""
    # The dashes move on with every colour and once more after a full turn of the colours, so that
    # twelve rows have twelve looks.
    return DASHES[(style + style // len(PALETTE)) % len(DASHES)]


def cut(label: str) -> str:
    """Cut a row's label that lists its settings, which would leave a picture no room for itself."""
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


@dataclass(frozen=True)
class Picture:
    """One picture, drawn when it is asked for; ``size`` is width and height in inches.

    The identifier keeps its ids apart from those of other pictures. ``paint`` draws with the
    colours of this module alone. A browser shows that of the ``titles`` whose key is a gid.
    """

    identifier: str
    description: str
    paint: Callable[[Axes], None]
    size: tuple[float, float] = (4.1, 2.5)
    titles: Mapping[str, str] | None = None

    @cached_property
    def svg(self) -> str:
        """An ``svg`` element without references to anything outside the page."""
        with _page_style(self.identifier):
            text = svg_of(self._draw())
        text = _inline(text, self.identifier, self.description, self.size[0])
        for gid, title in (self.titles or {}).items():
            place = f'<g id="{self.identifier}-{gid}">'
            text = text.replace(place, f"<g><title>{_escape(title)}</title>", 1)
        text = _COORDINATES.sub(lambda found: _LONG_NUMBER.sub(r"\1", found[0]), text)
        return re.sub(r">\s+<", "><", text)

    def save(self, stem: Path, y_label: str = "", endings: Sequence[str] = ("svg", "pdf")) -> None:
        """Write the picture for a paper, with its legend; ``y_label`` is for an axis without."""
        from matplotlib.colors import to_hex
        from matplotlib.lines import Line2D

        figure = self._draw()
        for line in figure.findobj(Line2D):
            if to_hex(line.get_color()) == GRID:
                line.set_color(_PRINTED_GRID)
        (axes,) = figure.axes
        if not axes.get_ylabel():
            axes.set_ylabel(y_label)
        if axes.get_legend() is None and len(axes.get_legend_handles_labels()[1]) > 1:
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(handles, map(cut, labels), frameon=False, fontsize=7)
        for ending in endings:
            date = "Date" if ending == "svg" else "CreationDate"
            with _page_style(self.identifier):
                path = stem.with_name(f"{stem.name}.{ending}")
                write_figure(figure, path, metadata={date: None})

    def _draw(self) -> Figure:
        from matplotlib.figure import Figure

        with _page_style(self.identifier):
            figure = Figure(figsize=self.size, layout="constrained")
            axes = figure.add_subplot()
            axes.spines["left"].set_visible(False)
            self.paint(axes)
            axes.tick_params(length=0, which="both")
        return figure


def svg_of(figure: Figure) -> str:
    """The text of ``savefig`` of a transparent figure, which would draw all twice for the layout.

    The figure stays transparent.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set(facecolor="none", edgecolor="none")
    buffer = io.StringIO()
    canvas: Any = FigureCanvasSVG(figure)
    canvas.print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def write_figure(figure: Figure, path: Path, **given: Any) -> None:
    """Write a figure, whole or not at all, in the format of its name; ``given`` is savefig's."""
    form = path.suffix[1:].lower()
    write_atomically(path, lambda file: figure.savefig(file, format=form, **given))


def picture_style(
    identifier: str = "picture", ink: str = "black", grid: str = "#dddddd"
) -> contextlib.AbstractContextManager[Any]:
    """Matplotlib's settings for pictures; equal pictures of one identifier are equal files."""
    import matplotlib as mpl
    from cycler import cycler

    # matplotlib types the keys as one long Literal, of which older releases know nothing.
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": identifier,
        "pdf.fonttype": 42,
        "lines.scale_dashes": False,
        "font.size": 9.0,
        "axes.prop_cycle": cycler(color=PALETTE),
        "axes.titlesize": 11,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        "axes.edgecolor": ink,
    }
    return mpl.rc_context(settings)


def _page_style(identifier: str) -> contextlib.AbstractContextManager[Any]:
    return picture_style(identifier, INK, GRID)


def _inline(svg: str, identifier: str, description: str, width: float) -> str:
    """Cut the picture out of its document and hand its colours and fonts to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{identifier}-', svg)
    svg = svg.replace("url(#", f"url(#{identifier}-").replace('href="#', f'href="#{identifier}-')
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    for index, color in enumerate(PALETTE):
        svg = svg.replace(color, f"var(--s{index})")
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    svg = re.sub(r"; font-family: [^;\"]*", "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Wider than this, its letters would be larger than the page's.
    style = f"max-width: {6.5 * width:.1f}rem"
    return svg.replace(
        "<svg", f'<svg role="img" style="{style}" aria-label="{_escape(description)}"', 1
    )


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
