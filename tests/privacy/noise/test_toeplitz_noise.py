"""Toeplitz strategies that are not banded: errors and sensitivities, and what is accounted of them.

Golden values: jax-privacy 2.0.0 (jax_privacy.matrix_factorization: toeplitz, buffered_toeplitz),
in float64.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest

from privacy.amplification import Participation
from privacy.description import Buffers, Description, Inverse
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms import banded_inverse_square_root as bisr
from privacy.mechanisms import buffered_toeplitz as blt
from privacy.noise.buffered_toeplitz import _strategy, buffered_errors, optimized_buffers
from privacy.noise.factorization import (
    prefix_errors,
    separated_squared_sensitivity,
    squared_sensitivities,
)
from tests.helpers import REPOSITORY

ROUNDS = 300
BUFFERS = Buffers(1.0, (0.16, 0.3, 0.2), (0.98, 0.75, 0.3))
# Squared sensitivities of (separation, participations).
JAX_BUFFERS = {
    (1, 1): 2.503885732663299,
    (40, 8): 29.38522203183364,
    (40, 3): 9.77044434952008,
    (7, 5): 29.315433480860584,
}
# By bands: squared sensitivities, mean and largest squared error of the prefix sums.
JAX_INVERSE = {
    4: (
        (1.6224023581429623, 12.979677717900854, 4.867346579435771),
        15.794127604166668,
        30.39453125,
    ),
    30: (
        (2.3188974277571575, 25.62077306679554, 8.831146553086223),
        3.443548127113061,
        5.084405311115106,
    ),
}
# Mean squared error times squared sensitivity of the optimum of (rounds, buffers, separation).
JAX_OPTIMA = {(200, 2, 200): 6.463125443039814, (1000, 3, 100): 148.69001630617586}


def test_buffers_have_the_referee_s_sensitivity_and_error() -> None:
    column = BUFFERS.column(ROUNDS)
    for (separation, most), squared in JAX_BUFFERS.items():
        own = separated_squared_sensitivity(column, separation, most, ROUNDS)
        assert own == pytest.approx(squared, rel=1e-10)
    assert squared_sensitivities(column, 40, ROUNDS)[-1] == pytest.approx(JAX_BUFFERS[40, 8])
    errors = buffered_errors(BUFFERS, ROUNDS)
    assert (errors.mean(), errors[-1]) == pytest.approx(
        (3.1876017665795415, 4.576769569305246), rel=1e-10
    )
    assert errors == pytest.approx(prefix_errors(column, ROUNDS), rel=1e-9)


@pytest.mark.parametrize("bands", JAX_INVERSE)
def test_inverse_square_roots_have_the_referee_s_sensitivity_and_error(bands: int) -> None:
    wanted, mean, largest = JAX_INVERSE[bands]
    strategy = bisr.inverse_square_root(bands, ROUNDS)
    column = strategy.column(ROUNDS)
    assert np.linalg.norm(column) == pytest.approx(1.0)
    assert (np.diff(column) <= 0.0).all()
    # Ours has a column of norm 1, theirs begins with 1.
    for (separation, most), squared in zip(((1, 1), (40, 8), (40, 3)), wanted, strict=True):
        own = separated_squared_sensitivity(column, separation, most, ROUNDS)
        assert own == pytest.approx(squared / wanted[0], rel=1e-10)
    errors = prefix_errors(column, ROUNDS) / wanted[0]
    assert (errors.mean(), errors[-1]) == pytest.approx((mean, largest), rel=1e-9)


@pytest.mark.parametrize("shape", JAX_OPTIMA)
def test_optimized_buffers_are_as_good_as_the_referee_s(shape: tuple[int, int, int]) -> None:
    rounds, buffers, separation = shape
    strategy = optimized_buffers(rounds, buffers, separation)
    column = strategy.column(rounds)
    squared = squared_sensitivities(column, separation, rounds)[-1]
    loss = buffered_errors(strategy, rounds).mean() * squared
    assert loss == pytest.approx(JAX_OPTIMA[shape], rel=1e-4)
    assert np.linalg.norm(column) == pytest.approx(1.0)
    assert (np.diff(column) <= 0.0).all()


@pytest.mark.parametrize("column", ["buffers", "inverse"])
@pytest.mark.parametrize(("separation", "most"), [(1, 3), (2, 3), (3, 2), (4, 12)])
def test_no_pattern_of_selected_users_is_worse(column: str, separation: int, most: int) -> None:
    rounds = 11
    strategy = {"buffers": BUFFERS, "inverse": bisr.inverse_square_root(5, rounds)}[column]
    first = strategy.column(rounds)
    matrix = np.array(
        [[first[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)]
    )
    worst = 0.0
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(rounds), size):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                worst = max(worst, float(np.square(matrix[:, chosen].sum(axis=1)).sum()))
    most = min(most, -(-rounds // separation))
    own = separated_squared_sensitivity(first, separation, most, rounds)
    assert own == pytest.approx(worst, rel=1e-12)


def test_each_buffer_keeps_its_own_weight() -> None:
    """Whatever the order in which the optimizer finds them."""
    one, other = (_strategy(np.array(found), 20) for found in ([1, 3, -1, -2], [3, 1, -2, -1]))
    assert one == other
    assert one.decays[0] < one.decays[1]


def test_long_columns_are_convolved_alike() -> None:
    # By FFT from 1,024 elements on.
    column = BUFFERS.column(1500)
    pattern = np.zeros(1500)
    pattern[::60] = 1.0
    direct = np.cumsum(np.convolve(column, pattern)[:1500] ** 2)
    assert squared_sensitivities(column, 60, 1500) == pytest.approx(direct, rel=1e-12)


def test_selected_users_are_accounted_by_the_worst_pattern() -> None:
    noise = NoiseScale(1.0, 10.0, 10.0, num_rounds=ROUNDS, separation=40)
    mechanism = bisr.build(bisr.Options(clip_norm=1.0, bands=30), noise)
    users = Participation.named("selected", 10_000, 10, 40, 3)
    composed = mechanism.composition(users, 2.0, ROUNDS)
    squared = JAX_INVERSE[30][0][2] / JAX_INVERSE[30][0][0]
    assert composed.adjacency == "zero-out"
    assert composed.event.noise_multiplier == pytest.approx(2.0 / math.sqrt(squared), rel=1e-9)
    # No sampling amplifies: users in turns are in all rounds of their group.
    turns = Participation.named("cyclic_poisson", 10_000, 10, 40)
    composed = mechanism.composition(turns, 2.0, ROUNDS)
    squared = JAX_INVERSE[30][0][1] / JAX_INVERSE[30][0][0]
    assert composed.event.noise_multiplier == pytest.approx(2.0 / math.sqrt(squared), rel=1e-9)


def test_without_planned_rounds_there_is_no_strategy() -> None:
    noise = NoiseScale(1.0, 10.0, 10.0)
    for mechanism in (
        blt.build(blt.Options(clip_norm=1.0), noise),
        bisr.build(bisr.Options(clip_norm=1.0, bands=4), noise),
    ):
        assert mechanism.description.strategy is None
        with pytest.raises(PlanError, match="set num_rounds"):
            mechanism.composition(Participation.named("full", 10, 10), 1.0, 5)
    with pytest.raises(PlanError, match="set bands to 3"):
        bisr.build(bisr.Options(clip_norm=1.0, bands=4), NoiseScale(1.0, 1.0, 1.0, num_rounds=3))


@pytest.mark.parametrize("name", ["buffers", "inverse"])
def test_a_damaged_state_is_refused(name: str) -> None:
    noise = NoiseScale(1.0, 10.0, 10.0, num_rounds=20, separation=5)

    def make(size: int) -> blt.BufferedToeplitz | bisr.BandedInverseSquareRoot:
        if name == "buffers":
            return blt.build(blt.Options(clip_norm=1.0, buffers=size), noise)
        return bisr.build(bisr.Options(clip_norm=1.0, bands=size), noise)

    from privacy.aggregate import Aggregate

    mechanism = make(3)
    for number in range(6):
        mechanism.release(Aggregate.zeros(5), np.random.default_rng(number))
    state = mechanism.state_dict()
    with pytest.raises(PrivacyError, match="finite float32 vectors"):
        make(3).load_state_dict({**state, "noise": state["noise"][:1]})
    with pytest.raises(PrivacyError, match=r"strategy|finite float32 vectors"):
        make(2).load_state_dict(state)
    with pytest.raises(PrivacyError, match="8 elements"):
        mechanism.release(Aggregate.zeros(8), np.random.default_rng(0))


@pytest.mark.parametrize("strategy", [BUFFERS, Inverse((1.0, -0.5, -0.125))])
def test_descriptions_are_read_back(strategy: Buffers | Inverse) -> None:
    import json

    stated = Description("words", law="gaussian", stddev=1.0, strategy=strategy)
    document = json.loads(json.dumps(stated.to_json_dict()))
    assert Description.from_json_dict(document).agrees(stated)
    other = Description("words", law="gaussian", stddev=1.0, strategy=Inverse((1.0, -0.4)))
    assert not other.agrees(stated)
    column = stated.column(6)
    assert column is not None
    assert len(column) == 6


@pytest.mark.parametrize(
    "broken", [(0.0, (0.1,), (0.5,)), (1.0, (0.1,), (1.0,)), (1.0, (0.1, 0.1), (0.5,))]
)
def test_buffers_that_are_no_strategy_are_refused(
    broken: tuple[float, tuple[float, ...], tuple[float, ...]],
) -> None:
    with pytest.raises(PrivacyError, match="no strategy"):
        Buffers(*broken)
    with pytest.raises(PrivacyError, match="above 0"):
        Inverse((0.0, 1.0))


def test_the_documented_table_is_what_the_script_computes() -> None:
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    try:
        import correlated_noise
    finally:
        sys.path.pop(0)
    page = (REPOSITORY / "docs" / "privacy.md").read_text(encoding="utf-8")
    table = page.split("<!-- correlated noise: begin -->")[1].split("<!-- correlated")[0]
    documented = [float(row.split("|")[2]) for row in table.strip().splitlines()[2:]]
    # The first of its columns; the others take longer.
    computed = list(correlated_noise.losses(*correlated_noise.SETTINGS[0]).values())
    assert documented == pytest.approx([one / computed[0] for one in computed], rel=6e-3)
