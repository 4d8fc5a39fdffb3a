"""Checkpoints: everything that a resumed run needs, whole or absent, and no pickle."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import torch

from pfl_bench.files import write_atomically
from pfl_bench.types import RunFolderError

VERSION = 1
_NAME = re.compile(r"^step-(\d{8})\.pt$")


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Save a checkpoint and remove the oldest beyond ``keep``.

    Args:
        folder: The run's checkpoints; made when missing.
        step: Rounds (central training: epochs) that are done.
        state: Tensors, numbers, texts, lists and mappings of them.
        keep: Checkpoints that stay.

    Raises:
        OSError: The folder is not writable or the disk is full; older checkpoints stay.
    """
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save({"version": VERSION, "step": step, **state}, buffer)
    path = folder / f"step-{step:08d}.pt"
    write_atomically(path, buffer.getvalue())
    for old in _existing(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> dict[str, Any] | None:
    """Load the newest checkpoint, or None when there is none.

    Raises:
        RunFolderError: The newest is damaged or of another version.
    """
    paths = _existing(folder)
    if not paths:
        return None
    path = paths[-1]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises a dozen kinds for a file that is cut, foreign or holds a pickle.
        raise RunFolderError(
            f"{path}: damaged or not a checkpoint ({type(error).__name__}); delete this file to "
            "resume from the one before it"
        ) from None
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise RunFolderError(
            f"{path}: not a checkpoint of version {VERSION}; resume with the pfl-bench that wrote "
            "it, or start in a new folder with --out"
        )
    return state


def has_checkpoints(folder: Path) -> bool:
    """Whether a run has saved one."""
    return bool(_existing(folder))


def _existing(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.match(path.name))
