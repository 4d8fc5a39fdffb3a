"""How many threads of PyTorch compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch's operations in the calling thread alone.

    Short operations gain nothing from a second thread, and lose many times their length where the
    cores are busy: each waits for a thread that does not run.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
