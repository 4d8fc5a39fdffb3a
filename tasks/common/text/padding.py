"""Texts as rows of one width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_bench.types import Examples
from tasks.common.text.words import PAD_ID


def padded_words(rows: Sequence[NDArray[np.uint32]], targets: NDArray[Any], width: int) -> Examples:
    """Pad the numbered words of n texts, or cut them, to one width, L.

    Inputs of shape (n, L) and targets of shape (n,), both int64.
    """
    inputs = np.full((len(rows), width), PAD_ID, dtype=np.int64)
    for place, row in enumerate(rows):
        words = row[:width]
        inputs[place, : len(words)] = words
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets.astype(np.int64)))
