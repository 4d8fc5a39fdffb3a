"""Draws faces: each person has looks of their own, each picture a mood and a pose."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
QUALITY = 90
SKINS: tuple[Colour, ...] = ((250, 220, 190), (225, 180, 140), (170, 120, 80), (100, 65, 45))
HAIRS: dict[str, Colour] = {
    "Black_Hair": (25, 20, 20),
    "Blond_Hair": (230, 200, 110),
    "Brown_Hair": (110, 70, 40),
    "Gray_Hair": (160, 160, 160),
}


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks that all pictures of a person share.

    Attributes:
        hair: The attribute that names the colour of the hair, or "Bald".
        male: Whether drawn without long hair.
        beard: Whether the chin is dark.
        width: Width of the face as a share of its usual one.
    """

    skin: Colour
    hair: str
    male: bool
    beard: bool
    glasses: bool
    width: float
    smiles: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Self:
        """Draw a person."""
        male = bool(rng.random() < 0.5)
        bald = male and rng.random() < 0.1
        return cls(
            skin=SKINS[rng.integers(len(SKINS))],
            hair="Bald" if bald else tuple(HAIRS)[rng.integers(len(HAIRS))],
            male=male,
            beard=male and bool(rng.random() < 0.3),
            glasses=bool(rng.random() < 0.15),
            width=float(rng.uniform(0.85, 1.15)),
            # Some smile nearly always, some nearly never.
            smiles=float(rng.beta(2.0, 2.0)),
        )

    def attributes(self) -> set[str]:
        """The published attributes that hold of all the person's pictures."""
        flags = {
            "Male": self.male,
            "No_Beard": not self.beard,
            "Goatee": self.beard,
            "Eyeglasses": self.glasses,
            "Pale_Skin": self.skin == SKINS[0],
            "Chubby": self.width > 1.05,
        }
        return {self.hair} | {name for name, holds in flags.items() if holds}


def draw_face(
    looks: Looks, smiling: bool, open_mouth: bool, rng: np.random.Generator, size: tuple[int, int]
) -> bytes:
    """Draw one picture of a person, as a JPEG of so many pixels in width and height.

    The ends of a smiling mouth point up, those of others straight on or down; an open one shows
    teeth. ``rng`` draws pose, light and ground.
    """
    width, height = size
    light = rng.uniform(0.7, 1.15)

    def lit(colour: Colour) -> Colour:
        red, green, blue = (min(255, int(value * light)) for value in colour)
        return red, green, blue

    image = Image.new("RGB", size, lit(_random_colour(rng)))
    pen = ImageDraw.Draw(image)
    across = width / 2 * (1 + rng.uniform(-0.06, 0.06))
    down = height * (0.52 + rng.uniform(-0.03, 0.03))
    wide, high = 0.3 * width * looks.width, 0.33 * height * rng.uniform(0.92, 1.08)

    def box(x: float, y: float, rx: float, ry: float) -> tuple[float, float, float, float]:
        """A box around a point of the face, whose half sizes are 1."""
        left, top = across + (x - rx) * wide, down + (y - ry) * high
        return left, top, left + 2 * rx * wide, top + 2 * ry * high

    if looks.hair != "Bald":
        hair = lit(HAIRS[looks.hair])
        pen.ellipse(box(0, -0.25, 1.2, 1.0), fill=hair)
        if not looks.male:
            pen.rectangle(box(0, 0.5, 1.2, 0.75), fill=hair)
    pen.ellipse(box(0, 0, 1, 1), fill=lit(looks.skin))
    if looks.beard:
        pen.chord(box(0, 0, 1, 1), 40, 140, fill=lit((70, 50, 40)))
    for side in (-0.4, 0.4):
        pen.ellipse(box(side, -0.2, 0.17, 0.09), fill=lit((245, 245, 245)))
        pen.ellipse(box(side + rng.uniform(-0.04, 0.04), -0.2, 0.07, 0.08), fill=(30, 30, 40))
        if looks.glasses:
            pen.ellipse(box(side, -0.2, 0.28, 0.2), outline=(10, 10, 10), width=3)
    pen.line(box(0, 0.12, 0.0, 0.15), fill=lit((150, 100, 80)), width=2)
    curve = rng.uniform(0.12, 0.3) if smiling else rng.uniform(-0.2, 0.03)
    _draw_mouth(pen, box, curve, open_mouth, lit((180, 60, 70)))
    noise = rng.normal(0.0, 8.0, (height, width, 1))
    grainy = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(grainy).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _draw_mouth(
    pen: ImageDraw.ImageDraw,
    box: Callable[[float, float, float, float], tuple[float, float, float, float]],
    curve: float,
    open_mouth: bool,
    lips: Colour,
) -> None:
    """Draw an arc that opens upwards for a positive curve, downwards for a negative one."""
    wide, high = 0.42, max(0.02, abs(curve))
    begin, end = (15, 165) if curve > 0 else (195, 345)
    # The ends of the mouth stay where they are, its middle moves.
    place = box(0, 0.5 - 0.3 * curve, wide, high)
    if open_mouth:
        pen.chord(place, begin, end, fill=(250, 250, 245), outline=lips, width=4)
    else:
        pen.arc(place, begin, end, fill=lips, width=5)


def _random_colour(rng: np.random.Generator) -> Colour:
    red, green, blue = (int(value) for value in rng.integers(30, 230, 3))
    return red, green, blue
