"""LEAF's table 1 beside what a source held: the arithmetic, and ``pfl-bench data stats``."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from tasks.common.leaf import table1
from tasks.common.leaf.table1 import (
    CELEBA,
    FEMNIST,
    REDDIT,
    SENT140,
    SHAKESPEARE,
    Counts,
    compare,
    count,
)
from tests.helpers import REPOSITORY
from tests.tasks.femnist_files import make_users, write_leaf, write_tff
from tests.tasks.leaf_samples import USERS, partitioned
from tests.tasks.test_celeba_prepare import generated
from tests.tasks.test_sent140_prepare import MANUAL_ROWS, ROWS, write_source
from tests.tasks.test_shakespeare_prepare import REAL as SHAKESPEARE_TEXT

SHARED = REPOSITORY.parent / "shared"
PAPER = SHARED / "papers" / "leaf.txt"
PART = "too few samples to be all that was published: differences are not listed"


@pytest.mark.skipif(not PAPER.is_file(), reason="LEAF's paper is not in ../shared/papers")
def test_the_rows_are_those_of_the_paper() -> None:
    rows = {
        "FEMNIST": FEMNIST,
        "Sent140": SENT140,
        "Shakespeare": SHAKESPEARE,
        "CelebA": CELEBA,
        "Reddit": REDDIT,
    }
    table = PAPER.read_text().partition("Table 1: Statistics of datasets in LEAF.")[2]
    for name, row in rows.items():
        found = re.search(rf"^{name}\t(.+)$", table, re.MULTILINE)
        assert found is not None
        # The paper's text has a space after each comma of thousands.
        users, samples, mean, sd = found[1].replace(", ", "").split()
        assert row == Counts(int(users), int(samples), float(mean), float(sd))


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50))
def test_counts_are_those_of_the_definitions(sizes: list[int]) -> None:
    found = count(sizes)
    assert (found.users, found.samples) == (len(sizes), sum(sizes))
    assert found.mean == pytest.approx(statistics.fmean(sizes))
    assert found.sd == pytest.approx(statistics.pstdev(sizes), abs=1e-9)  # by U, not U - 1


def test_nobody_counts_as_nothing() -> None:
    assert count([]) == Counts(0, 0, 0.0, 0.0)


def test_what_differs_is_told_of_whole_data_alone() -> None:
    # Of 3, 4 and 4 the mean is 3.667 and the sd 0.471.
    published = Counts(3, 11, 3.67, 0.47)
    assert compare([3, 4, 4], published, "x")["differs_from_published"] == []
    assert compare([4, 4, 3], published, "x")["table1"]["mean"] == pytest.approx(11 / 3)
    assert compare([2, 4, 4], published, "x")["differs_from_published"] == [
        "samples: 10 here, 11 published",
        "mean: 3.33 here, 3.67 published",
        "sd: 0.94 here, 0.47 published",
    ]
    assert compare([2, 3, 4], published, "x")["differs_from_published"] is None  # 9 of 11
    assert compare([3, 4, 4], published, "x", full=False)["differs_from_published"] is None
    more = compare([3, 4, 4], published, "x", more=(("images", 1000, 2000), ("plays", 3, 3)))
    assert more["differs_from_published"] == ["images: 1,000 here, 2,000 published"]
    assert not table1.looks_full(899, 1000)
    assert table1.looks_full(900, 1000)


def test_what_was_gathered_is_counted_before_anything_is_dropped(tmp_path: Path) -> None:
    with partitioned(tmp_path, min_examples=10, num_users=1) as partition:
        gathered = partition._gathered.examples_per_user()  # type: ignore[attr-defined]
    assert gathered == {user: len(numbers) for user, numbers in USERS.items()}


def prepared(task: str, source: Path, out: Path, *options: str) -> None:
    command = [
        "data",
        "prepare",
        task,
        "--source",
        str(source),
        "--out",
        str(out),
        "--force",
        *options,
    ]
    assert main(command) == 0


def shown(out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What ``data stats`` prints from the source's heading to the next empty line."""
    capsys.readouterr()
    assert main(["data", "stats", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("the source before any choice")]
    return lines[starts[0] : lines.index("", starts[0])] if starts else []


def table(lines: list[str]) -> dict[str, tuple[str, str]]:
    """The rows of the table: here and published."""
    assert re.split(r"\s{2,}", lines[1]) == ["", "here", table1.TITLE]
    rows = [re.split(r"\s{2,}", line) for line in lines[2:6]]
    return {name: (here, published) for name, here, published in rows}


@pytest.mark.skipif(
    not SHAKESPEARE_TEXT.is_file(), reason="the real text is not in ../shared/data/shakespeare"
)
def test_shakespeares_windows_are_shown_before_overlap_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.h5"
    prepared("shakespeare", SHAKESPEARE_TEXT.parent, out, "num_users=118")
    with Store(out) as store:
        stored = sum(store.split(name).num_examples for name in store.split_names)
    assert stored < 4_000_000
    lines = shown(out, capsys)
    assert lines[0].endswith(": windows of all roles, overlapping ones too")
    assert table(lines) == {
        "users": ("1,130", "1,129"),
        "samples": ("4,226,206", "4,226,158"),
        "mean a user": ("3,740.01", "3,743.28"),
        "sd (population)": ("6,210.49", "6,212.26"),
    }
    assert lines[6:] == [
        "differs from what was published:",
        "  users: 1,130 here, 1,129 published",
        "  samples: 4,226,206 here, 4,226,158 published",
        "  mean: 3,740.01 here, 3,743.28 published",
        "  sd: 6,210.49 here, 6,212.26 published",
    ]
    assert main(["data", "stats", str(out), "--json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["facts"]["extra"]["table1"]["samples"] == 4_226_206
    assert text.count("4226206") == text.count('"differs_from_published"') == 1


def test_celebrities_with_few_images_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "raw", tmp_path / "out.h5"
    generated(source, num_users=6, images_per_user=6)
    identities = source / "identity_CelebA.txt"
    lines = identities.read_text().splitlines()
    # The first four images become those of one more celebrity, who has too few.
    lines[:4] = [f"{line.split()[0]} 99" for line in lines[:4]]
    identities.write_text("\n".join(lines) + "\n")
    sizes = Counter(line.split()[1] for line in lines)
    kept = [size for size in sizes.values() if size >= 5]
    assert 0 < len(kept) < len(sizes)
    # All are kept in the store; the table is of those whom LEAF keeps.
    prepared("celeba", source, out, "min_examples=0")
    lines = shown(out, capsys)
    assert lines[0].endswith(": images of celebrities with at least 5")
    found = table(lines)
    assert found["users"] == (str(len(kept)), "9,343")
    assert found["samples"] == (str(sum(kept)), "200,288")
    assert found["sd (population)"] == (f"{statistics.pstdev(kept):,.2f}", "7.63")
    assert lines[6:] == [PART]


def test_neutral_tweets_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_source(tmp_path / "raw", ROWS, MANUAL_ROWS), tmp_path / "out.h5"
    prepared("sent140", source, out, "min_examples=5")
    lines = shown(out, capsys)
    assert lines[0].endswith(": tweets, neutral ones too")
    # User u wrote u + 1 tweets; the test file has one of user01 and two, one neutral, of another.
    sizes = [1, 3, *range(3, 13), 2]
    assert table(lines) == {
        "users": ("13", "660,120"),
        "samples": ("81", "1,600,498"),
        "mean a user": (f"{81 / 13:.2f}", "2.42"),
        "sd (population)": (f"{statistics.pstdev(sizes):.2f}", "4.71"),
    }
    assert lines[6:] == [PART]
    prepared("sent140", source, out, "manual=leave_out")
    lines = shown(out, capsys)
    assert lines[0].endswith(": tweets, neutral ones too, without those labelled by hand")
    assert table(lines)["samples"][0] == "78"


def test_femnists_writers_are_counted_over_splits_before_any_is_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.h5"
    for number, (name, sizes) in enumerate(
        (("train", {"a": 4, "b": 1, "c": 3}), ("test", {"a": 2, "b": 1, "c": 1}))
    ):
        write_leaf(tmp_path / "raw" / name / "x.json", make_users(sizes, seed=number))
    prepared("femnist", tmp_path / "raw", out, "min_examples=3")
    with Store(out) as store:
        assert store.split("train").num_users == 2
    lines = shown(out, capsys)
    assert table(lines) == {
        "users": ("3", "3,550"),
        "samples": ("12", "805,263"),
        "mean a user": ("4.00", "226.83"),
        "sd (population)": (f"{statistics.pstdev([6, 2, 4]):.2f}", "88.94"),
    }
    assert lines[6:] == [PART]
    # Other forms are other versions of the data, which LEAF's table does not count.
    shutil.rmtree(tmp_path / "raw")
    (tmp_path / "raw").mkdir()
    sizes = {"f0_1": 3, "f1_2": 2}
    parts = {name: make_users(sizes, seed=seed) for seed, name in enumerate(("train", "test"))}
    write_tff(tmp_path / "raw", "fed_emnist", **parts)
    prepared("femnist", tmp_path / "raw", out)
    assert shown(out, capsys) == []
