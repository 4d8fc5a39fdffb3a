"""Names of FLAIR's labels, and ids, that are written in unusual ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.flair.published import read_relationship
from tests.tasks.flair_files import (
    COARSE_OF,
    contents,
    expected,
    make_pictures,
    prepared,
    write_metadata,
    write_tarballs,
)

PICTURES = make_pictures()


@pytest.mark.parametrize(
    ("line", "fine"),
    [
        ("bass_(fish) -> animal", "bass_(fish)"),
        ("(wild) bass (fish)\tanimal", "(wild) bass (fish)"),
        ("dog's -> animal", "dog's"),
        ("fish, (sea),animal", "fish, (sea)"),
        ("red, house , animal", "red, house"),
        ("red, house\tanimal", "red, house"),
        ("('fish', 'animal')", "fish"),
        ('["fish, red", "animal"]', "fish, red"),
        ("(fish) -> (animal)", "fish"),
        ("\"bass_(fish)\" -> 'animal'", "bass_(fish)"),
        ("('bass_(fish)', 'animal')", "bass_(fish)"),
        ("'fish -> animal'", "fish"),
        ("fish :( -> animal", "fish :("),
    ],
)
def test_names_keep_their_brackets_quotes_and_commas(tmp_path: Path, line: str, fine: str) -> None:
    path = tmp_path / "label_relationship.txt"
    path.write_text(f"fine, coarse label\n{line}\n")
    assert read_relationship(path).coarse_of[fine] == ("animal",)


def test_a_label_with_brackets_or_commas_comes_into_a_store(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    entries = [p.entry() for p in PICTURES]
    entries[0] |= {"fine_grained_labels": ["bass_(fish)", "red, house"]}
    entries[0] |= {"labels": ["animal", "structure"]}
    write_metadata(source, entries)
    pairs = [*COARSE_OF.items(), ("bass_(fish)", "animal"), ("red, house", "structure")]
    text = "".join(f"{pair[0]},{pair[1]}\n" for pair in pairs)
    (source / "label_relationship.txt").write_text(text)
    assert prepared(source, tmp_path / "out.h5")["problems"] == {}
    rows = contents(tmp_path / "out.h5")["train"][PICTURES[0].user_id]
    assert {row[0]: row[2:] for row in rows}[PICTURES[0].image_id] == (
        ("animal", "structure"),
        ("bass_(fish)", "red, house"),
    )


def test_ids_may_be_whole_numbers(tmp_path: Path) -> None:
    source = write_tarballs(tmp_path / "raw", PICTURES)
    entries = [p.entry() | {"image_id": int(p.image_id)} for p in PICTURES]
    owner = PICTURES[0].user_id
    for entry in entries:
        if entry["user_id"] == owner:
            entry["user_id"] = 0
    write_metadata(source, entries)
    prepared(source, tmp_path / "out.h5")
    named = [replace(p, user_id="0") if p.user_id == owner else p for p in PICTURES]
    assert contents(tmp_path / "out.h5") == expected(named)
