"""The first pass over the mappings: counts, labels, samples that are missing or come twice.

It reads no sample, so what is wrong with a mapping is told before hours of decoding.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pfl_bench.types import DataError, did_you_mean
from tasks.common.fedscale.layout import COLUMNS, NO_LABEL, Row, read_mapping
from tasks.common.progress import Progress

ROWS_A_STEP = 10_000


class Labels:
    """Labels of a data set: each number has one name, each name one number.

    Args:
        known: The names of all classes, in the order of their targets; then the names decide, and
            the numbers are only held against them. Empty: the numbers of the files are the targets.
        largest: The largest number that a label may have; None for no bound of its own.
    """

    def __init__(self, known: Sequence[str] = (), largest: int | None = None) -> None:
        self._largest = largest
        self._known = {name: place for place, name in enumerate(known)}
        # With where each was first seen, for messages.
        self._by_number: dict[int, tuple[str, str]] = {}
        self._by_name: dict[str, tuple[int, str]] = {}

    def target(self, path: Path, row: Row) -> int:
        """The target of a row; refused if it has none, or contradicts classes or earlier rows."""
        if self._largest is not None and row.label_id > self._largest:
            raise DataError(
                f"{path}, line {row.line}: label_id {row.label_id} of sample {row.sample_path!r}; "
                f"the labels of these data are 0 to {self._largest}: is this another data set?"
            )
        if row.label_id == NO_LABEL and not (self._known and row.label_name):
            raise DataError(
                f"{path}, line {row.line}: sample {row.sample_path!r} has no label; this task "
                "needs one of every sample"
            )
        if row.label_id != NO_LABEL and row.label_name:
            self._hold_together(path, row)
        if not self._known:
            self._by_number.setdefault(row.label_id, ("", ""))
            return row.label_id
        if row.label_name not in self._known:
            hint = did_you_mean(row.label_name, self._known, ".")
            raise DataError(
                f"{path}, line {row.line}: label_name {row.label_name!r} of sample "
                f"{row.sample_path!r} is no class of this task{hint} The classes are: "
                f"{', '.join(self._known)}"
            )
        return self._known[row.label_name]

    def names(self) -> list[str]:
        """Names of the classes, in the order of their targets; "label_N" where none is given."""
        if self._known:
            return list(self._known)
        last = max(self._by_number, default=-1)
        return [self._by_number.get(n, ("", ""))[0] or f"label_{n}" for n in range(last + 1)]

    def _hold_together(self, path: Path, row: Row) -> None:
        where = f"{path}, line {row.line}"
        name, first = self._by_number.get(row.label_id, ("", ""))
        if not name:
            self._by_number[row.label_id] = row.label_name, where
        elif name != row.label_name:
            raise DataError(
                f"{where}: label_id {row.label_id} is {row.label_name!r}, but {name!r} in {first}; "
                "a number stands for one name: mend the mapping"
            )
        number, first = self._by_name.setdefault(row.label_name, (row.label_id, where))
        if number != row.label_id:
            raise DataError(
                f"{where}: label_name {row.label_name!r} has label_id {row.label_id}, but {number} "
                f"in {first}; a name has one number: mend the mapping"
            )


@dataclass(slots=True)
class Survey:
    """Content of a mapping.

    Attributes:
        clients: Samples of each client, in the order in which clients come.
        first_missing: Line and path of the first of them.
    """

    num_rows: int = 0
    clients: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    first_missing: tuple[int, str] = (0, "")

    def add(self, client: str) -> None:
        """Count a sample of a client."""
        self.num_rows += 1
        self.clients[client] = self.clients.get(client, 0) + 1


def survey(path: Path, labels: Labels, progress: Progress, samples: Path | None = None) -> Survey:
    """Read a mapping through, without its samples; none may come twice.

    Memory grows with the clients, and by some tens of bytes a row.

    ``labels`` is one for all mappings of a data set; files of samples are looked for in
    ``samples``, if it is given.
    """
    found = Survey()
    digests = array("Q")
    for row in read_mapping(path):
        labels.target(path, row)
        found.add(row.client_id)
        digests.append(_digest(row.sample_path))
        if samples is not None and not sample_file(path, row, samples).is_file():
            found.missing += 1
            if found.missing == 1:
                found.first_missing = row.line, row.sample_path
        if found.num_rows % ROWS_A_STEP == 0:
            progress(f"reading {path.name} (rows)", found.num_rows, None)
    if not found.num_rows:
        raise DataError(f"{path} has a header and no row; a split without samples has no mapping")
    _refuse_twice(path, digests)
    return found


def sample_file(path: Path, row: Row, samples: Path) -> Path:
    """Path of a row's sample, which may not lead out of the folder."""
    relative = Path(row.sample_path)
    if relative.is_absolute() or ".." in relative.parts:
        raise DataError(
            f"{path}, line {row.line}: {COLUMNS[1]} {row.sample_path!r} leads out of {samples}; "
            "it must be a path below that folder"
        )
    return samples / relative


def _digest(sample_path: str) -> int:
    return int.from_bytes(hashlib.blake2b(sample_path.encode(), digest_size=8).digest(), "little")


def _refuse_twice(path: Path, digests: array[int]) -> None:
    """Refuse a mapping with a sample twice; digests find candidates, the file itself decides."""
    values, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return
    lines: dict[str, tuple[int, str]] = {}
    for row in read_mapping(path):
        if _digest(row.sample_path) not in suspects:
            continue
        if row.sample_path in lines:
            line, client = lines[row.sample_path]
            raise DataError(
                f"{path}, line {row.line}: sample {row.sample_path!r} of client {row.client_id!r} "
                f"is already in line {line}, of client {client!r}; a sample belongs to one client, "
                "once: remove one of the lines"
            )
        lines[row.sample_path] = row.line, row.client_id
