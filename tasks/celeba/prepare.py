"""Turn CelebA's published files into a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import FieldSpec
from pfl_bench.types import ConfigError, DataError, Progress, did_you_mean
from tasks.celeba.files import (
    ARCHIVE,
    ATTRIBUTES,
    FOLDER,
    IDENTITIES,
    LABEL,
    PLACES,
    Attributes,
    ImageSource,
    find,
    read_attributes,
    read_identities,
    read_json,
)
from tasks.common.leaf import table1 as leaf
from tasks.common.leaf.gathering import UNSPLIT, Gathering, PartitionOptions, write_partition
from tasks.common.leaf.json_files import LOOKED_FOR, find_files
from tasks.common.sources import GENERATED_FACTS, GENERATED_MARK, Form, choose_form
from tasks.common.vision.pictures import PictureError, opened, read_to_end

# Source: Liu et al. 2015 (CelebA) and the data set's README.
IMAGES, PEOPLE, NUM_ATTRIBUTES = 202_599, 10_177, 40
# LEAF's table 1 has celebrities with at least so many images.
LEAST_IMAGES = 5
FULL, PARTIAL, GENERATED = "celeba", "celeba-partial", "celeba-generated"


def table1(sizes: Collection[int]) -> dict[str, Any]:
    """LEAF's counts over the celebrities with at least five images.

    As ``tasks.common.leaf.table1.compare``, of the images of each celebrity; the sentences are also
    of all images and celebrities.
    """
    num_images = sum(sizes)
    return leaf.compare(
        [size for size in sizes if size >= LEAST_IMAGES],
        leaf.CELEBA,
        f"images of celebrities with at least {LEAST_IMAGES}",
        full=leaf.looks_full(num_images, IMAGES),
        more=(("images", num_images, IMAGES), ("celebrities", len(sizes), PEOPLE)),
    )


SIDE = 84
NAMES_SHOWN = 10


class Options(PartitionOptions):
    """Options of preparing CelebA, beside those of partitioning.

    Attributes:
        min_examples: Celebrities with fewer images are dropped and counted; LEAF's five.
        label: The attribute to tell, such as "Smiling"; the others become columns.
        form: Which form to read, "published" (the publisher's lists) or "leaf-json"; None takes the
            lists if they are there, from which LEAF makes its JSON.
    """

    min_examples: int = Field(default=LEAST_IMAGES, ge=0)
    label: str = Field(default=LABEL, min_length=1)
    form: Literal["published", "leaf-json"] | None = None


# By kind, the images that have it, some with the reason.
Problems = defaultdict[str, list[str]]


def _told(problems: Problems) -> dict[str, Any]:
    """Number of images with each problem, and the first of them."""
    return {
        kind: {"images": len(images), "first": images[:NAMES_SHOWN]}
        for kind, images in sorted(problems.items())
    }


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of CelebA's files and write a store, whole or not at all.

    Images keep their bytes. Those that are missing, cannot be decoded, or have no celebrity or no
    attributes are left out, counted and named. Memory does not grow with the images' bytes.

    ``source`` is a folder with the images in ``img_align_celeba/`` or ``img_align_celeba.zip``,
    and either ``list_attr_celeba.txt`` and ``identity_CelebA.txt``, or LEAF's JSON. For the
    other arguments see ``tasks``.

    Returns:
        Facts for printing: variant, splits with their counts, what was left out and dropped, and
        how the counts compare with the published ones.

    Raises:
        DataError: A file is missing or damaged; the message names it and the line.
        ConfigError: There is no such attribute.
    """
    form = choose_form(source, "CelebA", _forms(options), options).name
    problems: Problems = defaultdict(list)
    lists = (_from_lists if form == "published" else _from_json)(source, options, problems)
    fields = {"image": FieldSpec("uint8", ragged=True)}
    fields |= {name: FieldSpec("uint8") for name in ("targets", *lists.columns)}
    with ImageSource(source) as images, Gathering(out, fields) as gathering:
        sizes = _gather(images, lists, gathering, problems, progress)
        if not sizes:
            total = sum(len(entry.images) for entry in lists.entries)
            raise DataError(
                f"{source}: no image of {total} can be used: {_told(problems)}; the images "
                f"belong in {FOLDER}/ or {ARCHIVE}, under their published names"
            )
        partition = gathering.partition(options)
        generated = find(source, GENERATED_MARK) is not None
        full = leaf.looks_full(sizes.total(), IMAGES)
        told = lists.label.replace("_", " ").lower()
        extra: dict[str, Any] = {
            **table1(sizes.values()),
            "label": lists.label,
            "form": form,
            "generated": generated,
            "problems": _told(problems),
            **(GENERATED_FACTS if generated else {}),
        }
        return write_partition(
            out,
            partition,
            progress,
            task="celeba",
            variant=GENERATED if generated else FULL if full else PARTIAL,
            source="drawn faces in CelebA's format" if generated else "CelebA, aligned images",
            num_classes=2,
            input_shape=(3, SIDE, SIDE),
            fields=fields,
            extra=extra,
            names={"targets": [f"not {told}", told]},
        )


def _gather(
    images: ImageSource, lists: Lists, gathering: Gathering, problems: Problems, progress: Progress
) -> Counter[str]:
    """Gather the images that can be used; returns how many each celebrity has."""
    sizes: Counter[str] = Counter()
    done, total = 0, sum(len(entry.images) for entry in lists.entries)
    for entry in lists.entries:
        found = [_read(images, name, problems) for name in entry.images]
        places = [place for place, data in enumerate(found) if data is not None]
        done += len(found)
        progress("reading images", done, total)
        if not places:
            continue
        sizes[entry.celebrity] += len(places)
        gathering.append(
            entry.split,
            entry.celebrity,
            image=[np.frombuffer(found[place] or b"", dtype=np.uint8) for place in places],
            targets=entry.targets[places],
            **{name: entry.columns[places, column] for column, name in enumerate(lists.columns)},
        )
    return sizes


@dataclass(frozen=True, slots=True)
class Entry:
    """Images of a celebrity in a split.

    Attributes:
        split: The split; "all" if nothing is split.
        images: Names of the n images.
        targets: Shape (n,).
        columns: Shape (n, c), the other attributes.
    """

    split: str
    celebrity: str
    images: list[str]
    targets: NDArray[np.uint8]
    columns: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Lists:
    """Images of each person, the attribute to tell, and the columns of their other attributes."""

    label: str
    columns: list[str]
    entries: list[Entry]


def _forms(options: Options) -> tuple[Form, ...]:
    """The forms; LEAF's JSON gives way to the lists that it is made from."""

    def has_lists(source: Path) -> bool:
        return bool(find(source, ATTRIBUTES) or find(source, IDENTITIES))

    def has_json(source: Path) -> bool:
        return bool(find_files(source)) and (options.form is not None or not has_lists(source))

    looked_for = f"the publisher's {ATTRIBUTES} and {IDENTITIES}, beside the images"
    return (
        Form("published", looked_for, has_lists),
        Form("leaf-json", f"{LOOKED_FOR}, beside the images", has_json),
    )


def _from_lists(source: Path, options: Options, problems: Problems) -> Lists:
    """Read the publisher's lists."""
    attributes = read_attributes(_text_file(source, ATTRIBUTES))
    columns = column_names(attributes.names)
    label = _find_label(attributes.names, options.label)
    identities = read_identities(_text_file(source, IDENTITIES))
    others = [index for index in range(len(columns)) if index != label]
    entries = []
    for celebrity, names in _match(attributes, identities, problems).items():
        values = attributes.values[[attributes.rows[name] for name in names]]
        entries.append(Entry(UNSPLIT, celebrity, names, values[:, label], values[:, others]))
    return Lists(attributes.names[label], [columns[index] for index in others], entries)


def _from_json(source: Path, options: Options, problems: Problems) -> Lists:
    """Read LEAF's JSON, which has one attribute."""
    if options.label.lower() != LABEL.lower():
        raise ConfigError(
            f"label: LEAF's JSON tells {LABEL} alone; leave the option out, or give the lists "
            f"{ATTRIBUTES} and {IDENTITIES}"
        )
    entries = [
        Entry(split, celebrity, names, targets, np.empty((len(names), 0), np.uint8))
        for split, celebrity, names, targets in read_json(source)
    ]
    return Lists(LABEL, [], entries)


def column_names(attributes: tuple[str, ...]) -> list[str]:
    """Names of the store's columns: lower case; a leading digit gets "attribute_" before it."""
    lower = [name.lower() for name in attributes]
    columns = [f"attribute_{name}" if name[0].isdigit() else name for name in lower]
    twice = [name for name, count in Counter(["image", "targets", *columns]).items() if count > 1]
    if twice:
        raise DataError(f"{ATTRIBUTES}, line 2: the column {twice[0]!r} would be there twice")
    return columns


def _find_label(names: tuple[str, ...], wanted: str) -> int:
    lower = [name.lower() for name in names]
    if wanted.lower() in lower:
        return lower.index(wanted.lower())
    hint = did_you_mean(wanted, names, ".")
    raise ConfigError(
        f"label: there is no attribute '{wanted}'{hint} There are: {', '.join(names)}"
    )


def _text_file(source: Path, name: str) -> Path:
    path = find(source, name)
    if path is None or not path.is_file():
        raise DataError(
            f"{source} has no file {name}, which CelebA's page publishes; put it there (or into "
            f"{', '.join(f'{place}/' for place in PLACES if place)} below it)"
        )
    return path


def _match(
    attributes: Attributes, identities: dict[str, str], problems: Problems
) -> dict[str, list[str]]:
    """Images of each celebrity, of those that have both attributes and a celebrity."""
    by_celebrity: dict[str, list[str]] = {}
    for image in attributes.rows:
        celebrity = identities.get(image)
        if celebrity is None:
            problems["without_identity"].append(image)
        else:
            by_celebrity.setdefault(celebrity, []).append(image)
    for image in identities:
        if image not in attributes.rows:
            problems["without_attributes"].append(image)
    return by_celebrity


def _read(images: ImageSource, name: str, problems: Problems) -> bytes | None:
    """An image's bytes; None if it is missing or cannot be decoded to its end."""
    try:
        data = images.read(name)
        if data is None:
            problems["missing"].append(name)
            return None
        with opened(data) as image:
            read_to_end(image)
    except (OSError, PictureError) as error:
        problems["unreadable"].append(f"{name} ({error})")
        return None
    return data
