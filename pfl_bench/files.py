"""Writing files so that a reader finds the old content or the new, never half of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pfl_bench.types import RunFolderError


def write_atomically(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Replace a file as a whole: written beside it, flushed to the disk, renamed over it.

    Args:
        path: The file.
        content: What it is to hold, or what writes that into an open file.

    Raises:
        OSError: The folder is not writable or the disk is full; the old content is still there and
            nothing else is left behind.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    synchronise_folder(path.parent)


def synchronise_folder(folder: Path) -> None:
    """Make a folder's entries outlive a power cut."""
    if os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_running(process: int) -> bool:
    """Whether a process of this machine has this id; also one that took a dead one's id over."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def to_json_value(value: Any) -> Any:
    """Make a value fit for JSON, which has no NaN and no infinity: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, non-finite numbers as the texts "nan", "inf" and "-inf"."""
    text = json.dumps(to_json_value(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text + "\n")


def read_text(path: Path) -> str:
    """Read a text file; errors name it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}; expected UTF-8 text") from None


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file does not exist."""
    if not path.exists():
        return None
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise RunFolderError(
            f"{path} is not JSON (line {error.lineno}: {error.msg}); expected one object, written "
            "whole: delete the file if the run is to be resumed, or run the row again"
        ) from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} holds {type(value).__name__}, expected one JSON object")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; a torn last line, which a kill leaves behind, is no error."""
    if not path.exists():
        return []
    lines = read_text(path).split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise RunFolderError(
                f"{path}, line {number} is not JSON ({error.msg}); expected one object a round"
            ) from None
        if not isinstance(row, dict) or not isinstance(row.get("round"), int):
            raise RunFolderError(
                f"{path}, line {number} is {line[:60]!r}; expected an object with an integer "
                '"round"'
            )
        rows.append(row)
    return rows


def drop_after(path: Path, step: int) -> None:
    """Drop the lines of rounds after ``step``: a resumed run writes them again."""
    if path.exists():
        kept = [row for row in read_metrics(path) if row["round"] <= step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
