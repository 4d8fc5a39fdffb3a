"""DP-FTRL mechanisms: the noise that is added, what it is accounted as, and what it survives."""

from __future__ import annotations

import io
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, pld
from pydantic import ValidationError
from scipy import stats

from privacy.accountant import compose_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier, max_rounds
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.mechanisms import banded_inverse_square_root as bisr
from privacy.mechanisms import banded_matrix_factorization as banded
from privacy.mechanisms import buffered_toeplitz as blt
from privacy.mechanisms import column_normalized_banded as columns
from privacy.mechanisms import gaussian
from privacy.mechanisms import tree_aggregation as tree
from privacy.noise.banded_columns import column_prefix_errors, matrix_of
from privacy.noise.factorization import (
    prefix_errors,
    square_root_coefficients,
    squared_sensitivities,
)
from privacy.noise.tree_factorization import (
    separated_tree_squared_sensitivity,
    tree_prefix_errors,
    tree_squared_sensitivity,
)

Array = np.ndarray[Any, Any]
MULTIPLIER, COHORT, NOISE_COHORT, CLIP, ROUNDS = 1.5, 20.0, 100.0, 0.5, 12
SCALE = MULTIPLIER * COHORT / NOISE_COHORT * CLIP
NAMES = [
    "square_root",
    "optimized",
    "wide",
    "one_band",
    "tree",
    "restarts",
    "buffers",
    "inverse",
    "columns",
]


def make(
    name: str, multiplier: float = MULTIPLIER, rounds: int = ROUNDS, separation: int = 4
) -> Mechanism:
    noise = NoiseScale(multiplier, COHORT, NOISE_COHORT, num_rounds=rounds, separation=separation)
    if name == "tree":
        return tree.build(tree.Options(clip_norm=CLIP), noise)
    if name == "restarts":
        return tree.build(tree.Options(clip_norm=CLIP, restart_every=5), noise)
    if name == "buffers":
        return blt.build(blt.Options(clip_norm=CLIP, buffers=2), noise)
    if name == "columns":
        return columns.build(columns.Options(clip_norm=CLIP, bands=4), noise)
    if name == "inverse":
        return bisr.build(bisr.Options(clip_norm=CLIP, bands=4), noise)
    bands = {"one_band": 1, "wide": 7}.get(name, 4)
    strategy = "square_root" if name == "square_root" else "optimized"
    options = banded.Options.model_validate(
        {"clip_norm": CLIP, "bands": bands, "strategy": strategy}
    )
    return banded.build(options, noise)


def releases(mechanism: Mechanism, length: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Noise of all rounds (T, P) at multiplier 1; claimed stddevs and lag correlations (T,)."""
    rows, claimed, lags = [], [], []
    for number in range(ROUNDS):
        release = mechanism.release(Aggregate.zeros(length), np.random.default_rng([seed, number]))
        rows.append(release.mean_update.numpy().astype(np.float64) * COHORT / SCALE)
        claimed.append(release.update_noise_stddev / SCALE)
        lags.append(release.lag_correlation)
    return np.array(rows), np.array(claimed), np.array(lags)


def draws(name: str, length: int, seed: int = 0) -> Array:
    """The draws that ``releases`` used, a row a vector of ``length``, in order."""
    rows = []
    for number in range(ROUNDS):
        size = 5 if name == "restarts" else ROUNDS
        index = number % size
        # Ones that end the number of the tree's rounds before: nodes completed beside the leaf.
        extra = len(f"{index:b}") - len(f"{index:b}".rstrip("1"))
        count = 1 + extra if name in ("tree", "restarts") else 1
        rng = np.random.default_rng([seed, number])
        rows += [rng.standard_normal(length) for _ in range(count)]
    return np.array(rows)


def mixing(name: str, separation: int = 4) -> Array:
    """M of noise = M Z, of the real mechanism: found by solving for it from what it was given."""
    made, given = releases(make(name, separation=separation), 64)[0], draws(name, 64)
    matrix = made @ np.linalg.pinv(given)
    assert np.allclose(matrix @ given, made, atol=1e-5)  # Linear in these draws and in no other.
    return matrix


@pytest.mark.parametrize("name", NAMES)
def test_the_noise_is_the_factorisations(name: str) -> None:
    """Marginal and lag as each release claims; for bands M = C^-1, for trees estimates' steps."""
    matrix = mixing(name)
    _, claimed, lags = releases(make(name), 64)
    covariance = matrix @ matrix.T
    stddevs = np.sqrt(np.diag(covariance))
    assert np.allclose(claimed, stddevs, atol=1e-5)
    assert lags[0] == 0.0
    assert np.allclose(lags[1:], np.diag(covariance, 1) / (stddevs[1:] * stddevs[:-1]), atol=1e-5)
    errors = np.diag(np.tri(ROUNDS) @ covariance @ np.tri(ROUNDS).T)
    mechanism = make(name)
    first = mechanism.description.column(ROUNDS)
    if isinstance(mechanism, columns.ColumnNormalizedBanded):
        strategy = matrix_of(mechanism.strategy)
        assert np.allclose(matrix @ strategy, np.eye(ROUNDS), atol=1e-5)
        assert np.allclose(errors, column_prefix_errors(mechanism.strategy), atol=1e-4)
        assert np.linalg.norm(strategy, axis=0) == pytest.approx(1.0)
    elif first is not None:
        strategy = np.zeros((ROUNDS, ROUNDS))
        for column in range(ROUNDS):
            part = first[: ROUNDS - column]
            strategy[column : column + len(part), column] = part
        assert np.allclose(matrix @ strategy, np.eye(ROUNDS), atol=1e-5)
        assert np.allclose(errors, prefix_errors(first, ROUNDS), atol=1e-4)
        assert np.linalg.norm(first) == pytest.approx(1.0)
    else:
        restart = 5 if name == "restarts" else None
        assert np.allclose(errors, tree_prefix_errors(ROUNDS, restart), atol=1e-4)
    assert mechanism.update_noise_multiplier == pytest.approx(MULTIPLIER * stddevs.max(), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("separation", [1, 3, 4])
def test_no_pattern_shows_more_than_is_accounted(name: str, separation: int) -> None:
    """The covariance of the real noise alone: no user's rounds stand out by more than claimed.

    A user who adds the vectors x (a row a round) moves the releases by x; what that shows, over
    all rounds until any stop, is x' S^-1 x, S the covariance of the noise.
    """
    if name == "columns" and separation < 4:
        with pytest.raises(PlanError, match="columns overlap"):
            make(name, separation=separation).composition(
                Participation.named("cyclic_poisson", 400, 20.0, separation), 1.0, 5
            )
        return
    matrix = mixing(name, separation)
    everybody = Participation.named("cyclic_poisson", 400 * separation, 400.0, separation)
    worst = 0.0
    for rounds in (1, 5, 8, ROUNDS):
        inverse = np.linalg.inv((matrix @ matrix.T)[:rounds, :rounds])
        for first in range(min(separation, rounds)):
            own = list(range(first, rounds, separation))
            signs = itertools.product((0.0, 1.0, -1.0), repeat=len(own))
            if len(own) > 6:  # All, alternating, halves: the others are for shorter runs.
                signs = iter([(1.0,) * len(own), tuple((-1.0) ** i for i in range(len(own)))])
            for chosen in signs:
                pattern = np.zeros(rounds)
                pattern[own] = chosen
                worst = max(worst, float(pattern @ inverse @ pattern))
        if name == "one_band":
            assert worst == pytest.approx(-(-rounds // separation), rel=1e-3)
            continue
        composed = make(name, separation=separation).composition(everybody, 1.0, rounds)
        event = composed.event
        if isinstance(event, dp_event.PoissonSampledDpEvent):
            assert event.sampling_probability == 1.0
            event = event.event
        accounted = composed.count / event.noise_multiplier**2
        assert worst <= accounted * (1.0 + 1e-4)
        if name in ("tree", "restarts"):
            restart = 5 if name == "restarts" else None
            squared = tree_squared_sensitivity(rounds, separation, restart)
            assert accounted == pytest.approx(squared, rel=1e-12)
            chosen = Participation.named("selected", 400, 20.0, separation, 1)
            event = make(name, separation=separation).composition(chosen, 1.0, rounds).event
            squared = separated_tree_squared_sensitivity(rounds, separation, 1, restart)
            assert event.noise_multiplier**-2 == pytest.approx(squared, rel=1e-12)
        if name in ("buffers", "inverse"):
            # Exact, after all rounds and after a stop.
            assert worst == pytest.approx(accounted, rel=1e-3)
        if name in ("square_root", "optimized", "wide") and rounds in (1, ROUNDS):
            # Tight, but for columns that the end has cut short.
            assert worst >= 0.5 * accounted


@pytest.mark.parametrize(
    "name", ["optimized", "square_root", "tree", "restarts", "buffers", "inverse", "columns"]
)
def test_draws_have_the_claimed_law_and_no_other(name: str) -> None:
    """Whitened by the claimed covariance: standard normal and independent over rounds."""
    made, claimed, _ = releases(make(name), 2000, seed=1)
    matrix = mixing(name)
    white = np.linalg.solve(np.linalg.cholesky(matrix @ matrix.T), made)
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    total = float((white**2).sum())
    assert 1e-3 < stats.chi2.sf(total, white.size) < 1.0 - 1e-3
    for wrong in (2.0 / 3.0, 1.5):
        assert stats.kstest(white.ravel() / wrong, "norm").pvalue < 1e-6
        tails = stats.chi2.cdf(total / wrong**2, white.size)
        assert min(tails, 1.0 - tails) < 1e-6
    # Each round alone has its own standard deviation, which nothing else would pass for.
    for row, stddev in zip(made, claimed, strict=True):
        assert stats.kstest(row / stddev, "norm").pvalue > 1e-4
        assert stats.kstest(row / stddev * 1.5, "norm").pvalue < 1e-6
    # Independent noise of these standard deviations would be found out by its products.
    lag = float((made[1] / claimed[1]) @ (made[0] / claimed[0])) / math.sqrt(made.shape[1])
    assert abs(lag) > 6.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 8])
def test_resumed_equals_uninterrupted_bit_for_bit(name: str, cut: int) -> None:
    length = 70_001 if name == "optimized" else 33  # More than one chunk.
    whole, first, second = make(name), make(name), make(name)
    for number in range(ROUNDS):
        aggregate = Aggregate.zeros(length)
        aggregate.total += 0.01 * number
        wanted = whole.release(aggregate, np.random.default_rng(number))
        if number == cut:
            buffer = io.BytesIO()
            torch.save(first.state_dict(), buffer)
            buffer.seek(0)
            second.load_state_dict(torch.load(buffer, weights_only=True))
        part = first if number < cut else second
        release = part.release(aggregate, np.random.default_rng(number))
        assert torch.equal(release.mean_update, wanted.mean_update)
        assert release.update_noise_stddev == wanted.update_noise_stddev
        assert release.lag_correlation == wanted.lag_correlation


@pytest.mark.parametrize("name", ["optimized", "tree", "buffers", "inverse", "columns"])
def test_a_state_is_not_changed_by_what_comes_after(name: str) -> None:
    mechanism = make(name)
    for number in range(3):
        mechanism.release(Aggregate.zeros(9), np.random.default_rng(number))
    state = mechanism.state_dict()
    wanted = mechanism.release(Aggregate.zeros(9), np.random.default_rng(3))
    mechanism.release(Aggregate.zeros(9), np.random.default_rng(4))
    mechanism.load_state_dict(state)
    again = mechanism.release(Aggregate.zeros(9), np.random.default_rng(3))
    assert torch.equal(again.mean_update, wanted.mean_update)


def test_a_resumed_run_goes_on_with_the_strategy_that_was_saved() -> None:
    """Another machine may have found other last bits; its noise and its record are of those."""
    mechanism, aggregate = make("optimized"), Aggregate.zeros(9)
    state = mechanism.state_dict()
    saved = [value * (1.0 - 5e-7) for value in state["coefficients"]]
    before = mechanism.release(aggregate, np.random.default_rng(0))
    mechanism.load_state_dict({**state, "coefficients": saved})
    assert mechanism.strategy.tolist() == saved
    after = mechanism.release(aggregate, np.random.default_rng(0))
    assert after.update_noise_stddev > before.update_noise_stddev
    # Not so far from its own that the settings would have to be others.
    wrong = [value + 3e-6 for value in state["coefficients"]]
    with pytest.raises(PrivacyError, match="strategy"):
        make("optimized").load_state_dict({**state, "coefficients": wrong})


@pytest.mark.parametrize("name", ["buffers", "inverse"])
def test_rounds_beyond_those_planned_are_accounted_in_full(name: str) -> None:
    everybody = Participation.named("full", 20, 20.0)
    mechanism, fresh = make(name, separation=1), make(name, separation=1)
    mechanism.composition(everybody, 1.0, ROUNDS)
    composed = mechanism.composition(everybody, 1.0, 3 * ROUNDS)
    assert composed == fresh.composition(everybody, 1.0, 3 * ROUNDS)


def test_a_damaged_or_foreign_state_is_refused() -> None:
    mechanism = make("optimized")
    for number in range(5):
        mechanism.release(Aggregate.zeros(9), np.random.default_rng(number))
    state = mechanism.state_dict()
    assert len(state["noise"]) == 3
    assert all(vector.dtype == torch.float32 for vector in state["noise"])
    with pytest.raises(PrivacyError, match="not 3 finite float32 vectors"):
        make("optimized").load_state_dict({**state, "noise": state["noise"][:2]})
    broken = [*state["noise"][:2], torch.full((9,), math.nan)]
    with pytest.raises(PrivacyError, match="take back"):
        make("optimized").load_state_dict({**state, "noise": broken})
    with pytest.raises(PrivacyError, match="missing keys"):
        make("optimized").load_state_dict({"rounds": 5})
    for other in ("square_root", "wide"):
        with pytest.raises(PrivacyError, match="strategy"):
            make(other).load_state_dict(state)
    with pytest.raises(PrivacyError, match="foreign keys"):
        make("tree").load_state_dict(state)
    mechanism.load_state_dict(state)
    with pytest.raises(PrivacyError, match="8 elements"):
        mechanism.release(Aggregate.zeros(8), np.random.default_rng(0))


def test_the_state_of_a_tree_is_its_open_nodes() -> None:
    mechanism = make("restarts")
    counts = []
    for number in range(ROUNDS):
        mechanism.release(Aggregate.zeros(2), np.random.default_rng(number))
        counts.append(len(mechanism.state_dict()["noise"]))
    assert counts == [1, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 1]
    with pytest.raises(PrivacyError, match="not 1 finite"):
        make("restarts").load_state_dict({"rounds": 6, "noise": []})


@pytest.mark.parametrize("scheme", ["poisson", "fixed_size", "full", "cyclic_poisson"])
def test_one_band_is_the_gaussian_mechanism(scheme: str) -> None:
    """In accounting, and given the same draws in release, bit for bit."""
    cohort = 90.0 if scheme == "full" else 10.0
    participation = Participation.named(scheme, 90, cohort, 3 if scheme == "cyclic_poisson" else 1)
    plain = gaussian.build(
        gaussian.Options(clip_norm=CLIP), NoiseScale(MULTIPLIER, COHORT, NOISE_COHORT)
    )
    one = make("one_band")
    assert one.composition(participation, 0.9, 7) == plain.composition(participation, 0.9, 7)
    for number in range(3):
        aggregate = Aggregate.zeros(50)
        for mechanism in (one, plain):
            mechanism.accumulate(Aggregate.zeros(50), torch.ones(50), 1.0)
        one.accumulate(aggregate, torch.ones(50), 1.0)
        left = one.release(aggregate, np.random.default_rng(number))
        right = plain.release(aggregate, np.random.default_rng(number))
        assert torch.equal(left.mean_update, right.mean_update)
        assert left.update_noise_stddev == right.update_noise_stddev
        assert left.lag_correlation == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_switched_off_it_adds_nothing_and_promises_nothing(name: str) -> None:
    mechanism = make(name, multiplier=0.0)
    aggregate = Aggregate.zeros(4)
    aggregate.total += 1.0
    for _ in range(6):
        release = mechanism.release(aggregate, np.random.default_rng(0))
        assert torch.equal(release.mean_update, aggregate.total / COHORT)
        assert (release.update_noise_stddev, release.lag_correlation) == (0.0, 0.0)
    fresh = make(name, multiplier=0.0)
    fresh.load_state_dict(mechanism.state_dict())
    assert fresh.state_dict()["rounds"] == 6
    assert mechanism.update_noise_multiplier == 0.0
    composed = mechanism.composition(Participation.named("cyclic_poisson", 400, 20.0, 4), 0.0, 3)
    assert compose_epsilon([composed], 1e-5, "rdp") == math.inf


def test_bands_within_the_separation_are_amplified() -> None:
    """Choquette-Choo et al. 2023, theorem 4: ceil(T / b) rounds of a group, at rate q b."""
    participation = Participation.named("cyclic_poisson", 4000, 100.0, 5)
    composed = make("optimized", separation=5).composition(participation, 1.1, 12)
    assert composed == Composition(
        dp_event.PoissonSampledDpEvent(0.125, dp_event.GaussianDpEvent(1.1)),
        3,
        "add-or-remove-one",
    )
    assert composed == sampled_gaussian(participation, 1.1, 12)


def test_bands_beyond_the_separation_are_not_amplified() -> None:
    participation = Participation.named("cyclic_poisson", 4000, 100.0, 3)
    mechanism = make("square_root", separation=3)
    composed = mechanism.composition(participation, 1.1, 12)
    squared = squared_sensitivities(square_root_coefficients(4), 3, 12)[-1]
    assert isinstance(composed.event, dp_event.GaussianDpEvent)
    assert composed.count == 1
    assert composed.event.noise_multiplier == pytest.approx(1.1 / math.sqrt(squared))
    # More than what whole groups would cost if columns did not overlap.
    assert squared > 4.0
    full = make("square_root", separation=1).composition(
        Participation.named("full", 50, 50.0), 1.1, 12
    )
    assert full.event.noise_multiplier < composed.event.noise_multiplier


@pytest.mark.parametrize("name", [name for name in NAMES if name != "one_band"])
@pytest.mark.parametrize("scheme", ["poisson", "truncated_poisson", "fixed_size"])
def test_schemes_without_a_proof_are_refused(name: str, scheme: str) -> None:
    with pytest.raises(PlanError, match=f"{scheme} sampling.*cyclic_poisson"):
        make(name, separation=1).composition(Participation.named(scheme, 100, 10.0), 1.0, 5)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "one_band"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_epsilon_rises_with_rounds_and_is_spent_as_run(name: str, accountant: str) -> None:
    participation = Participation.named("cyclic_poisson", 4000, 500.0, 4)
    compose = partial(make(name).composition, participation)
    some = range(ROUNDS + 1) if accountant == "rdp" else (0, 1, 4, 5, ROUNDS)
    epsilons = [compose_epsilon([compose(2.0, rounds)], 1e-5, accountant) for rounds in some]
    assert epsilons[0] == 0.0 < epsilons[1]
    assert all(sooner <= later + 1e-9 for sooner, later in itertools.pairwise(epsilons))
    assert epsilons[-1] > epsilons[2]


@pytest.mark.parametrize("name", ["optimized", "wide", *NAMES[4:]])
def test_calibration_round_trips(name: str) -> None:
    participation = Participation.named("cyclic_poisson", 4000, 500.0, 4)
    mechanism = make(name).composition
    compose = partial(mechanism, participation)
    noise = calibrate_noise_multiplier(2.0, 1e-5, participation, ROUNDS, "rdp", mechanism)
    assert compose_epsilon([compose(noise, ROUNDS)], 1e-5, "rdp") <= 2.0
    assert compose_epsilon([compose(noise * 0.999, ROUNDS)], 1e-5, "rdp") > 2.0
    rounds = max_rounds(2.0, 1e-5, participation, noise, "rdp", ROUNDS, mechanism)
    assert rounds == ROUNDS
    fewer = max_rounds(1.5, 1e-5, participation, noise, "rdp", ROUNDS, mechanism)
    assert 0 < fewer < ROUNDS


def test_gboards_portuguese_model() -> None:
    """Golden: google-research/federated, mf_dpftrl_matrices/privacy_accounting.ipynb.

    z = 8.35, 2,000 rounds, 1,000 bands, 1,428 rounds between two of a user (so 1,429 apart), no
    amplification: zCDP 0.014342572340349278, epsilon 0.9935500950539097 at delta 1e-10. Without
    amplification is here: every eligible user takes part.
    """
    noise = NoiseScale(8.35, 6500.0, 6500.0, num_rounds=2000, separation=1429)
    options = banded.Options(clip_norm=1.0, bands=1000, strategy="square_root")
    everybody = Participation.named("cyclic_poisson", 1429 * 6500, 6500.0, 1429)
    assert everybody.sampling_probability == 1.0
    composed = banded.build(options, noise).composition(everybody, 8.35, 2000)
    assert composed.count == 2
    assert composed.count / (2.0 * 8.35**2) == pytest.approx(0.014342572340349278, rel=1e-12)
    plain = pld.PLDAccountant().compose(dp_event.GaussianDpEvent(8.35), composed.count)
    assert plain.get_epsilon(1e-10) == pytest.approx(0.9935500950539097, rel=1e-4)
    ours = compose_epsilon([composed], 1e-10, "pld")
    assert ours == pytest.approx(0.9935500950539097, rel=1e-3)
    # The same two rounds through the sensitivity of the pattern: the second column is cut short.
    squared = squared_sensitivities(square_root_coefficients(1000), 1429, 2000)[-1]
    assert 1.9 < squared < 2.0


def test_correlated_noise_beats_independent_noise_at_equal_epsilon() -> None:
    """Real mechanisms, calibrated to one epsilon; the error of the last prefix sum, measured."""
    rounds, separation, length = 64, 16, 400
    participation = Participation.named("cyclic_poisson", 3200, 200.0, separation)

    def error(build: Any, options: Any) -> float:
        def scale(multiplier: float) -> NoiseScale:
            return NoiseScale(multiplier, 200.0, 200.0, rounds, separation)

        compose = build(options, scale(0.0)).composition
        noise = calibrate_noise_multiplier(4.0, 1e-5, participation, rounds, "rdp", compose)
        mechanism = build(options, scale(noise))
        rng = np.random.default_rng(0)
        total, squares = np.zeros(length), 0.0
        for _ in range(rounds):
            total += mechanism.release(Aggregate.zeros(length), rng).mean_update.numpy()
            squares += float((total**2).mean()) / rounds
        return squares

    independent = error(gaussian.build, gaussian.Options(clip_norm=1.0))
    correlated = error(banded.build, banded.Options(clip_norm=1.0, bands=16))
    assert correlated < independent / 3.0
    # Trees claim no amplification, and win where there is none to be had: whole groups take part.
    assert error(tree.build, tree.Options(clip_norm=1.0)) < independent / 1.2


def test_plans_that_make_no_sense_are_refused() -> None:
    noise = NoiseScale(1.0, 10.0, 10.0, num_rounds=10, separation=4)
    with pytest.raises(PlanError, match="bands is 11"):
        banded.build(banded.Options(clip_norm=1.0, bands=11), noise)
    with pytest.raises(PlanError, match="restart_every is 11"):
        tree.build(tree.Options(clip_norm=1.0, restart_every=11), noise)
    banded.build(banded.Options(clip_norm=1.0, bands=10), noise)
    tree.build(tree.Options(clip_norm=1.0, restart_every=10), noise)
    other = Participation.named("cyclic_poisson", 400, 10.0, 5)
    for name in ("optimized", "tree"):
        with pytest.raises(PlanError, match="built for a separation of 4"):
            make(name).composition(other, 1.0, 3)
        own = Participation.named("cyclic_poisson", 400, 10.0, 4)
        assert make(name).composition(own, 1.0, 0).count == 0
        mechanism = make(name, rounds=ROUNDS)
        for number in range(ROUNDS):
            mechanism.release(Aggregate.zeros(2), np.random.default_rng(number))
        with pytest.raises(PrivacyError, match="beyond the 12 rounds"):
            mechanism.release(Aggregate.zeros(2), np.random.default_rng(0))
        for wrong in (-1.0, math.nan, math.inf):
            with pytest.raises(PrivacyError, match="noise_multiplier"):
                make(name).composition(
                    Participation.named("cyclic_poisson", 400, 10.0, 3), wrong, 3
                )
    unplanned = banded.build(banded.Options(clip_norm=1.0, bands=3), NoiseScale(1.0, 10.0, 10.0))
    with pytest.raises(PlanError, match="none is planned"):
        unplanned.release(Aggregate.zeros(2), np.random.default_rng(0))
    with pytest.raises(ValidationError):
        banded.Options(clip_norm=1.0, bands=0)
    with pytest.raises(ValidationError):
        tree.Options(clip_norm=1.0, restart_every=0)


def test_without_a_plan_any_round_has_its_noise() -> None:
    options = banded.Options(clip_norm=1.0, bands=3, strategy="square_root")
    mechanism = banded.build(options, NoiseScale(1.0, 10.0, 10.0))
    planned = banded.build(options, NoiseScale(1.0, 10.0, 10.0, num_rounds=40))
    for number in range(40):
        rng = np.random.default_rng(number), np.random.default_rng(number)
        one = mechanism.release(Aggregate.zeros(3), rng[0])
        two = planned.release(Aggregate.zeros(3), rng[1])
        assert torch.equal(one.mean_update, two.mean_update)
        assert one.update_noise_stddev == two.update_noise_stddev


@pytest.mark.parametrize("name", ["optimized", "tree", "buffers", "inverse", "columns"])
def test_updates_are_clipped_and_weigh_alike(name: str) -> None:
    mechanism = make(name)
    aggregate = Aggregate.zeros(16)
    outcome = mechanism.accumulate(aggregate, torch.full((16,), 3.0), 1.0)
    assert not outcome.unclipped
    assert float(torch.linalg.vector_norm(aggregate.total)) <= CLIP
    assert mechanism.clip_norm == CLIP
    with pytest.raises(PlanError, match="weight 1"):
        mechanism.accumulate(aggregate, torch.ones(16), 2.0)


def test_a_tree_of_one_round_is_independent_noise() -> None:
    """Restarted every round: the Gaussian mechanism of whole groups."""
    noise = NoiseScale(MULTIPLIER, COHORT, NOISE_COHORT, num_rounds=6, separation=2)
    mechanism = tree.build(tree.Options(clip_norm=CLIP, restart_every=1), noise)
    plain = gaussian.build(gaussian.Options(clip_norm=CLIP), noise)
    for number in range(6):
        one = mechanism.release(Aggregate.zeros(8), np.random.default_rng(number))
        two = plain.release(Aggregate.zeros(8), np.random.default_rng(number))
        assert torch.equal(one.mean_update, two.mean_update)
    assert tree_squared_sensitivity(6, 2, 1) == 3.0
