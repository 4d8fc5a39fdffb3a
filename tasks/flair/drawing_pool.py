"""Draws the generated mini FLAIR's pictures in several processes: the same, in the same order."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context

import numpy as np

from pfl_bench.types import DataError
from tasks.common.threads import map_in_order
from tasks.flair.drawing import Camera, draw_picture

PICTURES_A_BATCH = 256
# Fewer are drawn before another process has begun.
FEWEST_FOR_PROCESSES = 2000


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures to draw, from number ``first`` on: fine labels and number of the user of each."""

    seed: int
    first: int
    labels: Sequence[Sequence[str]]
    owners: Sequence[int]
    side: int


def draw_batch(batch: Batch) -> list[bytes]:
    """Draw pictures, each by a generator of its own, as the bytes of JPEGs."""
    return [
        draw_picture(
            labels,
            _camera(batch.seed, owner),
            np.random.default_rng([batch.seed, 2, number]),
            batch.side,
        )
        for number, (labels, owner) in enumerate(
            zip(batch.labels, batch.owners, strict=True), batch.first
        )
    ]


@lru_cache(maxsize=1 << 14)
def _camera(seed: int, user: int) -> Camera:
    return Camera.draw(np.random.default_rng([seed, 1, user]))


def choose_processes(wanted: int | None, num_images: int) -> int:
    """Number of processes that draw: as wanted, or one a usable core if there is enough to do."""
    if wanted is not None:
        return wanted
    if num_images < FEWEST_FOR_PROCESSES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def draw_in_order(batches: Iterator[Batch], processes: int) -> Generator[bytes, None, None]:
    """Draw batches, a few of them at a time; gives the bytes of the JPEGs in order.

    With one process, this one draws.
    """
    if processes == 1:
        for batch in batches:
            yield from draw_batch(batch)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _leave_interrupts_to_the_parent)
    try:
        with closing(map_in_order(draw_batch, batches, pool, 2 * processes)) as drawn:
            for _, pictures in drawn:
                yield from pictures
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {processes} processes that draw has ended, killed or out of memory; run the "
            "command again, with a smaller num_processes if memory is short"
        ) from error


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
