"""Read FEMNIST in LEAF's JSON form, streaming: one writer of one file in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, SplitBy
from tasks.femnist.forms import (
    NUM_CHARACTERS,
    NUM_PIXELS,
    SIDE,
    Form,
    Progress,
    Reading,
    rounding_facts,
    to_bytes,
    to_labels,
)
from tasks.femnist.splitting import UNSPLIT
from tasks.femnist.spool import ExampleSpool

LOOKED_FOR = (
    "LEAF JSON: folders train/ and test/ (and perhaps val/) with *.json, or all_data*.json, "
    "directly, below data/ or below [data/]all_data/"
)
SPLIT_FOLDERS = ("train", "val", "test")


def find_files(source: Path) -> dict[str, list[Path]]:
    """Find the JSON files by split; under ``UNSPLIT`` if they are not split, {} if there are none.

    A generated LEAF folder has both; then the split files are taken, which LEAF made from the
    others.
    """
    for base in (source, source / "data"):
        found = {name: sorted((base / name).glob("*.json")) for name in SPLIT_FOLDERS}
        if found["train"] or found["test"]:
            return {name: files for name, files in found.items() if files}
    for base in (source, source / "data" / "all_data", source / "all_data", source / "data"):
        files = sorted(base.glob("all_data*.json"))
        if files:
            return {UNSPLIT: files}
    return {}


def read(source: Path, spool: ExampleSpool, progress: Progress) -> Reading:
    """Read all files into the spool.

    Args:
        source: Folder that holds the files as ``find_files`` expects them.
        spool: Takes the examples.
        progress: Told the bytes read and the bytes there are.

    Returns:
        What was found; ``split_by`` is "user" if the splits' writers are disjoint, "example" if
        they are the same, None if the files are not split.

    Raises:
        DataError: A file is damaged or contradicts itself; the message names file and user, or
            the position.
    """
    files = find_files(source)
    missing = [name for name in ("train", "test") if name not in files]
    if UNSPLIT not in files and missing:
        raise DataError(
            f"{source}: LEAF JSON with {', '.join(files)} but without {missing[0]}/*.json; copy "
            "the missing folder there, or give the all_data files instead"
        )
    total = sum(path.stat().st_size for paths in files.values() for path in paths)
    done, error = 0, 0.0
    for split, paths in files.items():
        for path in paths:
            error = max(error, _read_file(path, split, spool, progress, (done, total)))
            done += path.stat().st_size
    names = [path.name for paths in files.values() for path in paths]
    return Reading(
        source="FEMNIST in LEAF's JSON form"
        + (", split as published" if UNSPLIT not in files else ", all_data files"),
        num_classes=NUM_CHARACTERS,
        split_by=None if UNSPLIT in files else _split_by(source, spool),
        extra={"files": len(names), "first_file": names[0], **rounding_facts(error)},
    )


def _split_by(source: Path, spool: ExampleSpool) -> SplitBy:
    users = {split: set(spool.clients(split)) for split in spool.splits}
    train, *others = users.values()
    if all(other == train for other in others):
        return "example"
    pooled = set().union(*users.values())
    if sum(map(len, users.values())) == len(pooled):
        return "user"
    in_several = sorted(u for u in pooled if sum(u in split for split in users.values()) > 1)
    in_some = sorted(u for u in pooled if any(u not in split for split in users.values()))
    raise DataError(
        f"{source}: the splits {', '.join(users)} share some users but not all: "
        f"{len(in_several)} users are in several splits, such as {in_several[0]!r}, and "
        f"{len(in_some)} are not in every one, such as {in_some[0]!r}; splits must divide users "
        "(no user twice) or each user's examples (the same users everywhere): split all_data anew"
    )


def _read_file(
    path: Path, split: str, spool: ExampleSpool, progress: Progress, bytes_done: tuple[int, int]
) -> float:
    """Read one file; returns its largest rounding error in grey levels."""
    import ijson

    before, total = bytes_done
    largest = 0.0
    expected: dict[str, int] = {}
    seen: set[str] = set()
    with path.open("rb") as stream:
        try:
            expected = _announced(path, stream)
            stream.seek(0)
            for user, data in ijson.kvitems(stream, "user_data", use_float=True):
                where = f"{path}, user {user!r}"
                if user not in expected:
                    raise DataError(
                        f"{where}: has data but is not in 'users'; the file contradicts itself, "
                        "get it anew"
                    )
                if user in seen:
                    raise DataError(f"{where}: comes twice in 'user_data' of one file")
                images, labels, error = _examples(data, expected[user], where)
                spool.append(split, user, images, labels)
                seen.add(user)
                largest = max(largest, error)
                progress("reading LEAF JSON (bytes)", before + stream.tell(), total)
        except (ijson.JSONError, UnicodeDecodeError, OverflowError) as error:
            message = error.args[0] if error.args else str(error)
            if isinstance(message, bytes):
                message = message.decode(errors="replace")
            raise DataError(
                f"{path}: not valid JSON at or shortly before byte {stream.tell()} of "
                f"{path.stat().st_size} ({' '.join(str(message).split())[:120]}); the file is "
                "damaged or cut: get it anew"
            ) from error
    without = [user for user in expected if user not in seen]
    if without:
        raise DataError(
            f"{path}, user {without[0]!r}: is in 'users' but has no data in 'user_data' "
            f"({len(without)} such users); the file contradicts itself, get it anew"
        )
    return largest


def _announced(path: Path, stream: IO[bytes]) -> dict[str, int]:
    """Read 'users' and 'num_samples', which LEAF writes before the data, without the data."""
    import ijson

    columns: dict[str, list[Any]] = {}
    for key in ("users", "num_samples"):
        stream.seek(0)
        value = next(iter(ijson.items(stream, key, use_float=True)), None)
        if not isinstance(value, list) or not value:
            raise DataError(
                f"{path}: has no list {key!r} with something in it; LEAF's files have 'users', "
                "'num_samples' and 'user_data'"
            )
        columns[key] = value
    users, counts = columns["users"], columns["num_samples"]
    if len(users) != len(counts):
        raise DataError(
            f"{path}: {len(users)} users but {len(counts)} entries of 'num_samples'; the file "
            "contradicts itself, get it anew"
        )
    repeated = len(users) - len(set(map(str, users)))
    if repeated or not all(isinstance(user, str) for user in users):
        raise DataError(f"{path}: 'users' must be strings, none twice ({repeated} repeated)")
    return dict(zip(users, counts, strict=True))


def _examples(
    data: Any, announced: Any, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], float]:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in "xy"):
        raise DataError(f"{where}: needs lists 'x' (images) and 'y' (labels)")
    rows, labels = data["x"], data["y"]
    if not rows or not len(rows) == len(labels) == announced:
        raise DataError(
            f"{where}: 'num_samples' says {announced} examples, but there are {len(rows)} images "
            f"and {len(labels)} labels; the three must be equal and at least 1"
        )
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != NUM_PIXELS:
            length = f"{len(row)} values" if isinstance(row, list) else f"{type(row).__name__}"
            raise DataError(
                f"{where}: image {index} of 'x' has {length}; a FEMNIST image has {NUM_PIXELS} "
                f"({SIDE} x {SIDE}): is this another LEAF data set?"
            )
    images, error = to_bytes(_array(rows), where)
    return images, to_labels(_array(labels), NUM_CHARACTERS, where), error


def _array(values: list[Any]) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # nested unevenly; the checks refuse objects with the place
        return np.asarray([None])


FORMS = (
    Form(
        variant="leaf-json",
        looked_for=LOOKED_FOR,
        is_there=lambda source: bool(find_files(source)),
        read=read,
    ),
)
