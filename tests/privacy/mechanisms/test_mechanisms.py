"""Mechanisms: the noise has the scale that is accounted, once, whatever the cohort."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from privacy.aggregate import Aggregate
from privacy.clipping import MAX_CLIP_NORM, MIN_CLIP_NORM
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import Mechanism, NoiseScale, noised_mean
from privacy.mechanisms import adaptive_gaussian, gaussian, none
from privacy.mechanisms.adaptive_gaussian import split_noise

MULTIPLIER, COHORT, NOISE_COHORT, CLIP = 1.5, 20, 100, 0.5
NOISE = NoiseScale(MULTIPLIER, COHORT, NOISE_COHORT)


def make(name: str, noise: NoiseScale = NOISE, **options: Any) -> Mechanism:
    if name == "gaussian":
        return gaussian.build(gaussian.Options(**{"clip_norm": CLIP, **options}), noise)
    if name == "adaptive_gaussian":
        adaptive = adaptive_gaussian.Options(**{"clip_norm": CLIP, "quantile": 0.5, **options})
        return adaptive_gaussian.build(adaptive, noise)
    return none.build(none.Options(), NoiseScale(0.0, COHORT, COHORT))


def ks_p_value(sample: np.ndarray[Any, Any], scale: float) -> float:
    return float(stats.kstest(sample, stats.norm(0.0, scale).cdf).pvalue)


def assert_scale(sample: np.ndarray[Any, Any], scale: float) -> None:
    assert ks_p_value(sample, scale) > 1e-3
    assert ks_p_value(sample, scale * 2 / 3) < 1e-6
    assert ks_p_value(sample, scale * 3 / 2) < 1e-6


@pytest.mark.parametrize("name", ["gaussian", "adaptive_gaussian"])
def test_update_noise_has_the_scale_that_is_accounted(name: str) -> None:
    mechanism = make(name)
    release = mechanism.release(Aggregate.zeros(5000), np.random.default_rng(1))
    on_update = MULTIPLIER if name == "gaussian" else split_noise(MULTIPLIER, NOISE_COHORT / 20)
    wanted = on_update * COHORT / NOISE_COHORT * CLIP
    assert release.update_noise_stddev == pytest.approx(wanted)
    assert mechanism.update_noise_multiplier == pytest.approx(on_update)
    assert_scale(release.mean_update.numpy() * COHORT, wanted)


@pytest.mark.parametrize("length", [1, 65_537])
def test_every_element_is_noised_where_the_noise_is_drawn_in_pieces(length: int) -> None:
    mean = noised_mean(torch.ones(length), 3.0, 2.0, np.random.default_rng(5))
    noise = (3.0 * np.random.default_rng(5).standard_normal(length)).astype(np.float32)
    assert torch.equal(mean, (torch.from_numpy(noise) + 1.0) / 2.0)


def test_count_noise_has_the_scale_that_is_accounted() -> None:
    mechanism = make("adaptive_gaussian")
    rng = np.random.default_rng(2)
    noise = []
    for _ in range(3000):
        mechanism.load_state_dict({"clip_norm": CLIP})
        release = mechanism.release(Aggregate.zeros(1), rng)
        assert release.noisy_fraction_unclipped is not None
        noise.append((release.noisy_fraction_unclipped - 0.5) * COHORT)
    wanted = NOISE_COHORT / 20 * COHORT / NOISE_COHORT
    assert release.count_noise_stddev == pytest.approx(wanted)
    assert_scale(np.array(noise), wanted)


@pytest.mark.parametrize("name", ["gaussian", "adaptive_gaussian"])
def test_the_noise_does_not_depend_on_who_took_part(name: str) -> None:
    """Same stream, same noise: an empty cohort and a full one differ by the sum alone."""
    aggregate = Aggregate.zeros(50)
    mechanism = make(name)
    for _ in range(3):
        mechanism.accumulate(aggregate, torch.full((50,), 0.01), 1.0)
    full = mechanism.release(aggregate, np.random.default_rng(3))
    empty = make(name).release(Aggregate.zeros(50), np.random.default_rng(3))
    assert not torch.equal(empty.mean_update, torch.zeros(50))
    # The denominator is the configured cohort of 20, not the 3 users who came.
    difference = (full.mean_update - empty.mean_update) * COHORT
    assert torch.allclose(difference, torch.full((50,), 0.03), atol=1e-5)
    assert full.update_noise_stddev == empty.update_noise_stddev


@pytest.mark.parametrize("name", ["gaussian", "adaptive_gaussian"])
def test_rounds_draw_fresh_noise_and_equal_streams_equal_noise(name: str) -> None:
    rng = np.random.default_rng(4)
    mechanism = make(name)
    first, second = (mechanism.release(Aggregate.zeros(9), rng).mean_update for _ in range(2))
    assert not torch.equal(first, second)
    again = make(name).release(Aggregate.zeros(9), np.random.default_rng(4)).mean_update
    assert torch.equal(first, again)


@pytest.mark.parametrize("name", ["gaussian", "adaptive_gaussian"])
def test_one_user_moves_the_sums_by_at_most_what_the_noise_is_scaled_to(name: str) -> None:
    rng = torch.Generator().manual_seed(5)
    mechanism = make(name)
    aggregate = Aggregate.zeros(64)
    for size in (1e-3, 0.1, 1.0, 1e6, 1e30, math.nan, math.inf):
        total, bits = aggregate.total.to(torch.float64), aggregate.bit_sum
        mechanism.accumulate(aggregate, torch.randn(64, generator=rng) * size, 1.0)
        moved = torch.linalg.vector_norm(aggregate.total.to(torch.float64) - total)
        assert float(moved) <= CLIP * (1 + 1e-6)
        assert abs(aggregate.bit_sum - bits) <= 0.5
    assert aggregate.largest_clipped_norm <= CLIP
    assert aggregate.largest_norm > 1e30
    assert (aggregate.num_contributions, aggregate.num_nonfinite) == (5, 2)
    # At dimension 64 the first update alone is certain to be within the bound.
    assert aggregate.num_clipped == 4
    assert aggregate.bit_sum == 0.5 - 4 * 0.5


@pytest.mark.parametrize("name", ["gaussian", "adaptive_gaussian"])
@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0, math.nan])
def test_private_mechanisms_refuse_weights(name: str, weight: float) -> None:
    aggregate = Aggregate.zeros(2)
    with pytest.raises(PlanError, match="weight 1"):
        make(name).accumulate(aggregate, torch.ones(2), weight)
    assert torch.equal(aggregate.total, torch.zeros(2))


@pytest.mark.parametrize("name", ["none", "gaussian", "adaptive_gaussian"])
def test_workers_merge_to_what_one_would_have(name: str) -> None:
    mechanism = make(name)
    generator = torch.Generator().manual_seed(6)
    updates = [torch.randn(30, generator=generator) * 0.1 for _ in range(6)]
    updates[4][0] = math.nan
    updates[5] *= 2.0
    alone, workers = Aggregate.zeros(30), [Aggregate.zeros(30), Aggregate.zeros(30)]
    for index, update in enumerate(updates):
        mechanism.accumulate(alone, update, 1.0)
        mechanism.accumulate(workers[index % 2], update, 1.0)
    workers[0].merge(workers[1])
    assert torch.allclose(workers[0].total, alone.total, atol=1e-6)
    for field in ("weight", "bit_sum", "num_contributions", "num_nonfinite", "num_clipped"):
        assert getattr(workers[0], field) == getattr(alone, field)
    assert workers[0].largest_norm == alone.largest_norm
    assert workers[0].largest_clipped_norm == alone.largest_clipped_norm


def test_merging_different_models_is_refused() -> None:
    with pytest.raises(ValueError, match="same model"):
        Aggregate.zeros(2).merge(Aggregate.zeros(3))


@pytest.mark.parametrize("name", ["gaussian", "adaptive_gaussian"])
def test_switched_off_it_equals_none_bit_for_bit(name: str) -> None:
    private = make(name, NoiseScale(0.0, 3, 3), clip_norm=1e6)
    plain = make("none")
    sums = Aggregate.zeros(100), Aggregate.zeros(100)
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        update = torch.randn(100, generator=generator)
        for mechanism, aggregate in zip((private, plain), sums, strict=True):
            mechanism.accumulate(aggregate, update, 1.0)
    rng = np.random.default_rng(0)
    released = private.release(sums[0], rng), plain.release(sums[1], rng)
    assert torch.equal(released[0].mean_update, released[1].mean_update)
    assert released[0].update_noise_stddev == 0.0


def test_none_divides_by_the_realised_weight_and_skips_nonfinite_weights_too() -> None:
    aggregate = Aggregate.zeros(1)
    mechanism = make("none")
    for value, weight in ((1.0, 1.0), (4.0, 2.0), (math.inf, 100.0)):
        mechanism.accumulate(aggregate, torch.tensor([value]), weight)
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert float(release.mean_update) == pytest.approx(3.0)
    assert (aggregate.num_contributions, aggregate.num_nonfinite) == (2, 1)
    assert not mechanism.is_private


def test_none_gives_a_zero_update_for_an_empty_cohort() -> None:
    release = make("none").release(Aggregate.zeros(3), np.random.default_rng(0))
    assert torch.equal(release.mean_update, torch.zeros(3))
    assert release.clip_norm is release.count_noise_stddev is None


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_none_refuses_weights_that_are_no_weights(weight: float) -> None:
    with pytest.raises(PrivacyError, match="weight"):
        make("none").accumulate(Aggregate.zeros(1), torch.ones(1), weight)


def test_none_refuses_noise() -> None:
    with pytest.raises(PrivacyError, match="adds no noise"):
        none.build(none.Options(), NOISE)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.2, 10.0])
def test_the_bound_converges_to_the_quantile(quantile: float, start: float) -> None:
    """Norms are lognormal; a wrong sign in the update of the bound would run away."""
    rng = np.random.default_rng(8)
    mechanism = make(
        "adaptive_gaussian", NoiseScale(0.5, 100, 100), clip_norm=start, quantile=quantile
    )
    bounds = []
    for _ in range(200):
        aggregate = Aggregate.zeros(1)
        for norm in rng.lognormal(mean=0.0, sigma=0.5, size=100):
            mechanism.accumulate(aggregate, torch.tensor([norm], dtype=torch.float32), 1.0)
        mechanism.release(aggregate, rng)
        bounds.append(mechanism.clip_norm)
    wanted = float(stats.lognorm.ppf(quantile, s=0.5))
    settled = float(np.exp(np.mean(np.log(np.array(bounds[100:], dtype=float)))))
    assert settled == pytest.approx(wanted, rel=0.05)


def test_the_bound_moves_as_the_paper_says() -> None:
    mechanism = make("adaptive_gaussian", NoiseScale(0.0, 4, 4), quantile=0.25)
    aggregate = Aggregate.zeros(1)
    for norm in (0.1, 0.2, 0.3, 9.0):
        mechanism.accumulate(aggregate, torch.tensor([norm]), 1.0)
    release = mechanism.release(aggregate, np.random.default_rng(0))
    assert release.clip_norm == CLIP
    assert release.noisy_fraction_unclipped == 0.75
    assert mechanism.clip_norm == pytest.approx(CLIP * math.exp(-0.2 * (0.75 - 0.25)))


def test_a_mechanism_that_keeps_more_follows_the_bound() -> None:
    class WithMomentum(adaptive_gaussian.AdaptiveGaussian):
        def load_state_dict(self, state: Mapping[str, float]) -> None:
            super().load_state_dict({"clip_norm": state["clip_norm"]})
            self.velocity = state["velocity"]

    mechanism = WithMomentum(adaptive_gaussian.Options(clip_norm=CLIP, quantile=0.5), NOISE)
    mechanism.follow(2 * CLIP)
    assert mechanism.clip_norm == 2 * CLIP


def test_the_bound_stays_where_clipping_works() -> None:
    for norm, limit in ((0.0, MIN_CLIP_NORM), (1e30, MAX_CLIP_NORM)):
        mechanism = make("adaptive_gaussian", NoiseScale(0.0, 1, 1), clip_learning_rate=10.0)
        for _ in range(20):
            aggregate = Aggregate.zeros(1)
            mechanism.accumulate(aggregate, torch.tensor([norm]), 1.0)
            mechanism.release(aggregate, np.random.default_rng(0))
        assert mechanism.clip_norm == pytest.approx(limit)


@pytest.mark.parametrize(("z", "count"), [(1.0, 5.0), (18.668, 250.0), (18.668, 9.4), (0.3, 1e6)])
def test_update_and_count_together_cost_the_effective_multiplier(z: float, count: float) -> None:
    on_update = split_noise(z, count)
    assert on_update > z or count > 1e5
    assert on_update**-2 + (2 * count) ** -2 == pytest.approx(z**-2, rel=1e-12)


def test_infeasible_count_noise_says_what_would_be_feasible() -> None:
    mend = r"Set privacy\.mechanism\.count_noise_stddev=18\.67 \(it must be above 9\.334; .*"
    mend += r"fewer federated\.num_rounds or a larger privacy\.epsilon: .*must be below 18"
    with pytest.raises(PlanError, match=mend):
        split_noise(18.668, 9.0)
    with pytest.raises(PlanError, match="count"):
        make("adaptive_gaussian", NoiseScale(2.0, 10, 20))
    with pytest.raises(PlanError, match="count"):
        split_noise(2.0, 1.0)


def test_the_noise_of_a_simulated_cohort_is_that_of_the_deployment() -> None:
    """Per mean, C_sm with scaled noise has the same noise as C_lg with all of it."""
    small = make("adaptive_gaussian", NoiseScale(1.5, 200, 5000))
    large = make("adaptive_gaussian", NoiseScale(1.5, 5000, 5000))
    releases = [m.release(Aggregate.zeros(40), np.random.default_rng(9)) for m in (small, large)]
    assert torch.allclose(releases[0].mean_update, releases[1].mean_update, rtol=1e-5)
    fractions = [r.noisy_fraction_unclipped for r in releases]
    assert fractions[0] == pytest.approx(fractions[1])
    assert small.clip_norm == pytest.approx(large.clip_norm)


def test_without_noise_there_is_no_count_noise_either() -> None:
    mechanism = make("adaptive_gaussian", NoiseScale(0.0, 10, 10))
    release = mechanism.release(Aggregate.zeros(2), np.random.default_rng(0))
    assert release.count_noise_stddev == 0.0
    assert release.noisy_fraction_unclipped == 0.5


@pytest.mark.parametrize("name", ["none", "gaussian", "adaptive_gaussian"])
def test_states_round_trip_and_foreign_ones_are_refused(name: str) -> None:
    mechanism, restored = make(name), make(name)
    mechanism.release(Aggregate.zeros(4), np.random.default_rng(10))
    restored.load_state_dict(mechanism.state_dict())
    assert restored.clip_norm == mechanism.clip_norm
    with pytest.raises(PrivacyError, match="foreign keys"):
        restored.load_state_dict({**mechanism.state_dict(), "momentum": 1.0})
    if mechanism.state_dict():
        with pytest.raises(PrivacyError, match="missing keys"):
            restored.load_state_dict({})
        with pytest.raises(PrivacyError, match="damaged"):
            restored.load_state_dict({"clip_norm": math.nan})


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (gaussian, {}),
        (gaussian, {"clip_norm": 0.0}),
        (gaussian, {"clip_norm": math.inf}),
        (gaussian, {"clip_norm": math.nan}),
        (gaussian, {"clip_norm": "0.1"}),
        (gaussian, {"clip_norm": 1.0, "clip": 1.0}),
        (none, {"clip_norm": 1.0}),
        (adaptive_gaussian, {"clip_norm": 0.1}),
        (adaptive_gaussian, {"clip_norm": 0.1, "quantile": 1.0}),
        (adaptive_gaussian, {"clip_norm": 0.1, "quantile": 0.5, "count_noise_stddev": 0.0}),
        (adaptive_gaussian, {"clip_norm": 0.1, "quantile": 0.5, "clip_learning_rate": -0.2}),
    ],
)
def test_options_are_strict(module: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        module.Options(**options)


def test_clip_settings_are_plain_data() -> None:
    assert make("none").clip_settings() == {"kind": "none"}
    assert make("gaussian").clip_settings() == {"kind": "fixed", "clip_norm": CLIP}
    settings = make("adaptive_gaussian").clip_settings()
    assert settings["initial_clip_norm"] == CLIP
    assert settings["quantile"] == 0.5


@pytest.mark.parametrize("arguments", [(-1.0, 1, 1), (math.inf, 1, 1), (1.0, 0, 1), (1.0, 1, -2)])
def test_noise_scales_that_are_not_allowed(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(PrivacyError, match="must be finite"):
        NoiseScale(*arguments)
