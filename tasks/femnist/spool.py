"""A temporary file that gathers each writer's images, in bounded memory."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import DataError

IMAGE_SHAPE = (28, 28)
IMAGE_BYTES = 784


class ExampleSpool:
    """Examples by split and writer, on disk; only an index of segments is in memory.

    Sources give a writer's examples in pieces, and some facts (how the publisher split the data,
    how many examples a writer has) are known only at the end, so examples wait here. The file has
    no name: it is gone when the process ends, however it ends. A context manager.

    Args:
        folder: Where the temporary file goes; needs 785 bytes an example.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        except OSError as error:
            raise DataError(
                f"cannot write into {folder} ({error.strerror}): the output's folder must exist "
                "and be writable; choose another one by --out"
            ) from error
        self._end = 0
        self._segments: dict[str, dict[str, list[tuple[int, int]]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):  # closing retries a write that failed
            self._file.close()

    def append(
        self, split: str, client_id: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]
    ) -> None:
        """Add examples of a writer; the same writer may come again.

        Args:
            split: Name of the split.
            client_id: The writer.
            images: Shape (n, 28, 28), 255 = white.
            labels: Shape (n,).

        Raises:
            DataError: The disk is full.
        """
        try:
            self._file.seek(self._end)
            self._file.write(np.ascontiguousarray(images).tobytes())
            self._file.write(np.ascontiguousarray(labels).tobytes())
            self._file.flush()  # so that a full disk is seen here
        except OSError as error:
            raise DataError(
                f"cannot write temporary data into {self._folder} after {self._end} bytes "
                f"({error.strerror}): preparing needs about three times the store's size; free "
                "space or choose another disk by --out"
            ) from error
        segments = self._segments.setdefault(split, {}).setdefault(client_id, [])
        segments.append((self._end, len(labels)))
        self._end += len(labels) * (IMAGE_BYTES + 1)

    @property
    def splits(self) -> list[str]:
        """Names of the splits that have writers."""
        return [split for split, clients in self._segments.items() if clients]

    def clients(self, split: str) -> list[str]:
        """The writers of a split, sorted."""
        return sorted(self._segments.get(split, {}))

    def num_examples(self, split: str, client_id: str) -> int:
        """Number of examples of a writer in a split; 0 if it has none there."""
        segments = self._segments.get(split, {}).get(client_id, [])
        return sum(count for _, count in segments)

    def read(self, split: str, client_id: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Read all examples of a writer in a split, in the order in which they came."""
        images, labels = [], []
        for start, count in self._segments[split][client_id]:
            self._file.seek(start)
            block = np.frombuffer(self._file.read(count * (IMAGE_BYTES + 1)), dtype=np.uint8)
            images.append(block[: count * IMAGE_BYTES].reshape(count, *IMAGE_SHAPE))
            labels.append(block[count * IMAGE_BYTES :])
        return np.concatenate(images), np.concatenate(labels)

    def drop_small(self, min_examples: int) -> int:
        """Forget writers that have fewer examples than ``min_examples`` in all splits together.

        Returns:
            How many writers were dropped.
        """
        everyone = {client for clients in self._segments.values() for client in clients}
        small = {
            client
            for client in everyone
            if sum(self.num_examples(split, client) for split in self._segments) < min_examples
        }
        for clients in self._segments.values():
            for client in small:
                clients.pop(client, None)
        return len(small)
