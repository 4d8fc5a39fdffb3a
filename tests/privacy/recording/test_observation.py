"""What the ledger keeps of a round is seen from outside, and changes nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from privacy.aggregate import Aggregate
from privacy.errors import PrivacyError
from privacy.mechanism import NoiseScale, Release, noised_mean
from privacy.mechanisms import adaptive_gaussian, gaussian
from privacy.recording.observation import Observer, ParticipationHistory
from privacy.recording.sum_watch import COMPARED

P, COHORT = 20_000, 8.0


def filled(seed: int = 0) -> Aggregate:
    aggregate = Aggregate.zeros(P)
    mechanism = gaussian.build(gaussian.Options(clip_norm=1.0), NoiseScale(1.0, COHORT, COHORT))
    for update in torch.from_numpy(np.random.default_rng(seed).normal(size=(5, P))):
        mechanism.accumulate(aggregate, update, 1.0)
    return aggregate


def released(aggregate: Aggregate, claimed: float, real: float, seed: int = 1) -> Release:
    rng = np.random.default_rng(seed)
    return Release(noised_mean(aggregate.total, real, COHORT, rng), 1.0, claimed, None, None)


def noise_of(observer: Observer, release: Release, aggregate: Aggregate) -> dict[str, Any]:
    noise = observer.observe(release, aggregate)["noise"]
    assert isinstance(noise, dict)
    return noise


def test_true_noise_has_unit_variance() -> None:
    aggregate = filled()
    noise = noise_of(Observer(COHORT), released(aggregate, 2.0, 2.0), aggregate)
    assert noise["count"] == P
    assert noise["sum_squares"] / P == pytest.approx(1.0, abs=0.05)
    assert abs(noise["dot_sum"]) < 5.0
    assert noise["rounding"] < 1e-6


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_noise_of_another_scale_is_seen(factor: float) -> None:
    aggregate = filled()
    noise = noise_of(Observer(COHORT), released(aggregate, 2.0, 2.0 * factor), aggregate)
    assert noise["sum_squares"] / P == pytest.approx(factor**2, rel=0.05)


def test_no_noise_is_seen_as_none() -> None:
    aggregate = filled()
    noise = noise_of(Observer(COHORT), released(aggregate, 2.0, 0.0), aggregate)
    assert noise["sum_squares"] / P < 1e-6


def test_another_denominator_shows_in_the_product_with_the_sum() -> None:
    aggregate = filled()
    release = Release(aggregate.total / 5.0, 1.0, 0.01, None, None)
    assert abs(noise_of(Observer(COHORT), release, aggregate)["dot_sum"]) > 100.0


def test_the_count_noise_is_recovered() -> None:
    options = adaptive_gaussian.Options(clip_norm=1.0, quantile=0.5, count_noise_stddev=3.0)
    mechanism = adaptive_gaussian.build(options, NoiseScale(1.0, COHORT, COHORT))
    aggregate = Aggregate.zeros(P)
    mechanism.accumulate(aggregate, torch.ones(P), 1.0)
    rng, same = np.random.default_rng(4), np.random.default_rng(4)
    release = mechanism.release(aggregate, rng)
    same.standard_normal(P)
    noise = noise_of(Observer(COHORT), release, aggregate)
    assert noise["count_draw"] == pytest.approx(float(same.standard_normal()))


def test_a_probe_sees_what_the_sum_really_did() -> None:
    aggregate, observer = filled(), Observer(COHORT)
    update = torch.full((P,), 1.0)
    observer.begin(0)
    observer.before(aggregate, update)
    aggregate.total.add_(update)  # as a broken clip would
    aggregate.bit_sum += 0.5
    observer.after(aggregate, 1.0)
    probe = observer.observe(released(aggregate, 2.0, 2.0), aggregate)["probe"]
    assert probe["norm"] == pytest.approx(math.sqrt(P))
    assert probe["moved"] == pytest.approx(math.sqrt(P), rel=1e-5)
    assert probe["bit"] == 0.5
    observer.begin(-1)
    assert observer.observe(released(aggregate, 2.0, 2.0), aggregate)["probe"] is None


def test_of_all_probed_clients_the_furthest_from_the_bound_is_kept() -> None:
    aggregate, observer = Aggregate.zeros(P), Observer(COHORT, probes_all=True)
    observer.begin(-1)
    for factor in (0.5, 3.0, 1.0):
        update = torch.full((P,), factor / math.sqrt(P))
        observer.before(aggregate, update)
        aggregate.total.add_(update)
        aggregate.bit_sum += 0.5
        observer.after(aggregate, 1.0)
    observed = observer.observe(released(aggregate, 2.0, 2.0), aggregate)
    assert observed["probe"]["norm"] == pytest.approx(3.0, rel=1e-5)
    assert observed["unseen"] == 0.0


def test_what_moves_the_sum_between_clients_is_seen() -> None:
    aggregate, observer = Aggregate.zeros(P), Observer(COHORT, probes_all=True)
    observer.begin(-1)
    update = torch.full((P,), 1.0 / math.sqrt(P))
    observer.before(aggregate, update)
    aggregate.total.add_(update)
    observer.after(aggregate, 1.0)
    aggregate.total.add_(update, alpha=2.0)
    observed = observer.observe(released(aggregate, 2.0, 2.0), aggregate)
    assert observed["unseen"] == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
        pytest.param(
            "mps",
            marks=pytest.mark.skipif(
                not torch.backends.mps.is_available(), reason="needs Apple's MPS"
            ),
        ),
    ],
)
@pytest.mark.parametrize("doubled", [False, True])
def test_a_part_that_is_added_twice_is_seen(device: str, doubled: bool) -> None:
    observer, whole, parts = Observer(COHORT, probes_all=True), Aggregate.zeros(P, device), []
    mechanism = gaussian.build(gaussian.Options(clip_norm=1.0), NoiseScale(1.0, COHORT, COHORT))
    for seed in range(3):
        part = Aggregate.zeros(P, device)
        observer.begin(-1)
        update = torch.from_numpy(np.random.default_rng(seed).normal(size=P)).float().to(device)
        observer.before(part, update)
        mechanism.accumulate(part, update, 1.0)
        observer.after(part, 1.0)
        parts.append(observer.seen(part))
        whole.merge(part)
    if doubled:
        whole.total.add_(part.total)
    observer.merge(parts, whole)
    observed = observer.observe(released(whole, 2.0, 2.0), whole)
    assert observed["unseen"] == (pytest.approx(1.0, rel=1e-5) if doubled else 0.0)


def test_an_l1_clip_is_watched_in_l1() -> None:
    aggregate, observer = Aggregate.zeros(P), Observer(COHORT, norm="l1")
    observer.begin(0)
    update = torch.full((P,), 1.0 / P)
    observer.before(aggregate, update)
    aggregate.total.add_(update)
    observer.after(aggregate, 1.0)
    observed = observer.observe(released(aggregate, 2.0, 2.0), aggregate)
    assert observed["probe"]["norm"] == pytest.approx(1.0, rel=1e-5)
    assert observed["probe"]["moved"] == pytest.approx(1.0, rel=1e-5)


def test_participation_is_counted_over_a_resume() -> None:
    history, resumed = ParticipationHistory(5), ParticipationHistory(5)
    keys = ("returning", "smallest_gap", "largest_count")

    def added(to: ParticipationHistory, users: list[int], number: int) -> tuple[int | None, ...]:
        recorded = to.add(np.array(users, dtype=np.int64), number)
        assert set(recorded) == set(keys)
        return tuple(recorded[key] for key in keys)

    assert added(history, [0, 1], 1) == (0, None, 1)
    assert added(history, [], 2) == (0, None, 0)
    assert added(history, [1, 2], 3) == (1, 2, 2)
    resumed.load_state_dict(history.state_dict())
    assert added(resumed, [1, 2, 4], 4) == (3, 1, 3)
    assert added(resumed, [0], 5) == (1, 4, 2)
    with pytest.raises(PrivacyError, match="6 users"):
        ParticipationHistory(6).load_state_dict(history.state_dict())


def test_what_is_not_finite_is_recorded_as_null() -> None:
    aggregate = filled()
    aggregate.total[0] = math.nan
    observed = Observer(COHORT).observe(released(aggregate, 2.0, 2.0), aggregate)
    assert observed["sum_norm"] is None
    assert observed["noise"]["sum_squares"] is None


def test_parts_of_a_large_model_that_do_not_come_to_the_sum_are_refused() -> None:
    size = 3 * COMPARED
    observer = Observer(COHORT)
    parts, total = [], torch.zeros(size)
    for part in range(4):
        aggregate = Aggregate.zeros(size)
        observer.begin(-1)
        observer.before(aggregate, torch.ones(size))
        aggregate.total.copy_(torch.randn(size, generator=torch.Generator().manual_seed(part)))
        observer.after(aggregate, 1.0)
        parts.append(observer.seen(aggregate))
        total += aggregate.total
    observer.merge(parts, Aggregate(total))
    # A part that nobody was in has no sum to compare.
    observer.begin(-1)
    observer.merge([*parts, observer.seen(Aggregate.zeros(size))], Aggregate(total))
    for wrong in (parts[1:], [*parts, parts[2]]):
        with pytest.raises(PrivacyError, match="lost or counted twice"):
            observer.merge(wrong, Aggregate(total))
