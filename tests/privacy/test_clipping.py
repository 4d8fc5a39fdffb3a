"""Clipping: one update moves the sum by at most clip_norm, and small ones are left alone."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM, add_clipped_, clip, l2_norm

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

elements = st.floats(width=32, allow_nan=False, allow_infinity=False)
updates = st.lists(elements, min_size=1, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float32)
)
bounds = st.floats(min_value=MIN_CLIP_NORM, max_value=MAX_CLIP_NORM)


def exact_norm(vector: torch.Tensor) -> float:
    return math.sqrt(math.fsum(x * x for x in vector.to(torch.float64).tolist()))


@settings(max_examples=300, deadline=None)
@given(update=updates, bound=bounds)
@example(update=torch.zeros(3), bound=0.1)
@example(update=torch.full((5,), LARGEST), bound=MIN_CLIP_NORM)
@example(update=torch.full((5,), SMALLEST), bound=MIN_CLIP_NORM)
@example(update=torch.full((7,), 1e30), bound=0.1)
@example(update=torch.tensor([1.0, SMALLEST, -LARGEST]), bound=1.0)
def test_the_bound_is_never_exceeded(update: torch.Tensor, bound: float) -> None:
    clipped = clip(update, bound)
    # The only slack is the float64 rounding of the norm of an update that was left as it is.
    assert exact_norm(clipped) <= bound * (1.0 + 1e-12)
    outcome = add_clipped_(torch.zeros_like(update), update, bound)
    if not outcome.unclipped:
        assert exact_norm(clipped) <= bound


@settings(max_examples=200, deadline=None)
@given(update=updates, bound=bounds)
def test_what_is_added_is_what_clip_returns(update: torch.Tensor, bound: float) -> None:
    total = torch.zeros_like(update)
    add_clipped_(total, update, bound)
    assert torch.equal(total, clip(update, bound))


@settings(max_examples=200, deadline=None)
@given(update=updates, slack=st.floats(min_value=1.0, max_value=1e6))
def test_small_updates_are_unchanged_bit_for_bit(update: torch.Tensor, slack: float) -> None:
    bound = min(max(exact_norm(update) * slack * (1 + 1e-9), MIN_CLIP_NORM), MAX_CLIP_NORM)
    if exact_norm(update) > bound:
        return
    assert torch.equal(clip(update, bound), update)
    assert add_clipped_(torch.zeros_like(update), update, bound).unclipped


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.floats(min_value=-(2.0**99), max_value=2.0**99, width=32), min_size=2, max_size=20
    ).filter(lambda v: max(map(abs, v)) > 1e-3),
    bound=st.floats(min_value=1e-10, max_value=1e-4),
)
def test_the_direction_is_kept_and_the_bound_used(values: list[float], bound: float) -> None:
    update = torch.tensor(values, dtype=torch.float32)
    clipped = clip(update, bound).to(torch.float64)
    wanted = update.to(torch.float64) * (bound / exact_norm(update))
    assert torch.allclose(clipped, wanted, rtol=1e-6, atol=bound * 1e-7)
    assert exact_norm(clipped) >= bound * (1 - 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_a_nonfinite_update_contributes_nothing(bad: float, bound: float) -> None:
    total = torch.tensor([1.0, 2.0, 3.0])
    before = total.clone()
    outcome = add_clipped_(total, torch.tensor([0.0, bad, 1.0]), bound)
    assert torch.equal(total, before)
    assert not outcome.finite
    assert not outcome.unclipped
    assert outcome.clipped_norm == 0.0
    assert torch.equal(clip(torch.tensor([bad, 1.0]), bound), torch.zeros(2))


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
    clipped = clip(update, bound)
    assert clipped.dtype == torch.float32
    assert torch.equal(clipped, clip(update.to(torch.float32), bound))
    assert exact_norm(clipped) <= bound * (1 + 1e-12)


def test_float16_whose_squares_would_overflow() -> None:
    update = torch.full((1000,), 6e4, dtype=torch.float16)
    outcome = add_clipped_(torch.zeros(1000), update, 1.0)
    assert outcome.norm == pytest.approx(6e4 * math.sqrt(1000), rel=1e-3)


def test_doubles_beyond_float32_are_not_finite_and_skipped() -> None:
    outcome = add_clipped_(torch.zeros(2), torch.tensor([1e300, 0.0], dtype=torch.float64), 1.0)
    assert not outcome.finite


def test_without_a_bound_it_is_a_plain_add_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    total, update = (torch.randn(1000, generator=generator) * 1e3 for _ in range(2))
    wanted = total + update
    outcome = add_clipped_(total, update, math.inf)
    assert torch.equal(total, wanted)
    assert outcome.unclipped


def test_the_norm_is_exact_over_many_elements() -> None:
    # A float32 sum of squares stops growing at 2**24.
    assert l2_norm(torch.ones(20_000_001)) == pytest.approx(math.sqrt(20_000_001), rel=1e-14)
    assert l2_norm(torch.full((200_000,), 1e30)) == pytest.approx(
        float(np.float32(1e30)) * math.sqrt(200_000), rel=1e-12
    )
    assert l2_norm(torch.full((4,), SMALLEST)) == 2 * SMALLEST
    assert l2_norm(torch.zeros(0)) == 0.0


def test_a_norm_of_exactly_the_bound_is_unclipped() -> None:
    outcome = add_clipped_(torch.zeros(2), torch.tensor([3.0, 4.0]), 5.0)
    assert outcome == (5.0, True, True, 5.0)


def test_the_update_is_not_touched() -> None:
    update = torch.tensor([3.0, 4.0], requires_grad=True)
    total = torch.zeros(2)
    add_clipped_(total, update, 1.0)
    assert not total.requires_grad
    assert torch.equal(update.detach(), torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, -math.inf, 1e-30, 1e30])
def test_bounds_that_are_not_allowed(bound: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        add_clipped_(torch.zeros(2), torch.zeros(2), bound)
    with pytest.raises(ValueError, match="clip_norm"):
        clip(torch.zeros(2), bound)


@pytest.mark.parametrize(
    ("total", "update", "message"),
    [
        (torch.zeros(2), torch.zeros(3), "total must be float32"),
        (torch.zeros(2, dtype=torch.float16), torch.zeros(2), "total must be float32"),
        (torch.zeros(2, 2), torch.zeros(2, 2), "flat tensor"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), "flat tensor"),
        (torch.zeros(2), torch.zeros(2, device="meta"), "move the update"),
    ],
)
def test_tensors_that_do_not_fit(total: torch.Tensor, update: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_clipped_(total, update, 1.0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_clips_as_the_cpu_does() -> None:
    update = torch.randn(300_000, generator=torch.Generator().manual_seed(1)) * 7
    on_cpu, on_cuda = torch.zeros(300_000), torch.zeros(300_000, device="cuda")
    first = add_clipped_(on_cpu, update, 1.0)
    second = add_clipped_(on_cuda, update.cuda(), 1.0)
    assert second.norm == pytest.approx(first.norm, rel=1e-12)
    assert exact_norm(on_cuda.cpu()) <= 1.0
    assert torch.allclose(on_cpu, on_cuda.cpu(), rtol=1e-6, atol=0)
