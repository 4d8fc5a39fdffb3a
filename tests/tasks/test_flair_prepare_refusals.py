"""Bad input of FLAIR's forms: a message that says what and where, and no store."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pfl_bench.cli.main import main
from tasks.flair import task
from tasks.flair.catalogue import Catalogue
from tests.tasks.flair_files import (
    SIDE,
    WRITERS,
    changed,
    encoded,
    make_pictures,
    prepared,
    refused,
    write_folder,
    write_metadata,
    write_parquet,
    write_pfl_hdf5,
    write_tarball,
    write_tarballs,
)

PICTURES = make_pictures()
FIRST = PICTURES[0].image_id


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tarballs(tmp_path / "raw", PICTURES)


def entries(**changes: Any) -> list[Any]:
    """Entries of the metadata, the third with other fields; a field of ``...`` is left out."""
    found = [p.entry() for p in PICTURES]
    found[2] = {k: v for k, v in (found[2] | changes).items() if v is not ...}
    return found


@pytest.mark.parametrize("field", list(PICTURES[0].entry()))
def test_a_missing_field_is_named_with_its_entry(source: Path, tmp_path: Path, field: str) -> None:
    write_metadata(source, entries(**{field: ...}))
    refused(source, tmp_path / "o", "entry 3", repr(field), "labels_and_metadata.json")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("user_id", 7.5, "must be a text or a whole number"),
        ("user_id", True, "must be a text"),
        ("user_id", "9\0", "must be a text"),
        ("user_id", "9\ufffd", "U+FFFD"),
        ("user_id", "9\ud800", "'9"),
        ("image_id", "9\ufffd", "U+FFFD"),
        ("image_id", "9\ud800", "'9"),
        ("user_id", ["9@N01"], "must be a text"),
        ("image_id", None, "must be a text"),
        ("image_id", True, "must be a text"),
        ("image_id", "../1", "a file's name"),
        ("labels", "food", "a list of label names"),
        ("labels", [3], "a list of label names"),
        ("fine_grained_labels", None, "a list of label names"),
        ("partition", None, "train, val, dev, test"),
        ("partition", "holdout", "'holdout'"),
        ("partition", ["train"], "train, val, dev, test"),
    ],
)
def test_a_field_of_another_kind_is_named(
    source: Path, tmp_path: Path, field: str, value: Any, words: str
) -> None:
    write_metadata(source, entries(**{field: value}))
    refused(source, tmp_path / "o", "entry 3", repr(field), words)


def test_an_entry_that_is_no_object(source: Path, tmp_path: Path) -> None:
    write_metadata(source, [*entries(), "x" * 200])
    message = refused(source, tmp_path / "o", "entry 13", "not an object")
    assert "x" * 80 not in message


def test_an_image_id_that_is_no_text() -> None:
    with pytest.raises(ValueError, match="a file's name"):
        Catalogue(None, "x").add(PICTURES[0].entry() | {"image_id": "\ud800"}, "x")


def test_a_user_id_that_is_no_text() -> None:
    with pytest.raises(ValueError, match=r"'user_id' is .*must be a text"):
        Catalogue(None, "x").add(PICTURES[0].entry() | {"user_id": "\udcff"}, "x")


def test_more_labels_than_a_store_can_number() -> None:
    for field, word in (("labels", "coarse"), ("fine_grained_labels", "fine")):
        catalogue = Catalogue(None, "x")
        names = [f"label {number}" for number in range(66_000)]
        catalogue.add(PICTURES[0].entry() | {field: names}, "x")
        with pytest.raises(ValueError, match=f"66000 {word}|and 66000 {word}"):
            catalogue.finish()


def test_metadata_that_are_no_list_or_cut_or_empty(source: Path, tmp_path: Path) -> None:
    path = source / "labels_and_metadata.json"
    text = path.read_text()
    for content, words in (
        ('{"a": 1}', "begins with"),
        ("", "begins with"),
        ("[]", "describes no image"),
        (text[:-200], "not valid JSON after entry"),
        (text[:900] + "\x00" + text[900:], "not valid JSON after entry"),
    ):
        path.write_text(content)
        refused(source, tmp_path / "o", words, "labels_and_metadata.json")
    path.write_bytes(text[:900].encode() + b"\xff" + text[900:].encode())
    refused(source, tmp_path / "o", "labels_and_metadata.json")


@pytest.mark.parametrize("name", ["labels_and_metadata.json", "label_relationship.txt"])
@pytest.mark.parametrize("form", ["tarballs", "folder"])
def test_a_missing_file_is_named(tmp_path: Path, form: str, name: str) -> None:
    raw = WRITERS[form](tmp_path / "raw", PICTURES)
    (raw / name).unlink()
    refused(raw, tmp_path / "o", f"{name} is missing", "data download flair")


def test_labels_that_the_relationship_file_does_not_have(source: Path, tmp_path: Path) -> None:
    write_metadata(source, entries(fine_grained_labels=["zeppelin"]))
    refused(source, tmp_path / "o", "entry 3", PICTURES[2].image_id, "fine label 'zeppelin'")
    write_metadata(source, entries(labels=["vehicle"]))
    refused(source, tmp_path / "o", "entry 3", PICTURES[2].image_id, "coarse label 'vehicle'")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bag", "line 2: 'bag'"),
        ("a -> b -> c", "line 2"),
        ("a\tb\tc", "line 2"),
        (" -> food", "line 2"),
        ("'' -> food", "line 2"),
        ("('fish', 'animal'),", "line 2"),
        ('"', "line 2"),
    ],
)
def test_a_line_that_is_no_pair(source: Path, tmp_path: Path, line: str, words: str) -> None:
    (source / "label_relationship.txt").write_text(f"dog -> animal\n{line}\n")
    refused(source, tmp_path / "o", "label_relationship.txt", words, "'bag -> equipment'")


def test_a_relationship_file_without_pairs_or_of_bytes(source: Path, tmp_path: Path) -> None:
    path = source / "label_relationship.txt"
    path.write_text("\n\n")
    refused(source, tmp_path / "o", "holds no pair")
    path.write_bytes(b"\xff\xfe\x00")
    refused(source, tmp_path / "o", "not text in UTF-8")


def test_the_same_image_twice(source: Path, tmp_path: Path) -> None:
    write_metadata(source, entries(image_id=FIRST))
    refused(source, tmp_path / "o", "entry 3", f"{FIRST!r}", "is entry 1 already")


def test_users_in_two_partitions_are_all_named(tmp_path: Path) -> None:
    pictures = changed(PICTURES, 0, partition="test")
    pictures = changed(pictures, 11, partition="dev")
    for form in ("tarballs", "parquet"):
        raw = WRITERS[form](tmp_path / form, pictures)
        refused(
            raw,
            tmp_path / "o",
            "2 users are in several partitions",
            "'9@N01' (test, train)",
            "'7@N09' (train, val)",
        )


@pytest.mark.parametrize("user", [None, ""])
def test_entries_without_user_are_refused_or_counted(
    source: Path, tmp_path: Path, user: str | None
) -> None:
    write_metadata(source, entries(user_id=user))
    refused(source, tmp_path / "o", "1 without_user", PICTURES[2].image_id, "bad_images=drop")
    facts = prepared(source, tmp_path / "out.h5", bad_images="drop")
    assert facts["problems"] == {"without_user": 1}
    assert facts["splits"]["train"] == {"users": 3, "examples": 7}


@pytest.mark.parametrize("form", ["tarballs", "folder", "parquet"])
def test_bad_images_are_counted_and_the_first_ten_named(tmp_path: Path, form: str) -> None:
    pictures = changed(PICTURES, 1, data=encoded(1, side=2 * SIDE))
    pictures = changed(pictures, 2, data=pictures[2].data[:200])
    pictures = changed(pictures, 3, data=b"")
    pictures = changed(pictures, 4, data=bytes(5_000_000))
    raw = WRITERS[form](tmp_path / "raw", pictures)
    message = refused(
        raw,
        tmp_path / "o",
        "4 images cannot be used",
        f"1 wrong_size: {PICTURES[1].image_id} (64 x 64)",
        "3 unreadable",
        PICTURES[2].image_id,
        f"{PICTURES[3].image_id} (it is no JPEG or PNG picture)",
        f"{PICTURES[4].image_id} (5000000 bytes",
        "bad_images=drop",
    )
    assert " missing:" not in message
    facts = prepared(raw, tmp_path / "o" / "out.h5", bad_images="drop")
    assert facts["images_dropped"] == 4


def test_missing_images_name_the_absent_tarballs(source: Path, tmp_path: Path) -> None:
    (source / "small_images-01.tar.gz").unlink()
    message = refused(source, tmp_path / "o", "4 missing", "41 are not there")
    assert "small_images-01.tar.gz" in message
    many = [p.entry() | {"image_id": str(n)} for n, p in enumerate(PICTURES)]
    write_metadata(source, many)
    message = refused(source, tmp_path / "o", "12 missing: 0, 1, 2", "...")
    assert " 11," not in message


def test_two_files_of_one_image_that_differ(source: Path, tmp_path: Path) -> None:
    other = [(f"small_images/{FIRST}.jpg", encoded(99))]
    write_tarball(source / "small_images-03.tar.gz", other)
    refused(source, tmp_path / "o", "1 contradictory", FIRST)


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def _cut_tar(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data)[:1500], mtime=0)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "flipped": _flip,
    "wrong checksum": lambda data: data[:-8] + bytes(4) + data[-4:],
    "cut by 1": lambda data: data[:-1],
    "empty": lambda data: b"",
    "no archive": lambda data: b"<html>not found</html>",
    "cut before packing": _cut_tar,
    "zeros": lambda data: bytes(len(data)),
    "packed zeros": lambda data: gzip.compress(bytes(10_240), mtime=0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tarball_is_named_and_only_it_is_read_again(
    source: Path, tmp_path: Path, damage: str
) -> None:
    path = source / "small_images-01.tar.gz"
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    message = refused(source, tmp_path / "o", "1 of 3 inputs", "small_images-01.tar.gz", "kept in")
    assert "small_images-00" not in message
    path.write_bytes(whole)
    for name in ("small_images-00.tar.gz", "small_images-02.tar.gz"):
        _forget_content(source / name)
    facts = prepared(source, tmp_path / "o" / "out.h5")
    assert facts["splits"]["train"]["examples"] == 8
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["out.h5"]


def _forget_content(path: Path) -> None:
    """Fill a file with zeros behind its back: size and time stay, whoever reads it fails."""
    import os

    state = path.stat()
    path.write_bytes(bytes(state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_all_damaged_tarballs_are_named_at_once(source: Path, tmp_path: Path) -> None:
    for number in (0, 2):
        (source / f"small_images-{number:02d}.tar.gz").write_bytes(b"x")
    refused(source, tmp_path / "o", "2 of 3 inputs", "-00.tar.gz", "-02.tar.gz")


@pytest.mark.parametrize("where", ["footer", "pages"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, where: str) -> None:
    raw = write_parquet(tmp_path / "raw", PICTURES)
    path = raw / "data" / "val-00000-of-00009.parquet"
    data = bytearray(path.read_bytes())
    if where == "footer":
        del data[-20:]
    else:
        data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    path.write_bytes(data)
    refused(raw, tmp_path / "o", "val-00000-of-00009.parquet")


@pytest.mark.parametrize("column", ["user_id", "image_id", "labels", "image"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    raw = write_parquet(tmp_path / "raw", PICTURES, without=[column])
    refused(raw, tmp_path / "o", f"no column {column!r}", "fine_grained_labels", ".parquet")


def test_parquet_without_any_partition(tmp_path: Path) -> None:
    raw = write_parquet(tmp_path / "raw", PICTURES, without=["partition"])
    for number, path in enumerate(sorted((raw / "data").iterdir())):
        path.rename(path.with_name(f"{number}.parquet"))
    refused(raw, tmp_path / "o", "no column 'partition'", "name it train-")


def edit(folder: Path, change: Callable[[Any], None]) -> Path:
    write_pfl_hdf5(folder, PICTURES)
    with h5py.File(folder / "flair_federated.hdf5", "r+") as file:
        change(file)
    return folder


def _replace(file: Any, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.__delitem__("val/1@N00/image_ids"), ["/val/1@N00", "'image_ids'"]),
        (lambda f: f.__delitem__("val/1@N00/labels_col"), ["/val/1@N00", "'labels_col'"]),
        (lambda f: f.__delitem__("metadata/label_mapping"), ["label_mapping"]),
        (lambda f: _replace(f, "metadata/label_mapping", "[1"), ["label_mapping", "JSON"]),
        (lambda f: _replace(f, "metadata/label_mapping", '{"a": 2}'), ["from 0 on"]),
        (
            lambda f: _replace(f, "val/1@N00/labels_row", np.full(2, 9, np.uint16)),
            ["labels_row", "contradicts itself"],
        ),
        *(
            (
                lambda f, name=name: _replace(f, name, np.full(f[name].shape, -1, np.int8)),
                ["/val/1@N00", "labels_row and labels_col", "contradicts itself"],
            )
            for name in ("val/1@N00/labels_row", "val/1@N00/labels_col")
        ),
        (
            lambda f: f["val/1@N00"].create_dataset("labels", data=[b"food"]),
            ["/val/1@N00: 2 images, but 1 entries of 'labels'", "make it anew"],
        ),
        (
            lambda f: _replace(f, "val/1@N00/images", np.zeros((2, 8, 8), np.uint8)),
            ["/val/1@N00/images", "must be uint8"],
        ),
        (
            lambda f: _replace(f, "val/1@N00/images", np.zeros((1, 8, 8, 3), np.uint8)),
            ["/val/1@N00/images", "(2, height, width, 3)"],
        ),
        (
            lambda f: _replace(f, "val/1@N00/images", np.zeros((2, 8, 8, 3), np.uint8)),
            ["2 wrong_size", "8 x 8"],
        ),
        (lambda f: f.create_group("holdout"), ["/holdout is no group of a partition"]),
        (lambda f: _replace(f, "val", [1]), ["/val is no group of a partition"]),
        (lambda f: _replace(f, "val/1@N00", [1]), ["/val/1@N00", "is no group"]),
        (lambda f: _replace(f, "val/1@N00/image_ids", [1, 2]), ["must be byte strings"]),
        (
            lambda f: f.create_group("val/77").create_dataset("image", (8, 8, 3), "u1"),
            ["without users"],
        ),
    ],
)
def test_hdf5_of_another_layout(
    tmp_path: Path, change: Callable[[Any], None], words: list[str]
) -> None:
    refused(edit(tmp_path / "raw", change), tmp_path / "o", *words)


def test_rows_and_columns_of_labels_that_differ_in_number(tmp_path: Path) -> None:
    raw = edit(
        tmp_path / "raw", lambda f: _replace(f, "val/1@N00/labels_row", np.zeros(9, np.uint16))
    )
    refused(raw, tmp_path / "o", "/val/1@N00", "labels_row")


def test_several_hdf5_files(tmp_path: Path) -> None:
    raw = write_pfl_hdf5(tmp_path / "raw", PICTURES)
    (raw / "second.h5").write_bytes((raw / "flair_federated.hdf5").read_bytes())
    refused(raw, tmp_path / "o", "2 HDF5 files", "second.h5")


def test_a_cut_hdf5_file_is_no_form(tmp_path: Path) -> None:
    raw = write_pfl_hdf5(tmp_path / "raw", PICTURES)
    path = raw / "flair_federated.hdf5"
    path.write_bytes(path.read_bytes()[:-100])
    refused(raw, tmp_path / "o", "no public form", "flair_federated.hdf5")


def test_a_store_of_ours_in_the_source_folder_is_no_form(source: Path) -> None:
    prepared(source, source / "flair.h5")
    prepared(source, source / "flair.h5")


def test_folders_without_or_with_several_forms(source: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    message = refused(empty, tmp_path / "o", "no public form of FLAIR", "Found: nothing")
    for words in ("small_images-00.tar.gz", "IMAGE_ID.jpg", "*.parquet", "HDF5"):
        assert words in message
    refused(tmp_path / "none", tmp_path / "o", "does not exist", "--source")
    refused(source / "label_relationship.txt", tmp_path / "o", "is a file", "--source")
    (source / "small_images").mkdir()
    refused(source, tmp_path / "o", "several forms: tarballs, folder", "form=NAME")
    assert prepared(source, tmp_path / "out.h5", form="tarballs")["form"] == "tarballs"
    refused(source, tmp_path / "o", "12 missing", form="folder")


def test_an_unknown_binary_label_is_answered_with_those_of_the_store(
    source: Path, tmp_path: Path
) -> None:
    prepared(source, tmp_path / "out.h5")
    listed = "There are: animal, equipment, food, structure"
    for label, words in (
        ("zzz", f"'zzz' is no coarse label. {listed}"),
        ("foods", f"'foods' is no coarse label; did you mean 'food'? {listed}"),
    ):
        data = str(tmp_path / "out.h5")
        options = task.Options(data=data, labels="binary", binary_label=label, crop=SIDE)
        with pytest.raises(ValueError, match=re.escape(words)):
            task.build(options)


def test_an_output_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must exist and be writable.*--out"):
        prepared(source, tmp_path / "absent" / "out.h5")
    with pytest.raises(ValueError, match=r"is a folder; --out"):
        prepared(source, tmp_path)


def test_the_command_line_exits_with_2_and_without_traceback(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "small_images-00.tar.gz").write_bytes(b"x")
    out = str(tmp_path / "out.h5")
    command = ["data", "prepare", "flair", "--source", str(source), "--out", out]
    assert main([*command, f"image_size={SIDE}"]) == 2
    (source / "labels_and_metadata.json").write_text(json.dumps([{"user_id": "a"}]))
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "small_images-00.tar.gz" in error
    assert "has no field 'image_id'" in error
    assert "Traceback" not in error
    assert not Path(out).exists()


def test_a_folder_whose_file_changes_meanwhile(tmp_path: Path) -> None:
    from tasks.flair.prepare import Options, prepare

    raw = write_folder(tmp_path / "raw", PICTURES)

    def spoil(what: str, done: int, total: int | None) -> None:
        if what.startswith("writing") and done < 12:
            for path in (raw / "small_images").iterdir():
                path.write_bytes(encoded(77))

    with pytest.raises(ValueError, match="changed while the store was prepared"):
        prepare(raw, tmp_path / "out.h5", Options(image_size=SIDE), spoil)
    assert not (tmp_path / "out.h5").exists()
