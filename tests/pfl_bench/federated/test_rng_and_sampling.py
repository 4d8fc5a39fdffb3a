from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from pfl_bench.federated.sampling import (
    SampledParticipants,
    Sampler,
    build_participants,
    build_sampler,
    draw_members,
)
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.types import ConfigError
from privacy.sampling_scheme import Participation, scheme_named
from tests.helpers import make_config, parts_of


def test_a_stream_is_named_by_all_of_its_parts() -> None:
    names = itertools.product((0, 1, 2**40), (Purpose.NOISE, Purpose.SAMPLING), (0, 1), (0, 1))
    firsts = [stream(*name).random(4).tolist() for name in names]
    assert len({tuple(first) for first in firsts}) == len(firsts)


def test_a_stream_does_not_depend_on_what_was_drawn_elsewhere() -> None:
    first = stream(5, Purpose.NOISE, 7, 9).random(8)
    stream(5, Purpose.NOISE, 7, 8).random(1000)
    np.testing.assert_array_equal(first, stream(5, Purpose.NOISE, 7, 9).random(8))


def test_streams_are_part_of_the_format() -> None:
    # From this code, 2026: another value would silently change every run of a given seed.
    assert stream(0, Purpose.NOISE, 1).integers(2**32, size=3).tolist() == GOLDEN


GOLDEN = [4045391259, 1610977145, 2686723778]


def test_torch_draws_follow_the_name() -> None:
    device = torch.device("cpu")
    seed_torch(1, Purpose.LOCAL_TRAINING, device, 2, 3)
    first = torch.rand(4)
    torch.rand(100)
    seed_torch(1, Purpose.LOCAL_TRAINING, device, 2, 3)
    assert torch.equal(first, torch.rand(4))


def test_poisson_sampling_is_independent_coins() -> None:
    sampler = build_sampler(scheme_named("poisson"), 50, 10)
    draws = [sampler.draw(stream(0, Purpose.SAMPLING, index)) for index in range(1, 4001)]
    sizes = [len(draw) for draw in draws]
    # The size is binomial, and each pair of users meets with probability q squared.
    expected = 4000 * stats.binom.pmf(range(51), 50, 0.2)
    keep = expected > 5
    observed = np.bincount(sizes, minlength=51)[keep]
    scaled = expected[keep] * observed.sum() / expected[keep].sum()
    assert stats.chisquare(observed, scaled).pvalue > 1e-4
    together = sum(0 in draw and 1 in draw for draw in draws)
    assert stats.binomtest(together, 4000, 0.04).pvalue > 1e-4
    counts = np.bincount(np.concatenate(draws), minlength=50)
    assert stats.binomtest(int(counts.max()), 4000, 0.2).pvalue > 1e-6


@pytest.mark.parametrize("scheme", ["poisson", "fixed_size", "full"])
def test_no_user_is_drawn_twice_and_the_order_is_sorted(scheme: str) -> None:
    sampler = build_sampler(scheme_named(scheme), 30, 30 if scheme == "full" else 12)
    for index in range(1, 200):
        users = sampler.draw(stream(1, Purpose.SAMPLING, index))
        assert np.all(np.diff(users) > 0)
        assert users.size == 0 or (users[0] >= 0 and users[-1] < 30)
        if scheme != "poisson":
            assert len(users) == sampler.participation.cohort_size


def test_an_empty_cohort_is_legal() -> None:
    sampler = build_sampler(scheme_named("poisson"), 100, 1)
    sizes = [len(sampler.draw(stream(2, Purpose.SAMPLING, i))) for i in range(1, 100)]
    assert 0 in sizes


def test_fixed_size_sampling_is_uniform_over_users() -> None:
    sampler = build_sampler(scheme_named("fixed_size"), 20, 5)
    draws = [sampler.draw(stream(3, Purpose.SAMPLING, i)) for i in range(1, 2001)]
    assert stats.chisquare(np.bincount(np.concatenate(draws))).pvalue > 1e-4


@pytest.mark.parametrize(
    ("scheme", "cohort", "words"),
    [("poisson", 21, "outside 1..20"), ("fixed_size", 0, "outside 1..20"), ("full", 3, "all 20")],
)
def test_a_cohort_that_does_not_fit_is_refused(scheme: str, cohort: int, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"federated\.cohort_size: .*{words}"):
        build_sampler(scheme_named(scheme), 20, cohort)


def test_shadow_runs_toss_a_fair_coin_of_their_own_for_each_user() -> None:
    """An attack's bound on epsilon counts guesses of such coins."""
    first, second = (draw_members(3, shadow, 40_000) for shadow in (1, 2))
    for heads in (first, second, first == second):
        # Four standard deviations are 400.
        assert int(heads.sum()) == pytest.approx(20_000, abs=400)
    assert not np.array_equal(first, draw_members(4, 1, 40_000))


@pytest.mark.parametrize("shadow", [0, 1])
def test_a_shadow_run_s_users_follow_from_its_seed_alone(shadow: int, tmp_path: Path) -> None:
    """Which an attack knows; the seed of a private run's noise takes in what it does not."""
    changes = {"federated__sampling": "full", "federated__cohort_size": 60}
    parts = parts_of(make_config("federated", federated__shadow=shadow, **changes))
    found = build_participants(parts, None, 2**70, tmp_path)
    expected = draw_members(parts.resolved.config.seed, shadow, 60)
    drawn = found.draw(1, stream(0, Purpose.SAMPLING, 1))
    assert drawn.tolist() == np.flatnonzero(expected).tolist()


def cyclic(num_users: int = 400, cohort: int = 20, separation: int = 10) -> Sampler:
    scheme = scheme_named("cyclic_poisson", separation)
    return build_sampler(scheme, num_users, cohort, stream(3, Purpose.SAMPLING))


def test_cyclic_rounds_of_one_user_are_apart_by_a_multiple_of_the_separation() -> None:
    sampler = cyclic()
    seen: dict[int, list[int]] = {}
    for index in range(1, 201):
        for user in sampler.draw(stream(3, Purpose.SAMPLING, index), index):
            seen.setdefault(int(user), []).append(index)
    gaps = {gap for rounds in seen.values() for gap in np.diff(rounds)}
    assert gaps
    assert all(gap % 10 == 0 and gap > 0 for gap in gaps)
    # 20 cycles at q_g = 20 * 10 / 400: each user is in about 10 rounds; 4,000 draws in all.
    assert sum(map(len, seen.values())) == pytest.approx(4000, abs=4 * math.sqrt(400 * 20 / 4))


def test_groups_are_drawn_by_the_seed_of_noise_and_take_turns(tmp_path: Path) -> None:
    """Which a private run derives, so that none shares its groups."""
    changes = {"federated__sampling": "cyclic_poisson", "federated__separation": 3}
    parts = parts_of(make_config("federated", **changes))
    found = build_participants(parts, None, 2**70, tmp_path)
    assert isinstance(found, SampledParticipants)
    users = Participation.named("cyclic_poisson", 60, 12, 3)
    expected = users.scheme.assign(users, stream(2**70, Purpose.SAMPLING, 0))
    assert expected is not None
    np.testing.assert_array_equal(found._sampler.groups, expected)
    for index in range(1, 7):  # each group has its turn
        drawn = found.draw(index, stream(0, Purpose.SAMPLING, index))
        assert set(expected[drawn].tolist()) == {(index - 1) % 3}


def test_groups_are_drawn_uniformly() -> None:
    users = Participation.named("cyclic_poisson", 4000, 20, 10)
    groups = users.scheme.assign(users, np.random.default_rng(0))
    assert groups is not None
    # Binomial(4000, 0.1): four standard deviations are 76.
    assert np.abs(np.bincount(groups, minlength=10) - 400).max() < 76


def test_a_small_group_has_no_higher_probability() -> None:
    users, rng = Participation.named("cyclic_poisson", 1000, 50, 4), np.random.default_rng(0)
    groups = np.repeat([0, 1, 2, 3], [100, 300, 300, 300])
    drawn = [users.scheme.draw(users, rng, 1, groups) for _ in range(300)]
    assert max(np.concatenate(drawn)) < 100, "the first round is the first group's"
    # Binomial(100, 0.2) a round: of the mean of 300, four standard deviations are 0.93.
    assert np.mean([len(one) for one in drawn]) == pytest.approx(20.0, abs=0.93)


def test_a_user_more_changes_no_other_user_s_group() -> None:
    few, many = cyclic(400), cyclic(401)
    assert few.groups is not None
    assert many.groups is not None
    assert np.array_equal(few.groups, many.groups[:400])


@pytest.mark.parametrize(
    ("scheme", "cohort", "separation", "message"),
    [("cyclic_poisson", 19, 22, r"at most 21\.$"), ("poisson", 20, 2, "cyclic_poisson")],
)
def test_separations_that_cannot_be_kept(
    scheme: str, cohort: int, separation: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_sampler(scheme_named(scheme, separation), 400, cohort, stream(0, Purpose.SAMPLING))
