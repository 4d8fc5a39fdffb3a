"""Pictures of the page are matplotlib's own, drawn once."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_bench.report.canvas import picture_style, svg_of


def lines(axes: Axes) -> None:
    axes.plot([1, 2, 1000], [3.0, 1e6, 2e6], label="one")
    axes.plot([1, 500], [0.5, 0.25], label="other")
    axes.set(xscale="log", xlabel="round", ylabel="loss", title="A title")
    axes.legend()


def boxes(axes: Axes) -> None:
    axes.boxplot([[1.0, 2.0, 3.0], [1e-9, 2.0]])
    axes.set_xticklabels(["a label that is long enough to move the axes", "short"])


def an_image(axes: Axes) -> None:
    axes.imshow([[0.0, 1.0], [2.0, 3.0]])
    axes.fill_between([0, 1], [0, 1], [1, 2], alpha=0.3, hatch="//")


def nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, r"$\alpha_0$ of nothing")


@pytest.mark.parametrize("paint", [lines, boxes, an_image, nothing])
def test_a_picture_drawn_once_is_what_savefig_writes(paint: Callable[[Axes], None]) -> None:
    texts = []
    for draws_once in (True, False):
        with picture_style("p"):
            figure = Figure(figsize=(4.1, 2.5), layout="constrained")
            paint(figure.add_subplot())
            if draws_once:
                texts.append(svg_of(figure))
                continue
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
            texts.append(buffer.getvalue())
    assert texts[0] == texts[1]
