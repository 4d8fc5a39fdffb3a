"""Samples on their way into a store: read and checked on several threads, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from pfl_bench.data import regular
from pfl_bench.types import DataError
from tasks.common.threads import map_in_order
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
    """Samples that did not come into the store, and why the first of them did not."""

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
                left_out.first.append(reason)


def grouped(
    samples: Iterable[tuple[Sample, NDArray[Any]]],
) -> Iterator[tuple[Sample, list[tuple[int, NDArray[Any]]]]]:
    """Join samples of a client that follow one another; gives the first, and (target, value).

    Values keep their shapes.
    """
    for _, own in groupby(samples, key=lambda pair: pair[0][:2]):
        while group := list(islice(own, SAMPLES_AN_APPEND)):
            yield group[0][0], [(sample.target, value) for sample, value in group]
