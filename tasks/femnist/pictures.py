"""Read FEMNIST's encoded pictures: FedScale's layout, and parquet files of flwrlabs/femnist.

What is known of FedScale's, split by writer, and from where (its repository; its archive could not
be had): sample paths begin at the folder of ``client_data_mapping``, and pictures are opened as RGB
without turning greys round (``dataloaders/femnist.py``). Files have NIST's own names,
``label_name`` is the character's ASCII code in hexadecimal, and ``label_id`` a number in another
order than LEAF's: 44 (D) has 6, 58 (X) has 38 (rows shown in an earlier ``tutorial.md``). So the
name decides here. A comment in a copy of that loader gives a whole path,
``data/raw_data/by_write/hsf_0/f0388_26/u0388_26/...png``. Pictures are 28 x 28 "with option to make
them all 128 by 128" (``dataset/femnist/README.md``): both are read, the larger ones made smaller as
the variant "nist" does.

What is known of the parquet files is their data set's card: the columns ``image`` (a struct of
``bytes``, a PNG, and ``path``), ``writer_id`` (text such as "f0000_14"), ``hsf_id`` and
``character`` (0 to 61 in LEAF's order), and one split, called train, of all 814,277 images. The
card does not say whether ink is black or white, so that is seen from the pictures: a ground takes
most of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError, Progress
from tasks.common.fedscale.layout import FOLDER, Labels
from tasks.common.fedscale.streaming import (
    BadSamples,
    Counts,
    LeftOut,
    Options,
    grouped,
    open_layout,
    prefetch,
    table5,
)
from tasks.common.leaf.gathering import UNSPLIT, Gathering
from tasks.common.leaf.table1 import differences
from tasks.common.sources import find_parquet, open_parquet
from tasks.common.vision.pictures import PictureError, opened
from tasks.femnist.forms import CODES, MIDDLE_GREY, NUM_CHARACTERS, SIDE, Form, Reading
from tasks.femnist.nist import RAW_SIDE, to_grey

# Source: Lai et al. 2022 (FedScale), table 5.
PUBLISHED = Counts(clients=3_400, samples=640_000, rounding=10_000)
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


def read(
    source: Path, gathering: Gathering, progress: Progress, *, bad_samples: BadSamples
) -> Reading:
    """Read all pictures that the mappings of ``source`` list; pictures that are dark are refused.

    A picture that is missing, unreadable or of another size is refused or, by ``bad_samples``, left
    out and counted.
    """
    labels = Labels(CODES, largest=NUM_CHARACTERS - 1)
    options = Options(bad_samples=bad_samples)
    found = open_layout(source, labels, options, progress, folder_of=lambda source, _: source)
    left_out = LeftOut(source)
    refuse = bad_samples == "refuse"
    done, brightness = 0, 0.0
    for first, values in grouped(prefetch(found.samples(), read_picture, refuse, left_out)):
        images = np.stack([image for _, image in values])
        targets = np.array([target for target, _ in values], dtype=np.uint8)
        gathering.append(first.split, first.client_id, inputs=images, targets=targets)
        done += len(values)
        brightness += float(images.mean()) * len(values)
        progress("reading FedScale's FEMNIST (images)", done, found.num_samples)
    if not gathering.clients("train"):
        raise DataError(
            f"{source}: no picture of train could be read; the first that was left out: "
            f"{left_out.first[0]}"
        )
    if brightness / done < MIDDLE_GREY:
        raise DataError(
            f"{source}: the pictures are dark (mean grey {brightness / done:.0f} of 255), but "
            "FEMNIST is black ink on a white ground, as NIST's files are: turn the pictures' greys "
            "round, or take them as published"
        )
    return Reading(
        source="FEMNIST, pictures and writers as FedScale publishes them",
        extra={**table5(found, PUBLISHED), "bad_samples": left_out.facts()["bad_samples"]},
    )


def read_picture(content: bytes) -> NDArray[np.uint8]:
    """Decode a PNG to grey levels of shape (28, 28), 255 = white; refuse other sizes and kinds."""
    with opened(content, ("PNG",), "PNG") as image:
        if image.size not in ((SIDE, SIDE), (RAW_SIDE, RAW_SIDE)):
            raise PictureError(
                f"it is {image.width} x {image.height} pixels; FEMNIST's are {SIDE} x {SIDE}, "
                f"or {RAW_SIDE} x {RAW_SIDE}"
            )
        if image.mode not in _MODES:
            # Sixteen bits would be cut off, not scaled.
            raise PictureError(f"its pixels are of kind {image.mode}; must be 8 bits or fewer")
        return to_grey(image)


FORM = Form(
    name="fedscale",
    looked_for=f"FedScale: {FOLDER}/train.csv (and val.csv, test.csv) beside the pictures",
    is_there=lambda source: (source / FOLDER).is_dir(),
    read=read,
)


COLUMNS = ("image", "writer_id", "character")
NUM_IMAGES = 814_277
ROWS_AT_ONCE = 4096


def read_parquet(source: Path, gathering: Gathering, progress: Progress) -> Reading:
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
            images, writers, targets = _pictures(path, first_row, batch)
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
    return Reading(
        source="FEMNIST, parquet files of flwrlabs/femnist",
        extra={
            "files": len(paths),
            "ground": "black, turned round" if dark else "white",
            "differs_from_published": differences([("images", done, NUM_IMAGES)]),
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


def _pictures(
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


PARQUET_FORM = Form(
    name="parquet",
    looked_for="parquet files of the data set flwrlabs/femnist: *.parquet, directly or in folders",
    is_there=lambda source: bool(find_parquet(source)),
    read=read_parquet,
)
