"""Files that a command writes where the user says."""

from __future__ import annotations

import os
from pathlib import Path

from pfl_bench.types import UserInputError


def check_new(out: Path, force: bool) -> None:
    """Check that a file is not replaced unasked.

    Args:
        out: The file to write.
        force: Whether the user asked to replace it.

    Raises:
        UserInputError: It exists.
    """
    if os.path.lexists(out) and not force and not out.is_dir():
        raise UserInputError(
            f"--out {out}: exists, and is not overwritten; give another name, or add --force to "
            "replace it"
        )
