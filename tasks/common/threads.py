"""Work on several threads that keeps its order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

ITEMS_AHEAD = 64
MAX_WORKERS = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_workers() -> int:
    """Threads for work that is decoding for the most part."""
    return min(MAX_WORKERS, os.cpu_count() or 1)


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[tuple[Item, Result], None, None]:
    """Apply a function on several threads; gives each item and its result, in their order.

    Few items are in memory at once, read in the caller's thread; an exception ends the work.
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(max_workers=num_workers()) as threads:
        try:
            for item in items:
                waiting.append((item, threads.submit(function, item)))
                if len(waiting) >= ITEMS_AHEAD:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
