"""A split in memory whose parts contradict each other is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pfl_bench.data import InMemorySplit
from pfl_bench.data.in_memory import read_splits
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


class Compared(str):
    """A user's name that counts how often one is compared with another."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.compared += 1
        return str(self) is other or super().__eq__(other)

    def __str__(self) -> str:
        return self


def test_a_name_that_comes_twice_is_found_without_comparing_each_pair() -> None:
    pair = (np.zeros((1, 2)), np.zeros(1, dtype=int))
    train: dict[object, object] = {Compared(number): pair for number in range(300)}
    train[299] = pair
    Compared.compared = 0
    with pytest.raises(DataError, match="two users are '299' as text"):
        read_splits({"train": train}, True)
    # Names whose hashes agree in their last bits alone are not compared.
    assert Compared.compared < 300
