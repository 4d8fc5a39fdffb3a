"""From samples, wherever they come from, to a store: streaming, and whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import FieldSpec, StoreWriter, regular
from pfl_bench.data.threads import map_in_order
from pfl_bench.types import DataError, Progress
from tasks.common.fedscale.layout import (
    Labels,
    Survey,
    find_mappings,
    read_mapping,
    sample_file,
    sample_folder,
    survey,
)
from tasks.common.leaf import table1
from tasks.common.leaf.gathering import split_by_of
from tasks.common.options import StrictOptions
from tasks.common.sources import GENERATED_FACTS, is_generated
from tasks.common.vision.pictures import PictureError

SHOWN = 10
# One append takes so many samples of a client at most: JPEGs of some 100 kB each.
SAMPLES_AN_APPEND = 64

# Turns a file's bytes into one value; raises SampleError or PictureError if they are damaged.
ReadSample = Callable[[bytes], NDArray[Any]]


class SampleError(ValueError):
    """A sample's bytes are not what they should be; the message says why."""


class Sample(NamedTuple):
    """A sample on its way into a store.

    Attributes:
        target: Number of its class.
        where: File and line (or member of an archive) that named it, for messages.
        content: Its bytes, or the file that has them.
    """

    split: str
    client_id: str
    target: int
    where: str
    content: bytes | Path


@dataclass(slots=True)
class LeftOut:
    """Samples that did not come into the store, and why the first of them did not.

    Files are named below ``root``, so that a store is the same wherever its source lies.
    """

    root: Path
    samples: int = 0
    first: list[str] = field(default_factory=list)
    dropped_clients: int = 0
    dropped_samples: int = 0

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "bad_samples": {"left_out": self.samples, "first": self.first},
            "dropped_clients": self.dropped_clients,
            "dropped_samples": self.dropped_samples,
        }


def prefetch(
    samples: Iterable[Sample], read: ReadSample, refuse: bool, left_out: LeftOut
) -> Iterator[tuple[Sample, NDArray[Any]]]:
    """Read and check samples on several threads; they keep their order, few are in memory.

    ``read`` turns bytes into what is stored, of any shape, in several threads; what is not refused
    is noted in ``left_out``.
    """

    def load(sample: Sample) -> NDArray[Any] | str:
        try:
            content = sample.content
            return read(content if isinstance(content, bytes) else regular(content).read_bytes())
        except OSError as error:
            return error.strerror or str(error)
        except (SampleError, PictureError) as error:
            return str(error)

    # Closed where a sample is refused, so that no thread goes on.
    with closing(map_in_order(load, samples)) as loaded:
        for sample, value in loaded:
            if not isinstance(value, str):
                yield sample, value
                continue
            named = f" {sample.content}" if isinstance(sample.content, Path) else ""
            reason = f"{sample.where}: the sample{named} cannot be read ({value})"
            if refuse:
                raise DataError(
                    f"{reason}; copy it again, remove the line, or leave such samples out by "
                    "bad_samples=leave_out"
                )
            left_out.samples += 1
            if len(left_out.first) < SHOWN:
                left_out.first.append(reason.replace(f"{left_out.root}{os.sep}", ""))


def grouped(
    samples: Iterable[tuple[Sample, NDArray[Any]]],
) -> Iterator[tuple[Sample, list[tuple[int, NDArray[Any]]]]]:
    """Join samples of a client that follow one another; gives the first, and (target, value).

    Values keep their shapes.
    """
    for _, own in groupby(samples, key=lambda pair: pair[0][:2]):
        while group := list(islice(own, SAMPLES_AN_APPEND)):
            yield group[0][0], [(sample.target, value) for sample, value in group]


BadSamples = Literal["refuse", "leave_out"]


class Options(StrictOptions):
    """Options of preparing data in FedScale's layout.

    Attributes:
        min_examples: Clients of train with fewer samples are dropped and counted; FedScale's
            configurations drop those with fewer than 21 (``filter_less``).
        bad_samples: What becomes of a sample that is missing or damaged: "refuse" stops with its
            file and line, "leave_out" counts it and names the first ten.
    """

    min_examples: int = Field(default=0, ge=0)
    bad_samples: BadSamples = "refuse"


@dataclass(slots=True)
class Source:
    """Facts of a data set found before its samples, which ``samples`` gives once, are read."""

    root: Path
    surveys: Mapping[str, Survey]
    samples: Callable[[], Iterable[Sample]]
    class_names: list[str]

    @property
    def num_samples(self) -> int:
        """Samples of all splits."""
        return sum(found.num_rows for found in self.surveys.values())


def open_layout(
    source: Path,
    labels: Labels,
    options: Options,
    progress: Progress,
    folder_of: Callable[[Path, str], Path] = sample_folder,
) -> Source:
    """Look at a folder in FedScale's layout, and at all of its mappings.

    ``folder_of`` gives the folder from which a split's samples have their paths.
    """
    mappings = find_mappings(source)
    surveys: dict[str, Survey] = {}
    folders: dict[str, Path] = {}
    for split, path in mappings.items():
        folders[split] = folder_of(source, split)
        found = surveys[split] = survey(path, labels, progress, folders[split])
        if found.missing and options.bad_samples == "refuse":
            line, sample = found.first_missing
            more = f" (and {found.missing - 1} more)" if found.missing > 1 else ""
            raise DataError(
                f"{path}, line {line}: sample {sample!r}{more} is not in {folders[split]}; put it "
                "there, remove the line, or leave such samples out by bad_samples=leave_out"
            )

    def samples() -> Iterator[Sample]:
        for split, path in mappings.items():
            for row in read_mapping(path):
                where = f"{path}, line {row.line}"
                content = sample_file(path, row, folders[split])
                yield Sample(split, row.client_id, labels.target(path, row), where, content)

    return Source(source, surveys, samples, labels.names())


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a data set in FedScale's table 5; its samples are rounded to ``rounding``."""

    clients: int
    samples: int
    rounding: int


def looks_full(found: Source, published: Counts) -> bool:
    """Whether so many samples look like the whole data, not a part of them."""
    return table1.looks_full(found.num_samples, published.samples)


def table5(found: Source, published: Counts) -> dict[str, Any]:
    """Compare counts with table 5.

    The paper does not say whether it counts all splits, and its repository says "training
    datasets" of the same numbers; so both counts are given, and either may agree.

    Returns:
        "table5": clients and samples of train and of all splits; "differs_from_published": a
        sentence for each number that neither agrees with, None for parts of the data.
    """
    train = found.surveys["train"]
    everyone = set().union(*(survey.clients for survey in found.surveys.values()))
    measured = {
        "train": {"clients": len(train.clients), "samples": train.num_rows},
        "all": {"clients": len(everyone), "samples": found.num_samples},
    }
    if not looks_full(found, published):
        return {"table5": measured, "differs_from_published": None}
    differs: list[str] = []
    for what, wanted, slack in (
        ("clients", published.clients, 0),
        ("samples", published.samples, published.rounding // 2),
    ):
        here = [measured[part][what] for part in ("train", "all")]
        if all(abs(number - wanted) > slack for number in here):
            differs.append(
                f"{what}: {here[0]:,} in train and {here[1]:,} in all here, {wanted:,} published"
            )
    return {"table5": measured, "differs_from_published": differs}


def write_store(
    out: Path,
    found: Source,
    published: Counts,
    read: ReadSample,
    options: Options,
    progress: Progress,
    *,
    value: tuple[str, FieldSpec],
    task: str,
    variant: str,
    origin: str,
    made_up: str,
    input_shape: tuple[int, ...],
) -> dict[str, Any]:
    """Read all samples and write a store of them; gives facts for printing.

    Memory does not grow with the samples, but for some tens of bytes each.

    ``read`` turns bytes into a sample's ``value``, a field, in several threads. ``variant`` and
    ``origin`` are those of all of the published data; ``made_up`` is the origin of generated ones.
    """
    generated = is_generated(found.root)
    if generated or not looks_full(found, published):
        variant += "-generated" if generated else "-partial"
    extra = {**table5(found, published), "generated": generated}
    extra |= GENERATED_FACTS if generated else {}
    left_out = LeftOut(found.root)
    dropped = _too_small(found.surveys["train"], options.min_examples, left_out)
    split_by = split_by_of(survey.clients for survey in found.surveys.values())
    wanted = (s for s in found.samples() if s.split != "train" or s.client_id not in dropped)
    done, total = 0, found.num_samples - left_out.dropped_samples
    name, spec = value
    with StoreWriter(
        out,
        task=task,
        variant=variant,
        source=made_up if generated else origin,
        split_by=split_by,
        num_classes=len(found.class_names),
        input_shape=input_shape,
        fields={name: spec, "targets": FieldSpec("uint16")},
        extra=extra,
        names={"targets": found.class_names},
    ) as writer:
        refuse = options.bad_samples == "refuse"
        for sample, values in grouped(prefetch(wanted, read, refuse, left_out)):
            targets = np.array([target for target, _ in values], dtype=np.uint16)
            given = {name: [v for _, v in values], "targets": targets}
            writer.append(sample.split, sample.client_id, **given)
            done += len(values)
            progress("reading samples", done, total)
        facts = {**left_out.facts(), "split_by": split_by}
        for key, fact in facts.items():
            writer.set_extra(key, fact)
        splits = writer.counts
    return {"variant": variant, "splits": splits, **facts, **extra}


def _too_small(train: Survey, least: int, left_out: LeftOut) -> set[str]:
    dropped = {client for client, count in train.clients.items() if count < least}
    left_out.dropped_clients = len(dropped)
    left_out.dropped_samples = sum(train.clients[client] for client in dropped)
    if len(dropped) == len(train.clients):
        raise DataError(
            f"min_examples {least}: all {len(dropped)} clients of train have fewer samples; the "
            f"largest has {max(train.clients.values())}: lower min_examples"
        )
    return dropped
