"""FLAIR's public forms become stores with the same content."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from pfl_bench.data.download import check_declaration
from pfl_bench.types import ConfigError
from tasks.flair import published
from tasks.flair.prepare import FILES, FILES_NOTE, Options, prepare
from tasks.flair.published import make_labels
from tests.tasks.flair_files import (
    COARSE_OF,
    SIDE,
    WRITERS,
    Picture,
    changed,
    contents,
    encoded,
    expected,
    make_pictures,
    pixels,
    prepared,
    real_pictures,
    refused,
    silent,
    write_folder,
    write_metadata,
    write_parquet,
    write_pfl_hdf5,
    write_tarball,
    write_tarballs,
)

PICTURES = make_pictures()
BYTES_KEPT = ("tarballs", "folder", "parquet")
COUNTS = {
    "train": {"users": 3, "examples": 8},
    "val": {"users": 1, "examples": 2},
    "test": {"users": 1, "examples": 2},
}


@pytest.mark.parametrize("form", BYTES_KEPT)
def test_every_byte_label_and_split_arrives(form: str, tmp_path: Path) -> None:
    source = WRITERS[form](tmp_path / "raw", PICTURES)
    facts = prepared(source, tmp_path / "out.h5")
    assert contents(tmp_path / "out.h5") == expected(PICTURES)
    assert facts["splits"] == COUNTS
    assert (facts["form"], facts["variant"], facts["problems"]) == (form, "flair-partial", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.h5", "raw"]
    with Store(tmp_path / "out.h5") as store:
        assert (store.task, store.facts.split_by) == ("flair", "user")
        assert store.facts.num_classes == 4
        assert store.facts.input_shape == (3, SIDE, SIDE)
        extra = store.facts.extra
        assert extra["coarse_labels"] == sorted(set(COARSE_OF.values()))
        assert extra["fine_labels"] == sorted(COARSE_OF)
        assert extra["generated"] is False
        known = [extra["coarse_labels"].index(COARSE_OF[name]) for name in extra["fine_labels"]]
        own_name = {"equipment", "structure"}
        if form == "parquet":
            known = [
                index if name in own_name else -1
                for name, index in zip(extra["fine_labels"], known, strict=True)
            ]
            assert facts["labels"]["fine_of_unknown_coarse"] == len(COARSE_OF) - len(own_name)
        assert extra["fine_to_coarse"] == known


def test_the_content_does_not_depend_on_the_form_or_the_order(tmp_path: Path) -> None:
    checksums = set()
    for form in BYTES_KEPT:
        for order in (PICTURES, PICTURES[::-1]):
            source = WRITERS[form](tmp_path / f"{form}{order is PICTURES}", order)
            prepared(source, tmp_path / "out.h5")
            with Store(tmp_path / "out.h5") as store:
                checksums.add(store.facts.checksum)
    assert len(checksums) == 1


def test_the_published_images_come_out_unchanged(tmp_path: Path) -> None:
    pictures = real_pictures()
    labels = {name for p in pictures for name in p.fine}
    coarse = {name: COARSE_OF.get(name, "plant") for name in labels}
    source = tmp_path / "raw"
    source.mkdir()
    for number in range(4):
        members = [(f"small_images/{p.image_id}.jpg", p.data) for p in pictures[number::4]]
        write_tarball(source / f"small_images-{number:02d}.tar.gz", members)
    entries = [
        p.entry() | {"labels": sorted({coarse[x] for x in p.fine})} for p in _plain(pictures)
    ]
    write_metadata(source, entries, coarse.items())
    facts = prepared(source, tmp_path / "out.h5", image_size=256)
    assert facts["problems"] == {}
    assert sum(count["users"] for count in facts["splits"].values()) == 15
    stored = {
        row[0]: row[1]
        for users in contents(tmp_path / "out.h5").values()
        for rows in users.values()
        for row in rows
    }
    assert stored == {p.image_id: p.data for p in pictures}


class _Plain(Picture):
    """A picture whose coarse labels the test gives."""

    @property
    def coarse(self) -> tuple[str, ...]:
        return ()


def _plain(pictures: list[Picture]) -> list[Picture]:
    return [_Plain(p.image_id, p.user_id, p.partition, p.fine, p.data) for p in pictures]


@pytest.mark.parametrize("style", ["pfl-research", "ml-flair"])
def test_pixels_of_hdf5_are_kept_and_said_not_to_be_the_published_bytes(
    style: str, tmp_path: Path
) -> None:
    source = write_pfl_hdf5(tmp_path / "raw", PICTURES, style)
    facts = prepared(source, tmp_path / "out.h5")
    assert facts["variant"] == "flair-pixels"
    assert "not the JPEG bytes as published" in facts["source"]
    assert facts["splits"] == COUNTS
    found, wanted = contents(tmp_path / "out.h5"), expected(PICTURES)
    for split, users in wanted.items():
        for user, rows in users.items():
            assert [(r[0], *r[2:]) for r in found[split][user]] == [(r[0], *r[2:]) for r in rows]
            for (_, stored, *_), (_, data, *_) in zip(found[split][user], rows, strict=True):
                assert stored.startswith(b"\x89PNG")
                assert np.array_equal(pixels(stored), pixels(data))


def test_pixels_as_jpeg_are_close_and_smaller(tmp_path: Path) -> None:
    source = write_pfl_hdf5(tmp_path / "raw", PICTURES)
    prepared(source, tmp_path / "out.h5", pixels_as="jpeg")
    for row, (_, data, *_) in zip(
        contents(tmp_path / "out.h5")["train"]["9@N01"],
        expected(PICTURES)["train"]["9@N01"],
        strict=True,
    ):
        assert row[1].startswith(b"\xff\xd8")
        error = pixels(row[1]).astype(int) - pixels(data).astype(int)
        assert abs(error).mean() < 2
    tarballs = write_tarballs(tmp_path / "tarballs", PICTURES)
    refused(
        tarballs, tmp_path / "o", "pixels_as", "byte for byte", error=ConfigError, pixels_as="png"
    )


def test_dev_is_val(tmp_path: Path) -> None:
    pictures = [
        Picture(
            p.image_id, p.user_id, "dev" if p.partition == "val" else p.partition, p.fine, p.data
        )
        for p in PICTURES
    ]
    for form in WRITERS:
        prepared(WRITERS[form](tmp_path / form, pictures), tmp_path / "out.h5")
        assert sorted(contents(tmp_path / "out.h5")) == ["test", "train", "val"]


@pytest.mark.parametrize("plain_bytes", [False, True])
def test_parquet_takes_the_partition_from_the_files_name(tmp_path: Path, plain_bytes: bool) -> None:
    source = write_parquet(
        tmp_path / "raw", PICTURES, without=["partition"], plain_bytes=plain_bytes
    )
    prepared(source, tmp_path / "out.h5")
    assert contents(tmp_path / "out.h5") == expected(PICTURES)


def test_parquet_takes_a_relationship_file_that_lies_beside(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "raw", PICTURES)
    write_metadata(tmp_path / "other", [])
    (tmp_path / "other" / "label_relationship.txt").rename(source / "label_relationship.txt")
    facts = prepared(source, tmp_path / "out.h5")
    assert facts["labels"] == {"coarse": 4, "fine": 8, "fine_of_unknown_coarse": 0}


@pytest.mark.parametrize("separator", ["->", " -> ", "\t", ", "])
def test_separators_of_the_relationship_file(separator: str, tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    lines = [f"{fine}{separator}{coarse}\r\n" for fine, coarse in COARSE_OF.items()]
    lines[3] += "\n"
    text = f"fine_grained_label{separator}label\n" + "".join(lines)
    (source / "label_relationship.txt").write_text(text)
    prepared(source, tmp_path / "out.h5")
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.extra["fine_labels"] == sorted(COARSE_OF)
        assert store.facts.extra["fine_to_coarse"] == [1, 1, 2, 0, 1, 3, 0, 3]


def test_suffixes_may_be_written_in_capitals(tmp_path: Path) -> None:
    suffixes = [".JPG", ".jpeg", ".Jpg", ".JPEG", ".jpg"]
    names = [f"{p.image_id}{suffixes[n % 5]}" for n, p in enumerate(PICTURES)]
    folder = write_folder(tmp_path / "folder", PICTURES)
    for picture, name in zip(PICTURES, names, strict=True):
        (folder / "small_images" / f"{picture.image_id}.jpg").rename(folder / "small_images" / name)
    tarballs = write_metadata(tmp_path / "tarballs", PICTURES)
    members = [(f"small_images/{name}", p.data) for p, name in zip(PICTURES, names, strict=True)]
    write_tarball(tarballs / "small_images-00.tar.gz", members)
    for source in (folder, tarballs):
        assert prepared(source, tmp_path / "out.h5")["problems"] == {}
        assert contents(tmp_path / "out.h5") == expected(PICTURES)


def test_two_spellings_of_one_image_are_compared(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "raw", PICTURES)
    second = source / "small_images" / f"{PICTURES[0].image_id}.JPG"
    second.write_bytes(PICTURES[0].data)
    if len(list(second.parent.iterdir())) == len(PICTURES):
        pytest.skip("the file system does not tell capital from small letters")
    assert prepared(source, tmp_path / "out.h5")["problems"] == {"repeated_images": 1}
    second.write_bytes(encoded(99))
    refused(source, tmp_path / "o", "1 contradictory", PICTURES[0].image_id)


def test_unusual_images_are_kept_counted_and_named(tmp_path: Path) -> None:
    pictures = changed(PICTURES, 0, data=encoded(0, mode="L"))
    pictures = changed(pictures, 1, data=encoded(1, mode="CMYK"))
    pictures = changed(pictures, 2, data=encoded(2, form="PNG"))
    pictures = changed(pictures, 3, data=encoded(3, mode="RGBA", form="PNG"))
    for form in BYTES_KEPT:
        facts = prepared(WRITERS[form](tmp_path / form, pictures), tmp_path / "out.h5")
        assert facts["problems"] == {"cmyk": 1, "grey": 1, "other_mode": 1, "png": 2}
        assert facts["problem_examples"]["grey"] == [PICTURES[0].image_id]
        assert facts["images_dropped"] == 0
        assert contents(tmp_path / "out.h5") == expected(pictures)
        with Store(tmp_path / "out.h5") as store:
            assert store.facts.extra["problems"] == facts["problems"]


def test_bad_images_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    pictures = changed(PICTURES, 0, data=PICTURES[0].data[:-30])
    pictures = changed(pictures, 5, data=encoded(5, side=SIDE + 1))
    pictures = changed(pictures, 6, data=b"GIF89a")
    good = [p for n, p in enumerate(pictures) if n not in (0, 5, 6, 7)]
    for form in BYTES_KEPT[:2]:
        source = WRITERS[form](tmp_path / form, [p for n, p in enumerate(pictures) if n != 7])
        write_metadata(source, pictures)
        facts = prepared(source, tmp_path / "out.h5", bad_images="drop")
        assert facts["problems"] == {"missing": 1, "unreadable": 2, "wrong_size": 1}
        assert facts["images_dropped"] == 4
        assert PICTURES[7].image_id in facts["problem_examples"]["missing"]
        assert contents(tmp_path / "out.h5") == expected(good)
        assert "5@N07" not in contents(tmp_path / "out.h5")["train"]
        assert facts["splits"]["train"] == {"users": 2, "examples": 6}


def test_a_cut_image_is_found_unless_headers_are_believed(tmp_path: Path) -> None:
    cut = changed(PICTURES, 0, data=PICTURES[0].data[:-30])
    source = write_tarballs(tmp_path / "raw", cut)
    refused(source, tmp_path / "o", "1 unreadable", PICTURES[0].image_id, "truncated")
    facts = prepared(source, tmp_path / "out.h5", check_images="headers")
    assert facts["problems"] == {}


def test_files_that_no_entry_names_are_counted_and_not_stored(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES, count=2)
    repeated = (f"small_images/{PICTURES[0].image_id}.jpg", PICTURES[0].data)
    extra = [("small_images/77.jpg", encoded()), ("notes.txt", b"x"), ("small_images/._1.jpg", b"")]
    write_tarball(source / "small_images-02.tar.gz", [*extra, repeated])
    facts = prepared(source, tmp_path / "out.h5")
    assert facts["problems"] == {"not_in_metadata": 1, "other_files": 1, "repeated_images": 1}
    assert facts["problem_examples"]["not_in_metadata"] == ["77"]
    assert contents(tmp_path / "out.h5") == expected(PICTURES)

    source = write_folder(tmp_path / "folder", PICTURES)
    (source / "small_images" / "77.jpg").write_bytes(encoded())
    (source / "small_images" / "notes.txt").touch()
    facts = prepared(source, tmp_path / "out.h5")
    assert facts["problems"] == {"not_in_metadata": 1, "other_files": 1}


def test_odd_labels_are_counted_and_do_not_stop(tmp_path: Path) -> None:
    entries = [p.entry() for p in PICTURES]
    entries[0]["labels"] = ["food"]
    entries[1]["labels"] += entries[1]["labels"]
    entries[2]["labels"] = entries[2]["fine_grained_labels"] = []
    source = write_tarballs(tmp_path / "raw", PICTURES)
    pairs = [pair for pair in COARSE_OF.items() if pair[0] != "structure"]
    pairs += [("bag", "food"), ("unheard_of", "food")]
    write_metadata(source, entries, pairs)
    num_structure = sum("structure" in p.fine for p in PICTURES[:2] + PICTURES[3:])
    facts = prepared(source, tmp_path / "out.h5")
    assert facts["problems"] == {
        "coarse_name_as_fine_label": num_structure,
        "coarse_not_from_fine": 1,
        "fine_with_several_coarse": 1,
        "repeated_labels": 1,
        "without_labels": 1,
    }
    with Store(tmp_path / "out.h5") as store:
        assert "unheard_of" in store.facts.extra["fine_labels"]


def test_generated_data_are_named_so(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    (source / "GENERATED.txt").write_text("drawn")
    facts = prepared(source, tmp_path / "out.h5")
    assert (facts["variant"], facts["generated"]) == ("flair-generated", True)
    assert "not FLAIR" in facts["source"]
    (source / "GENERATED.txt").write_text("drawn\ndrawing 7\n")
    assert prepared(source, tmp_path / "out.h5")["variant"] == "flair-generated-7"


def test_the_published_counts_make_the_full_variant() -> None:
    counts = {
        split: {"users": published.USERS[split], "examples": published.IMAGES[split]}
        for split in published.SPLITS
    }
    assert published.differences(counts, 17, 1628) == []
    assert published.variant_of("tarballs", mark=None, differs=False) == "flair"
    counts["val"]["examples"] -= 1
    differs = published.differences(counts, 17, 1627)
    assert differs == [
        "val images: 39,238 here, 39,239 published",
        "fine labels: 1,627 here, 1,628 published",
    ]
    statistics = json.loads(_statistics())
    assert statistics["users_train_val_test"] == list(published.USERS.values())
    assert statistics["images_train_val_test"] == list(published.IMAGES.values())


def _statistics() -> str:
    from tests.tasks.flair_files import REAL_DATA

    path = REAL_DATA / "published_statistics.json"
    if not path.is_file():
        pytest.skip(f"needs the published statistics in {REAL_DATA}")
    return path.read_text()


def test_all_published_labels_fit_into_a_store(tmp_path: Path) -> None:
    fine = [f"a_rather_long_label_{n:04d}" for n in range(1628)]
    coarse = [f"coarse_label_{n:02d}" for n in range(17)]
    pairs = [(name, coarse[n % 17]) for n, name in enumerate(fine)]
    source = write_tarballs(tmp_path / "raw", PICTURES)
    entries = [
        p.entry() | {"labels": [coarse[n]], "fine_grained_labels": [fine[n]]}
        for n, p in enumerate(PICTURES)
    ]
    write_metadata(source, entries, pairs)
    prepared(source, tmp_path / "out.h5")
    with Store(tmp_path / "out.h5") as store:
        assert store.facts.extra["fine_labels"] == fine
    # Labels that no image has are none of FLAIR's where the others are as many as published.
    used = [p.entry() | {"labels": coarse, "fine_grained_labels": fine} for p in PICTURES]
    write_metadata(source, used, [*pairs, ("unused", coarse[0])])
    facts = prepared(source, tmp_path / "out.h5")
    assert facts["labels"]["fine"] == 1628
    assert facts["problems"]["labels_without_image"] == 1
    write_metadata(source, used, [(f"{name}{'x' * 40}", c) for name, c in pairs])
    long = [p.entry() | {"labels": coarse, "fine_grained_labels": []} for p in PICTURES]
    write_metadata(source, long, [(f"{name}{'x' * 40}", c) for name, c in pairs])
    refused(source, tmp_path / "o", "a store holds 60000")


def test_labels_without_a_relationship_are_of_unknown_coarse_label() -> None:
    labels = make_labels(["food", "animal"], ["food", "dog"], None)
    assert (labels.coarse, labels.fine, labels.fine_to_coarse) == (
        ["animal", "food"],
        ["dog", "food"],
        [-1, 1],
    )


def test_progress_grows_to_its_total(tmp_path: Path) -> None:
    for form, write in WRITERS.items():
        seen: dict[str, list[tuple[int, int | None]]] = {}

        def note(what: str, done: int, total: int | None, seen: Any = seen) -> None:
            seen.setdefault(what, []).append((done, total))

        source = write(tmp_path / form, PICTURES)
        prepare(source, tmp_path / "out.h5", Options(image_size=SIDE), note)
        assert "writing the store (images)" in seen
        for steps in seen.values():
            done = [step for step, _ in steps]
            assert done == sorted(done)
        assert seen["writing the store (images)"][-1] == (12, 12)


def test_the_command_line_prepares_and_says_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tarballs(tmp_path / "raw", PICTURES)
    monkeypatch.chdir(tmp_path)
    command = ["data", "prepare", "flair", "--source", "raw", "--out", "flair.h5"]
    assert main([*command, f"image_size={SIDE}"]) == 0
    printed = capsys.readouterr()
    assert "variant: flair-partial" in printed.out
    assert "train images: 8 here, 345,879 published" in printed.out
    assert main([*command, "--force"]) == 2
    error = capsys.readouterr().err
    assert "12 images cannot be used" in error
    assert "12 wrong_size" in error
    assert "bad_images=drop" in error
    assert "Traceback" not in error
    assert main([*command, "bad_image=drop"]) == 2
    assert "bad_images" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [{"form": "zip"}, {"image_size": 0}, {"bad_images": "keep"}, {"check_images": "no"}, {"x": 1}],
)
def test_options_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options(**wrong)


def test_the_declared_files_are_the_published_ones() -> None:
    check_declaration(FILES)
    names = [file.name for file in FILES]
    assert len(names) == 45
    assert names[2] == "small_images-00.tar.gz"
    assert names[-1] == "small_images-42.tar.gz"
    assert all(file.digest is None for file in FILES)
    assert "CC BY-NC 4.0" in FILES_NOTE
    assert "No digests" in FILES_NOTE


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "raw", PICTURES)
    monkeypatch.chdir(tmp_path)
    prepare(Path("raw"), Path("out.h5"), Options(image_size=SIDE), silent)
    assert (tmp_path / "out.h5").is_file()


def test_a_user_with_more_images_than_one_append(tmp_path: Path) -> None:
    data = [encoded(n, side=8) for n in range(10)]
    many = [Picture(f"{n:05d}", "9@N01", "train", ("bag",), data[n % 10]) for n in range(150)]
    source = write_tarballs(tmp_path / "raw", many)
    prepared(source, tmp_path / "out.h5", image_size=8)
    assert contents(tmp_path / "out.h5") == expected(many)
    with Image.open(io.BytesIO(data[0])) as image:
        assert image.size == (8, 8)
