"""L1 clipping: one update moves the sum by at most clip_norm in L1 norm."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM, add_clipped_l1_, l1_norm

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

elements = st.floats(width=32, allow_nan=False, allow_infinity=False)
updates = st.lists(elements, min_size=1, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float32)
)
bounds = st.floats(min_value=MIN_CLIP_NORM, max_value=MAX_CLIP_NORM)


def exact_norm(vector: torch.Tensor) -> float:
    return math.fsum(abs(x) for x in vector.to(torch.float64).tolist())


def clipped(update: torch.Tensor, bound: float) -> torch.Tensor:
    total = torch.zeros(update.shape, dtype=torch.float32)
    add_clipped_l1_(total, update, bound)
    return total


@settings(max_examples=300, deadline=None)
@given(update=updates, bound=bounds)
@example(update=torch.zeros(3), bound=0.1)
@example(update=torch.full((5,), LARGEST), bound=MIN_CLIP_NORM)
@example(update=torch.full((5,), SMALLEST), bound=MIN_CLIP_NORM)
@example(update=torch.full((7,), 1e30), bound=0.1)
@example(update=torch.tensor([1.0, SMALLEST, -LARGEST]), bound=1.0)
def test_the_bound_is_never_exceeded(update: torch.Tensor, bound: float) -> None:
    moved = exact_norm(clipped(update, bound))
    # The only slack is the float64 rounding of the norm of an update that was left as it is.
    assert moved <= bound * (1.0 + 1e-12)
    outcome = add_clipped_l1_(torch.zeros_like(update), update, bound)
    assert outcome.finite
    if not outcome.unclipped:
        assert moved <= bound
    assert moved == pytest.approx(outcome.clipped_norm, rel=1e-5, abs=1e-40)


def test_long_updates_keep_the_bound_too() -> None:
    """The error of a float32 product must not add up over the elements."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        update = torch.randn(300_001, generator=generator)
        assert exact_norm(clipped(update, 1.0)) <= 1.0
        assert exact_norm(clipped(update, 1.0)) >= 1.0 - 1e-6


@settings(max_examples=200, deadline=None)
@given(update=updates, slack=st.floats(min_value=1.0, max_value=1e6))
def test_small_updates_are_unchanged_bit_for_bit(update: torch.Tensor, slack: float) -> None:
    bound = min(max(exact_norm(update) * slack * (1 + 1e-9), MIN_CLIP_NORM), MAX_CLIP_NORM)
    if exact_norm(update) > bound:
        return
    assert torch.equal(clipped(update, bound), update)
    assert add_clipped_l1_(torch.zeros_like(update), update, bound).unclipped


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.floats(min_value=-(2.0**99), max_value=2.0**99, width=32), min_size=2, max_size=20
    ).filter(lambda v: max(map(abs, v)) > 1e-3),
    bound=st.floats(min_value=1e-10, max_value=1e-4),
)
def test_the_direction_is_kept_and_the_bound_used(values: list[float], bound: float) -> None:
    update = torch.tensor(values, dtype=torch.float32)
    result = clipped(update, bound).to(torch.float64)
    wanted = update.to(torch.float64) * (bound / exact_norm(update))
    assert torch.allclose(result, wanted, rtol=1e-6, atol=bound * 1e-7)
    assert exact_norm(result) >= bound * (1 - 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_a_nonfinite_update_contributes_nothing(bad: float, bound: float) -> None:
    total = torch.tensor([1.0, 2.0, 3.0])
    before = total.clone()
    outcome = add_clipped_l1_(total, torch.tensor([0.0, bad, 1.0]), bound)
    assert torch.equal(total, before)
    assert not outcome.finite
    assert not outcome.unclipped
    assert outcome.clipped_norm == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(min_value=-6e4, max_value=6e4), min_size=1, max_size=50),
    bound=st.floats(min_value=1e-6, max_value=1e6),
)
def test_halves_are_computed_in_float32(
    dtype: torch.dtype, values: list[float], bound: float
) -> None:
    update = torch.tensor(values, dtype=torch.float64).to(dtype)
    result = clipped(update, bound)
    assert torch.equal(result, clipped(update.to(torch.float32), bound))
    assert exact_norm(result) <= bound * (1 + 1e-12)


def test_float16_whose_sum_would_overflow() -> None:
    outcome = add_clipped_l1_(torch.zeros(1000), torch.full((1000,), -6e4).half(), 1.0)
    assert outcome.norm == pytest.approx(6e7, rel=1e-3)


def test_the_norm_is_exact_over_many_elements() -> None:
    # A float32 sum stops growing at 2**24.
    assert l1_norm(torch.full((20_000_001,), -1.0)) == 20_000_001.0
    assert l1_norm(torch.full((200_000,), LARGEST)) == 200_000 * LARGEST
    assert l1_norm(torch.full((4,), SMALLEST)) == 4 * SMALLEST
    assert l1_norm(torch.zeros(0)) == 0.0


def test_a_norm_of_exactly_the_bound_is_unclipped() -> None:
    outcome = add_clipped_l1_(torch.zeros(2), torch.tensor([3.0, -4.0]), 7.0)
    assert outcome == (7.0, True, True, 7.0)


def test_the_update_is_not_touched() -> None:
    update = torch.tensor([3.0, -4.0], requires_grad=True)
    total = torch.zeros(2)
    add_clipped_l1_(total, update, 1.0)
    assert not total.requires_grad
    assert torch.equal(update.detach(), torch.tensor([3.0, -4.0]))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, -math.inf, 1e-30, 1e30])
def test_bounds_that_are_not_allowed(bound: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        add_clipped_l1_(torch.zeros(2), torch.zeros(2), bound)


@pytest.mark.parametrize(
    ("total", "update", "message"),
    [
        (torch.zeros(2), torch.ones(3), "total must be float32"),
        (torch.zeros(2), torch.full((3,), math.nan), "total must be float32"),
        (torch.zeros(2, dtype=torch.float16), torch.ones(2), "total must be float32"),
        (torch.zeros(2, 2), torch.ones(2, 2), "flat tensor"),
        (torch.zeros(2), torch.ones(2, dtype=torch.int64), "flat tensor"),
        (torch.zeros(2, device="meta"), torch.ones(2), "move the update"),
    ],
)
def test_tensors_that_do_not_fit(total: torch.Tensor, update: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_clipped_l1_(total, update, 1.0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_clips_as_the_cpu_does() -> None:
    update = torch.randn(300_000, generator=torch.Generator().manual_seed(1)) * 7
    on_cpu, on_cuda = torch.zeros(300_000), torch.zeros(300_000, device="cuda")
    first = add_clipped_l1_(on_cpu, update, 1.0)
    second = add_clipped_l1_(on_cuda, update.cuda(), 1.0)
    assert second.norm == pytest.approx(first.norm, rel=1e-12)
    assert exact_norm(on_cuda.cpu()) <= 1.0
    assert torch.allclose(on_cpu, on_cuda.cpu(), rtol=1e-6, atol=0)
