"""Options of preparing Shakespeare."""

from __future__ import annotations

from tasks.common.leaf.partition import PartitionOptions


class Options(PartitionOptions):
    """Options of preparing Shakespeare, beside those of partitioning.

    A split by example follows the text: a role's earliest windows are train, the next val, the
    last test; no seed has to do with it.

    Attributes:
        remove_overlap: Whether the windows of val and test that share a character with a window of
            a split before them are left out: the first 80 of each. False keeps them, and then test
            is easier than it looks: their letters have been seen in training.
    """

    remove_overlap: bool = True
