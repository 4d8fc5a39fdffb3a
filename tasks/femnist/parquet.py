"""Read FEMNIST in the parquet files of the data set flwrlabs/femnist, some rows at a time.

What is known of the files is their data set's card: the columns ``image`` (a struct of ``bytes``, a
PNG, and ``path``), ``writer_id`` (text such as "f0000_14"), ``hsf_id`` and ``character`` (0 to 61
in LEAF's order), and one split, called train, of all 814,277 images. The card does not say whether
ink is black or white, so that is seen from the pictures: a ground takes most of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.leaf.json_files import UNSPLIT
from tasks.common.leaf.partition import Gathering
from tasks.common.parquet import DamagedInputError, find_parquet, open_parquet
from tasks.common.progress import Progress
from tasks.common.vision.pictures import PictureError
from tasks.femnist.fedscale import read_picture
from tasks.femnist.forms import MIDDLE_GREY, NUM_CHARACTERS, Form, Reading

COLUMNS = ("image", "writer_id", "character")
NUM_IMAGES = 814_277
ROWS_AT_ONCE = 4096


def read(source: Path, gathering: Gathering, progress: Progress) -> Reading:
    """Read all files, directly in the folder or below it; memory is bounded by some thousand rows.

    The writers keep their identifiers. A damaged file, a wrong row or files of several splits are
    refused.
    """
    paths = find_parquet(source)
    _refuse_splits(source, paths)
    done, brightness = 0, 0.0
    dark: bool | None = None
    for path in paths:
        for first_row, batch in _batches(path):
            images, writers, targets = _examples(path, first_row, batch)
            if dark is None:
                dark = float(images.mean()) < MIDDLE_GREY
            images = 255 - images if dark else images
            for writer in dict.fromkeys(writers):
                rows = np.flatnonzero(writers == writer)
                gathering.append(UNSPLIT, writer, inputs=images[rows], targets=targets[rows])
            done += len(images)
            brightness += float(images.sum(dtype=np.float64)) / images[0].size
            progress("reading parquet (images)", done, None)
    if not done:
        raise DataError(f"{source}: the parquet files hold no row; get them anew")
    if brightness / done < MIDDLE_GREY:
        raise DataError(
            f"{source}: some pictures have a white ground and others a black one; FEMNIST's have "
            "one of the two: get the files anew"
        )
    differs = f"images: {done:,} here, {NUM_IMAGES:,} published"
    return Reading(
        source="FEMNIST, parquet files of flwrlabs/femnist",
        num_classes=NUM_CHARACTERS,
        split_by=None,
        extra={
            "files": len(paths),
            "ground": "black, turned round" if dark else "white",
            "differs_from_published": [differs] if done != NUM_IMAGES else [],
        },
    )


def _refuse_splits(source: Path, paths: list[Path]) -> None:
    """Refuse files that somebody has split: how, nobody says."""
    words = sorted({path.name.partition("-")[0].removesuffix(".parquet") for path in paths})
    others = [word for word in words if word in ("test", "val", "valid", "validation")]
    if others:
        raise DataError(
            f"{source}: has files of a split {others[0]!r}, but flwrlabs/femnist has one split of "
            "all images, train, which is split here; give a folder with its files alone"
        )


def _batches(path: Path) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Rows of a file, some at a time: the number of the first, from 1, and the columns."""
    row = 1
    try:
        with open_parquet(path) as file:
            there = file.schema_arrow.names
            missing = [name for name in COLUMNS if name not in there]
            if missing:
                raise DataError(
                    f"{path}: has no column {missing[0]!r}; it has {', '.join(there)}. The files "
                    f"of flwrlabs/femnist have {', '.join(COLUMNS)} (and hsf_id)"
                )
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=COLUMNS, use_threads=False):
                yield row, batch.to_pydict()
                row += batch.num_rows
    except DamagedInputError as error:
        raise DataError(
            f"{path}: cannot be read ({error}); the file is damaged or cut: get it anew"
        ) from error


def _examples(
    path: Path, first_row: int, batch: dict[str, list[Any]]
) -> tuple[NDArray[np.uint8], NDArray[np.object_], NDArray[np.uint8]]:
    """Images of shape (n, 28, 28), writers and targets."""
    images = []
    for row, values in enumerate(zip(*(batch[name] for name in COLUMNS), strict=True), first_row):
        picture, writer, target = values
        where = f"{path}, row {row}"
        content = picture.get("bytes") if isinstance(picture, dict) else picture
        if not isinstance(content, bytes):
            raise DataError(
                f"{where}: image has no bytes (a path alone does not tell the picture); give the "
                "files as published"
            )
        try:
            images.append(read_picture(content))
        except PictureError as error:
            raise DataError(f"{where}: the image cannot be used: {error}") from error
        if not isinstance(writer, str) or not writer:
            raise DataError(f"{where}: writer_id is {writer!r:.40}; it must be text")
        known = isinstance(target, int) and not isinstance(target, bool)
        if not known or not 0 <= target < NUM_CHARACTERS:
            raise DataError(
                f"{where}: character is {target!r:.40}; it must be a whole number from 0 to "
                f"{NUM_CHARACTERS - 1}: 0 to 9, A to Z, a to z"
            )
    writers = np.array(batch["writer_id"], dtype=np.object_)
    return np.stack(images), writers, np.array(batch["character"], dtype=np.uint8)


FORM = Form(
    name="parquet",
    looked_for="parquet files of the data set flwrlabs/femnist: *.parquet, directly or in folders",
    is_there=lambda source: bool(find_parquet(source)),
    read=read,
)
