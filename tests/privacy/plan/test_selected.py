"""Users whom devices and a selector choose: no amplification, a cap and a distance that hold."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from privacy.accountant import ACCOUNTANTS, check_composition, compose_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier, max_rounds
from privacy.empirical.canaries import Canaries
from privacy.empirical.canary_options import CanaryOptions
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import Mechanism, NoiseScale
from privacy.mechanisms import (
    adaptive_gaussian,
    banded_matrix_factorization,
    gaussian,
    laplace,
    local_gaussian,
    privunit,
    tree_aggregation,
)
from privacy.noise.factorization import (
    optimized_coefficients,
    separated_squared_sensitivity,
    square_root_coefficients,
    squared_sensitivities,
)
from privacy.noise.tree_factorization import (
    separated_tree_squared_sensitivity,
    tree_squared_sensitivity,
)
from privacy.plan.plan import make_plan
from privacy.plan.question import Question
from privacy.plan.solving import solve
from privacy.statement.explaining import explain
from privacy.statement.statement import PrivacyStatement
from tests.privacy.plan.test_plan import request
from tests.privacy.scheme_settings import with_scheme

DELTA = 1e-5
ROUNDS = 24
CAPPED = Participation.named("selected", 1000, 20, 3, 5)
MECHANISMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gaussian": (gaussian, {}),
    "adaptive_gaussian": (adaptive_gaussian, {"quantile": 0.5}),
    "laplace": (laplace, {}),
    "banded_matrix_factorization": (banded_matrix_factorization, {"bands": 4}),
    "tree_aggregation": (tree_aggregation, {}),
    "local_gaussian": (local_gaussian, {}),
    "privunit": (privunit, {}),
}


def make(name: str, participation: Participation, noise_multiplier: float = 0.0) -> Mechanism:
    module, options = MECHANISMS[name]
    cohort = participation.cohort_size
    noise = NoiseScale(noise_multiplier, cohort, cohort, ROUNDS, participation.min_separation)
    mechanism: Mechanism = module.build(module.Options(clip_norm=1.0, **options), noise)
    return mechanism


def composed(
    name: str, participation: Participation, noise: float = 6.0, rounds: int = ROUNDS
) -> Composition:
    return make(name, participation).composition(participation, noise, rounds)


def epsilon_of(composition: Composition) -> float:
    return compose_epsilon([composition], DELTA, "pld")


def delta_of_gaussian(noise: float, epsilon: float) -> float:
    """Exact delta of one Gaussian mechanism (Balle and Wang 2018, theorem 8)."""

    def below(value: float) -> float:
        return 0.5 * math.erfc(-value / math.sqrt(2.0))

    half = 0.5 / noise
    return below(half - epsilon * noise) - math.exp(epsilon) * below(-half - epsilon * noise)


def test_a_user_is_in_no_more_rounds_than_cap_and_separation_allow() -> None:
    most = {
        (1, None): 24,
        (1, 5): 5,
        (3, None): 8,
        (3, 5): 5,
        (3, 9): 8,
        (30, 5): 1,
    }
    for (separation, cap), count in most.items():
        participation = Participation.named("selected", 1000, 20, separation, cap)
        assert participation.most_participations(ROUNDS) == count
        assert participation.most_participations(0) == 0
    # A run may have fewer rounds than the separation, and then needs no more users.
    assert Participation.named("selected", 1000, 900, 3).most_participations(2) == 1


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_epsilon_is_that_of_a_gaussian_for_each_round_of_a_user_exactly(cap: int) -> None:
    participation = Participation.named("selected", 1000, 20, 3, cap)
    epsilon = epsilon_of(sampled_gaussian(participation, 6.0, ROUNDS))
    # The exact delta of k Gaussians is that of one with the multiplier divided by sqrt(k).
    noise = 6.0 / math.sqrt(cap)
    assert delta_of_gaussian(noise, epsilon) <= DELTA
    assert delta_of_gaussian(noise, 0.99 * epsilon) > DELTA
    event, adjacency = sampled_gaussian(participation, 6.0, ROUNDS), "zero-out"
    assert (event.count, event.adjacency) == (cap, adjacency)


@pytest.mark.parametrize("name", [*MECHANISMS])
def test_nothing_is_amplified_and_without_a_cap_every_round_counts(name: str) -> None:
    cohorts = [
        Participation.named("selected", 100_000, cohort, 3, 5) for cohort in (1, 100, 20_000)
    ]
    assert len({repr(composed(name, cohort)) for cohort in cohorts}) == 1
    free = composed(name, Participation.named("selected", 1000, 20))
    full = composed(name, Participation.named("full", 20, 20))
    assert (free.event, free.count) == (full.event, full.count)
    local = make(name, CAPPED).description.randomizes_clients
    assert free.adjacency == ("replace-one" if local else "zero-out")
    assert epsilon_of(composed(name, CAPPED)) < epsilon_of(free)


def test_epsilon_falls_with_separation_and_rises_with_the_cap() -> None:
    for name in MECHANISMS:
        by_separation = [
            epsilon_of(composed(name, Participation.named("selected", 1000, 20, apart)))
            for apart in (2, 3, 24)
        ]
        assert by_separation == sorted(by_separation, reverse=True), name
        by_cap = [
            epsilon_of(composed(name, Participation.named("selected", 1000, 20, 2, cap)))
            for cap in (1, 4, 99)
        ]
        assert by_cap == sorted(by_cap), name


def patterns(rounds: int, separation: int, most: int) -> Iterator[list[int]]:
    """All sets of at most so many rounds, from 0, each two so far apart."""
    for count in range(most + 1):
        for chosen in itertools.combinations(range(rounds), count):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield list(chosen)


def toeplitz(coefficients: NDArray[np.float64], rounds: int) -> NDArray[np.float64]:
    matrix = np.zeros((rounds, rounds))
    for lag, value in enumerate(coefficients[:rounds]):
        matrix += value * np.eye(rounds, k=-lag)
    return matrix


def tree_rows(rounds: int, restart_every: int | None) -> NDArray[np.float64]:
    """A row a complete node: 1 where a round is under it."""
    size = restart_every or rounds
    rows = []
    for start in range(0, rounds, size):
        released = min(size, rounds - start)
        for level in range(released.bit_length()):
            for first in range(0, released - (1 << level) + 1, 1 << level):
                rows.append(np.zeros(rounds))
                rows[-1][start + first : start + first + (1 << level)] = 1.0
    return np.array(rows)


def worst(matrix: NDArray[np.float64], rounds: int, separation: int, most: int) -> float:
    return max(
        float(np.square(matrix[:, chosen].sum(axis=1)).sum())
        for chosen in patterns(rounds, separation, most)
    )


@pytest.mark.parametrize("separation", [1, 2, 3, 5])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_sensitivity_of_bands_is_that_of_the_worst_pattern(separation: int, most: int) -> None:
    for rounds in (3, 8, 11):
        count = min(most, -(-rounds // separation))
        for kind, coefficients in {
            "square root": square_root_coefficients(3),
            "optimized": optimized_coefficients(rounds, 3),
            "flat": np.full(3, 0.5),
            "rising": np.array([0.3, 0.5, 0.9]),
            "late": np.array([0.9, 0.0, 0.8]),
        }.items():
            found = separated_squared_sensitivity(coefficients, separation, count, rounds)
            wanted = worst(toeplitz(coefficients, rounds), rounds, separation, count)
            assert found >= wanted - 1e-12
            if kind not in ("rising", "late"):
                assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("separation", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("restart_every", [None, 3, 4, 7])
def test_the_sensitivity_of_trees_is_no_less_than_that_of_the_worst_pattern(
    separation: int, most: int, restart_every: int | None
) -> None:
    for rounds in (7, 8, 11):
        count = min(most, -(-rounds // separation))
        found = separated_tree_squared_sensitivity(rounds, separation, count, restart_every)
        wanted = worst(tree_rows(rounds, restart_every), rounds, separation, count)
        assert wanted <= found <= 1.5 * wanted
        if count == 1:
            assert found == wanted


def test_the_bound_of_trees_is_close_to_the_aligned_pattern_of_long_runs() -> None:
    for rounds, separation in ((2000, 341), (1000, 100), (4096, 30)):
        most = -(-rounds // separation)
        bound = separated_tree_squared_sensitivity(rounds, separation, most, None)
        aligned = tree_squared_sensitivity(rounds, separation, None)
        assert aligned <= bound <= 1.03 * aligned


def test_bands_within_the_separation_cost_a_column_a_round() -> None:
    mechanism = make("banded_matrix_factorization", Participation.named("selected", 1000, 20, 4, 3))
    event = mechanism.composition(
        Participation.named("selected", 1000, 20, 4, 3), 6.0, ROUNDS
    ).event
    assert event.noise_multiplier == pytest.approx(6.0 / math.sqrt(3.0))
    # What the theorem of falling coefficients needs, of those that a long run is given.
    for rounds, bands in ((100, 8), (1000, 20)):
        coefficients = optimized_coefficients(rounds, bands)
        assert (np.diff(coefficients) <= 0.0).all()
        cyclic = squared_sensitivities(coefficients, 5, rounds)[-1]
        assert separated_squared_sensitivity(
            coefficients, 5, -(-rounds // 5), rounds
        ) == pytest.approx(cyclic)


def play(
    name: str, updates: torch.Tensor, pattern: NDArray[np.bool_], late: NDArray[np.bool_]
) -> torch.Tensor:
    """Sums of the rounds, before any noise: shape (T, P)."""
    mechanism, sums = make(name, CAPPED), []
    for round_number in range(pattern.shape[0]):
        aggregate = Aggregate.zeros(updates.shape[2], torch.device("cpu"))
        for user in np.flatnonzero(pattern[round_number] & ~late[round_number]):
            mechanism.accumulate(aggregate, updates[round_number, user], 1.0)
        mechanism.release(aggregate, np.random.default_rng(0))
        sums.append(aggregate.total.clone())
    return torch.stack(sums)


@pytest.mark.parametrize("late_share", [0.0, 0.3])
def test_a_user_who_sends_nothing_moves_no_more_than_is_accounted(late_share: float) -> None:
    """Zero-out: also with stragglers that are dropped after they were selected."""
    rng, generator = np.random.default_rng(5), torch.Generator().manual_seed(5)
    updates = 3.0 * torch.randn(ROUNDS, 12, 6, generator=generator)
    pattern = select(rng, set(range(12)), CAPPED, 3)
    late = rng.random(pattern.shape) < late_share
    everything = play("gaussian", updates, pattern, late)
    for user in range(12):
        silent = late.copy()
        silent[:, user] = True
        moved = torch.linalg.vector_norm(
            everything - play("gaussian", updates, pattern, silent), dim=1
        )
        assert float(moved.max()) <= 1.0 + 1e-5
        rounds = np.flatnonzero(moved.numpy() > 1e-6)
        assert set(rounds) <= set(np.flatnonzero(pattern[:, user] & ~late[:, user]))
        assert len(rounds) <= CAPPED.most_participations(ROUNDS)
        assert (np.diff(rounds) >= CAPPED.min_separation).all()


def select(
    rng: np.random.Generator, present: set[int], participation: Participation, size: int
) -> NDArray[np.bool_]:
    """Who is in which round, of those present: the most urgent of an order, cap and distance kept.

    Returns:
        Shape (T, 12), bool.
    """
    pattern = np.zeros((ROUNDS, 12), dtype=np.bool_)
    cap = participation.max_participations or ROUNDS
    for index in range(ROUNDS):
        order = rng.permutation(12)
        recent = pattern[max(0, index + 1 - participation.min_separation) : index]
        may = (pattern.sum(axis=0) < cap) & ~recent.any(axis=0)
        pattern[index, [user for user in order if user in present and may[user]][:size]] = True
    return pattern


def test_a_user_who_is_removed_moves_the_rounds_of_others_too() -> None:
    """Why add-or-remove is not claimed: places are filled, and cap and distance carry it on."""
    everybody = select(np.random.default_rng(7), set(range(12)), CAPPED, 3)
    without = select(np.random.default_rng(7), set(range(12)) - {4}, CAPPED, 3)
    others = (everybody != without)[:, [user for user in range(12) if user != 4]]
    own = np.flatnonzero(everybody[:, 4])
    changed = np.flatnonzero(others.any(axis=1))
    assert set(changed) - set(own)
    assert others.sum(axis=1).max() >= 2


SELECTED: dict[str, Any] = {"scheme": "selected", "separation": 5, "max_participations": 6}


def test_a_plan_of_selected_users_says_what_it_rests_on() -> None:
    plan = make_plan(request(**SELECTED))
    assert plan.simulated.composed(2.0, 50).count == 6
    statement = plan.statement(50)
    assert statement.adjacency == "zero-out"
    assert statement.simulated.max_participations == 6
    assert statement.actual.epsilon > statement.simulated.epsilon
    assert any("at most 6 rounds, each two at least 5 apart" in note for note in statement.notes)
    assert any("Who took part when" in sentence for sentence in statement.not_covered)
    text = statement.to_text()
    assert "selected, 5 rounds apart, at most 6 rounds a user, no amplification" in text
    document = json.loads(json.dumps(statement.to_json_dict()))
    assert PrivacyStatement.from_json_dict(document) == statement
    constants = plan.ledger_constants()
    assert [constants[key] for key in ("sampling", "separation", "max_participations")] == [
        "selected",
        5,
        6,
    ]
    told = explain(statement, width=10_000)
    for words in ("zero-out", "at most 6 rounds, each two at least 5 apart", "losses", "late"):
        assert words in told


def test_a_plan_without_a_cap_counts_every_round_and_says_so() -> None:
    plan = make_plan(request(scheme="selected"))
    assert plan.simulated.composed(2.0, 50).count == 50
    assert any("any number of rounds" in note for note in plan.statement(50).notes)


def test_a_statement_of_before_there_was_a_cap_is_read() -> None:
    statement = make_plan(request()).statement(50)
    document = statement.to_json_dict()
    for label in ("simulated", "actual"):
        del document[label]["max_participations"]
    assert PrivacyStatement.from_json_dict(document) == statement
    assert not any("Who took part when" in sentence for sentence in statement.not_covered)


@pytest.mark.parametrize("scheme", ["poisson", "cyclic_poisson", "fixed_size"])
@pytest.mark.parametrize("reason", ["availability", "over-commitment", "a deadline", "selection"])
def test_amplification_is_refused_where_no_coin_of_its_own_decides(
    scheme: str, reason: str
) -> None:
    separation = 5 if scheme == "cyclic_poisson" else 1
    settings = {"scheme": scheme, "separation": separation}
    make_plan(request(**settings))
    with pytest.raises(PlanError, match=f"{scheme} sampling.*{reason}") as refusal:
        make_plan(request(**settings, participation_rests_on=(reason,)))
    for offer in ("selected", "max_participations", "separation", "tree_aggregation"):
        assert offer in str(refusal.value)
    make_plan(request(**SELECTED, participation_rests_on=(reason,)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selection_uses_data": True}, r"losses.*disclose.*available or uniform"),
        ({"client_state": ("compression top_k",)}, r"top_k: remembers.*without error feedback"),
        ({"uploads": ("update", "control_variate")}, r"control_variate"),
        ({"separation": 11}, r"1100 different users.*size is 1000; lower.* 10 or less"),
        ({"max_participations": 4, "separation": 1}, r"5000 part.*have 4000; raise.* to 5 or more"),
        ({"max_participations": 0}, "max_participations is 0"),
        ({"scheme": "poisson", "separation": 1}, "6 under poisson.*scheme selected"),
        ({"scheme": "fixed_size", "separation": 1}, "6 under fixed_size"),
    ],
)
def test_what_would_break_the_guarantee_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        make_plan(request(**{**SELECTED, **changes}))


def test_the_run_itself_must_have_enough_users_too() -> None:
    changes = {**SELECTED, "population_size": 10_000, "hypothetical_population": True}
    make_plan(request(**changes, num_users=170))
    with pytest.raises(PlanError, match=r"the data's users is 99; lower.* 4 or less"):
        make_plan(request(**changes, num_users=99))
    with pytest.raises(PlanError, match=r"1000 participations.*166 users.*raise.* to 7"):
        make_plan(request(**changes, num_users=166))


def test_what_is_sampled_is_not_accounted_as_zeroed_out() -> None:
    event = sampled_gaussian(Participation.named("poisson", 1000, 20), 2.0, 5).event
    for accountant in ACCOUNTANTS:
        with pytest.raises(PlanError, match="zero-out"):
            check_composition(Composition(event, 5, "zero-out"), accountant)


def test_calibration_and_rounds_are_within_the_budget() -> None:
    participation = Participation.named("selected", 100_000, 100, 10, 6)

    def at(noise: float, rounds: int) -> float:
        return compose_epsilon([sampled_gaussian(participation, noise, rounds)], DELTA, "rdp")

    noise = calibrate_noise_multiplier(2.0, DELTA, participation, 500, "rdp")
    assert at(noise, 500) <= 2.0 < at(noise * (1 - 1e-3), 500)
    rounds = max_rounds(2.0, DELTA, participation, 0.9 * noise, "rdp", limit=500)
    assert at(0.9 * noise, rounds) <= 2.0 < at(0.9 * noise, rounds + 1)
    # Five rounds of a user fit, ten rounds apart.
    assert rounds % 10 == 0
    assert rounds < 60


def test_solving_needs_no_cohort_and_may_need_no_rounds() -> None:
    def question(**changes: Any) -> Question:
        settings: dict[str, Any] = {
            "epsilon": 2.0,
            "noise_multiplier": 6.0,
            "rounds": 500,
            "cohort_size": 100,
            "population_size": 100_000,
            "delta": DELTA,
            "scheme": "selected",
            "separation": 10,
        }
        return Question(**with_scheme({**settings, **changes}))

    solution = solve(question(rounds=None))
    assert solution.beyond is not None
    assert solution.beyond == (solution.rounds + 1, solution.beyond[1])
    assert solution.epsilon <= 2.0 < solution.beyond[1]
    assert solution.rounds % 10 == 0
    capped = solve(question(noise_multiplier=None, max_participations=6))
    assert capped.participation.max_participations == 6
    with pytest.raises(PrivacyError, match=r"every number of rounds.*max_participations"):
        solve(question(rounds=None, noise_multiplier=50.0, max_participations=6))
    for unknown in ("cohort_size", "population_size"):
        with pytest.raises(PlanError, match="no chance is accounted"):
            solve(question(**{unknown: None}))


def test_canaries_keep_the_cap_and_the_distance() -> None:
    def streams(*key: int) -> np.random.Generator:
        return np.random.default_rng([3, *key])

    options = CanaryOptions(kind="one_run", count=40)
    canaries = Canaries(options, 500, CAPPED, ROUNDS, 2.0, streams, "cpu")
    taken = np.array([canaries.taking_part(index) for index in range(1, ROUNDS + 1)])
    counts = taken.sum(axis=0)
    assert set(counts) == {0, 5}
    gaps = [np.diff(np.flatnonzero(column)) for column in taken.T if column.any()]
    assert all((gap == 3).all() for gap in gaps)


BUILDERS: list[Callable[[], object]] = [
    lambda: Participation.named("selected", 1000, 20, 0),
    lambda: Participation.named("selected", 1000, 20, 1, 0),
    lambda: Participation.named("selected", 1000, 20, 1, 2.5),  # type: ignore[arg-type]
    lambda: Participation.named("poisson", 1000, 20, 1, 5),
    lambda: Participation.named("selected", 10, 20),
]


@pytest.mark.parametrize("build", BUILDERS)
def test_numbers_that_cannot_be_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(PrivacyError):
        build()
