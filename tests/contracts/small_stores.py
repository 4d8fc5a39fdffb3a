"""Small stores in the shape of each task's, for rows that are only tried."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pfl_bench.data import FieldSpec, StoreWriter

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
LEAF_USERS = 12
SPLITS = ("train", "val", "test")


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


def write_flair(path: Path, side: int = 64, users: Mapping[str, int] = FLAIR_USERS) -> None:
    """A store of users, by split, with two or three JPEGs each; every split has every label."""
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
        for split, count in users.items():
            place = 0
            for user in range(count):
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


def _write_leaf(
    path: Path,
    task: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    fields: Mapping[str, FieldSpec],
    names: Mapping[str, list[str]],
    extra: Mapping[str, Any],
    examples: int = 4,
) -> None:
    """A store of 12 users, every split in each, of noise in the shape that ``fields`` says.

    A field whose name is that of a list of names has numbers below its length, "targets" numbers
    below ``num_classes``; a ragged one of whole numbers has three of them an example.
    """
    rng = np.random.default_rng(0)
    with StoreWriter(
        path,
        task=task,
        variant="generated",
        source="noise",
        split_by="example",
        num_classes=num_classes,
        input_shape=input_shape,
        fields=dict(fields),
        extra=dict(extra),
    ) as writer:
        for name, values in names.items():
            writer.set_names(name, values)
        for user in range(LEAF_USERS):
            for split in SPLITS:
                arrays: dict[str, Any] = {}
                for name, spec in fields.items():
                    below = len(names[name]) if name in names else num_classes
                    if name == "image":
                        arrays[name] = [_jpeg(rng) for _ in range(examples)]
                    elif spec.ragged:
                        words = len(names["vocabulary"])
                        drawn = rng.integers(1, words, (examples, 3))
                        arrays[name] = list(drawn.astype(spec.dtype))
                    else:
                        drawn = rng.integers(0, below, (examples, *spec.shape))
                        arrays[name] = drawn.astype(spec.dtype)
                writer.append(split, f"user-{user:02d}", **arrays)


def _jpeg(rng: np.random.Generator) -> np.ndarray:
    buffer = io.BytesIO()
    pixels = rng.integers(0, 256, (32, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def _words(count: int) -> list[str]:
    return ["<PAD>", "<UNK>", *(f"word{index}" for index in range(2, count))]


def write_reddit(path: Path) -> None:
    """Sequences of 10 tokens of a vocabulary of 40, in two subreddits."""
    fields = {
        "tokens": FieldSpec("uint16", (10,)),
        "targets": FieldSpec("uint16", (10,)),
        "counted": FieldSpec("uint16"),
        "first": FieldSpec("bool"),
        "subreddit": FieldSpec("uint32"),
    }
    names = {"vocabulary": _words(40), "subreddit": ["birds", "trees"]}
    _write_leaf(path, "reddit", 40, (10,), fields, names, {"pad_id": 0, "unk_id": 1})


def write_shakespeare(path: Path) -> None:
    """Windows of 80 of 80 characters, in two plays."""
    fields = {
        "inputs": FieldSpec("uint8", (80,)),
        "targets": FieldSpec("uint8"),
        "play": FieldSpec("uint16"),
    }
    letters = [chr(ord("0") + index) for index in range(80)]
    names = {"play": ["All's Well", "Hamlet"], "characters": letters}
    _write_leaf(path, "shakespeare", 80, (80,), fields, names, {})


def write_sent140(path: Path) -> None:
    """Tweets of three words of a vocabulary of 40."""
    fields = {"tokens": FieldSpec("uint32", ragged=True), "targets": FieldSpec("uint8")}
    extra = {"vocabulary": {"size": 40}}
    _write_leaf(path, "sent140", 2, (3,), fields, {"vocabulary": _words(40)}, extra)


def write_celeba(path: Path) -> None:
    """Pictures of 32 x 24 pixels, smiling or not, with one attribute more."""
    fields = {
        "image": FieldSpec("uint8", ragged=True),
        "targets": FieldSpec("uint8"),
        "male": FieldSpec("uint8"),
    }
    names = {"targets": ["not smiling", "smiling"]}
    _write_leaf(path, "celeba", 2, (3, 84, 84), fields, names, {"label": "Smiling"})


def write_openimage(path: Path) -> None:
    """Pictures of 32 x 24 pixels, of four things."""
    fields = {"image": FieldSpec("uint8", ragged=True), "targets": FieldSpec("uint16")}
    names = {"targets": ["Ball", "Kite", "Ring", "Tent"]}
    _write_leaf(path, "openimage", 4, (3, 256, 256), fields, names, {}, examples=2)


def write_google_speech(path: Path) -> None:
    """Half a second of noise, of 35 words."""
    from tasks.google_speech.prepare import WORDS

    rng = np.random.default_rng(0)
    with StoreWriter(
        path,
        task="google_speech",
        variant="generated",
        source="noise",
        split_by="example",
        num_classes=len(WORDS),
        input_shape=(1, 32, 32),
        fields={"audio": FieldSpec("int16", ragged=True), "targets": FieldSpec("uint16")},
    ) as writer:
        writer.set_names("targets", WORDS)
        for user in range(LEAF_USERS):
            for split in SPLITS:
                audio = rng.integers(-9000, 9000, (2, 8000)).astype(np.int16)
                targets = rng.integers(0, len(WORDS), 2).astype(np.uint16)
                writer.append(split, f"user-{user:02d}", audio=list(audio), targets=targets)


def write_amazon_review(path: Path) -> None:
    """Reviews of three words of a vocabulary of 40, which are letters alone."""
    fields = {"tokens": FieldSpec("uint32", ragged=True), "targets": FieldSpec("uint8")}
    words = ["<PAD>", "<UNK>", *("a" * length for length in range(1, 39))]
    names = {"vocabulary": words, "targets": [f"{stars} stars" for stars in range(1, 6)]}
    extra = {"vocabulary": {"size": 40}}
    _write_leaf(path, "amazon_review", 5, (3,), fields, names, extra)


def write_reddit_albert(path: Path) -> None:
    """Blocks of 64 of 40 tokens."""
    fields = {"tokens": FieldSpec("uint16", (64,))}
    names = {"vocabulary": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *_words(40)[5:]]}
    _write_leaf(path, "reddit_albert", 40, (64,), fields, names, {"pad_id": 0, "unk_id": 1})


def _write_images(path: Path, task: str, shape: tuple[int, ...]) -> None:
    """Whole splits of 360 and 60 images, ten classes, a dozen writers."""
    from tasks.common.images.store import Images

    rng = np.random.default_rng(0)
    splits = {}
    for name, count in (("train", 360), ("test", 60)):
        targets = np.arange(count) % 10
        # Brighter by class, so that there is something to learn.
        noise = rng.integers(0, 100, (count, *shape))
        inputs = noise + 15 * targets.reshape(-1, *[1] * len(shape))
        splits[name] = Images(inputs.astype(np.uint8), targets, np.arange(count) // 10 % LEAF_USERS)
    _write_splits(path, splits, task, "generated")


def write_scattering(path: Path, task: str) -> None:
    """Noise in the shape of scattering features of the task's images; MNIST's with writers."""
    from tasks.common.images.store import Images

    rng = np.random.default_rng(0)
    shape = (243, 8, 8) if task == "cifar10" else (81, 7, 7)
    splits = {}
    for name, count in (("train", 48), ("test", 12)):
        inputs = rng.random((count, *shape), np.float32).astype(np.float16)
        writers = np.arange(count) % LEAF_USERS if task == "mnist" else None
        splits[name] = Images(inputs, np.arange(count) % 10, writers)
    _write_splits(path, splits, task, "generated-scattering")


def _write_splits(path: Path, splits: Mapping[str, Any], task: str, variant: str) -> None:
    from tasks.common.images.store import FeatureOptions, write_images

    about = {"task": task, "variant": variant, "source": "noise"}
    write_images(path, splits, FeatureOptions(), print, **about, class_names=[*"0123456789"])


def write_mnist(path: Path) -> None:
    """Grey noise of 28 x 28 pixels, with writers."""
    _write_images(path, "mnist", (28, 28))


def write_fashion_mnist(path: Path) -> None:
    """Grey noise of 28 x 28 pixels."""
    _write_images(path, "fashion_mnist", (28, 28))


def write_cifar10(path: Path) -> None:
    """Coloured noise of 32 x 32 pixels."""
    _write_images(path, "cifar10", (3, 32, 32))
