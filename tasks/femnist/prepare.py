"""Turn one of the public forms of FEMNIST, or of QMNIST, into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pfl_bench.types import HubDataset, Progress, RemoteFile
from tasks.common.fedscale.streaming import BadSamples
from tasks.common.idx import LABEL_FILES, MNIST_FILES, QMNIST_URL
from tasks.common.leaf.gathering import Gathering, PartitionOptions, write_partition
from tasks.common.leaf.options import FORM_NAMES
from tasks.common.leaf.table1 import FEMNIST, compare
from tasks.common.options import refuse
from tasks.common.sources import choose_form
from tasks.femnist import arrays, nist, pictures
from tasks.femnist.forms import FIELDS, SIDE, Form

FORMS: tuple[Form, ...] = (
    arrays.FORM,
    *arrays.TFF_FORMS,
    nist.FORM,
    arrays.QMNIST_FORM,
    pictures.FORM,
    pictures.PARQUET_FORM,
)

FILES = (
    MNIST_FILES[0],
    LABEL_FILES[0],
    RemoteFile(
        "qmnist-test-images-idx3-ubyte.gz",
        (f"{QMNIST_URL}qmnist-test-images-idx3-ubyte.gz",),
        None,
        "md5:1394631089c404de565df7b7aeaf9412",
    ),
    LABEL_FILES[1],
)
HUB = HubDataset(
    "flwrlabs/femnist",
    "data/train-*.parquet",
    pictures.NUM_IMAGES,
    "These are FEMNIST's images with their writers, in one split, which `data prepare` divides "
    "(form parquet).",
)
FILES_NOTE = (
    "These are MNIST/QMNIST digits with their real writers (variant qmnist-digits, 120,000 digits "
    "of 10 classes), not FEMNIST: report results on them as MNIST/QMNIST."
)


class Options(PartitionOptions):
    """Options of preparing FEMNIST, beside those of LEAF's data tools.

    Attributes:
        form: Which form to read; None takes the one that is there. ``variant`` is its old name.
        bad_samples: What becomes of a picture that is missing or damaged, for "fedscale" alone:
            "refuse" stops with its file and line, "leave_out" counts it and names the first ten.
    """

    form: (
        Literal["leaf-json", "tff", "tff-digits", "nist", "qmnist-digits", "fedscale", "parquet"]
        | None
    ) = Field(default=None, validation_alias=FORM_NAMES)
    bad_samples: BadSamples = "refuse"


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store; see ``tasks``.

    Memory is bounded by the largest writer of one file, not by the data; beside ``out`` it needs
    temporary space of about twice the store's size. Of LEAF's own forms the facts say how the
    counts compare with the published ones.
    """
    form = choose_form(source, "FEMNIST", FORMS, options)
    own = {"bad_samples": options.bad_samples} if form is pictures.FORM else {}
    if not own:
        why = f"nothing to choose for {form.name}, only for {pictures.FORM.name}; leave it out"
        refuse(options.given("bad_samples"), why)
    with Gathering(out, FIELDS) as gathering:
        reading = form.read(source, gathering, progress, **own)
        partition = gathering.partition(options, published_as=reading.split_by)
        extra = dict(reading.extra)
        if form.is_leafs:
            sizes = gathering.examples_per_user().values()
            extra |= compare(sizes, FEMNIST, "images of characters")
        return write_partition(
            out,
            partition,
            progress,
            task="femnist",
            variant=form.name,
            source=reading.source,
            num_classes=reading.num_classes,
            input_shape=(SIDE, SIDE),
            fields=FIELDS,
            extra=extra,
        )
