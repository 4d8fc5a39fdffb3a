"""Draws the pictures of the generated mini FLAIR: one glyph a fine label, on a cluttered ground.

Every coarse label has a shape and a family of colours (a house with a red roof for structure,
flames for fire), every fine label its own shades and proportions. Some families are alike (the
browns of animals, rooms and materials; the reds of fire and games), and each user's camera shifts
them all, so that colours alone tell a part of the labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from tasks.common.vision.pictures import encoded

Floats = NDArray[np.float64]
# Pillow's number for a colour: red, then green and blue in higher bytes.
PACKED = np.array([1, 1 << 8, 1 << 16])

# Counts changes of the pictures that the same draws give; the variant of stores names it.
DRAWING = 2
JPEG_QUALITY = 85
# The grain of an image is cut out of a tile of this side, drawn once for each of some levels.
GRAIN_SIDE = 1280
GRAIN_STEPS = 2
# No grain is stronger, and no colour nearer to black or white, so that their sum needs no clipping.
MOST_GRAIN = 16
GLYPH_RADIUS = (0.15, 0.23)
PLACES_TRIED = 8
NUM_CLUTTER = 6
INK_JITTER = 14.0
CLUTTER_COLOUR = 20.0
DISK_CORNERS = 20
DARK, PALE = (45, 40, 50), (238, 234, 222)
INKS = ("main", "accent", "dark", "pale")

# "shapes": the filled parts of each coarse label in [-1, 1]^2, y downwards: an ink and box (left
# top right bottom), disk or star (x y width height) or poly (x y ...). What stands behind the
# others comes first. "variants": the fine labels of each shape: name, main colour, accent colour,
# factors of width and height.
_TABLES = Path(__file__).with_name("glyphs.json")


@dataclass(frozen=True, slots=True)
class Glyph:
    """Shape and colour by which a fine label is drawn.

    Attributes:
        depth: Glyphs of smaller depth are drawn first.
        fills: Ink (index into ``INKS``) of each filled part.
        corners: Shape (n, 2), those of all parts, one after another.
        ends: Where each part's numbers end among those of the corners.
        inks: Shape (4, 3), the colours of ``INKS``.
        stretch: Factors of width and height.
    """

    depth: int
    fills: tuple[int, ...]
    corners: Floats
    ends: tuple[int, ...]
    inks: Floats
    stretch: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Camera:
    """Camera of a user, which all pictures share: the shift of features between users.

    Attributes:
        gains: Shape (3,), factors of red, green and blue.
        ground: Shape (3,), colour of the ground, 0 to 255.
        noise: Standard deviation of the grain, in grey levels.
        tilt: Standard deviation of the angle at which glyphs stand, in radians.
    """

    gains: Floats
    ground: Floats
    noise: float
    tilt: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Camera:
        """Draw a user's camera."""
        return cls(
            gains=rng.uniform(0.75, 1.1) * rng.uniform(0.88, 1.12, 3),
            ground=rng.uniform(95.0, 215.0) + rng.normal(0.0, 18.0, 3),
            noise=rng.uniform(1.0, 4.0),
            tilt=rng.uniform(0.0, 0.35),
        )


def _corners(kind: str, numbers: Sequence[float]) -> Floats:
    if kind == "poly":
        return np.array(numbers, dtype=np.float64).reshape(-1, 2)
    if kind == "box":
        left, top, right, bottom = numbers
        return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    x, y, width, height = numbers
    corner = np.arange(DISK_CORNERS)
    reach = np.where(corner % 2 == 1, 0.5 if kind == "star" else 1.0, 1.0)
    angle = math.tau * corner / DISK_CORNERS
    return np.stack([x + reach * width * np.cos(angle), y + reach * height * np.sin(angle)], axis=1)


def _read_tables() -> tuple[dict[str, Glyph], dict[str, str]]:
    tables = json.loads(_TABLES.read_text(encoding="utf-8"))
    glyphs: dict[str, Glyph] = {}
    coarse_of: dict[str, str] = {}
    for depth, (coarse, shape) in enumerate(tables["shapes"].items()):
        words = [part.split() for part in shape]
        fills = tuple(INKS.index(w[0]) for w in words)
        parts = [_corners(w[1], [float(n) for n in w[2:]]) for w in words]
        corners, ends = np.concatenate(parts), np.cumsum([part.size for part in parts])
        for variant in tables["variants"][coarse]:
            fine, main, accent, width, height = variant.split()
            inks = np.array([[*bytes.fromhex(main)], [*bytes.fromhex(accent)], DARK, PALE], float)
            stretch = (float(width), float(height))
            glyphs[fine] = Glyph(depth, fills, corners, tuple(ends.tolist()), inks, stretch)
            coarse_of[fine] = coarse
    return glyphs, coarse_of


GLYPHS, FINE_TO_COARSE = _read_tables()


def draw_picture(
    fine_labels: Sequence[str], camera: Camera, rng: np.random.Generator, side: int
) -> bytes:
    """Draw a picture of its labels, as the bytes of an RGB JPEG.

    ``fine_labels`` are names out of ``GLYPHS``, each drawn once; ``rng`` draws places, sizes,
    angles, clutter and grain; ``side``, in pixels, is at most ``GRAIN_SIDE``.
    """
    ground = _seen(camera.ground + rng.normal(0.0, 12.0, 3), camera)
    image = Image.new("RGB", (side, side), ground)
    canvas = ImageDraw.Draw(image)
    _draw_clutter(canvas, camera, rng, side)
    in_order = sorted(fine_labels, key=lambda fine: (GLYPHS[fine].depth, fine))
    _draw_glyphs(canvas, in_order, camera, rng, side)
    left, top = rng.integers(0, GRAIN_SIDE - side + 1, 2).tolist()
    grain = _grain(round(camera.noise * GRAIN_STEPS)).crop((left, top, left + side, top + side))
    return encoded(ImageChops.add_modulo(image, grain), "JPEG", quality=JPEG_QUALITY)


@lru_cache(maxsize=64)
def _grain(level: int) -> Image.Image:
    """A tile of grain, equal in red, green and blue; below 0 counts down from 256.

    ``level`` is its standard deviation, in ``GRAIN_STEPS``-ths of a grey level.
    """
    normal = np.random.default_rng(0).standard_normal((GRAIN_SIDE, GRAIN_SIDE), dtype=np.float32)
    grey = np.rint(normal * (level / GRAIN_STEPS)).clip(-MOST_GRAIN, MOST_GRAIN)
    tile = Image.fromarray(grey.astype(np.int8).view(np.uint8))
    return Image.merge("RGB", (tile, tile, tile))


def _free_places(tried: list[list[list[float]]]) -> list[list[float]]:
    """Of some places in [0, 1]^2 for each, the one that is farthest from those that are taken."""
    taken = [tried[0][0]]
    for places in tried[1:]:
        taken.append(max(places, key=lambda place: min(map(math.dist, repeat(place), taken))))
    return taken


def _draw_glyphs(
    canvas: ImageDraw.ImageDraw,
    fine_labels: Sequence[str],
    camera: Camera,
    rng: np.random.Generator,
    side: int,
) -> None:
    """Draw the glyphs of labels at random places, of random size, angle and mirroring."""
    glyphs = [GLYPHS[fine] for fine in fine_labels]
    number = len(glyphs)
    if not number:
        return
    places = rng.uniform(0.14, 0.86, (number, PLACES_TRIED, 2)).tolist()
    radii = rng.uniform(*GLYPH_RADIUS, (number, 1)) * rng.uniform(0.9, 1.1, (number, 2)) * side
    radii[:, 0] *= rng.integers(0, 2, number) * 2 - 1
    radii *= [glyph.stretch for glyph in glyphs]
    angles = rng.normal(0.0, camera.tilt, number).tolist()
    jitter = rng.normal(0.0, INK_JITTER, (number, len(INKS), 3))
    colours = _seen(np.array([glyph.inks for glyph in glyphs]) + jitter, camera)
    turns = [
        [
            (width * math.cos(angle), width * math.sin(angle)),
            (-height * math.sin(angle), height * math.cos(angle)),
        ]
        for (width, height), angle in zip(radii.tolist(), angles, strict=True)
    ]
    centres = np.array(_free_places(places)) * side
    for glyph, turn, centre, inks in zip(glyphs, np.array(turns), centres, colours, strict=True):
        corners = (glyph.corners @ turn + centre).ravel().tolist()
        start = 0
        for ink, end in zip(glyph.fills, glyph.ends, strict=True):
            canvas.polygon(corners[start:end], fill=inks[ink])
            start = end


def _draw_clutter(
    canvas: ImageDraw.ImageDraw, camera: Camera, rng: np.random.Generator, side: int
) -> None:
    """Draw random triangles and quadrangles of dull colours."""
    centres = rng.uniform(0.0, 1.0, (NUM_CLUTTER, 1, 2))
    corners = (centres + rng.uniform(-0.13, 0.13, (NUM_CLUTTER, 4, 2))) * side
    numbers = rng.integers(3, 5, NUM_CLUTTER).tolist()
    greys = rng.uniform(50.0, 230.0, (NUM_CLUTTER, 1))
    colours = _seen(greys + rng.normal(0.0, CLUTTER_COLOUR, (NUM_CLUTTER, 3)), camera)
    for polygon, number, colour in zip(
        corners.reshape(-1, 8).tolist(), numbers, colours, strict=True
    ):
        canvas.polygon(polygon[: 2 * number], fill=colour)


def _seen(inks: Floats, camera: Camera) -> Any:
    """Colours that a camera makes of inks, shape (..., 3), as Pillow packs them into whole numbers.

    Nested lists of shape (...), or one number for one ink.
    """
    seen = (inks * camera.gains).clip(MOST_GRAIN, 255 - MOST_GRAIN).astype(np.int64)
    return (seen @ PACKED).tolist()
