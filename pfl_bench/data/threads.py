"""Work on several threads that keeps its order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

ITEMS_AHEAD = 64
MAX_WORKERS = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_workers() -> int:
    """Threads for work that is decoding for the most part."""
    return min(MAX_WORKERS, os.cpu_count() or 1)


def map_in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    pool: Executor | None = None,
    ahead: int = ITEMS_AHEAD,
) -> Generator[tuple[Item, Result], None, None]:
    """Apply a function on several threads; gives each item and its result, in their order.

    At most ``ahead`` items are in memory at once, read in the caller's thread; an exception ends
    the work. The ``pool`` is another one to work in, shut down at the end.
    """
    pool = pool or ThreadPoolExecutor(num_workers())
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) >= ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
