"""What is recorded of a round's noise tells spoiled noise from independent draws."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from privacy.noise_record import CHOSEN, NEAR_ZERO, PIECE, SEGMENTS, TAILS, NoiseRecord

LARGE = 400_000


def recorded(noise: NDArray[np.float64], piece: int = PIECE, draw: float | None = None) -> Any:
    record = NoiseRecord(len(noise), draw)
    for start in range(0, len(noise), piece):
        record.add(start, torch.from_numpy(noise[start : start + piece]))
    return record.result()


def normal(count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 650, 3 * CHOSEN])
def test_the_numbers_are_those_of_the_whole_vector(count: int) -> None:
    noise = normal(count)
    found = recorded(noise, draw=0.3)
    size = np.abs(noise)
    assert found["tails"] == [int((size > bound).sum()) for bound in TAILS]
    assert found["near_zero"] == [int((size < bound).sum()) for bound in NEAR_ZERO]
    assert found["largest"] == size.max()
    assert found["count_distance"] == pytest.approx(np.abs(size - 0.3).min())
    assert found["repeats"] == 0
    if count <= 2 * CHOSEN:
        assert found["windows"] == max(0, count - 4)
    ends = [count * k // SEGMENTS for k in range(SEGMENTS + 1)]
    sums = [noise[a:b].sum() / np.sqrt(b - a) for a, b in pairwise(ends) if b > a]
    assert found["segments"] == pytest.approx(sums)
    if count >= 3:
        peak = 1 + int(np.argmax(size[1:-1]))
        assert found["peaks"][:3] == noise[peak - 1 : peak + 2].tolist()


def test_pieces_do_not_matter_but_for_peaks_at_their_ends() -> None:
    noise = normal(LARGE)
    whole, parts = recorded(noise, piece=LARGE), recorded(noise)
    for key in ("tails", "near_zero", "largest", "windows", "repeats", "self_lag"):
        assert whole[key] == parts[key], key
    assert whole["segments"] == pytest.approx(parts["segments"])


@pytest.mark.parametrize("how", ["again", "negated", "reversed"])
@pytest.mark.parametrize(("count", "length"), [(650, 10), (LARGE, 4000)])
def test_a_part_that_comes_again_is_seen_wherever_it_is(how: str, count: int, length: int) -> None:
    for seed in range(3):
        noise = normal(count, seed)
        part = noise[20 : 20 + length]
        # Rounding of float32, twice.
        part = part + 1e-6 * normal(length, seed + 10)
        part = {"again": part, "negated": -part, "reversed": part[::-1]}[how]
        noise[-length - 3 : -3] = part
        assert recorded(noise)["repeats"] >= (2 * (length - 4) if count == 650 else 20)


def test_of_true_noise_no_part_comes_again() -> None:
    for seed in range(5):
        found = recorded(normal(LARGE, seed))
        assert found["repeats"] == 0
        assert abs(found["windows"] - CHOSEN) < 6 * np.sqrt(CHOSEN)


def test_a_palindrome_has_no_window_in_common_with_itself() -> None:
    noise = normal(41)
    noise[23:26] = noise[20:17:-1]
    assert recorded(noise)["repeats"] == 0


def test_correlation_with_itself_is_found_at_its_lag() -> None:
    noise = normal(2000)
    noise[700:] = 0.7 * noise[:-700] + 0.7 * noise[700:]
    found = recorded(noise)
    assert found["self_lag"] == 700
    assert found["self_product"] == pytest.approx(float(noise[700:] @ noise[:-700]))


def test_a_coarse_grid_has_twins() -> None:
    noise = normal(650)
    assert recorded(noise)["twins"] <= 3
    assert recorded(noise.astype(np.float16).astype(np.float64))["twins"] > 10


def test_what_is_not_finite_is_no_number() -> None:
    noise = normal(650)
    noise[3] = np.nan
    noise[400] = np.inf
    found = recorded(noise)
    assert found["largest"] is None
    assert None in found["segments"]
