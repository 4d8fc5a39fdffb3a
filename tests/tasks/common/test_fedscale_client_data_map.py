"""FedScale's older mapping, a pickle written here by Python's own writer."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.common.fedscale.client_data_map import MAP
from tasks.google_speech import prepare as speech
from tasks.google_speech.prepare import WORDS
from tasks.openimage import prepare as openimage

CLIENTS = {"0a": 3, "0b": 3, "1c": 0, "2d": 11}
NAMES = {"0a": "Cat", "0b": "Tree", "1c": "Dog house", "2d": "Cat"}


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def jpeg(shade: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), shade, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    for split, names in (("train", list(NAMES)), ("test", ["9z"])):
        (folder / split).mkdir(parents=True)
        for shade, name in enumerate(names):
            path = folder / split / f"{name}__{NAMES.get(name, 'Tree')}.jpg"
            path.write_bytes(jpeg(10 * shade + 5))
    (folder / "classTags").write_text("Tree\nCat\nDog house\n")
    write(folder, {**CLIENTS, "not there": 4})
    return folder


def write(folder: Path, found: object, protocol: int = 4) -> Path:
    path = folder / MAP
    path.write_bytes(pickle.dumps(found, protocol))
    return path


def prepared(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    return openimage.prepare(source, out, openimage.Options(**options), silent)


@pytest.mark.parametrize("protocol", [2, 4])
def test_pictures_go_to_their_clients(pictures: Path, tmp_path: Path, protocol: int) -> None:
    write(pictures, CLIENTS, protocol)
    facts = prepared(pictures, tmp_path / "out.h5")
    assert facts["variant"] == "openimage-partial"
    assert facts["splits"] == {
        "train": {"users": 3, "examples": 4},
        "test": {"users": 1, "examples": 1},
    }
    found: dict[str, list[tuple[bytes, str]]] = {}
    with Store(tmp_path / "out.h5") as store:
        classes = store.names("targets")
        for split in map(store.split, store.split_names):
            for user, client in enumerate(split.client_ids()):
                span = split.offsets[user : user + 2].tolist()
                rows = zip(split.read("image", *span), split.read("targets", *span), strict=True)
                found[client] = [(image.tobytes(), classes[target]) for image, target in rows]
    assert classes == ["Tree", "Cat", "Dog house"]
    assert found == {
        "3": [(jpeg(5), "Cat"), (jpeg(15), "Tree")],
        "0": [(jpeg(25), "Dog house")],
        "11": [(jpeg(35), "Cat")],
        "unmapped": [(jpeg(5), "Tree")],
    }


def test_the_newer_mapping_goes_first(pictures: Path, tmp_path: Path) -> None:
    folder = pictures / "client_data_mapping"
    folder.mkdir()
    (pictures / MAP).rename(folder / MAP)
    assert prepared(pictures, tmp_path / "a.h5")["splits"]["train"]["users"] == 3
    row = "7,0a__Cat.jpg,Cat,0\n"
    (folder / "train.csv").write_text(f"client_id,sample_path,label_name,label_id\n{row}")
    assert prepared(pictures, tmp_path / "b.h5")["splits"] == {"train": {"users": 1, "examples": 1}}


@pytest.mark.parametrize(
    ("split", "keep", "told"),
    [
        ("train", False, r"raw has no folder train/ with the samples that .*clientDataMap maps"),
        ("train", True, r"raw/train holds no file; put the samples there$"),
        ("test", True, r"raw/test holds no file; put the samples there, or remove it$"),
    ],
)
def test_a_split_without_samples_is_refused(
    pictures: Path, tmp_path: Path, split: str, keep: bool, told: str
) -> None:
    shutil.rmtree(pictures / split)
    if keep:
        (pictures / split).mkdir()
    with pytest.raises(DataError, match=told):
        prepared(pictures, tmp_path / "out.h5")


class Evil:
    """Makes a file where it is unpickled carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_in_it_is_run(pictures: Path, tmp_path: Path) -> None:
    write(pictures, {"0a": Evil(tmp_path / "harm")})
    with pytest.raises(DataError, match=r"asks for posix\.mkdir, and reading it could run code"):
        prepared(pictures, tmp_path / "out.h5")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (["0a", "0b"], "holds list, not a dict"),
        ({}, "holds dict, not a dict of names"),
        ({"0a": [1]}, r"maps '0a' to \[1\]"),
        ({0: "0a"}, "maps 0 to '0a'"),
        ({"0a": True}, "maps '0a' to True"),
        ({**CLIENTS, "2d": None}, "maps '2d' to None"),
        ({"0a": 1}, "0b__Tree.jpg: clientDataMap has no client of '0b'"),
    ],
)
def test_other_pickles_are_refused(
    pictures: Path, tmp_path: Path, found: object, words: str
) -> None:
    write(pictures, found)
    with pytest.raises(DataError, match=words):
        prepared(pictures, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_files_that_are_no_samples_and_wrong_classes_are_refused(
    pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.h5"
    (pictures / "train" / "notes.txt").touch()
    with pytest.raises(DataError, match=r"notes\.txt: its name does not tell its class"):
        prepared(pictures, out)
    (pictures / "train" / "notes.txt").unlink()
    (pictures / "classTags").write_text("Tree\nCat\n")
    with pytest.raises(DataError, match="tells the class 'Dog house', which is not known"):
        prepared(pictures, out)
    (pictures / "classTags").write_text("Tree\nTree\n")
    with pytest.raises(DataError, match="names a class twice"):
        prepared(pictures, out)
    (pictures / "classTags").unlink()
    with pytest.raises(DataError, match="classTags cannot be read"):
        prepared(pictures, out)


def wav(level: int) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(struct.pack("<h", level) * 16_000)
    return stream.getvalue()


def test_clips_go_to_their_clients(tmp_path: Path) -> None:
    names = {"bed_0a7c_nohash_0.wav": 5, "zero_0a7c_nohash_1.wav": 5, "cat_ff_nohash_0.wav": 6}
    folder = tmp_path / "raw"
    (folder / "train").mkdir(parents=True)
    for level, name in enumerate(names):
        (folder / "train" / name).write_bytes(wav(level))
    write(folder, names)
    facts = speech.prepare(folder, tmp_path / "out.h5", speech.Options(), silent)
    assert facts["splits"] == {"train": {"users": 2, "examples": 3}}
    with Store(tmp_path / "out.h5") as store:
        train = store.split("train")
        assert set(train.client_ids()) == {"5", "6"}
        targets = train.read("targets", 0, 3)
        assert sorted(WORDS[target] for target in targets) == ["bed", "cat", "zero"]
    (folder / "train" / "hello_ff_nohash_0.wav").write_bytes(wav(1))
    with pytest.raises(DataError, match="tells the class 'hello', which is not known"):
        speech.prepare(folder, tmp_path / "no.h5", speech.Options(), silent)
