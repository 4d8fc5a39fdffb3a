"""Generates a mini CelebA: drawn faces in files of exactly the published format.

Names, headers and columns of the files are CelebA's, and so is the size of the pictures; the faces
are drawn (``drawing.py``), the people are made up, and ``GENERATED.txt`` in the folder says so.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from pfl_bench.data import new_folder
from tasks.celeba.drawing import Looks, draw_face
from tasks.celeba.images import ARCHIVE, FOLDER
from tasks.celeba.tables import ATTRIBUTES, IDENTITIES
from tasks.common.generated import GENERATED_MARK, settings
from tasks.common.options import StrictOptions
from tasks.common.progress import Progress

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
