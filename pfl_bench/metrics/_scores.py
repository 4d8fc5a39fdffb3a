"""The scores that exact ranking metrics must keep: appended batch by batch, never copied twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

# Values of a segment and of a block of columns: 32 MiB. Larger ones sort no faster.
SEGMENT_VALUES = 1 << 23
# What must stay free on an accelerator: sorting a block takes about seven times its bytes.
HEADROOM_BYTES = 1 << 30


class Growing:
    """A growing array of numbers in main memory, doubled when full.

    One array instead of one a batch: small arrays that outlive their batch's large ones keep the
    allocator from using that memory again, which cost as much as the scores themselves.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self._buffer = np.empty(1024, dtype)
        self._used = 0

    def append(self, values: NDArray[Any]) -> None:
        """Copy in values of shape (n,)."""
        end = self._used + len(values)
        if end > len(self._buffer):
            larger = np.empty(max(end, 2 * len(self._buffer)), self._buffer.dtype)
            larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger
        self._buffer[self._used : end] = values
        self._used = end

    def values(self) -> NDArray[Any]:
        """All of them, as a view of shape (n, ...)."""
        return self._buffer[: self._used]


class Scores:
    """Scores of all classes, and the class and score of each positive.

    Rows lie in segments that are allocated ahead and grow up to ``SEGMENT_VALUES``, so appending
    takes time proportional to what is appended, whatever the size of batches. Of the targets only
    the positives are kept. Scores stay on the device of the first batch while ``HEADROOM_BYTES``
    are free there beside them; then all of them move to main memory, which changes no result.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.num_rows = 0
        # All segments are full but the last one, which holds `_used` rows.
        self._segments: list[Tensor] = []
        self._used = 0
        self._positive_classes = Growing(np.int64)
        self._positive_scores = Growing(np.float32)

    def append(self, scores: Tensor, targets: Tensor) -> None:
        """Take in scores of shape (n, K), kept as float32, and targets of that shape and device."""
        scores = scores.float()
        rows, classes = targets.nonzero(as_tuple=True)
        self._positive_classes.append(classes.cpu().numpy())
        self._positive_scores.append(scores[rows, classes].cpu().numpy())
        start = 0
        while start < len(scores):
            if not self._segments or self._used == len(self._segments[-1]):
                self._add_segment(len(scores) - start, scores.device)
            segment = self._segments[-1]
            part = scores[start : start + len(segment) - self._used]
            segment[self._used : self._used + len(part)] = part
            self._used += len(part)
            start += len(part)
        self.num_rows += len(scores)

    def extend(self, other: Scores) -> None:
        """Take in all rows of another instance, which may go on independently."""
        views = other.segments()
        self._positive_classes.append(other._positive_classes.values())
        self._positive_scores.append(other._positive_scores.values())
        self.num_rows += other.num_rows
        if self._segments and views and self._segments[0].device != views[0].device:
            self._move_to_main_memory()
            views = [view.cpu() for view in views]
        if views and not self._segments:
            self._used = len(views[-1])
        # In front, so that the last segment stays the one with room.
        self._segments = views + self._segments

    def segments(self) -> list[Tensor]:
        """The rows as held, tensors of shape (rows, K), float32; not to be changed."""
        if not self._segments:
            return []
        return [*self._segments[:-1], self._segments[-1][: self._used]]

    def column_blocks(self) -> Iterator[tuple[int, Tensor]]:
        """The scores by class: first class of a block, and a new tensor of shape (classes, N)."""
        width = max(1, SEGMENT_VALUES // max(1, self.num_rows))
        device = self._segments[0].device if self._segments else None
        for first in range(0, self.num_classes, width):
            last = min(first + width, self.num_classes)
            block = torch.empty((last - first, self.num_rows), dtype=torch.float32, device=device)
            row = 0
            for segment in self.segments():
                block[:, row : row + len(segment)] = segment[:, first:last].T
                row += len(segment)
            yield first, block

    def positives(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Class and score of each positive, shape (P,) each, by class and then by rising score."""
        classes, values = self._positive_classes.values(), self._positive_scores.values()
        order = np.lexsort((values, classes))
        return classes[order], values[order]

    def _add_segment(self, wanted: int, device: torch.device) -> None:
        if self._segments:
            device = self._segments[0].device
        limit = max(1, SEGMENT_VALUES // self.num_classes)
        rows = min(limit, max(wanted, self.num_rows))
        if not _fits(device, rows * self.num_classes * 4):
            self._move_to_main_memory()
            device = torch.device("cpu")
        shape = (rows, self.num_classes)
        self._segments.append(torch.empty(shape, dtype=torch.float32, device=device))
        self._used = 0

    def _move_to_main_memory(self) -> None:
        self._segments = [segment.cpu() for segment in self._segments]


def _fits(device: torch.device, num_bytes: int) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    # What PyTorch holds and does not use is free to us, though the driver calls it taken.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached >= num_bytes + HEADROOM_BYTES
