"""Read FEMNIST as FedScale publishes it: mappings beside NIST's pictures, split by writer.

What is known, and from where (FedScale's repository; its archive could not be had): sample paths
begin at the folder of ``client_data_mapping``, and pictures are opened as RGB without turning greys
round (``dataloaders/femnist.py``). Files have NIST's own names, ``label_name`` is the character's
ASCII code in hexadecimal, and ``label_id`` a number in another order than LEAF's: 44 (D) has 6, 58
(X) has 38 (rows shown in an earlier ``tutorial.md``). So the name decides here. A comment in a copy
of that loader gives a whole path, ``data/raw_data/by_write/hsf_0/f0388_26/u0388_26/...png``.
Pictures are 28 x 28 "with option to make them all 128 by 128" (``dataset/femnist/README.md``): both
are read, the larger ones made smaller as the variant "nist" does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError
from tasks.common.fedscale.layout import FOLDER
from tasks.common.fedscale.samples import LeftOut, grouped, prefetch
from tasks.common.fedscale.streaming import BadSamples, Counts, Options, open_layout, table5
from tasks.common.fedscale.survey import Labels
from tasks.common.leaf.partition import Gathering
from tasks.common.progress import Progress
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
    left_out = LeftOut()
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
        num_classes=NUM_CHARACTERS,
        split_by=None,
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
    options=("bad_samples",),
)
