"""Data that are made up: how their folders and stores say so."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from pydantic import BaseModel

GENERATED_MARK = "GENERATED.txt"
# Of a store. A made-up user is nobody: a guarantee for one protects no person.
GENERATED_FACTS = {"generated": True, "artificial_users": True}


def is_generated(source: Path) -> bool:
    """Whether a folder says that its data are made up."""
    return (source / GENERATED_MARK).is_file()


def settings(options: BaseModel, sign: str = " = ", without: Set[str] = frozenset()) -> str:
    """The options that data were generated with, in one line.

    ``without`` names those on which no byte depends.
    """
    shown = options.model_dump(exclude=set(without))
    return ", ".join(f"{name}{sign}{value}" for name, value in shown.items())


def write_mark(folder: Path, text: str) -> None:
    """Write the file that says what a folder's data are."""
    (folder / GENERATED_MARK).write_text(text, encoding="utf-8")
