"""FedScale's older mapping: a pickle ``clientDataMap`` of {name of a sample: number of its client}.

The samples of train lie in ``train/``, and their names say their labels. Those of test, in
``test/``, have no clients in it: they come as one client, ``UNMAPPED``.

Source: Oort's training/utils/divide_data.py, which looks the names of all files of train up in the
pickle; its loaders of OpenImage (``openImg.py``: ID__CLASS.jpg, looked up by ID) and of Google
Speech (``speech.py``: WORD_....wav, looked up whole).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pfl_bench.data import load_builtin_pickle, regular
from pfl_bench.types import DataError, Progress
from tasks.common.fedscale.layout import FOLDER, Survey
from tasks.common.fedscale.streaming import Sample, Source

MAP = "clientDataMap"
UNMAPPED = "unmapped"
_SPLITS = ("train", "test")

# Of a file's name: the name under which it is looked up, and its class; None if it has neither.
ReadName = Callable[[str], tuple[str, str] | None]


def find_map(source: Path) -> Path | None:
    """The pickle, in a folder or its ``client_data_mapping/``; None where train.csv goes first."""
    if (source / FOLDER / "train.csv").is_file():
        return None
    there = [path for path in (source / FOLDER / MAP, source / MAP) if path.is_file()]
    return there[0] if there else None


def open_map(
    source: Path, path: Path, read_name: ReadName, classes: Sequence[str], progress: Progress
) -> Source:
    """Look at the pickle, and at the names of all samples.

    Memory grows with the pickle: about ten times its bytes.

    ``source`` holds ``train/`` and perhaps ``test/``; no code in the pickle is run; ``classes`` are
    names in the order of the targets.
    """
    clients = _read_map(path)
    numbers = {name: number for number, name in enumerate(classes)}
    found: dict[str, list[tuple[str, str, int]]] = {}
    for split in _SPLITS:
        folder = source / split
        if split == "train" and not folder.is_dir():
            raise DataError(f"{source} has no folder train/ with the samples that {path} maps")
        if folder.is_dir():
            known = clients if split == "train" else None
            found[split] = [
                _sample(folder / name, read_name, numbers, known) for name in _names(folder)
            ]
            progress(f"looking through {split}/ (files)", len(found[split]), None)
    surveys = {}
    for split, rows in found.items():
        if not rows:
            mend = "put the samples there" + ("" if split == "train" else ", or remove it")
            raise DataError(f"{source / split} holds no file; {mend}")
        surveys[split] = Survey()
        for _, client, _ in rows:
            surveys[split].add(client)

    def samples() -> Iterator[Sample]:
        for split, rows in found.items():
            for name, client, target in rows:
                file = source / split / name
                yield Sample(split, client, target, str(file), file)

    return Source(source, surveys, samples, list(classes))


def read_classes(path: Path) -> list[str]:
    """Read Oort's ``classTags``: a class a line, in the order of the targets."""
    try:
        names = [line.strip() for line in regular(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); {MAP} needs it: a class a line, in the order of the "
            "targets"
        ) from error
    names = [name for name in names if name]
    if not names or len(set(names)) < len(names):
        what = "names no class" if not names else "names a class twice"
        raise DataError(f"{path} {what}; it has a class a line, in the order of the targets")
    return names


def _read_map(path: Path) -> dict[str, str]:
    found = load_builtin_pickle(path)
    if not isinstance(found, dict) or not found:
        raise DataError(
            f"{path}: holds {type(found).__name__}, not a dict of names of samples to clients"
        )
    for name, client in found.items():
        right = isinstance(client, int | str) and not isinstance(client, bool) and client != ""
        if not isinstance(name, str) or not right:
            raise DataError(
                f"{path}: maps {name!r:.60} to {client!r:.60}; it must map the name of a sample to "
                "its client's number or name"
            )
    return {name: str(client) for name, client in found.items()}


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file())


def _sample(
    file: Path, read_name: ReadName, numbers: Mapping[str, int], clients: Mapping[str, str] | None
) -> tuple[str, str, int]:
    """Name, client and target of a file."""
    key = read_name(file.name)
    if key is None:
        raise DataError(f"{file}: its name does not tell its class; remove the file, or rename it")
    identifier, label = key
    if label not in numbers:
        raise DataError(
            f"{file}: its name tells the class {label!r}, which is not known; remove the file"
        )
    client = UNMAPPED if clients is None else clients.get(identifier)
    if client is None:
        raise DataError(
            f"{file}: {MAP} has no client of {identifier!r}; remove the file, or give the pickle "
            "that belongs to these files"
        )
    return file.name, client, numbers[label]
