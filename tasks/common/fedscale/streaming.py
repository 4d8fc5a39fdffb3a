"""From samples, wherever they come from, to a store: streaming, and whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.types import DataError, SplitBy
from tasks.common.fedscale.layout import find_mappings, read_mapping, sample_folder
from tasks.common.fedscale.samples import LeftOut, ReadSample, Sample, grouped, prefetch
from tasks.common.fedscale.survey import Labels, Progress, Survey, sample_file, survey

BadSamples = Literal["refuse", "leave_out"]


class Options(BaseModel):
    """Options of preparing data in FedScale's layout.

    Attributes:
        min_examples: Clients of train with fewer samples are dropped and counted; FedScale's
            configurations drop those with fewer than 21 (``filter_less``).
        bad_samples: What becomes of a sample that is missing or damaged: "refuse" stops with its
            file and line, "leave_out" counts it and names the first ten.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    min_examples: int = Field(default=0, ge=0)
    bad_samples: BadSamples = "refuse"


@dataclass(slots=True)
class Source:
    """What was found of a data set before its samples are read.

    Attributes:
        surveys: Of each split.
        samples: Gives all samples, once.
        class_names: Names of the classes.
    """

    surveys: Mapping[str, Survey]
    samples: Callable[[], Iterable[Sample]]
    class_names: list[str]

    @property
    def num_samples(self) -> int:
        """Samples of all splits."""
        return sum(found.num_rows for found in self.surveys.values())

    @property
    def num_clients(self) -> int:
        """Clients of all splits, each counted once."""
        return len({client for found in self.surveys.values() for client in found.clients})


def open_layout(
    source: Path,
    labels: Labels,
    options: Options,
    progress: Progress,
    folder_of: Callable[[Path, str], Path] = sample_folder,
) -> Source:
    """Look at a folder in FedScale's layout, and at all of its mappings.

    Args:
        source: The folder.
        labels: Takes note of the labels.
        options: Whether missing samples are refused.
        progress: Told the rows read.
        folder_of: From where a split's samples have their paths, given the folder and the split.

    Raises:
        DataError: A mapping or folder is missing, a row is wrong, or a sample has no file.
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

    return Source(surveys, samples, labels.names())


def write_store(
    out: Path,
    found: Source,
    options: Options,
    read: ReadSample,
    spec: FieldSpec,
    progress: Progress,
    *,
    name: str,
    task: str,
    variant: str,
    source: str,
    input_shape: tuple[int, ...],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Read all samples and write a store of them.

    Memory does not grow with the samples, but for some tens of bytes each.

    Args:
        out: The store; an existing one is replaced when all has gone well.
        found: Where the samples come from.
        options: What to drop, and what to do about bad samples.
        read: Turns bytes into the value of the field ``name``; called in several threads.
        spec: What that field holds.
        progress: Told the samples that are through.
        name: The field, beside "targets".
        task: Name of the task.
        variant: Machine name of the variant of the data.
        source: One line for a human.
        input_shape: Shape of one example's input.
        extra: Further facts.

    Returns:
        Facts for printing: variant, splits with their counts, what was left out, and ``extra``.

    Raises:
        DataError: A sample is missing or damaged (if such are refused), no client of train is
            left, or the store cannot be written.
    """
    out_of_it = LeftOut()
    dropped = _too_small(found.surveys["train"], options.min_examples, out_of_it)
    split_by = _split_by(found.surveys)
    counts: dict[str, dict[str, int]] = {}
    clients: dict[str, set[str]] = {}
    wanted = (s for s in found.samples() if s.split != "train" or s.client_id not in dropped)
    total = found.num_samples - out_of_it.dropped_samples
    with StoreWriter(
        out,
        task=task,
        variant=variant,
        source=source,
        split_by=split_by,
        num_classes=len(found.class_names),
        input_shape=input_shape,
        fields={name: spec, "targets": FieldSpec("uint16")},
        extra=extra,
    ) as writer:
        writer.set_names("targets", found.class_names)
        done, refuse = 0, options.bad_samples == "refuse"
        for sample, values in grouped(prefetch(wanted, read, refuse, out_of_it)):
            targets = np.array([target for target, _ in values], dtype=np.uint16)
            given = {name: [v for _, v in values], "targets": targets}
            writer.append(sample.split, sample.client_id, **given)
            count = counts.setdefault(sample.split, {"users": 0, "examples": 0})
            count["examples"] += len(values)
            clients.setdefault(sample.split, set()).add(sample.client_id)
            done += len(values)
            progress("reading samples", done, total)
        for split, users in clients.items():
            counts[split]["users"] = len(users)
        facts = {**out_of_it.facts(), "split_by": split_by}
        for key, value in facts.items():
            writer.set_extra(key, value)
    return {"variant": variant, "splits": counts, **facts, **extra}


def _too_small(train: Survey, least: int, out_of_it: LeftOut) -> set[str]:
    dropped = {client for client, count in train.clients.items() if count < least}
    out_of_it.dropped_clients = len(dropped)
    out_of_it.dropped_samples = sum(train.clients[client] for client in dropped)
    if len(dropped) == len(train.clients):
        raise DataError(
            f"min_examples {least}: all {len(dropped)} clients of train have fewer samples; the "
            f"largest has {max(train.clients.values())}: lower min_examples"
        )
    return dropped


def _split_by(surveys: Mapping[str, Survey]) -> SplitBy:
    """Whether splits divide clients, as FedScale's paper says, or some client is in several."""
    seen: set[str] = set()
    for found in surveys.values():
        if not seen.isdisjoint(found.clients):
            return "example"
        seen.update(found.clients)
    return "user"
