"""Small FLAIR stores, written without ``prepare``: tests of the task depend on the store alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from pfl_bench.data import FieldSpec, StoreWriter

COARSE = ("animal", "food", "structure")
FINE = ("cat", "dog", "food", "house", "structure")
FINE_TO_COARSE = (0, 0, 1, 2, 2)
FIELDS = {
    "image": FieldSpec("uint8", ragged=True),
    "coarse": FieldSpec("uint8", ragged=True),
    "fine": FieldSpec("uint16", ragged=True),
    "image_id": FieldSpec("uint8", ragged=True),
}
SIZES: Mapping[str, Sequence[int]] = {"train": (1, 5, 3, 9, 2), "val": (2, 3), "test": (1, 4)}


def encode(pixels: np.ndarray, form: str = "JPEG") -> np.ndarray:
    """The bytes of a picture, shape (side, side, 3) or (side, side)."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, quality=95)
    return np.frombuffer(stream.getvalue(), dtype=np.uint8)


def picture(rng: np.random.Generator, side: int) -> np.ndarray:
    """Smooth noise in colour, so that JPEG keeps it nearly as it is."""
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return np.asarray(small.resize((side, side), Image.Resampling.BICUBIC))


def write_store(
    path: Path,
    side: int = 64,
    sizes: Mapping[str, Sequence[int]] = SIZES,
    pictures: Mapping[tuple[str, int], np.ndarray] | None = None,
    fine: Sequence[str] = FINE,
) -> Path:
    """Write a store of random pictures; ``pictures`` replaces the bytes of some examples."""
    rng = np.random.default_rng(0)
    with StoreWriter(
        path,
        task="flair",
        variant="flair-generated",
        source="noise, for tests",
        split_by="user",
        num_classes=len(COARSE),
        input_shape=(3, side, side),
        fields=FIELDS,
        extra={
            "coarse_labels": list(COARSE),
            "fine_labels": list(fine),
            "fine_to_coarse": list(FINE_TO_COARSE),
            "form": "tarballs",
            "generated": True,
            "problems": {},
            "differs_from_published": [],
        },
    ) as writer:
        for split, users in sizes.items():
            count = 0
            for user, size in enumerate(users):
                images, coarse, fines, ids = [], [], [], []
                for _ in range(size):
                    given = (pictures or {}).get((split, count))
                    images.append(encode(picture(rng, side)) if given is None else given)
                    own = np.sort(rng.choice(len(FINE), rng.integers(1, 4), replace=False))
                    fines.append(own.astype(np.uint16))
                    coarse.append(np.unique(np.take(FINE_TO_COARSE, own)).astype(np.uint8))
                    ids.append(np.frombuffer(f"{split}{count}".encode(), dtype=np.uint8))
                    count += 1
                writer.append(
                    split,
                    f"{split}-{user:03d}",
                    image=images,
                    coarse=coarse,
                    fine=fines,
                    image_id=ids,
                )
    return path
