"""Count sketch: a client sends a small table that its update's largest elements are read from.

The table has ``rows`` (r) of ``columns`` (c) each. In each row every element of the update is
added, with a random sign, to one column; an estimate of the element is that column times the sign,
and of the r estimates the median is taken. Then the ``k`` elements whose estimates are largest are
kept and the others set to zero. Before that, each estimate is right in expectation; that of one row
has a variance of at most |u|^2 / c.

The columns: the update is cut into blocks of c elements, and in each row each block is shifted
round by a number of its own. Two elements of a block never meet, two of different blocks do with
probability 1 / c, which is all that the bound needs, and memory is gone through in order.

Each client's table is read by itself, with signs and shifts of its own, which client and centre
both derive from the seed, the round and the client; the mean is then over what was read. FetchSGD
adds the tables up (they are linear) and reads the sum, with momentum and error feedback at the
centre: this is not that.

Bytes: 32 r c bits. Where that is not less than the update's 4 P bytes it is sent as it is. An
update that is not finite gives estimates that are not.

Privacy: the client clips what is read from its table, so that privacy is as without compression.

Source: Charikar et al. 2002 (count sketch); Rothchild et al. 2020 (FetchSGD: its use for updates).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.config.training import Strict
from pfl_bench.federated.compression import Compression
from pfl_bench.federated.compression.top_k import keep_largest
from pfl_bench.rng import Purpose, stream


class Options(Strict):
    """Options of count sketches.

    Attributes:
        columns: c, columns of a row.
        k: Elements that are kept of what is read; of a smaller model, all.
        rows: r, odd, so that there is a median.
    """

    columns: Annotated[int, Field(ge=1)]
    k: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=1, le=31)] = 5

    @field_validator("rows")
    @classmethod
    def _is_odd(cls, rows: int) -> int:
        if rows % 2 == 0:
            raise ValueError(f"rows is {rows}, but must be odd; try {rows - 1} or {rows + 1}")
        return rows


class Hashing:
    """Signs and shifts of one table: which column an element is in, and how it counts there.

    A block goes through memory that stays in the processor's cache, with nothing allocated for it:
    signs as floats of all rows would take five times the update's memory, and four times as long.
    """

    def __init__(self, length: int, rows: int, columns: int, rng: np.random.Generator) -> None:
        self._columns = columns
        self._starts = range(0, length, columns)
        self._shifts = rng.integers(columns, size=(len(self._starts), rows)).tolist()
        bits = np.frombuffer(rng.bytes(rows * math.ceil(length / 8)), np.uint8)
        signs = np.unpackbits(bits).view(np.int8).reshape(rows, -1)
        signs *= np.int8(2)
        signs -= np.int8(1)
        self._signs = torch.from_numpy(signs[:, :length])

    def table(self, vector: Tensor) -> Tensor:
        """Sketch a vector, shape (P,), float32: shape (r, c)."""
        signs = self._signs.to(vector.device)
        table = vector.new_zeros(len(signs), self._columns)
        buffer = vector.new_empty(self._columns)
        for start, shifts in zip(self._starts, self._shifts, strict=True):
            part = vector[start : start + self._columns]
            for row, shift in enumerate(shifts):
                signed = buffer[: len(part)].copy_(signs[row, start : start + len(part)])
                signed.mul_(part)
                before_end = min(len(part), self._columns - shift)
                table[row, shift : shift + before_end] += signed[:before_end]
                table[row, : len(part) - before_end] += signed[before_end:]
        return table

    def estimates(self, table: Tensor) -> Tensor:
        """Read all elements, shape (P,), from a table of shape (r, c)."""
        signs = self._signs.to(table.device)
        rows, length = signs.shape
        found = table.new_empty(length)
        twice = table.repeat(1, 2)
        buffers = list(table.new_empty(rows + 1, self._columns))
        for start, shifts in zip(self._starts, self._shifts, strict=True):
            stop = min(start + self._columns, length)
            parts = [buffer[: stop - start] for buffer in buffers]
            for row, shift in enumerate(shifts):
                parts[row].copy_(signs[row, start:stop])
                parts[row].mul_(twice[row, shift : shift + stop - start])
            found[start:stop] = _median(parts[:-1], parts[-1])
        return found


def _median(rows: list[Tensor], spare: Tensor) -> Tensor:
    """Median of an odd number of vectors, shape (n,), element by element; NaN where one has it.

    Bubbles the larger half up; of few vectors, in a fraction of the time of ``torch.median``. The
    rows are overwritten, and so is ``spare``, of their shape.
    """
    for last in range(len(rows) - 1, len(rows) // 2 - 1, -1):
        for place in range(last):
            low, high = rows[place], rows[place + 1]
            torch.minimum(low, high, out=spare)
            torch.maximum(low, high, out=high)
            rows[place], spare = spare, low
    return rows[len(rows) // 2]


class CountSketch(Compression):
    """See the module."""

    def __init__(self, options: Options, num_parameters: int, seed: int) -> None:
        super().__init__(num_parameters, options.rows * options.columns * BYTES_PER_PARAMETER)
        self._options = options
        self._k = min(options.k, num_parameters)
        self._seed = seed

    def compress(self, update: Tensor, user: int, round_index: int) -> Tensor:
        """Read the largest elements from the client's table, shape (P,)."""
        rng = stream(self._seed, Purpose.COMPRESSION, round_index, user)
        hashing = Hashing(update.numel(), self._options.rows, self._options.columns, rng)
        estimates = hashing.estimates(hashing.table(update))
        result = torch.empty_like(update)
        keep_largest(estimates, self._k, result)
        return result


build = CountSketch
