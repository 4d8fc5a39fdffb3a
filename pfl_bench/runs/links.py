"""Links to elsewhere in a folder that somebody else may have made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pfl_bench.types import RunFolderError


def refuse_links(paths: Iterable[Path]) -> None:
    """Refuse, by a RunFolderError, symbolic links, pipes and devices among what is written to.

    A run appends to its files. Through a link it would write outside the folder that was named.
    """
    for path in paths:
        is_other = path.exists() and not path.is_file() and not path.is_dir()
        if path.is_symlink() or is_other:
            what = "a symbolic link" if path.is_symlink() else "a pipe or device"
            raise RunFolderError(
                f"{path}: is {what}, and nothing is written through it; put what it points to in "
                "its place, or give another folder with --out"
            )
