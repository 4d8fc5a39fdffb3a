"""A task in memory, found by the digests in a configuration."""

from __future__ import annotations

from pfl_bench.data.held_task import HeldOptions, HeldTask


class Options(HeldOptions):
    """Options of a task in memory, which ``load_row(..., task=task)`` fills in.

    Attributes:
        title: What its user calls it.
        content: Digest of its examples and users.
        code: Digest of the code of its model and loss.
    """


def build(options: Options) -> HeldTask:
    """Give the task that this process has; refused if it has none of those digests."""
    return options.task()
