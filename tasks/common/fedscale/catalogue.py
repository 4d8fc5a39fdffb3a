"""FedScale's 20 federated data sets: what they hold, who publishes them, and which task reads them.

Counts are those of Lai et al. 2022 (FedScale), table 5. Its repository (SymbioticLab/FedScale,
benchmark/dataset) says the same of the training sets, and gives sources and the sizes of its
archives; of some, these hold only which client has which sample. A licence is what the publisher
says of the data; "unknown" where no statement of the publisher's was found. FedScale's own terms:
research purposes only.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set of the catalogue.

    Attributes:
        domain: "vision", "language", "speech" or "other": what the samples are about.
        samples: Number of samples, rounded as published.
        example_task: What it is used for, by the paper.
        source: Where its publisher has it.
        licence: Of the data, or "unknown".
        archive: Size of FedScale's archive, as its download script says; "unknown" if it does not.
        tasks: Tasks of this package that read these data, in the forms that their READMEs name:
            reddit reads its publisher's or LEAF's files, not FedScale's archive.
    """

    name: str
    domain: str
    clients: int
    samples: int
    example_task: str
    source: str
    licence: str
    archive: str
    tasks: tuple[str, ...] = ()


def _read(path: Path) -> tuple[DataSet, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {name: int(row[name]) for name in ("clients", "samples")}
        row["tasks"] = tuple(row["tasks"].split())
    return tuple(DataSet(**row) for row in rows)


DATA_SETS = _read(Path(__file__).with_suffix(".csv"))
