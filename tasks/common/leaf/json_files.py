"""Read LEAF's JSON files, streaming: one user of one file in memory at a time.

A file is ``{"users": [...], "num_samples": [...], "hierarchies": [...], "user_data": {user: {"x":
[...], "y": [...]}}}``; the hierarchies, one string a user (its play, say), are there for some data.

Files that LEAF's own scripts split contradict themselves in these ways, which are read as meant:

- Users too small to be split are in "user_data", with empty lists, but not in "users".
- "hierarchies" then still has an entry for each of them, in the order of "user_data".
- Shakespeare's test files announce 79 examples a user too many: those whose windows of 80
  characters overlap train's are left out after they were counted.
- Reddit's announce the examples of all splits together (``counts_all_splits``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pfl_bench.types import DataError, Progress
from tasks.common.leaf.plan import SPLITS, UNSPLIT
from tasks.common.sources import open_json

LOOKED_FOR = (
    "LEAF JSON: folders train/ and test/ (and perhaps val/) with *.json, or all_data*.json, "
    "directly, below data/ or below [data/]all_data/"
)
_ANNOUNCED = ("users", "num_samples", "hierarchies")
_WINDOW = 80
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LeafUser:
    """One user of one file: inputs, as many targets, and the hierarchy, if the file has one."""

    user: str
    x: list[Any]
    y: list[Any]
    hierarchy: str | None


def find_files(source: Path) -> dict[str, list[Path]]:
    """Find the JSON files by split; under ``UNSPLIT`` if they are not split, {} if there are none.

    A generated LEAF folder has both; then the split files are taken, which LEAF made from the
    others.
    """
    for base in (source, source / "data"):
        found = {name: sorted((base / name).glob("*.json")) for name in SPLITS}
        if found["train"] or found["test"]:
            return {name: files for name, files in found.items() if files}
    for base in (source, source / "data" / "all_data", source / "all_data", source / "data"):
        files = sorted(base.glob("all_data*.json"))
        if files:
            return {UNSPLIT: files}
    return {}


def check_splits(source: Path, files: dict[str, list[Path]]) -> None:
    """Refuse split files, as ``find_files`` gives them, without those of train or test."""
    missing = [name for name in ("train", "test") if name not in files]
    if UNSPLIT not in files and missing:
        raise DataError(
            f"{source}: LEAF JSON with {', '.join(files) or 'no file'} but without "
            f"{missing[0]}/*.json; copy the missing folder there, or give the all_data files "
            "instead"
        )


def read_users(
    path: Path,
    tell_position: Callable[[int], None] = lambda position: None,
    counts_all_splits: bool = False,
) -> Iterator[LeafUser]:
    """Read a file's users, each as soon as its data are there.

    A user without an example in this split is left out. ``tell_position`` is told after each user
    how many bytes have been read. With ``counts_all_splits``, "num_samples" counts a user's
    examples of all splits together, as in LEAF's Reddit files: a user may then have fewer here, or
    none.
    """
    import ijson

    seen: set[str] = set()
    last, number = "", 0
    with open_json(path, lambda: last) as stream:
        counts, hierarchies = _announced(path, stream)
        # One a user of "users", or of "user_data" in its order.
        by_user = dict(zip(counts, hierarchies, strict=False))
        is_by_place = len(hierarchies) > len(counts)
        stream.seek(0)
        items = ijson.kvitems(stream, "user_data", use_float=True)
        for number, (user, data) in enumerate(items, start=1):
            where = f"{path}, user {user!r}"
            if user not in counts and data == {"x": [], "y": []}:
                continue
            if user not in counts:
                raise DataError(
                    f"{where}: has data but is not in 'users'; the file contradicts itself, "
                    "get it anew"
                )
            if user in seen:
                raise DataError(f"{where}: comes twice in 'user_data' of one file")
            seen.add(user)
            last = f" after user {user!r}"
            x, y = _examples(data, counts[user], counts_all_splits, where)
            if x:
                name = by_user.get(user)
                if is_by_place:
                    name = hierarchies[number - 1] if number <= len(hierarchies) else None
                yield LeafUser(user, x, y, name)
            tell_position(stream.tell())
    if is_by_place and number != len(hierarchies):
        raise DataError(
            f"{path}: 'hierarchies' has {len(hierarchies)} entries, but 'user_data' has {number} "
            "users; the file contradicts itself, get it anew"
        )
    without = [user for user in counts if user not in seen]
    if without:
        raise DataError(
            f"{path}, user {without[0]!r}: is in 'users' but has no data in 'user_data' "
            f"({len(without)} such users); the file contradicts itself, get it anew"
        )


def read_splits(
    source: Path,
    files: dict[str, list[Path]],
    progress: Progress | None = None,
    counts_all_splits: bool = False,
) -> Iterator[tuple[str, LeafUser, str]]:
    """Read the users of all files: split, user, and what messages call it.

    ``files`` are as ``find_files`` gives them; ``counts_all_splits`` is as for ``read_users``, of
    files that are split.
    """
    check_splits(source, files)
    done, total = 0, sum(path.stat().st_size for paths in files.values() for path in paths)
    for split, paths in files.items():
        for path in paths:

            def tell(position: int, before: int = done) -> None:
                if progress is not None:
                    progress("reading LEAF JSON (bytes)", before + position, total)

            for user in read_users(path, tell, counts_all_splits and split != UNSPLIT):
                yield split, user, f"{path}, user {user.user!r}"
            done += path.stat().st_size


def _announced(path: Path, stream: IO[bytes]) -> tuple[dict[str, Any], list[str]]:
    """Read examples and hierarchy of each user, and of the data only what comes before these."""
    import ijson

    columns: dict[str, Any] = {}
    for key in _ANNOUNCED:
        if key == "hierarchies" and not _mentions(stream, key):
            continue
        stream.seek(0)
        for value in islice(ijson.items(stream, key, use_float=True), 1):
            columns[key] = value
    for key in ("users", "num_samples"):
        if not isinstance(columns.get(key), list) or not columns[key]:
            raise DataError(
                f"{path}: has no list {key!r} with something in it; LEAF's files have 'users', "
                "'num_samples' and 'user_data'"
            )
    users, counts = columns["users"], columns["num_samples"]
    if len(users) != len(counts):
        raise DataError(
            f"{path}: {len(users)} users but {len(counts)} entries of 'num_samples'; the file "
            "contradicts itself, get it anew"
        )
    repeated = len(users) - len(set(map(str, users)))
    if repeated or not all(isinstance(user, str) for user in users):
        raise DataError(f"{path}: 'users' must be strings, none twice ({repeated} repeated)")
    hierarchies = columns.get("hierarchies", [])
    if "hierarchies" in columns and (
        not isinstance(hierarchies, list)
        or len(hierarchies) < len(users)
        or not all(isinstance(name, str) for name in hierarchies)
    ):
        raise DataError(
            f"{path}: 'hierarchies' must be a list of at least {len(users)} strings, one "
            "for each of 'users'; the file contradicts itself, get it anew"
        )
    return dict(zip(users, counts, strict=True)), hierarchies


def _mentions(stream: IO[bytes], key: str) -> bool:
    """Whether a key may be in a file: a look for its letters is far faster than parsing."""
    stream.seek(0)
    wanted, end = f'"{key}"'.encode(), b""
    while block := stream.read(_BLOCK_BYTES):
        if wanted in end + block:
            return True
        end = block[-len(wanted) :]
    return False


def _examples(data: Any, announced: Any, at_most: bool, where: str) -> tuple[list[Any], list[Any]]:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in "xy"):
        raise DataError(f"{where}: needs lists 'x' (inputs) and 'y' (targets)")
    x, y = data["x"], data["y"]
    left_out = _WINDOW - 1 if x and isinstance(x[0], str) and len(x[0]) == _WINDOW else 0
    fits = len(x) > 0 and announced in (len(x), len(x) + left_out)
    if at_most:
        fits = type(announced) is int and len(x) <= announced
    if len(x) != len(y) or not fits:
        rule = "be equal, and at most that" if at_most else "be equal and at least 1"
        raise DataError(
            f"{where}: 'num_samples' says {announced} examples, but there are {len(x)} in 'x' "
            f"and {len(y)} in 'y'; {'they' if at_most else 'the three'} must {rule}: the file "
            "contradicts itself, get it anew"
        )
    return x, y
