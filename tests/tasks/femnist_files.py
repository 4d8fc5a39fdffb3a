"""Hand-made files in the public forms of FEMNIST, and ways to prepare them."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.femnist.prepare import Options, prepare

REAL_DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
Users = Mapping[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def make_users(
    counts: Mapping[str, int], num_classes: int = 62, seed: int = 0
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Random images and labels of so many examples a user."""
    rng = np.random.default_rng(seed)
    return {
        user: (
            rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            rng.integers(0, num_classes, count, dtype=np.uint8),
        )
        for user, count in counts.items()
    }


def leaf_document(users: Users) -> dict[str, Any]:
    """The JSON of a LEAF file, with labels as floats, as real files have them."""
    return {
        "users": list(users),
        "num_samples": [len(labels) for _, labels in users.values()],
        "user_data": {
            user: {
                "x": (images.reshape(len(images), 784) / 255).tolist(),
                "y": labels.astype(float).tolist(),
            }
            for user, (images, labels) in users.items()
        },
    }


def write_leaf(path: Path, users: Users) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(leaf_document(users)))
    return path


def write_tff(folder: Path, stem: str, **splits: Users) -> Path:
    for split, users in splits.items():
        with h5py.File(folder / f"{stem}_{split}.h5", "w") as file:
            for user, (images, labels) in users.items():
                group = file.create_group(f"examples/{user}")
                group["pixels"] = images.astype(np.float32) / np.float32(255)
                group["label"] = labels.astype(np.int32)
    return folder


def write_idx(path: Path, values: NDArray[Any]) -> Path:
    """Write an idx file, gzipped if the name ends in .gz."""
    code = {"u1": 0x08, "i4": 0x0C}[values.dtype.str[1:]]
    header = struct.pack(f">2x2B{values.ndim}I", code, values.ndim, *values.shape)
    data = header + values.astype(values.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def write_png(path: Path, seed: int, side: int = 128) -> Path:
    """Write an image that no other seed gives: a black bar and dot on white."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((side, side), 255, dtype=np.uint8)
    pixels[40:90, 20 + seed % 80 : 30 + seed % 80] = 0
    pixels[seed // 80, 5] = 0
    Image.fromarray(pixels).convert("RGB").save(path)
    return path


def prepared(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    return prepare(source, out, Options(**options), silent)


def contents(path: Path) -> dict[str, dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]]:
    """All examples of a store by split and user."""
    result: dict[str, dict[str, Any]] = {}
    with Store(path) as store:
        for name in store.split_names:
            split = store.split(name)
            users = result[name] = {}
            for user, client_id in enumerate(split.client_ids()):
                start, stop = int(split.offsets[user]), int(split.offsets[user + 1])
                users[client_id] = (
                    split.read("inputs", start, stop),
                    split.read("targets", start, stop),
                )
    return result


def pairs(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> list[bytes]:
    """The examples as sorted bytes, to compare whatever their order."""
    return sorted(i.tobytes() + bytes([y]) for i, y in zip(images, labels, strict=True))


def pooled(path: Path) -> dict[str, list[bytes]]:
    """The examples of each user over all splits, as ``pairs`` gives them."""
    users: dict[str, list[bytes]] = {}
    for split in contents(path).values():
        for user, (images, labels) in split.items():
            users[user] = sorted(users.get(user, []) + pairs(images, labels))
    return users


def refused(
    source: Path,
    out_folder: Path,
    *words: str,
    error: type[Exception] = DataError,
    **options: Any,
) -> str:
    """Prepare must fail with all words in its message, leaving nothing, or what was there."""
    out_folder.mkdir(exist_ok=True)
    out = out_folder / "refused.h5"
    before = sorted(out_folder.iterdir())
    with pytest.raises(error) as caught:
        prepared(source, out, **options)
    assert sorted(out_folder.iterdir()) == before
    out.write_bytes(b"what was there")
    with pytest.raises(error):
        prepared(source, out, **options)
    assert out.read_bytes() == b"what was there"
    out.unlink()
    assert sorted(out_folder.iterdir()) == before
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    return message
