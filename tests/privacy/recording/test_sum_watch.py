"""Every client of a round is watched, in large models too, and reports are measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from privacy.aggregate import Aggregate
from privacy.clipping import add_clipped_
from privacy.mechanism import Mechanism, NoiseScale
from privacy.mechanisms import gaussian, local_gaussian, privunit
from privacy.recording.shard_observation import ShardObservation
from privacy.recording.sum_watch import COMPARED, SumWatch

LARGE, CLIENTS, CLIP_NORM = 3 * COMPARED, 6, 0.5
Take = Callable[[Aggregate, Tensor, int], None]


def update_of(client: int, size: int = LARGE) -> Tensor:
    rng = np.random.default_rng(client)
    return torch.from_numpy(rng.normal(0.0, 2.0 * CLIP_NORM / math.sqrt(size), size)).float()


def watched(take: Take, size: int = LARGE) -> ShardObservation:
    aggregate, watch = Aggregate.zeros(size), SumWatch("l2", watches_all=True)
    watch.begin(-1)
    for client in range(CLIENTS):
        update = update_of(client, size)
        watch.before(aggregate, update)
        take(aggregate, update, client)
        watch.after(aggregate, CLIP_NORM)
    whole = Aggregate.zeros(size)
    part = watch.seen(aggregate)
    whole.merge(aggregate)
    watch.merge([part], whole)
    return watch.result(whole)


def clip(aggregate: Aggregate, update: Tensor, bound: float = CLIP_NORM) -> None:
    aggregate.count(add_clipped_(aggregate.total, update, bound))


@pytest.mark.parametrize("bad", range(CLIENTS))
def test_any_one_client_of_a_large_model_that_is_not_clipped_is_found(bad: int) -> None:
    seen = watched(lambda sum_, update, k: clip(sum_, update, 9.0 if k == bad else CLIP_NORM))
    assert seen.worst is not None
    assert seen.worst[1]["moved"] == pytest.approx(float(update_of(bad).norm()), rel=1e-5)
    assert (seen.watched, seen.unseen) == (CLIENTS, 0.0)


def test_clients_that_are_clipped_are_within_the_bound() -> None:
    seen = watched(lambda sum_, update, _: clip(sum_, update))
    assert seen.worst is not None
    assert seen.worst[0] < 1e-5
    assert seen.reports is None


def test_the_largest_element_is_measured_where_each_is_cut_off() -> None:
    for bad in (None, CLIENTS - 1):
        aggregate, watch = Aggregate.zeros(LARGE), SumWatch("linf", watches_all=True)
        watch.begin(-1)
        for client in range(CLIENTS):
            update = 100.0 * update_of(client)
            watch.before(aggregate, update)
            clipped = update.clamp(-CLIP_NORM, CLIP_NORM)
            clipped[COMPARED] = 0.9 if client == bad else clipped[COMPARED]
            aggregate.total.add_(clipped)
            aggregate.bit_sum -= 0.5
            watch.after(aggregate, CLIP_NORM)
        worst = watch.settle([watch.seen(aggregate)])[0].worst
        assert worst is not None
        assert worst[1]["moved"] == pytest.approx(CLIP_NORM if bad is None else 0.9, rel=1e-5)


def test_a_client_beyond_the_bound_does_not_hide_behind_one_that_moved_less_than_it_may() -> None:
    aggregate = Aggregate.zeros(4)
    watch = SumWatch("l2", watches_all=True, clips_to_bound=False)
    watch.begin(-1)
    # What clients whose update is at the bound move the sum by.
    for moved in (0.0, 1.2 * CLIP_NORM, 0.5 * CLIP_NORM):
        watch.before(aggregate, torch.tensor([CLIP_NORM, 0.0, 0.0, 0.0]))
        aggregate.total[0] += moved
        aggregate.bit_sum += 0.5
        watch.after(aggregate, CLIP_NORM)
    worst = watch.settle([watch.seen(aggregate)])[0].worst
    assert worst is not None
    assert worst[1]["moved"] == pytest.approx(1.2 * CLIP_NORM)
    # One whose update is not finite must not move it at all.
    watch.before(aggregate, torch.full((4,), math.nan))
    aggregate.total[0] += 0.3 * CLIP_NORM
    watch.after(aggregate, CLIP_NORM)
    worst = watch.settle([watch.seen(aggregate)])[0].worst
    assert worst is not None
    assert worst[1]["moved"] == pytest.approx(0.3 * CLIP_NORM)


def test_what_moves_a_large_sum_between_clients_is_seen() -> None:
    aggregate, watch = Aggregate.zeros(LARGE), SumWatch("l2", watches_all=True)
    watch.begin(-1)
    for client in range(3):
        aggregate.total[client] += 0.25
        watch.before(aggregate, update_of(client))
        clip(aggregate, update_of(client))
        watch.after(aggregate, CLIP_NORM)
    assert watch.settle([watch.seen(aggregate)])[0].unseen == pytest.approx(0.75, rel=1e-4)


def test_parts_use_the_same_memory_and_begin_at_zero() -> None:
    watch, mechanism = (
        SumWatch("l2", watches_all=True),
        gaussian.Gaussian(CLIP_NORM, NoiseScale(1.0, 8, 8)),
    )
    whole, parts = Aggregate.zeros(LARGE), []
    for first in (0, 10):
        aggregate = Aggregate.zeros(LARGE)
        watch.begin(-1)
        for client in range(first, first + 3):
            watch.before(aggregate, update_of(client))
            mechanism.accumulate(aggregate, update_of(client), 1.0)
            watch.after(aggregate, CLIP_NORM)
        parts.append(watch.seen(aggregate))
        whole.merge(aggregate)
    watch.merge(parts, whole)
    seen = watch.result(whole)
    assert (seen.watched, seen.unseen) == (6, 0.0)


@pytest.mark.parametrize("build", [local_gaussian.LocalGaussian, privunit.PrivUnit])
def test_reports_are_measured_as_they_are_sent(
    build: Callable[[float, NoiseScale], Mechanism],
) -> None:
    size = 400
    mechanism = build(CLIP_NORM, NoiseScale(0.5, CLIENTS, CLIENTS))

    def take(sum_: Aggregate, update: Tensor, client: int) -> None:
        mechanism.accumulate(sum_, update, 1.0, np.random.default_rng(client))

    reports, noises, along = [], [], 0.0
    for client in range(CLIENTS):
        alone = Aggregate.zeros(size)
        take(alone, update_of(client, size), client)
        assert alone.clipped_total is not None
        reports.append(float(alone.total.double().norm()))
        noises.append(float((alone.total - alone.clipped_total).double().norm()))
        along += float(alone.total @ alone.clipped_total / alone.clipped_total.norm())
    found = watched(take, size).reports
    assert found is not None
    assert found.count == found.directed == CLIENTS
    assert found.shortest == pytest.approx(min(reports), rel=1e-5)
    assert found.longest == pytest.approx(max(reports), rel=1e-5)
    assert found.quietest == pytest.approx(min(noises), rel=1e-5)
    assert found.loudest == pytest.approx(max(noises), rel=1e-5)
    assert found.along == pytest.approx(along, rel=1e-4, abs=1e-5)
