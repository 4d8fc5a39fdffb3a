from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.types import DataError
from tasks.shakespeare import works
from tasks.shakespeare.prepare import describe
from tasks.shakespeare.works import CHARACTERS, encode
from tests.tasks.shakespeare_texts import (
    ADA,
    ADA_AGAIN,
    BOB,
    BOB_AGAIN,
    CEL,
    DOT,
    EVE,
    FAY,
    TEXT,
    decode,
    write_text,
)


def test_plays_roles_and_lines_are_found_as_leaf_s_script_finds_them() -> None:
    plays = works.parse(TEXT, "here")
    assert [play.title for play in plays] == [
        "THE TALE OF THE YARD; OR, ENGINES",
        "THE COMEDY OF ERRORS",
    ]
    yard, errors = plays
    assert list(yard.roles) == ["ADA", "BOB", "CEL", "FIRST DOT"]  # "Ada" is ADA
    assert yard.roles["ADA"] == ADA + ADA_AGAIN
    assert yard.roles["BOB"] == BOB + BOB_AGAIN
    assert yard.roles["CEL"] == CEL
    assert yard.roles["FIRST DOT"] == DOT
    assert list(errors.roles) == ["EVE", "FAY"]
    assert errors.roles["EVE"] == EVE  # to the copyright's bracket, the empty line too
    assert errors.roles["FAY"] == FAY  # to the next act


def test_names_are_those_of_leaf() -> None:
    assert works.client_name("TWELFTH NIGHT; OR, WHAT YOU WILL", "SIR TOBY") == (
        "TWELFTH_NIGHT__OR__WHAT_YOU_WILL_SIR_TOBY"
    )
    assert works.client_name("LOVE'S LABOUR'S LOST", "MOTH") == "LOVE_S_LABOUR_S_LOST_MOTH"


def test_lines_are_joined_by_single_spaces() -> None:
    assert works.join_lines(["a  b", "", "   c "]) == "a b c "


@pytest.mark.parametrize("form", ["txt", "crlf", "bom", "gz", "zip"])
def test_every_form_of_the_file_gives_the_same_text(form: str, tmp_path: Path) -> None:
    data = TEXT.encode()
    path = tmp_path / "plays.txt"
    if form == "gz":
        path = tmp_path / "plays.txt.gz"
        path.write_bytes(gzip.compress(data))
    elif form == "zip":
        path = tmp_path / "plays.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("100.txt", data)
            archive.writestr("readme.md", "not this one")
    else:
        change = {"txt": data, "crlf": data.replace(b"\n", b"\r\n"), "bom": b"\xef\xbb\xbf" + data}
        path.write_bytes(change[form])
    text, digest = works.read_text(path)
    assert text == TEXT
    assert digest != works.EDITION_MD5
    if form != "bom":
        write_text(tmp_path / "plain")
        assert digest == works.read_text(tmp_path / "plain" / "plays.txt")[1]


def test_damaged_and_foreign_files_are_refused_by_name(tmp_path: Path) -> None:
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(TEXT.encode())[:200])
    with pytest.raises(DataError, match=r"cut\.txt\.gz: cannot be read"):
        works.read_text(cut)
    many = tmp_path / "many.zip"
    with zipfile.ZipFile(many, "w") as archive:
        archive.writestr("1.txt", "a")
        archive.writestr("2.txt", "b")
    with pytest.raises(DataError, match="2 files"):
        works.read_text(many)
    with pytest.raises(DataError, match=r"recipes\.txt: no play found in 2 lines.*md5 d2028225"):
        works.parse("Take an egg.\nBoil it.\n", "recipes.txt")


def test_latin_1_is_read_when_a_file_is_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes("Caf\xe9".encode("latin-1"))
    assert works.read_text(tmp_path / "old.txt")[0] == "Café"


def test_there_are_80_characters_and_others_become_the_last_and_are_counted() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 80
    numbers, outside = encode("aé}\U0001f600 *")
    assert numbers.dtype == np.uint8
    assert decode(numbers) == "a}}} }"
    assert outside == 3


@given(st.text(alphabet=CHARACTERS, max_size=200))
def test_characters_go_there_and_back(text: str) -> None:
    numbers, outside = encode(text)
    assert decode(numbers) == text
    assert outside == 0


@given(st.integers(81, 300), st.integers(0, 2**31))
def test_windows_are_every_stretch_of_80_with_what_follows(length: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 80, length, dtype=np.uint8)
    inputs, targets = works.cut(numbers)
    assert len(inputs) == len(targets) == length - 80
    for place in (0, length - 81):
        assert inputs[place].tolist() == numbers[place : place + 80].tolist()
        assert targets[place] == numbers[place + 80]
    # They are recognised as lying one behind the other.
    assert works.positions(inputs, targets).tolist() == list(range(length - 80))


def test_a_text_of_80_characters_has_no_window() -> None:
    inputs, targets = works.cut(np.zeros(80, dtype=np.uint8))
    assert inputs.shape == (0, 80)
    assert targets.shape == (0,)


def test_windows_of_several_texts_are_told_apart_and_shuffled_ones_too() -> None:
    rng = np.random.default_rng(0)
    texts = [works.cut(rng.integers(0, 80, 90, dtype=np.uint8)) for _ in range(2)]
    inputs = np.concatenate([own[0] for own in texts])
    targets = np.concatenate([own[1] for own in texts])
    places = works.positions(inputs, targets)
    assert places.tolist() == [*range(10), *range(90, 100)]
    assert works.in_order(places)
    mixed = rng.permutation(20)
    assert not works.in_order(works.positions(inputs[mixed], targets[mixed]))


@given(
    st.integers(1, 1500),
    st.sampled_from([0.5, 0.6, 0.8, 0.95, 1.0]),
    st.sampled_from([0.0, 0.05, 0.1, 0.2]),
    st.integers(0, 10),
)
def test_no_character_of_a_later_split_was_in_a_window_of_one_before(
    count: int, train_fraction: float, val_fraction: float, breaks: int
) -> None:
    steps = np.ones(count - 1, dtype=np.int64)
    steps[:: max(1, count // (breaks + 1))] = 81 if breaks else 1
    places = np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
    split = works.split_in_order(
        places, train_fraction, min(val_fraction, 1 - train_fraction), True
    )
    loose = works.split_in_order(
        places, train_fraction, min(val_fraction, 1 - train_fraction), False
    )
    assert sum(part.stop - part.start for part in loose.values()) == count
    assert split["train"] == loose["train"]
    read: set[int] = set()
    for name in ("train", "val", "test"):
        if name not in split:
            continue
        own = places[split[name]]
        assert len(own)
        # A window at p reads the characters p to p + 80.
        characters = set((own[:, None] + np.arange(81)).ravel().tolist())
        assert not characters & read
        read |= characters
    if breaks == 0 and "val" in split:
        assert split["val"].start == loose["val"].start + 80


@pytest.mark.parametrize(
    "missing", [lambda place: place % 5 == 0, lambda place: 640 <= place < 700, lambda place: False]
)
@pytest.mark.parametrize("times", [1, 2])
def test_missing_and_repeated_windows_do_not_hide_what_windows_share(
    missing: Callable[[int], bool], times: int
) -> None:
    text = np.random.default_rng(0).integers(0, 80, 1000).astype(np.uint8)
    true = [place for place in range(920) if not missing(place)]
    true += [place for place in true if times == 2 and 750 <= place < 800]
    starts = np.array(sorted(true))
    inputs, targets = text[starts[:, None] + np.arange(80)], text[starts + 80]
    places = works.positions(inputs, targets)
    assert works.in_order(places)
    split = works.split_in_order(places, 0.8, 0.1, True)
    assert "test" in split
    read: set[int] = set()
    for part in split.values():
        characters = set((starts[part][:, None] + np.arange(81)).ravel().tolist())
        assert not characters & read
        read |= characters


def test_statistics_are_those_of_leaf_s_tool() -> None:
    stats = describe([10, 2000, 1999, 30_000, 20_000])["table1"]
    assert stats["users"] == 5
    assert stats["samples"] == 54_009
    assert stats["mean"] == pytest.approx(10_801.8)
    assert stats["sd"] == pytest.approx(np.std([10, 2000, 1999, 30_000, 20_000]))  # population
    assert stats["histogram"]["users"] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]
