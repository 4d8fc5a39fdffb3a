"""Draws the pictures of the generated mini FLAIR: one glyph a fine label, on a cluttered ground.

Every coarse label has a shape and a family of colours (a house with a red roof for structure,
flames for fire), every fine label its own shades and proportions. Some families are alike (the
browns of animals, rooms and materials; the reds of fire and games), and each user's camera shifts
them all, so that colours alone tell a part of the labels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

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

# Filled parts in [-1, 1]^2, y downwards: an ink and box (left top right bottom), disk or star
# (x y width height) or poly (x y ...). What stands behind the others comes first in the table.
_SHAPES = {
    "outdoor": "main box -1 -.8 1 .8; accent poly -1 .8 -1 .3 -.4 -.3 .1 .35 .5 0 1 .5 1 .8; "
    "pale disk .5 -.45 .2 .2",
    "interior_room": "main box -1 -.8 1 .8; pale box -.5 -.45 .5 .3; "
    "accent poly -1 .8 -.5 .3 .5 .3 1 .8; dark box .1 -.15 .35 .3",
    "material": "main box -.9 -.9 .9 .9; accent box -.9 -.65 .9 -.4; accent box -.9 -.12 .9 .12; "
    "accent box -.9 .4 .9 .65",
    "liquid": "main poly 0 -1 .58 .1 -.58 .1; main disk 0 .35 .64 .6; accent disk -.2 .45 .2 .25",
    "structure": "main box -.8 -.1 .8 .9; accent poly -1 -.1 0 -.9 1 -.1; dark box -.25 .3 .15 .9; "
    "pale box .35 .15 .65 .45",
    "equipment": "main box -1 -.1 1 .5; accent poly -.55 -.1 -.35 -.6 .4 -.6 .65 -.1; "
    "dark disk -.55 .5 .32 .32; dark disk .55 .5 .32 .32",
    "plant": "dark box -.14 .4 .14 1; main poly -.85 .5 0 -.4 .85 .5; accent poly -.6 0 0 -1 .6 0",
    "food": "pale disk 0 0 1 .75; main disk -.25 .05 .48 .4; accent disk .42 -.1 .32 .3",
    "animal": "main poly -.8 -.1 -.75 -1 -.1 -.6; main poly .8 -.1 .75 -1 .1 -.6; "
    "main disk 0 .1 .82 .78; dark disk -.32 -.1 .14 .17; dark disk .32 -.1 .14 .17; "
    "accent disk 0 .4 .32 .24",
    "art": "accent box -.95 -.8 .95 .8; pale box -.7 -.55 .7 .55; "
    "main poly -.7 .55 -.2 -.3 .3 .55; dark disk .38 -.2 .2 .2",
    "light": "accent star 0 0 1 1; main disk 0 0 .5 .5; pale disk 0 0 .24 .24",
    "recreation": "main disk 0 0 .9 .9; accent box -.87 -.2 .87 .2; accent box -.2 -.87 .2 .87; "
    "dark disk 0 0 .3 .3",
    "celebration": "dark poly -.55 0 -.48 0 .03 1 -.03 1; dark poly 0 0 .07 0 .03 1 -.03 1; "
    "dark poly .55 0 .62 0 .03 1 -.03 1; main disk -.55 -.2 .38 .46; main disk .58 -.15 .38 .46; "
    "accent disk .03 -.5 .4 .48",
    "fire": "main poly -.6 .9 -.85 .1 -.4 .3 -.1 -1 .3 0 .6 -.5 .85 .3 .55 .9; "
    "accent poly -.3 .9 -.4 .5 -.05 0 .2 .5 .4 .35 .3 .9",
    "music": "main disk -.45 .65 .45 .3; main box -.16 -.95 .04 .65; "
    "accent poly .04 -.95 .85 -.5 .75 .05 .04 -.45",
    "games": "pale box -.85 -.85 .85 .85; main box -.85 -.85 0 0; main box 0 0 .85 .85; "
    "accent disk .42 -.42 .26 .26; accent disk -.42 .42 .26 .26",
    "religion": "accent box -.95 .75 .95 1; main box -.8 0 -.5 .75; main box -.15 0 .15 .75; "
    "main box .5 0 .8 .75; main disk 0 -.1 .65 .6; accent box -.95 -.15 .95 .08; "
    "dark box -.06 -1 .06 -.65",
}
# Fine labels of each shape: name, main colour, accent colour, factors of width and height.
_VARIANTS = {
    "outdoor": "outdoor 9fd0ea 6b8e4e 2 1.7; blue_sky 62aef0 8aa05a 1.7 1.7; "
    "cloudy a4bccc 5f7f5f 2.2 1.4",
    "interior_room": "interior_room d9b48c 8a5a3c 1.9 1.6; kitchen e0c8a0 a87850 1.6 1.6; "
    "bedroom c89c84 704838 1.6 1.9",
    "material": "material a89478 6e5a40 1 1; wood_processed a8703c 6e4522 1.4 .7; "
    "textile b8a088 785038 .8 1.2",
    "liquid": "liquid 2c6cd0 bfe4f2 1 1; water 1c3fb0 8fb8f0 .8 1.2; drink 3c50e0 d0e8ff 1.1 .9",
    "structure": "structure e0d0a8 b0302a 1 1; building c8c0b0 902828 .75 1.3; "
    "bridge d8a888 a83c3c 1.4 .65",
    "equipment": "equipment e8b820 806010 1 1; car f0d020 5a5a50 1.2 .9; "
    "machine d89810 909080 .9 1.2",
    "plant": "plant 4c9a3c 70b850 1 1; tree 2a7a3a 3c9048 .8 1.3; foliage 6aa020 98c038 1.2 .9",
    "food": "food e88030 70a840 1 1; fruit f09040 e04830 .9 1.1; bread d88838 a86030 1.2 .9",
    "animal": "animal 9a6840 e8a8a0 1 1; cat 7a5440 f0b0b8 1.1 .9; dog b88050 d88880 .85 1.15",
    "art": "art a03cc0 b89030 1 1; painting c03ca0 a07820 .8 1.2; drawing 7838b0 907030 1.2 .85",
    "light": "light fcf060 f8d830 1 1; lamp fff080 f8c820 .85 1.1; neon f8f8a0 e8f040 1.1 .9",
    "recreation": "recreation 18b8b0 f8f0e0 1 1; ball 40c8e0 186878 .85 1.1; "
    "toy 109098 f0e0f0 1.15 .85",
    "celebration": "celebration f05090 f8a0c8 1 1; balloon f870b0 e83078 .85 1.15; "
    "party e840a0 f8c0d8 1.15 1",
    "fire": "fire e83c10 f8c030 1 1; bonfire d82808 f08020 1.2 1; candle f05818 fff0a0 .6 1.3",
    "music": "music 181828 383850 1 1; guitar 381820 804048 .85 1.2; piano 102030 304860 1.2 .9",
    "games": "games 202020 c01818 1 1; dice b01030 202020 .85 .85; chess 402020 a02020 1.15 .9",
    "religion": "religion c8f0d8 30a070 1 1; temple a0e0c0 208858 1.2 .9; "
    "monastery d8f0e8 48a888 .85 1.2",
}


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
    glyphs: dict[str, Glyph] = {}
    coarse_of: dict[str, str] = {}
    for depth, (coarse, shape) in enumerate(_SHAPES.items()):
        words = [part.split() for part in shape.split(";")]
        fills = tuple(INKS.index(w[0]) for w in words)
        parts = [_corners(w[1], [float(n) for n in w[2:]]) for w in words]
        corners, ends = np.concatenate(parts), np.cumsum([part.size for part in parts])
        for variant in _VARIANTS[coarse].split(";"):
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
    out = io.BytesIO()
    shot = ImageChops.add_modulo(image, grain)
    shot.save(out, format="JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


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
