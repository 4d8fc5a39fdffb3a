"""Turn one of FLAIR's public forms into a store with the images' bytes as published."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.types import ConfigError, DataError, HubDataset, Progress, RemoteFile
from tasks.common.options import StrictOptions
from tasks.common.sources import GENERATED_MARK, choose_form
from tasks.flair import pfl_hdf5, published
from tasks.flair.catalogue import SHOWN, Catalogue
from tasks.flair.images import FOLDER_FORM, PARQUET_FORM, TARBALL_FORM, absent_tarballs
from tasks.flair.published import UNKNOWN, Labels
from tasks.flair.reading import Form, ImageTable, Job, read_all
from tasks.flair.spool import BAD_KINDS, Check, ImageSpool

FORMS: tuple[Form, ...] = (TARBALL_FORM, FOLDER_FORM, PARQUET_FORM, pfl_hdf5.FORM)
FIELDS = {
    "image": FieldSpec("uint8", ragged=True),
    "coarse": FieldSpec("uint8", ragged=True),
    "fine": FieldSpec("uint16", ragged=True),
    "image_id": FieldSpec("uint8", ragged=True),
}
IMAGES_AN_APPEND = 64
# HDF5 holds attributes of up to 64 KiB; the label names are in one.
MAX_EXTRA_BYTES = 60_000

_BASE = "https://docs-assets.developer.apple.com/ml-research/datasets/flair/"
# Source: the repository apple/ml-flair, download_dataset.py. No digests are published.
FILES = (
    *(
        RemoteFile(name, (f"{_BASE}labels/{name}",), None, None)
        for name in ("labels_and_metadata.json", "label_relationship.txt")
    ),
    *(
        RemoteFile(name, (f"{_BASE}images/small/{name}",), None, None)
        for name in (f"small_images-{n:02d}.tar.gz" for n in range(published.NUM_TARBALLS))
    ),
)
_LICENCE = (
    "FLAIR's annotations are under CC BY-NC 4.0. The images belong to their owners, each under the "
    "licence that ATTRIBUTION.txt of the repository apple/ml-flair names for its image id: check "
    "it before you show or pass on an image."
)
HUB = HubDataset(
    "apple/flair",
    "*.parquet",
    sum(published.IMAGES.values()),
    _LICENCE,
)
FILES_NOTE = (
    "No digests of these files are published. Each was held against the length that the server "
    "declared, if it did; the tarballs were read through (gzip's CRC-32), the JSON was parsed, and "
    "a .txt of undeclared length was read as UTF-8 text. Their SHA-256 are in SHA256SUMS beside "
    "them, and later calls compare with it.\n"
    f"{_LICENCE} The tarballs need not be unpacked."
)


class Options(StrictOptions):
    """Options of preparing FLAIR.

    Attributes:
        form: Which form to read; None takes the one that is there.
        image_size: Pixels that every image must have in width and height.
        check_images: "decode" finds cut files too; "headers" believes what each header says.
        bad_images: Images that are missing, unreadable or of the wrong size, two of one name, and
            entries without user: "refuse" stops and lists them, "drop" leaves them out and
            counts them.
        pixels_as: How the pixels of an HDF5 source are encoded: "png" without loss, "jpeg" small.
    """

    form: Literal["tarballs", "folder", "parquet", "pfl-hdf5"] | None = None
    image_size: int = Field(default=published.IMAGE_SIDE, ge=1)
    check_images: Check = "decode"
    bad_images: Literal["refuse", "drop"] = "refuse"
    pixels_as: Literal["png", "jpeg"] = "png"


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of public files and write a store, whole or not at all.

    Memory does not grow with the images, only with their number (README: measured). An
    interrupted or refused call leaves what it has read in a hidden folder beside ``out``; the
    same call goes on from there, and removes it when the store is written.

    ``source`` is a folder in one of the forms of the README. For the other arguments see
    ``tasks``.

    Returns:
        Facts for printing: variant, source, counts, problems and what differs from FLAIR as
        published.

    Raises:
        DataError: The folder holds none of the forms or several, a file is missing or damaged,
            the metadata contradict themselves, or images are bad.
        ConfigError: An option does not belong to the form.
    """
    if out.is_dir():
        raise DataError(f"{out} is a folder; --out names the file to write, such as flair.h5")
    form = choose_form(source, "FLAIR", FORMS, options)
    if "pixels_as" in options.model_fields_set and form is not pfl_hdf5.FORM:
        raise ConfigError(
            f"pixels_as: is for HDF5 sources; {source} ({form.name}) has encoded images, which "
            "are kept byte for byte: leave the option out"
        )
    catalogue = form.read_entries(source, progress)
    labels = catalogue.finish()
    basis = (options.image_size, options.check_images, options.pixels_as)
    with ImageSpool(out.absolute(), [str(source.resolve()), form.name, *basis]) as spool:
        job = Job(source, catalogue, *basis, spool, progress)
        try:
            facts = _make(form, job, labels, out, options)
        except DataError as error:
            kept = spool.num_bytes()
            if not kept:
                raise
            raise DataError(
                f"{error}\nThe images read so far ({kept / 1e6:.0f} MB) are kept in "
                f"{spool.folder}: the same command goes on from there; remove that folder if you "
                "give up."
            ) from error
        spool.remove()
    return facts


def _make(form: Form, job: Job, labels: Labels, out: Path, options: Options) -> dict[str, Any]:
    """Read the images, judge them, write the store."""
    images = read_all(job, list(form.inputs(job)))
    problems, named, bad = images.problems()
    if bad and options.bad_images == "refuse":
        raise DataError(_refusal(job.source, form, problems, named, len(bad)))
    counts: dict[str, dict[str, int]] = {}
    for split, _, entries in _usable(job.catalogue, bad):
        count = counts.setdefault(split, {"users": 0, "examples": 0})
        count["users"] += 1
        count["examples"] += len(entries)
    differs = published.differences(counts, len(labels.coarse), len(labels.fine))
    path = job.source / GENERATED_MARK
    mark = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    extra = {
        "form": form.name,
        "generated": mark is not None,
        "problems": dict(sorted(problems.items())),
        "differs_from_published": differs,
    }
    variant = published.variant_of(form.name, mark=mark, differs=bool(differs))
    origin = form.source
    if mark is not None:
        origin = f"pictures drawn by pfl-bench, not FLAIR, in FLAIR's published form ({form.name})"
    with StoreWriter(
        out,
        task="flair",
        variant=variant,
        source=origin,
        split_by="user",
        num_classes=max(1, len(labels.coarse)),
        input_shape=(3, job.side, job.side),
        fields=FIELDS,
        extra=extra | _label_extra(labels, extra),
    ) as writer:
        _write(writer, job, images, bad)
    unknown = sum(index == UNKNOWN for index in labels.fine_to_coarse)
    return {
        "variant": variant,
        "source": origin,
        "splits": counts,
        "labels": {
            "coarse": len(labels.coarse),
            "fine": len(labels.fine),
            "fine_of_unknown_coarse": unknown,
        },
        "images_dropped": len(bad),
        "problem_examples": {kind: names[:SHOWN] for kind, names in sorted(named.items())},
        **extra,
    }


def _label_extra(labels: Labels, others: dict[str, Any]) -> dict[str, Any]:
    extra = {
        "coarse_labels": labels.coarse,
        "fine_labels": labels.fine,
        "fine_to_coarse": labels.fine_to_coarse,
    }
    size = len(json.dumps(extra | others))
    if size > MAX_EXTRA_BYTES:
        raise DataError(
            f"the names of {len(labels.coarse)} coarse and {len(labels.fine)} fine labels take "
            f"{size} bytes; a store holds {MAX_EXTRA_BYTES}: is this another data set?"
        )
    return extra


def _refusal(
    source: Path, form: Form, problems: Counter[str], named: dict[str, list[str]], num_bad: int
) -> str:
    lines = [
        f"\n  - {problems[kind]} {kind}: {', '.join(named[kind][:SHOWN])}"
        + (", ..." if problems[kind] > SHOWN else "")
        for kind in BAD_KINDS
        if problems[kind]
    ]
    if form is TARBALL_FORM and problems["missing"]:
        absent = absent_tarballs(source)
        lines.append(
            f"\nOf the {published.NUM_TARBALLS} published tarballs {len(absent)} are not there: "
            f"{', '.join(absent[:SHOWN])}{', ...' if len(absent) > SHOWN else ''}"
            if absent
            else f"\nAll {published.NUM_TARBALLS} published tarballs are there."
        )
    return (
        f"{source}: {num_bad} images cannot be used:{''.join(lines)}\n"
        "Get what is missing or damaged anew and run the same command, or leave these images out "
        "by bad_images=drop: they are then counted in the store."
    )


def _usable(catalogue: Catalogue, bad: set[int]) -> Iterator[tuple[str, str, list[int]]]:
    """Split, name and usable entries of each user who has any."""
    for split, user, entries in catalogue.users():
        good = [entry for entry in entries.tolist() if entry not in bad]
        if good:
            yield split, user, good


def _write(writer: StoreWriter, job: Job, images: ImageTable, bad: set[int]) -> None:
    """Append every user, some images at a time: a user can have thousands."""
    catalogue = job.catalogue
    ids = list(catalogue.entries)
    done, total = 0, len(catalogue) - len(bad)
    for split, user, good in _usable(catalogue, bad):
        for first in range(0, len(good), IMAGES_AN_APPEND):
            some = good[first : first + IMAGES_AN_APPEND]
            writer.append(
                split,
                user,
                image=[_bytes(images.read(entry)) for entry in some],
                coarse=[catalogue.coarse.of(entry) for entry in some],
                fine=[catalogue.fine.of(entry) for entry in some],
                image_id=[_bytes(ids[entry].encode()) for entry in some],
            )
            done += len(some)
            job.progress("writing the store (images)", done, total)


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
