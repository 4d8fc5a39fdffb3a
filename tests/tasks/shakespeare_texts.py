"""A small text in the form of Gutenberg's edition, written for these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.shakespeare.works import CHARACTERS

ADA = [
    "I keep a list of every engine in the yard, and how it runs;",
    "the small ones hum,  the great ones knock, and none is still.",
    "At night I count them twice, for one is always missing then.",
]
# What ADA says a second time; the indented direction belongs to it, as in LEAF's script.
ADA_AGAIN = [
    "You brought it home?",
    "                    Enter BOB with a lantern",
    "So I did fear.",
]
BOB = ["It stood behind the mill, and whistled like a bird, my friend, all through the rain,"]
BOB_AGAIN = ["I gave it coal.", "I gave it oil (and bread); it would not stop!", "It never does."]
CEL = ["Peace.", "Enough."]  # two lines: passed over
DOT = ["No,", "no,", "no."]  # three lines of fewer than 80 characters: no window
EVE = [
    "This play is not indented, so that every line is part of what is said before,",
    "an empty line as well,",
    "",
    "until the bracket comes.",
]
FAY = [
    "I know.",
    "I know it well, and say it in more than eighty letters, as a role must do here.",
    "Yes.",
]

TEXT = "\n".join(
    [
        "This is the first line of the edition, which names nobody.",
        "",
        "THE RHYMES",
        "",
        "by William Shakespeare",
        "",
        "  Sun. it shines, and this is not a play.",
        "  Moon. nor this.",
        "",
        "THE TALE OF THE YARD; OR, ENGINES",
        "",
        "",
        "by William Shakespeare",
        "",
        "  ADA, keeper of the yard",
        "ACT I. SCENE 1.",
        f"  ADA. {ADA[0]}",
        *(f"    {line}" for line in ADA[1:]),
        f"  BOB. {BOB[0]}",
        "  a line of two spaces is nobody's",
        f"  Ada. {ADA_AGAIN[0]}",
        *(f"    {line}" for line in ADA_AGAIN[1:]),
        f"  BOB. {BOB_AGAIN[0]}",
        *(f"    {line}" for line in BOB_AGAIN[1:]),
        f"  CEL. {CEL[0]}",
        f"    {CEL[1]}",
        f"  FIRST DOT. {DOT[0]}",
        *(f"    {line}" for line in DOT[1:]),
        "",
        "THE COMEDY OF ERRORS",
        "",
        "by William Shakespeare",
        "ACT I. SCENE 1. A road",
        "Nobody says this.",
        f"EVE. {EVE[0]}",
        *EVE[1:],
        "<<THE COPYRIGHT>>",
        "Nobody says this either.",
        f"FAY. {FAY[0]}",
        *FAY[1:],
        "ACT II. SCENE 1. A hall",
        "nor this",
        "",
        "A COMPLAINT",
        "",
        "by William Shakespeare",
        "  Solo. one role makes no play, however long the line that it may speak to nobody at all.",
        "",
    ]
)


def write_text(folder: Path, text: str = TEXT, name: str = "plays.txt") -> Path:
    """A folder with the text alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode())
    return folder


def leaf_json(users: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """LEAF's JSON of users with (play, text): every window of 80 characters, in order."""
    data: dict[str, Any] = {
        "users": list(users),
        "hierarchies": [play for play, _ in users.values()],
        "num_samples": [len(text) - 80 for _, text in users.values()],
        "user_data": {},
    }
    for user, (_, text) in users.items():
        places = range(len(text) - 80)
        data["user_data"][user] = {
            "x": [text[place : place + 80] for place in places],
            "y": [text[place + 80] for place in places],
        }
    return data


def decode(numbers: NDArray[np.uint8]) -> str:
    """Numbers of characters, shape (n,), as text."""
    return "".join(CHARACTERS[number] for number in numbers.tolist())
