"""Generates a mini OpenImage: drawn shapes in FedScale's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from pydantic import Field

from pfl_bench.types import Progress
from tasks.common.fedscale import generating
from tasks.common.vision.pictures import grainy_jpeg

# A name is what has the shape: sides of a polygon (0: a disc) and whether it is filled.
SHAPES = {
    "Ball": (0, True),
    "Ring": (0, False),
    "Kite": (4, True),
    "Picture frame": (4, False),
    "Tent": (3, True),
    "Coat hanger": (3, False),
    "Honeycomb": (6, False),
    "Floor tile": (6, True),
}


class Options(generating.Options):
    """Options of generating a mini OpenImage, beside those of all generated data.

    Attributes:
        num_labels: Classes, of eight shapes.
        side: Pixels of the shorter side of a picture; the longer has up to half as many more.
    """

    num_labels: int = Field(default=8, ge=2, le=len(SHAPES))
    side: int = Field(default=64, ge=16, le=512)


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write drawn shapes in FedScale's layout; see ``tasks``.

    A client's pictures share colours and size of shapes; which shapes it has most of is its own.
    """
    names = list(SHAPES)[: options.num_labels]

    def draw(label: int, own: np.random.Generator, rng: np.random.Generator) -> bytes:
        return draw_shape(*SHAPES[names[label]], own, rng, options.side)

    what = "drawn shapes in FedScale's layout, not OpenImage"
    return generating.write_layout(out, options, draw, names, ".jpg", what, progress)


def draw_shape(
    sides: int, filled: bool, own: np.random.Generator, rng: np.random.Generator, side: int
) -> bytes:
    """Draw one picture, a JPEG: a polygon of so many sides (0: a disc), filled or its outline.

    ``own`` draws what all pictures of the client share, ``rng`` place, turn and grain.
    """
    ground = own.integers(0, 110, 3)
    colour = own.integers(150, 256, 3)
    reach = side * own.uniform(0.28, 0.38)
    longer = int(side * rng.uniform(1.0, 1.5))
    width, height = (longer, side) if rng.random() < 0.7 else (side, longer)
    picture = Image.new("RGB", (width, height), tuple(ground.tolist()))
    pen = ImageDraw.Draw(picture)
    x = width / 2 + rng.uniform(-0.1, 0.1) * side
    y = height / 2 + rng.uniform(-0.1, 0.1) * side
    fill = tuple(colour.tolist())
    line = max(2, side // 12)
    if sides == 0:
        box = (x - reach, y - reach, x + reach, y + reach)
        pen.ellipse(box, fill=fill if filled else None, outline=fill, width=line)
    else:
        turn = rng.uniform(-0.35, 0.35) - np.pi / 2
        angles = turn + 2 * np.pi * np.arange(sides) / sides
        corners = [(x + reach * np.cos(a), y + reach * np.sin(a)) for a in angles]
        if filled:
            pen.polygon(corners, fill=fill)
        else:
            pen.line([*corners, *corners[:2]], fill=fill, width=line, joint="curve")
    return grainy_jpeg(picture, 10.0, rng)
