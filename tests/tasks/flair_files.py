"""A tiny hand-made data set in FLAIR's public forms, and ways to prepare it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.flair.prepare import Options, prepare
from tests.helpers import REPOSITORY

SIDE = 32
REAL_DATA = REPOSITORY.parent / "shared" / "data" / "flair"
COARSE_OF = {
    "bag": "equipment",
    "bottle": "equipment",
    "equipment": "equipment",
    "dog": "animal",
    "spider": "animal",
    "cake": "food",
    "fence": "structure",
    "structure": "structure",
}


@dataclass(frozen=True)
class Picture:
    """One image and what the metadata say of it."""

    image_id: str
    user_id: str
    partition: str
    fine: tuple[str, ...]
    data: bytes

    @property
    def coarse(self) -> tuple[str, ...]:
        return tuple(sorted({COARSE_OF[label] for label in self.fine}))

    def entry(self) -> dict[str, Any]:
        """Its entry of ``labels_and_metadata.json``."""
        return {
            "user_id": self.user_id,
            "image_id": self.image_id,
            "labels": list(self.coarse),
            "partition": self.partition,
            "fine_grained_labels": list(self.fine),
        }


def encoded(seed: int = 0, side: int = SIDE, mode: str = "RGB", form: str = "JPEG") -> bytes:
    """A small image: smooth noise, another for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BILINEAR).convert(mode)
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def make_pictures(side: int = SIDE) -> list[Picture]:
    """Twelve images of five users; ids, users and partitions in no order."""
    users = [("9@N01", "train", 4), ("1@N00", "val", 2), ("5@N07", "train", 1)]
    users += [("3@N02", "test", 2), ("7@N09", "train", 3)]
    fine = list(COARSE_OF)
    pictures: list[Picture] = []
    for user, partition, count in users:
        for _ in range(count):
            number = len(pictures)
            chosen = tuple(sorted({fine[number % 8], fine[(3 * number + 1) % 8]}))
            image = str(15_000_000_000 + (number * 7919) % 1000)
            pictures.append(Picture(image, user, partition, chosen, encoded(number, side)))
    return pictures


def real_pictures() -> list[Picture]:
    """The 35 published images of 15 users, to which partitions are given; skips without them."""
    path = REAL_DATA / "labels_and_metadata_35.json"
    if not path.is_file():
        pytest.skip(f"needs the 35 published images in {REAL_DATA}")
    entries = json.loads(path.read_text())
    users = list(dict.fromkeys(entry["user_id"] for entry in entries))
    splits = {user: ("train", "train", "val", "test")[n % 4] for n, user in enumerate(users)}
    return [
        Picture(
            entry["image_id"],
            entry["user_id"],
            splits[entry["user_id"]],
            tuple(entry["fine_grained_labels"]),
            (REAL_DATA / "small_images" / f"{entry['image_id']}.jpg").read_bytes(),
        )
        for entry in entries
    ]


def write_metadata(
    folder: Path, entries: Iterable[Any], pairs: Iterable[tuple[str, str]] | None = None
) -> Path:
    """The JSON and the relationship file; entries are pictures or what is to be in the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    document = [entry.entry() if isinstance(entry, Picture) else entry for entry in entries]
    (folder / "labels_and_metadata.json").write_text(json.dumps(document))
    pairs = COARSE_OF.items() if pairs is None else pairs
    lines = [f"{fine} -> {coarse}\n" for fine, coarse in pairs]
    (folder / "label_relationship.txt").write_text("".join(lines))
    return folder


def write_tarball(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """A tarball of files, as published: gzip, with the folder itself as a member."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        folder = tarfile.TarInfo("small_images")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    path.write_bytes(gzip.compress(file.getvalue(), 1, mtime=0))
    return path


def write_tarballs(folder: Path, pictures: Sequence[Picture], count: int = 3) -> Path:
    """Published tarballs, JSON and relationship file; images are assigned to ``count`` tarballs."""
    write_metadata(folder, pictures)
    for number in range(count):
        members = [(f"small_images/{p.image_id}.jpg", p.data) for p in pictures[number::count]]
        write_tarball(folder / f"small_images-{number:02d}.tar.gz", members)
    return folder


def write_folder(folder: Path, pictures: Iterable[Picture]) -> Path:
    """The unpacked form."""
    pictures = list(pictures)
    write_metadata(folder, pictures)
    (folder / "small_images").mkdir()
    for picture in pictures:
        (folder / "small_images" / f"{picture.image_id}.jpg").write_bytes(picture.data)
    return folder


def write_parquet(
    folder: Path,
    pictures: Sequence[Picture],
    rows_a_file: int = 3,
    without: Sequence[str] = (),
    plain_bytes: bool = False,
) -> Path:
    """Files as of the data set apple/flair: image as a struct, image ids as numbers."""
    import pyarrow as pa
    from pyarrow import parquet

    (folder / "data").mkdir(parents=True)
    for split in dict.fromkeys(p.partition for p in pictures):
        some = [p for p in pictures if p.partition == split]
        for number, first in enumerate(range(0, len(some), rows_a_file)):
            rows = some[first : first + rows_a_file]
            image = [
                p.data if plain_bytes else {"bytes": p.data, "path": f"{p.image_id}.jpg"}
                for p in rows
            ]
            columns: dict[str, Any] = {
                "user_id": [p.user_id for p in rows],
                "image_id": pa.array([int(p.image_id) for p in rows], pa.int64()),
                "labels": [list(p.coarse) for p in rows],
                "partition": [p.partition for p in rows],
                "fine_grained_labels": [list(p.fine) for p in rows],
                "image": image,
            }
            kept = {name: column for name, column in columns.items() if name not in without}
            path = folder / "data" / f"{split}-{number:05d}-of-00009.parquet"
            parquet.write_table(pa.table(kept), path, row_group_size=2)
    return folder


def write_pfl_hdf5(folder: Path, pictures: Sequence[Picture], style: str = "pfl-research") -> Path:
    """The file that pfl-research, or ml-flair, makes of the images, grouped by users."""
    folder.mkdir(parents=True, exist_ok=True)
    levels = {
        "labels": ("label", {p: p.coarse for p in pictures}),
        "fine_grained_labels": ("fine_grained_label", {p: p.fine for p in pictures}),
    }
    with h5py.File(folder / "flair_federated.hdf5", "w") as file:
        for user in dict.fromkeys(p.user_id for p in pictures):
            own = [p for p in pictures if p.user_id == user]
            group = file.create_group(f"{own[0].partition}/{user}")
            group["image_ids"] = np.asarray([p.image_id for p in own], dtype="S")
            group["images"] = np.stack([pixels(p.data) for p in own])
            for level, (_, labels) in levels.items():
                if style == "ml-flair":
                    joined = ["|".join(labels[p]) for p in own]
                    group[level] = np.asarray(joined, dtype="S")
                    continue
                names = sorted({name for p in pictures for name in labels[p]})
                pairs = [(row, names.index(x)) for row, p in enumerate(own) for x in labels[p]]
                group[f"{level}_row"] = np.asarray([row for row, _ in pairs], dtype=np.uint16)
                group[f"{level}_col"] = np.asarray([column for _, column in pairs], dtype=np.uint16)
        for word, labels in levels.values():
            names = sorted({name for p in pictures for name in labels[p]})
            if style == "ml-flair":
                file[f"metadata/{word}_counter"] = json.dumps(dict.fromkeys(names, 1))
            else:
                file[f"metadata/{word}_mapping"] = json.dumps({n: i for i, n in enumerate(names)})
    return folder


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


WRITERS: dict[str, Callable[[Path, Sequence[Picture]], Path]] = {
    "tarballs": write_tarballs,
    "folder": write_folder,
    "parquet": write_parquet,
    "pfl-hdf5": write_pfl_hdf5,
}


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def prepared(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Prepare with small images."""
    return prepare(source, out, Options(**{"image_size": SIDE, **options}), silent)


def refused(
    source: Path, folder: Path, *words: str, error: type[Exception] = DataError, **options: Any
) -> str:
    """Preparing fails with a message that has these words, and no store is there."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(error) as caught:
        prepared(source, folder / "out.h5", **options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert not (folder / "out.h5").exists()
    assert not list(folder.glob(".*.partial-*"))
    return message


def contents(path: Path) -> dict[str, dict[str, list[Any]]]:
    """What a store holds: by split and user, lists of (id, image, coarse and fine names)."""
    found: dict[str, dict[str, list[Any]]] = {}
    with Store(path) as store:
        store.verify()
        extra = store.facts.extra
        for name in store.split_names:
            split = store.split(name)
            for user, client in enumerate(split.client_ids()):
                span = int(split.offsets[user]), int(split.offsets[user + 1])
                columns = (
                    split.read(key, *span) for key in ("image_id", "image", "coarse", "fine")
                )
                found.setdefault(name, {})[client] = [
                    (
                        image_id.tobytes().decode(),
                        image.tobytes(),
                        tuple(extra["coarse_labels"][index] for index in coarse),
                        tuple(extra["fine_labels"][index] for index in fine),
                    )
                    for image_id, image, coarse, fine in zip(*columns, strict=True)
                ]
    return found


def expected(pictures: Iterable[Picture]) -> dict[str, Any]:
    """What a store of these pictures must hold."""
    found: dict[str, Any] = {}
    for p in sorted(pictures, key=lambda p: p.image_id):
        split = {"dev": "val"}.get(p.partition, p.partition)
        row = (p.image_id, p.data, p.coarse, tuple(sorted(p.fine)))
        found.setdefault(split, {}).setdefault(p.user_id, []).append(row)
    return found


def changed(pictures: Sequence[Picture], number: int, **changes: Any) -> list[Picture]:
    """The pictures with one of them changed."""
    return [replace(p, **changes) if n == number else p for n, p in enumerate(pictures)]
