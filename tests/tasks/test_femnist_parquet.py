"""FEMNIST in parquet files, written here by pyarrow in the columns of flwrlabs/femnist's card."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pfl_bench.data import Store
from tasks.femnist import pictures
from tests.tasks.femnist_files import make_users, pairs, pooled, prepared, refused

USERS = make_users({"f0000_14": 9, "f0001_41": 30, "f3999_07": 1})
SCHEMA = pa.schema(
    {
        "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        "writer_id": pa.string(),
        "hsf_id": pa.int64(),
        "character": pa.int64(),
    }
)


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def white(images: np.ndarray) -> np.ndarray:
    """The images made light, so that their ground is white."""
    return 128 + images // 2


def rows(ink: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "image": {"bytes": png(255 - light if ink else light), "path": f"{user}.png"},
            "writer_id": user,
            "hsf_id": 4,
            "character": int(label),
        }
        for user, (images, labels) in USERS.items()
        for light, label in zip(white(images), labels, strict=True)
    ]


def write(path: Path, found: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(found, schema=schema), path, row_group_size=7)
    return path


EXPECTED = {user: pairs(white(images), labels) for user, (images, labels) in USERS.items()}


@pytest.mark.parametrize("ink", [False, True], ids=["white-ground", "black-ground"])
def test_images_go_to_their_writers_as_they_are(
    tmp_path: Path, ink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "ROWS_AT_ONCE", 8)  # writers go on over batches and files
    found = rows(ink)
    write(tmp_path / "raw" / "data" / "train-00000-of-00002.parquet", found[:25])
    write(tmp_path / "raw" / "data" / "train-00001-of-00002.parquet", found[25:])
    facts = prepared(tmp_path / "raw", tmp_path / "out.h5")
    assert (facts["variant"], facts["files"]) == ("parquet", 2)
    assert facts["ground"] == ("black, turned round" if ink else "white")
    assert facts["differs_from_published"] == ["images: 40 here, 814,277 published"]
    assert pooled(tmp_path / "out.h5") == EXPECTED
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.num_classes == 62
        assert set(store.split("train").client_ids()) == set(USERS)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("image", {"bytes": None, "path": "a.png"}, "image has no bytes"),
        ("image", {"bytes": b"no picture", "path": None}, "it is no PNG"),
        ("image", {"bytes": png(np.zeros((20, 28), np.uint8)), "path": None}, "28 x 20 pixels"),
        ("writer_id", None, "writer_id is None"),
        ("writer_id", "", "writer_id is ''"),
        ("character", 62, "character is 62; it must be a whole number from 0 to 61"),
        ("character", None, "character is None"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, column: str, value: Any, words: str) -> None:
    found = rows()
    found[11][column] = value
    path = write(tmp_path / "raw" / "train-0.parquet", found)
    refused(tmp_path / "raw", tmp_path / "o", f"{path}, row 12", words)


def test_wrong_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "raw" / "train-0.parquet", rows())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "raw", tmp_path / "o", str(path), "damaged or cut")
    damaged = bytearray(whole)
    damaged[200:400] = bytes(200)
    path.write_bytes(damaged)
    refused(tmp_path / "raw", tmp_path / "o", str(path))
    write(path, [], SCHEMA)
    refused(tmp_path / "raw", tmp_path / "o", "hold no row")
    other = pa.schema([field for field in SCHEMA if field.name != "writer_id"])
    write(path, [{name: row[name] for name in other.names} for row in rows()], other)
    refused(tmp_path / "raw", tmp_path / "o", "no column 'writer_id'", "it has image, hsf_id")
    write(path, rows())
    write(tmp_path / "raw" / "test-0.parquet", rows())
    refused(tmp_path / "raw", tmp_path / "o", "a split 'test'", "one split")


def test_two_grounds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "ROWS_AT_ONCE", 8)
    write(tmp_path / "raw" / "train-0.parquet", rows()[:8] + rows(ink=True)[8:])
    refused(tmp_path / "raw", tmp_path / "o", "white ground and others a black one")
