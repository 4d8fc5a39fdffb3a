"""Small stores in the shape of each task's, for rows that are only tried."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from pfl_bench.store import FieldSpec, StoreWriter

COARSE = [
    "animal",
    "art",
    "celebration",
    "equipment",
    "fire",
    "food",
    "games",
    "interior_room",
    "light",
    "liquid",
    "material",
    "music",
    "outdoor",
    "plant",
    "recreation",
    "religion",
    "structure",
]
FINE = [f"{name}_{place}" for name in COARSE for place in ("near", "far")]
FLAIR_USERS = {"train": 12, "val": 4, "test": 4}


def write_femnist(path: Path) -> None:
    """A store of 12 writers, every split in each, of noise in FEMNIST's shape."""
    rng = np.random.default_rng(0)
    fields = {"inputs": FieldSpec("uint8", (28, 28)), "targets": FieldSpec("uint8")}
    with StoreWriter(
        path,
        task="femnist",
        variant="generated",
        source="noise",
        split_by="example",
        num_classes=62,
        input_shape=(28, 28),
        fields=fields,
    ) as writer:
        for user in range(12):
            for split in ("train", "val", "test"):
                inputs = rng.integers(0, 256, (4, 28, 28), dtype=np.uint8)
                targets = rng.integers(0, 62, 4, dtype=np.uint8)
                writer.append(split, f"writer-{user:02d}", inputs=inputs, targets=targets)


def write_flair(path: Path, side: int = 64) -> None:
    """A store of 20 users with two or three JPEGs each; every split has every label."""
    rng = np.random.default_rng(0)
    bytes_field, wide = FieldSpec("uint8", ragged=True), FieldSpec("uint16", ragged=True)
    fields = {"image": bytes_field, "coarse": bytes_field, "fine": wide, "image_id": bytes_field}
    extra = {
        "coarse_labels": COARSE,
        "fine_labels": sorted(FINE),
        "fine_to_coarse": [COARSE.index(name.rsplit("_", 1)[0]) for name in sorted(FINE)],
        "form": "folder",
        "generated": True,
        "problems": {},
        "differs_from_published": [],
    }
    with StoreWriter(
        path,
        task="flair",
        variant="flair-partial",
        source="noise",
        split_by="user",
        num_classes=len(COARSE),
        input_shape=(3, side, side),
        fields=fields,
        extra=extra,
    ) as writer:
        for split, users in FLAIR_USERS.items():
            place = 0
            for user in range(users):
                images: dict[str, list[np.ndarray]] = {name: [] for name in fields}
                for _ in range(2 + user % 2):
                    fine = np.unique((5 * place + np.arange(5)) % len(FINE)).astype(np.uint16)
                    coarse = np.unique([extra["fine_to_coarse"][index] for index in fine])
                    pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
                    buffer = io.BytesIO()
                    Image.fromarray(pixels).save(buffer, "JPEG")
                    images["image"].append(np.frombuffer(buffer.getvalue(), np.uint8))
                    images["coarse"].append(coarse.astype(np.uint8))
                    images["fine"].append(fine)
                    identifier = f"{split}-{place}".encode()
                    images["image_id"].append(np.frombuffer(identifier, np.uint8))
                    place += 1
                writer.append(split, f"{split}-{user:02d}", **images)
