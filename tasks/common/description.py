"""Description of a store, and opening one to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_bench.data import FieldSpec, StoreWriter
from pfl_bench.types import SplitBy


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """Description of a store.

    Attributes:
        variant: Machine name of the variant of the data.
        source: One line for a human.
        names: Lists of names, as ``StoreWriter.set_names`` takes them.
    """

    task: str
    variant: str
    source: str
    num_classes: int
    input_shape: tuple[int, ...]
    fields: Mapping[str, FieldSpec]
    extra: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def writer(
        self, out: Path, split_by: SplitBy, first: Mapping[str, Any] | None = None
    ) -> StoreWriter:
        """A writer of such a store, not yet open; facts of ``first`` go before ``extra``."""
        writer = StoreWriter(
            out,
            task=self.task,
            variant=self.variant,
            source=self.source,
            split_by=split_by,
            num_classes=self.num_classes,
            input_shape=self.input_shape,
            fields=self.fields,
            extra={**(first or {}), **self.extra},
        )
        for name, values in self.names.items():
            writer.set_names(name, values)
        return writer
