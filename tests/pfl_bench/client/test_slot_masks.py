from __future__ import annotations

import pytest
import torch

from pfl_bench.client.batched.slot_masks import SlotMasks

META = torch.device("meta")


def keyed(*seeds: int) -> SlotMasks:
    """Masks as a GPU has them, with their keys on the CPU."""
    masks = SlotMasks(len(seeds), META)
    masks._keys = torch.zeros(len(seeds), dtype=torch.int64)
    for slot, seed in enumerate(seeds):
        masks.begin(slot, seed)
    return masks


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_elements_are_dropped_independently_with_their_probability(probability: float) -> None:
    masks = keyed(*range(40))
    drawn = [masks.kept(40, (400, 50), probability) for _ in range(40)]
    kept = torch.stack(drawn).view(40, 40, -1).double()  # draw, slot, element
    keep = 1 - probability
    spread = (keep * probability) ** 0.5
    assert abs(kept.mean() - keep) < 5 * spread / kept.numel() ** 0.5
    # A draw with the next, a slot with the next, an element with the next.
    for axis in range(3):
        size = kept.shape[axis] - 1
        pairs = (kept.narrow(axis, 0, size) - keep) * (kept.narrow(axis, 1, size) - keep)
        assert abs(pairs.mean()) < 5 * spread**2 / pairs.numel() ** 0.5


def test_a_client_has_its_masks_in_any_slot_and_under_any_padding() -> None:
    alone, beside = keyed(7), keyed(5, 6, 7)
    beside.move(2, 0)
    for _ in range(3):
        expected = alone.kept(1, (3, 4), 0.5)
        assert torch.equal(beside.kept(2, (2 * 8, 4), 0.5)[:3], expected)


def test_masks_are_those_of_splitmix() -> None:
    """By integers of Python: what a device must compute."""

    def mixed(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        return bits ^ (bits >> 31)

    masks = keyed(11)
    # More than wrap around once.
    for number in range(6):
        key = mixed((11 + number * 0x9E3779B97F4A7C15) % 2**64)
        hashed = [mixed((key + n * 0x165667B19E3779F9) % 2**64) for n in range(60)]
        expected = [(bits >> 40) % 2**24 < round(0.7 * 2**24) for bits in hashed]
        assert masks.kept(1, (15, 4), 0.3).flatten().tolist() == expected
