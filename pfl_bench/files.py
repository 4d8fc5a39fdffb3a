"""Writing files so that a reader finds the old content or the new, never half of it."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import math
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pfl_bench.types import DataError, RunFolderError, UserInputError
from pfl_bench.types.layouts import LAYOUTS, misfit
from privacy import json_text
from privacy.ledger import synchronise_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Far beyond what a file of this toolkit has, and within what every later walk can descend.
_DEEPEST = 50
_LARGEST_INTEGER = 2**1023  # the last power of two that a float holds
# After a result's name: of a file or folder that becomes it, with the process that writes it.
_UNFINISHED = re.compile(r"^(?:(?:partial|gathering)-(\d+)-\w+|(\d+)\.partial)$")
_RESTORE = "restore the file from a copy, or run the row again"
_DELETE = "delete the file if the run is to be resumed, or run the row again"
_STRINGS_AND_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def check_run_folder(folder: Path) -> None:
    """Check that a folder is one of a run; RunFolderError if it has no ``config.yaml``."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise RunFolderError(
            f"{folder}: permission to read it is denied; ask its owner for it, or name others"
        )
    if not (folder / "config.yaml").is_file():
        what = "has no config.yaml" if folder.is_dir() else "is no folder"
        what = what if folder.exists() else "does not exist"
        mend = "name the folder that `pfl-bench run --out` wrote"
        # As deep as tables and sweeps put them.
        below = (path for depth in (1, 2, 3) for path in folder.glob("*/" * depth + "config.yaml"))
        if run := min(below, default=None):
            mend = f"name a run in it, such as {run.parent}"
        raise RunFolderError(f"{folder}: not a run folder (it {what}); {mend}")


def mode_for_others(folder: Path) -> str:
    """Mode of a folder that is open to others on the machine, such as "0755"; else empty."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    return f"{mode:04o}" if mode & 0o077 else ""


def write_atomically(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Replace a file as a whole: written beside it, flushed to the disk, renamed over it.

    Raises:
        OSError: The folder is not writable or the disk is full; it names the file, the old content
            is still there and nothing else is left behind. A device or pipe is not replaced.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FileExistsError(errno.EEXIST, "no regular file", str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    remove_leftovers(path)
    try:
        # Whatever has its name, a link to elsewhere say, is not written through.
        partial.unlink(missing_ok=True)
        with contextlib.ExitStack() as lock:
            with partial.open("xb") as file:
                lock.enter_context(locking(partial))
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            error.filename = str(path)
            del error.filename2  # None would be shown
        with contextlib.suppress(OSError):  # where it could not be made either
            partial.unlink()
        raise
    synchronise_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files and folders of a result whose processes are gone.

    Gone is a process whose id is free and whose lock can be had, so that neither a process of
    another machine nor one that is just beginning loses anything.
    """
    for left in path.absolute().parent.glob(f".{glob.escape(path.name)}.*"):
        found = _UNFINISHED.match(left.name.removeprefix(f".{path.name}."))
        is_kept = left.is_symlink() or not (left.is_file() or left.is_dir())
        if found is None or is_running(int(found[1] or found[2])) or is_kept:
            continue
        with contextlib.suppress(OSError), locking(left) as is_ours:
            if is_ours and left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            elif is_ours:
                left.unlink()


@contextlib.contextmanager
def locking(path: Path) -> Iterator[bool]:
    """Lock a file or folder within the block, as long as this process lives; False if it cannot be.

    It cannot where another process has the lock, nor on some network file systems.
    """
    with contextlib.ExitStack() as held:
        is_ours = False
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # not on every platform

            descriptor = os.open(path, os.O_RDONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        yield is_ours


@contextlib.contextmanager
def whole_folder(folder: Path | None) -> Iterator[None]:
    """Make a folder, if one is named; remove it if it is new and what is written there fails."""
    is_new = folder is not None and not folder.exists()
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if folder is not None and is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def given_path(path: str | os.PathLike[str], argument: str) -> Path:
    """Check a path, there or not, that was given as an argument of the Python interface."""
    try:
        checked = Path(path)
        checked.lstat()
    except (TypeError, ValueError) as error:
        raise UserInputError(
            f"{argument}: {path!r:.60} is no path ({error}); give a text or a pathlib.Path"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserInputError(
                f"{argument}: {str(path)[:40]!r}... is a path of {len(str(path))} characters, more "
                "than the file system can have; give a shorter one"
            ) from None
    return checked


def is_running(process: int) -> bool:
    """Whether a process of this machine has this id; also one that took a dead one's id over."""
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:  # else it is somebody else's
        return not isinstance(error, (ProcessLookupError, OverflowError))
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


def regular(path: Path, error: type[UserInputError] = DataError) -> Path:
    """Give a path back to be opened, unless it is a folder, a pipe or a device, or not readable.

    It need not exist. Reading a pipe or a device may never end.
    """
    if not path.exists() or (path.is_file() and os.access(path, os.R_OK)):
        return path
    kind = "permission is denied"
    if not path.is_file():
        kind = "it is no regular file, but a folder, pipe or device"
    raise error(f"{path} cannot be read: {kind}; put a file there that can be, or name another")


def read_text(path: Path) -> str:
    """Read a text file; errors name it."""
    try:
        return regular(path, RunFolderError).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}; expected UTF-8 text") from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that anybody may have written: whatever comes back can be walked and written.

    Bytes are UTF-8. No NaN or infinity is in the value.

    Raises:
        ValueError: It is not JSON, or is what ``check_values`` refuses.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    if text.count("[") + text.count("{") > _DEEPEST:
        _check_depth(text)
    value = json_text.parse(text)
    check_values(value)
    return value


def _check_depth(text: str) -> None:
    """Refuse deep JSON before a parser that recurses sees it."""
    depth = 0
    for found in _STRINGS_AND_BRACKETS.finditer(text):
        bracket = text[found.start()]
        depth += (bracket in "[{") - (bracket in "]}")
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")


def check_values(value: Any, most: float = math.inf, allow_infinite: bool = False) -> None:
    """Refuse parsed values that later code could not walk, convert or write.

    There may be so many values at most, one that several places refer to counted at each; only
    where it is allowed are floats infinite or NaN.

    Raises:
        ValueError: Too deep (a value that holds itself is), too many, an integer beyond every
            float, a float that is not finite, or a text that is not Unicode or has a NUL.
    """
    pending, seen = [(value, 0)], 0
    while pending:
        item, depth = pending.pop()
        seen += 1
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        if seen > most:
            raise ValueError(f"holds more than {most} values")
        if isinstance(item, dict):
            pending += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            pending += [(part, depth + 1) for part in item]
        elif isinstance(item, str):
            if "\0" in item:
                raise ValueError(f"the text {item[:40]!r} has a NUL character")
            if not item.isascii():
                item.encode()
        elif isinstance(item, int) and abs(item) > _LARGEST_INTEGER:
            raise ValueError("an integer is too large for a float")
        elif isinstance(item, float) and not allow_infinite and not math.isfinite(item):
            raise ValueError("a number is too large for a float")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, of a run's files in their layout; None if the file does not exist."""
    if not path.exists():
        return None
    try:
        value = parse_json(read_text(path))
    except RunFolderError:
        raise
    except ValueError as error:
        raise RunFolderError(
            f"{path} is not JSON as it is written here ({error}); expected one object, written "
            f"whole: {_RESTORE if path.name == 'environment.json' else _DELETE}"
        ) from None
    if not isinstance(value, dict):
        raise RunFolderError(
            f"{path} holds {type(value).__name__}, expected one JSON object: {_RESTORE}"
        )
    wrong = misfit(value, LAYOUTS.get(path.name, {}))
    if wrong:
        raise RunFolderError(f"{path}: {wrong}, as pfl-bench writes it: {_RESTORE}")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read lines of rounds; a torn last line, which a kill leaves behind, is no error."""
    if not path.exists():
        return []
    lines = read_text(path).split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise RunFolderError(
                f"{path}, line {number} is not JSON ({error}); expected one object a round: "
                f"{_RESTORE}"
            ) from None
        if not isinstance(row, dict) or type(row.get("round")) is not int:
            raise RunFolderError(
                f"{path}, line {number} is {line[:60]!r}; expected an object with an integer "
                f'"round": {_RESTORE}'
            )
        if wrong := misfit(row, LAYOUTS.get(path.name, {})):
            raise RunFolderError(f"{path}, line {number}: {wrong}: {_RESTORE}")
        rows.append(row)
    return rows


def drop_after(path: Path, step: int) -> None:
    """Drop the lines of rounds after ``step``: a resumed run writes them again."""
    if path.exists():
        kept = [row for row in read_metrics(path) if row["round"] <= step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))


def read_npz(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read arrays, of any shape, of an uncompressed ``.npz``; none runs, or takes more than it.

    ValueError where the file is foreign, cut, compressed, no regular file, or lacks one of
    ``names``.
    """
    from numpy.lib.format import read_array

    found: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            members = archive.infolist()
            is_compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if is_compressed or sum(one.file_size for one in members) > path.stat().st_size:
                raise ValueError("its members are compressed")
            for name in names:
                # Not ``np.load``, which gives the bytes of a member that is no array.
                with archive.open(f"{name}.npy") as member:
                    found[name] = read_array(member, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # of a header that it cannot parse, numpy raises errors of any kind
        raise ValueError(str(error)) from None
    return found
