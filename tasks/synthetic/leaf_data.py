"""Read LEAF-format JSON of generated data: lists of features with whole-number labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.json_files import LOOKED_FOR, UNSPLIT, find_files, read_splits
from tasks.synthetic.generator import Pool

# Features and labels of each user, a piece a file.
Pieces = dict[str, list[tuple[NDArray[np.float32], NDArray[np.int64]]]]
_FEATURE_CLASSES = 1000  # labels beyond are taken for a mistake


def read_pools(source: Path) -> dict[str, Pool]:
    """Read a JSON file, which is not split, or a folder of them; a pool a split, or ``UNSPLIT``."""
    if not source.exists():
        raise DataError(
            f"task synthetic: data {source} does not exist; give a JSON file or a folder with "
            f"{LOOKED_FOR}, or leave `data` out to have the data generated"
        )
    files = {UNSPLIT: [source]} if source.is_file() else find_files(source)
    if not files:
        raise DataError(f"task synthetic: {source} holds no data. Looked for {LOOKED_FOR}")
    pieces: dict[str, Pieces] = {split: {} for split in files}
    width: list[int] = []
    for split, user, where in read_splits(source, files):
        pieces[split].setdefault(user.user, []).append(
            (_features(user.x, width, where), _labels(user.y, where))
        )
    return {split: _pool(of_split) for split, of_split in pieces.items()}


def _pool(pieces: Pieces) -> Pool:
    together = [piece for own in pieces.values() for piece in own]
    sizes = [sum(len(labels) for _, labels in own) for own in pieces.values()]
    return Pool(
        list(pieces),
        np.concatenate([features for features, _ in together]),
        np.concatenate([labels for _, labels in together]),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        None,
    )


def _features(rows: list[Any], width: list[int], where: str) -> NDArray[np.float32]:
    """Features of shape (n, d); the first user says what d is."""
    values = _numbers(rows, where, "features")
    if values.ndim != 2 or not values.shape[1]:
        raise DataError(f"{where}: every x must be a list of the same number of features")
    width[:] = width or [values.shape[1]]
    if values.shape[1] != width[0]:
        raise DataError(
            f"{where}: has {values.shape[1]} features where users before have {width[0]}; the "
            "files are not of one data set"
        )
    return values.astype(np.float32)


def _labels(values: list[Any], where: str) -> NDArray[np.int64]:
    """Labels of shape (n,), which may be floats such as 3.0."""
    labels = _numbers(values, where, "labels")
    wrong = labels if labels.ndim != 1 else labels[(labels != np.floor(labels)) | (labels < 0)]
    if wrong.size or labels.max() >= _FEATURE_CLASSES:
        shown = wrong.reshape(-1)[0] if wrong.size else labels.max()
        raise DataError(
            f"{where}: the label {shown} is not a whole number from 0 to {_FEATURE_CLASSES - 1}: "
            "is this another data set?"
        )
    return labels.astype(np.int64)


def _numbers(values: list[Any], where: str, what: str) -> NDArray[np.float64]:
    convert: Callable[[Any], NDArray[np.float64]] = np.asarray
    try:
        array = convert(values)
    except ValueError:  # rows of unequal length
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise DataError(
            f"{where}: the {what} are not all finite numbers in rows of one length; the task reads "
            "LEAF's synthetic data, not text or images"
        )
    return array.astype(np.float64)
