"""Sums of many clients: held in float64, noised, divided and observed as any other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from privacy.aggregate import MANY_CLIENTS, Aggregate
from privacy.clipping import add_clipped_, add_scaled_
from privacy.mechanism import Mechanism, NoiseScale, mean_of, noised_mean
from privacy.mechanisms import (
    adaptive_gaussian,
    banded_matrix_factorization,
    gaussian,
    laplace,
    local_gaussian,
    none,
    privunit,
    tree_aggregation,
)
from privacy.recording.observation import Observer

P, COHORT = 300, 20_000


def wide() -> Aggregate:
    return Aggregate.zeros(P, cohort_size=COHORT)


def test_more_than_ten_thousand_clients_are_summed_in_float64() -> None:
    assert Aggregate.zeros(2).total.dtype == torch.float32
    assert Aggregate.zeros(2, cohort_size=MANY_CLIENTS).total.dtype == torch.float32
    assert Aggregate.zeros(2, cohort_size=MANY_CLIENTS + 1).total.dtype == torch.float64


def test_a_part_that_clients_share_is_rounded_away_in_float32_alone() -> None:
    """20,000 updates of norm 1: float32 loses 0.037 of one of them, float64 next to nothing."""
    generator = torch.Generator().manual_seed(0)
    length = 100
    common = torch.randn(length, generator=generator)
    own = torch.randn(64, length, generator=generator)
    updates = 0.9 * common / common.norm() + math.sqrt(0.19) * own / own.norm(dim=1, keepdim=True)
    updates /= updates.norm(dim=1, keepdim=True)
    sums = Aggregate.zeros(length).total, Aggregate.zeros(length, cohort_size=COHORT).total
    counts = np.zeros(64, dtype=np.int64)
    rng = np.random.default_rng(0)
    for index in rng.integers(0, 64, COHORT).tolist():
        counts[index] += 1
        for total in sums:
            add_scaled_(total, updates[index])
    # Whole numbers times float32 values: exact in float64 but for the last sum of 64 terms.
    exact = torch.from_numpy(counts).double() @ updates.double()
    narrow_error, wide_error = (float((total.double() - exact).norm()) for total in sums)
    assert narrow_error > 0.005
    assert wide_error < 1e-8


@pytest.mark.parametrize("length", [1, 7, (1 << 17) - 1, (1 << 17) + 5])
@pytest.mark.parametrize("factor", [1.0, 0.3, -2.5])
def test_chunks_add_what_a_mixed_addition_adds(length: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(length)
    update = torch.randn(length, generator=generator)
    start = torch.randn(length, generator=generator, dtype=torch.float64)
    total, kept = start.clone(), update.clone()
    add_scaled_(total, update, factor)
    torch.testing.assert_close(total, start + factor * update.double(), rtol=1e-15, atol=1e-15)
    assert torch.equal(update, kept)


@pytest.mark.parametrize("norm", [0.0, 0.3, 1.0, 7.0, 1e30, math.inf, math.nan])
def test_an_update_moves_a_wide_sum_by_no_more_than_the_bound(norm: float) -> None:
    update = torch.randn(P, generator=torch.Generator().manual_seed(1))
    update *= norm / update.norm()
    narrow, total = torch.zeros(P), wide().total
    ours, theirs = add_clipped_(total, update, 1.0), add_clipped_(narrow, update, 1.0)
    assert ours.unclipped == theirs.unclipped
    assert ours.finite == theirs.finite == math.isfinite(norm)
    # The rounding of the two norms is all the slack there is.
    assert float(total.norm()) <= 1.0 + 1e-12
    torch.testing.assert_close(total.float(), narrow, rtol=1e-6, atol=1e-12)


NOISE = NoiseScale(0.8, COHORT, COHORT, num_rounds=4)
MECHANISMS: dict[str, Mechanism] = {
    "gaussian": gaussian.build(gaussian.Options(clip_norm=1.0), NOISE),
    "adaptive_gaussian": adaptive_gaussian.build(
        adaptive_gaussian.Options(clip_norm=1.0, quantile=0.5), NOISE
    ),
    "laplace": laplace.build(laplace.Options(clip_norm=1.0), NOISE),
    "local_gaussian": local_gaussian.build(local_gaussian.Options(clip_norm=1.0), NOISE),
    "privunit": privunit.build(privunit.Options(clip_norm=1.0), NOISE),
    "banded_matrix_factorization": banded_matrix_factorization.build(
        banded_matrix_factorization.Options(clip_norm=1.0, bands=2), NOISE
    ),
    "tree_aggregation": tree_aggregation.build(tree_aggregation.Options(clip_norm=1.0), NOISE),
    "none": none.build(none.Options(), NoiseScale(0.0, COHORT, COHORT)),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_releases_the_same_from_either_sum_in_float32(name: str) -> None:
    mechanism, state = MECHANISMS[name], MECHANISMS[name].state_dict()
    released: list[Tensor] = []
    for aggregate in (Aggregate.zeros(P), wide()):
        mechanism.load_state_dict(state)
        generator = torch.Generator().manual_seed(5)
        for client in range(5):
            update = torch.randn(P, generator=generator)
            mechanism.accumulate(aggregate, update, 1.0, np.random.default_rng(client))
        before = aggregate.total.clone()
        release = mechanism.release(aggregate, np.random.default_rng(9))
        assert torch.equal(aggregate.total, before)
        assert release.mean_update.dtype == torch.float32
        released.append(release.mean_update)
    assert float(released[0].norm()) > 0
    assert float((released[1] - released[0]).norm()) < 1e-6 * float(released[0].norm())


def test_sums_of_workers_merge_in_float64() -> None:
    alone, workers = wide(), [wide(), wide()]
    for number in range(6):
        update = torch.randn(P, generator=torch.Generator().manual_seed(number))
        for aggregate in (alone, workers[number % 2]):
            MECHANISMS["gaussian"].accumulate(aggregate, update, 1.0)
    workers[0].merge(workers[1])
    assert workers[0].total.dtype == torch.float64
    torch.testing.assert_close(workers[0].total, alone.total, rtol=1e-14, atol=1e-14)


def test_the_observer_finds_the_noise_that_was_added_to_a_wide_sum() -> None:
    aggregate, observer = Aggregate.zeros(5000, cohort_size=COHORT), Observer(COHORT)
    observer.begin(0)
    # A sum of many clients beside noise of one: what the observer subtracts must be the sum itself.
    update = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    observer.before(aggregate, update)
    outcome = add_clipped_(aggregate.total, update, 1.0)
    aggregate.count(outcome)
    observer.after(aggregate, 1.0)
    aggregate.total += 200.0
    rng = np.random.default_rng(3)
    mechanism = gaussian.build(gaussian.Options(clip_norm=1.0), NOISE)
    release = mechanism.release(aggregate, rng)
    observed = observer.observe(release, aggregate)
    assert observed["probe"]["moved"] == pytest.approx(1.0, abs=1e-6)
    noise = observed["noise"]
    drawn = np.random.default_rng(3).standard_normal(5000)
    # Rounding of a release of 200 / 20,000 to float32, in standard deviations of the noise.
    assert noise["head"] == pytest.approx(drawn[:8].tolist(), abs=200 * 2**-23 / 0.8)
    assert noise["sum_squares"] / noise["count"] == pytest.approx(np.square(drawn).mean(), rel=1e-3)
    assert noise["sum_squares"] / noise["count"] == pytest.approx(1.0, abs=0.1)


def test_a_mean_without_noise_is_float32() -> None:
    total = torch.tensor([1.0, 2.0], dtype=torch.float64)
    mean = mean_of(total, 4.0)
    assert mean.dtype == torch.float32
    assert mean.tolist() == [0.25, 0.5]
    assert torch.equal(noised_mean(total, 0.0, 4.0, np.random.default_rng(0)), mean)
    noisy = mean_of(total, 4.0, np.array([3.0, -2.0]))
    assert noisy.dtype == torch.float32
    assert noisy.tolist() == [1.0, 0.0]
