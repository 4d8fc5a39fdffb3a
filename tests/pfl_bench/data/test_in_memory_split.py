"""A split in memory whose parts contradict each other is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pfl_bench.data import InMemorySplit
from pfl_bench.types import DataError


@pytest.mark.parametrize(
    ("offsets", "num_inputs", "num_targets", "num_names"),
    [
        (np.arange(3), 2, 2, 3),  # one for each user, and none for the end
        (np.array([2, 1, 0]), 2, 2, 2),
        (np.array([1, 2]), 2, 2, 1),
        (np.array([0.0, 2.0]), 2, 2, 1),
        (np.array([0, 2]), 2, 1, 1),
        (np.array([0, 2]), 3, 3, 1),
        (np.array([], dtype=np.int64), 0, 0, 0),
    ],
)
def test_parts_that_contradict_each_other_are_refused(
    offsets: NDArray[np.int64], num_inputs: int, num_targets: int, num_names: int
) -> None:
    inputs, targets = torch.zeros(num_inputs, 4), torch.zeros(num_targets, dtype=torch.int64)
    with pytest.raises(DataError, match=r"split 'train': .* offsets are whole numbers"):
        InMemorySplit("train", inputs, targets, offsets, list("abc")[:num_names])
