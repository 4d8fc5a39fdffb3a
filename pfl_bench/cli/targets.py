"""Files that a command writes where the user says."""

from __future__ import annotations

import os
from pathlib import Path

from pfl_bench.types import UserInputError


def check_new(out: Path, force: bool) -> None:
    """Check that a file is not replaced unasked, nor a device or pipe at all."""
    if out.exists() and not out.is_file() and not out.is_dir():
        raise UserInputError(f"--out {out}: is a device or pipe; give the name of a file")
    if os.path.lexists(out) and not force and not out.is_dir():
        raise UserInputError(
            f"--out {out}: exists, and is not overwritten; give another name, or add --force to "
            "replace it"
        )


def check_empty(folder: Path, force: bool) -> None:
    """Check that a path which exists is a folder, and has files only if these may be added to."""
    if not folder.is_dir():
        raise UserInputError(f"--figures {folder}: is a file; give a folder, which is made")
    if any(folder.iterdir()) and not force:
        raise UserInputError(
            f"--figures {folder}: has files already; give another folder, or add --force to write "
            "beside them and replace files of the same name"
        )
