"""A fork that waits for a busy machine."""

from __future__ import annotations

import os
import time


def fork(patience: float = 60.0) -> int:
    """``os.fork``, tried again while the system has no process to give (EAGAIN).

    Args:
        patience: Seconds after which the error stands.

    Returns:
        What ``os.fork`` gives.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
