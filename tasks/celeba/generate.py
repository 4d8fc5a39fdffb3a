"""Generates a mini CelebA: drawn faces in files of exactly the published format.

Names, headers and columns of the files are CelebA's, and so is the size of the pictures; the faces
are drawn (``draw_face``), the people are made up, and ``GENERATED.txt`` in the folder says so.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from PIL import Image, ImageDraw
from pydantic import Field

from pfl_bench.data import new_folder
from pfl_bench.types import Progress
from tasks.celeba.files import ARCHIVE, ATTRIBUTES, FOLDER, IDENTITIES
from tasks.common.options import StrictOptions
from tasks.common.sources import GENERATED_MARK, settings
from tasks.common.vision.pictures import grainy_jpeg

Colour = tuple[int, ...]
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
        return tuple(min(255, int(value * light)) for value in colour)

    image = Image.new("RGB", size, lit(tuple(rng.integers(30, 230, 3).tolist())))
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
    return grainy_jpeg(image, 8.0, rng)


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


PARTITION = "list_eval_partition.txt"
SIZE = (178, 218)
# In the published order.
# fmt: off
NAMES = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs",
    "Big_Lips", "Big_Nose", "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows",
    "Chubby", "Double_Chin", "Eyeglasses", "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones",
    "Male", "Mouth_Slightly_Open", "Mustache", "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin",
    "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks", "Sideburns", "Smiling", "Straight_Hair",
    "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick", "Wearing_Necklace",
    "Wearing_Necktie", "Young",
)
# fmt: on
# Teeth show in more of the smiles, but tell nothing alone.
OPEN_WHEN_SMILING, OPEN_OTHERWISE = 0.6, 0.4


class Options(StrictOptions):
    """Options of generating a mini CelebA.

    Attributes:
        num_users: Celebrities.
        images_per_user: Mean of a celebrity's images, which vary by two fifths of it.
        seed: Seed of everything that is drawn.
        archive: "folder" writes the images into ``img_align_celeba/``, "zip" into the published
            ``img_align_celeba.zip``.
    """

    num_users: int = Field(default=100, ge=1, le=20_000)
    images_per_user: int = Field(default=20, ge=1, le=100)
    seed: int = Field(default=0, ge=0)
    archive: Literal["folder", "zip"] = "folder"


def generate(out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write a mini CelebA, whole or not at all.

    The same options give byte for byte the same files, under the same versions of numpy and Pillow.

    See ``tasks`` for arguments, facts and refusals. The facts have the share that smiles, too.
    """
    with new_folder(out, "pictures") as folder:
        return _write(folder, options, progress)


def image_counts(options: Options) -> list[int]:
    """Draw how many images each celebrity has: at least one, at most twice the mean."""
    rng = np.random.default_rng([options.seed, 0])
    mean = options.images_per_user
    drawn = rng.normal(mean, 0.4 * mean, options.num_users)
    return [int(count) for count in np.clip(np.rint(drawn), 1, 2 * mean)]


def _write(folder: Path, options: Options, progress: Progress) -> dict[str, Any]:
    counts = image_counts(options)
    # As published, the images of a celebrity lie scattered.
    rng = np.random.default_rng([options.seed, 1])
    owners = rng.permutation(np.repeat(np.arange(options.num_users), counts))
    people = [
        Looks.draw(np.random.default_rng([options.seed, 2, user]))
        for user in range(options.num_users)
    ]
    rows: list[str] = []
    identities: list[str] = []
    smiles = 0
    with _album(folder, options.archive) as add:
        for place, owner in enumerate(owners.tolist()):
            draws = np.random.default_rng([options.seed, 3, place])
            looks, name = people[owner], f"{place + 1:06d}.jpg"
            smiling = bool(draws.random() < looks.smiles)
            open_mouth = bool(draws.random() < (OPEN_WHEN_SMILING if smiling else OPEN_OTHERWISE))
            add(name, draw_face(looks, smiling, open_mouth, draws, SIZE))
            holds = looks.attributes()
            holds |= {"Smiling"} if smiling else set()
            holds |= {"Mouth_Slightly_Open"} if open_mouth else set()
            values = " ".join(f"{1 if attribute in holds else -1:2d}" for attribute in NAMES)
            rows.append(f"{name} {values}\n")
            identities.append(f"{name} {owner + 1}\n")
            smiles += smiling
            progress("drawing faces", place + 1, len(owners))
    texts = {
        ATTRIBUTES: f"{len(rows)}\n{' '.join(NAMES)} \n{''.join(rows)}",
        IDENTITIES: "".join(identities),
        PARTITION: "".join(f"{line.split()[0]} 0\n" for line in identities),
        GENERATED_MARK: (
            "These files are not CelebA. They have its format, but the faces are drawn shapes and "
            f"the people are made up,\nby pfl-bench data generate celeba ({settings(options)}).\n"
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="ascii")
    return {
        "what": "drawn faces in CelebA's format, not CelebA",
        "users": options.num_users,
        "images": len(rows),
        "share_smiling": round(smiles / len(rows), 3),
        "prepare_options": [],
    }


@contextmanager
def _album(folder: Path, archive: str) -> Iterator[Callable[[str, bytes], object]]:
    """Adds images to a folder, or to a zip, whose bytes do not depend on the clock."""
    if archive == "folder":
        images = folder / FOLDER
        images.mkdir()
        yield lambda name, data: (images / name).write_bytes(data)
        return
    # JPEGs do not compress further.
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_STORED) as packed:
        yield lambda name, data: packed.writestr(zipfile.ZipInfo(f"{FOLDER}/{name}"), data)
