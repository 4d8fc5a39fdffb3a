"""Canaries in rounds of a real mechanism: what they send, what they see, what they show."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from privacy.accountant import compute_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Participation, sampled_gaussian
from privacy.empirical.canaries import Canaries
from privacy.empirical.canary_directions import Sphere
from privacy.empirical.canary_options import CanaryOptions
from privacy.errors import PrivacyError
from privacy.mechanism import NoiseScale
from privacy.mechanisms.gaussian import Options, build

CLIP, DELTA = 0.37, 1e-5
NUM_PARAMETERS = 2000
FULL = Participation.named("full", 20, 20)
POISSON = Participation.named("poisson", 200, 20)


def streams(round_number: int, index: int, seed: int = 1) -> np.random.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(round_number, index))
    return np.random.Generator(np.random.Philox(sequence))


def make(
    participation: Participation = FULL,
    noise_multiplier: float = 1.0,
    num_parameters: int = NUM_PARAMETERS,
    seed: int = 1,
    **options: Any,
) -> Canaries:
    return Canaries(
        CanaryOptions(**{"count": 40, **options}),
        num_parameters,
        participation,
        100,
        noise_multiplier,
        partial(streams, seed=seed),
        "cpu",
    )


class Run:
    """A loop of the Gaussian mechanism: real clients, real clip, real noise.

    ``real_noise`` is what is added, ``noise_multiplier`` what is claimed.
    """

    def __init__(
        self,
        canaries: Canaries,
        participation: Participation,
        noise_multiplier: float,
        real_noise: float | None = None,
        send: bool = True,
        tell: bool = False,
        alike: bool = False,
    ) -> None:
        self.canaries, self.send, self.tell, self.alike = canaries, send, tell, alike
        self.claimed, self.participation = noise_multiplier, participation
        cohort = participation.cohort_size
        real = noise_multiplier if real_noise is None else real_noise
        self.mechanism = build(Options(clip_norm=CLIP), NoiseScale(real, cohort, cohort))
        self.moved = torch.zeros(NUM_PARAMETERS)
        self.rounds = 0
        self.aggregate = Aggregate.zeros(NUM_PARAMETERS)

    def advance(self, rounds: int = 1) -> Run:
        for _ in range(rounds):
            self.rounds += 1
            rng = np.random.default_rng([7, self.rounds])
            self.aggregate = Aggregate.zeros(NUM_PARAMETERS)
            for client in range(20):
                if client == 0 or not self.alike:
                    update = torch.from_numpy(rng.standard_normal(NUM_PARAMETERS)).float()
                self.mechanism.accumulate(self.aggregate, update, 1.0)
            if self.tell:
                self.canaries.know_others(self.aggregate.total)
            for update in self.canaries.updates(self.rounds, CLIP):
                if self.send:
                    outcome = self.mechanism.accumulate(self.aggregate, update, 1.0)
                    assert outcome.clipped_norm >= 0.9999 * CLIP
                    assert outcome.norm > 0.99999 * CLIP
            release = self.mechanism.release(self.aggregate, rng)
            self.moved += 0.5 * release.mean_update
            self.canaries.observe(self.rounds, release.mean_update, self.moved)
        return self

    def result(self) -> dict[str, Any]:
        compose = partial(sampled_gaussian, self.participation)
        return self.canaries.result(self.rounds, DELTA, compose)

    def claimed_epsilon(self) -> float:
        composed = sampled_gaussian(self.participation, self.claimed, self.rounds)
        return compute_epsilon(composed.event, composed.count, DELTA, "pld", composed.adjacency)


KINDS: list[dict[str, Any]] = [
    {"kind": "worst_case", "count": 60},
    {"kind": "worst_case", "count": 60, "step_bound": "clopper_pearson"},
    {"kind": "one_run", "count": 400},
    {"kind": "one_run", "count": 200, "access": "final", "direction": "sphere"},
    {"kind": "one_run", "count": 200, "guesses": (50, 50)},
    {"kind": "one_shot", "count": 40},
    {"kind": "one_shot", "count": 40, "access": "every_round"},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_claim_that_is_true_is_not_refuted(options: dict[str, Any]) -> None:
    run = Run(make(noise_multiplier=2.0, **options), FULL, 2.0).advance(5)
    result = run.result()
    assert 0.0 <= result["lower_bound"] < run.claimed_epsilon()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["confidence"] == 0.95
    assert result["kind"] == options["kind"]
    assert all(isinstance(sentence, str) for sentence in result["rests_on"])


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_without_effect_the_bound_is_0(options: dict[str, Any]) -> None:
    canaries = make(noise_multiplier=0.5, seed=2, **options)
    assert Run(canaries, FULL, 0.5, send=False).advance(5).result()["lower_bound"] == 0.0


@pytest.mark.parametrize(
    "options", [KINDS[0], KINDS[1], KINDS[2], KINDS[5]], ids=["normal", "cp", "one_run", "one_shot"]
)
def test_too_little_noise_is_found_out(options: dict[str, Any]) -> None:
    """A tenth of the noise that is claimed: more than the claim leaves room for."""
    run = Run(make(noise_multiplier=5.0, **options), FULL, 5.0, real_noise=0.5).advance(5)
    assert run.result()["lower_bound"] > run.claimed_epsilon()


def test_worst_case_is_near_the_truth_under_sampling() -> None:
    run = Run(make(POISSON, 0.8, kind="worst_case", count=80), POISSON, 0.8).advance(12)
    truth, result = run.claimed_epsilon(), run.result()
    assert 0.5 * truth < result["lower_bound"] < truth
    assert result["trials"]["num_in"] + result["trials"]["num_out"] == 12 * 80
    assert result["lower_bound"] < result["estimate"]


def test_an_auditor_who_knows_the_others_sees_more() -> None:
    results = []
    for tell in (False, True):
        canaries = make(noise_multiplier=0.5, kind="worst_case", count=500)
        run = Run(canaries, FULL, 0.5, tell=tell, alike=True)
        results.append(run.advance(2).result())
    assert [result["knows_others"] for result in results] == [False, True]
    assert results[1]["lower_bound"] > results[0]["lower_bound"]
    # 20 updates alike of norm 1 are 0.45 in each of 2,000 elements: noise of 0.67 and not 0.5.
    assert results[0]["mu_estimate"] == pytest.approx(1.5, abs=0.2)
    assert results[1]["mu_estimate"] == pytest.approx(2.0, abs=0.2)


def test_a_bound_needs_a_composition() -> None:
    participation = Participation.named("fixed_size", 200, 20)
    run = Run(make(participation, kind="one_run", count=100), participation, 1.0).advance(3)
    result = run.result()
    assert result["method"] == "one_run"
    assert result["lower_bound"] == result["lower_bound_any_mechanism"]
    with pytest.raises(PrivacyError, match="fixed-size"):
        make(participation, kind="worst_case")


def test_no_round_shows_nothing() -> None:
    for options in KINDS:
        result = Run(make(**options), FULL, 1.0).result()
        assert result["lower_bound"] == 0.0
        assert json.dumps(result, allow_nan=False)


# Who takes part


def participations(canaries: Canaries, rounds: int) -> np.ndarray[Any, Any]:
    return np.stack([canaries.taking_part(t) for t in range(1, rounds + 1)])


def test_canaries_take_part_by_the_samplers_law() -> None:
    poisson = participations(make(POISSON, kind="one_shot", num_parameters=500), 2000)
    assert poisson.mean() == pytest.approx(0.1, abs=0.005)
    assert participations(make(kind="one_shot"), 10).all()
    cyclic = Participation.named("cyclic_poisson", 200, 20, 5)
    taken = participations(make(cyclic, kind="one_shot"), 1000)
    assert taken.mean() == pytest.approx(0.1, abs=0.01)
    for canary in taken.T:
        assert len(set(np.flatnonzero(canary) % 5)) == 1


def test_a_coin_includes_a_canary_for_the_whole_run() -> None:
    taken = participations(make(POISSON, kind="one_run", count=400), 200).any(axis=0)
    assert 160 < taken.sum() < 240
    every = participations(make(kind="worst_case", count=50), 200)
    assert every.mean() == pytest.approx(0.5, abs=0.02)
    assert not (every == every[0]).all()


# What they send


@pytest.mark.parametrize("clip_norm", [0.37, 1.0, 1e-12, 3e10])
@pytest.mark.parametrize("kind", ["one_shot", "worst_case"])
def test_an_update_is_next_to_the_bound(kind: str, clip_norm: float) -> None:
    """Within it and beyond it in turn, so that bits cancel in an adaptive bound's count."""
    updates = list(make(kind=kind, num_parameters=999, seed=4).updates(1, clip_norm))
    assert updates
    for update in updates:
        assert update.shape == (999,)
        assert update.dtype == torch.float32
        norm = float(torch.linalg.vector_norm(update.double()))
        assert norm == pytest.approx(clip_norm, rel=2**-16)


def test_coordinates_are_distinct_and_held_out_directions_are_never_sent() -> None:
    canaries = make(kind="one_run", count=300, num_parameters=300)
    sent = torch.stack(list(canaries.updates(1, 1.0)))
    assert (torch.count_nonzero(sent, dim=1) == 1).all()
    assert (torch.count_nonzero(sent, dim=0) <= 1).all()
    one_shot = make(kind="one_shot", access="every_round", count=20, num_parameters=400)
    assert len(list(one_shot.updates(1, 1.0))) == 20


def test_directions_of_the_sphere_are_uniform() -> None:
    matrix = Sphere(40, 4000, streams, torch.device("cpu"), 1)
    gram = np.stack([matrix.project(matrix.update(i, 1.0)) for i in range(40)])
    assert np.diag(gram) == pytest.approx(1.0, abs=1e-4)
    off = gram[~np.eye(40, dtype=bool)]
    assert off.std() == pytest.approx(4000**-0.5, rel=0.1)


# Resuming


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_resumed_run_shows_the_same(options: dict[str, Any]) -> None:
    whole = Run(make(**options), FULL, 1.0).advance(4)
    first = Run(make(**options), FULL, 1.0).advance(2)
    buffer = io.BytesIO()
    torch.save(first.canaries.state_dict(), buffer)
    buffer.seek(0)
    resumed = make(**options)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    first.canaries = resumed
    assert first.advance(2).result() == whole.result()


def test_a_state_of_other_canaries_is_refused() -> None:
    state = make(kind="one_run", count=30).state_dict()
    with pytest.raises(PrivacyError, match="not of kind"):
        make(kind="one_shot").load_state_dict(state)
    with pytest.raises(PrivacyError, match="not of this configuration"):
        make(kind="one_run", count=31).load_state_dict(state)
    broken = {**make(kind="worst_case").state_dict(), "scores": {"num_in": 3}}
    with pytest.raises(PrivacyError, match="saved canaries"):
        make(kind="worst_case").load_state_dict(broken)


# What is refused


@pytest.mark.parametrize(
    ("build_them", "message"),
    [
        (lambda: make(kind="one_run", count=2001), "2000 parameters"),
        (lambda: make(kind="one_shot", count=201), "at most 200 fit"),
        (lambda: make(kind="one_shot", count=150, access="every_round"), "at most 200 fit"),
        (
            lambda: make(kind="one_shot", count=20, num_parameters=20_000, memory_limit_mib=1),
            "13 directions fit",
        ),
    ],
)
def test_too_many_canaries_are_refused(build_them: Callable[[], Canaries], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        build_them()


def test_rounds_out_of_turn_are_refused() -> None:
    canaries = make(kind="worst_case")
    zeros = torch.zeros(NUM_PARAMETERS)
    with pytest.raises(PrivacyError, match="asked for round 2"):
        canaries.updates(2, 1.0)
    with pytest.raises(PrivacyError, match="observe round 1"):
        canaries.observe(1, zeros, zeros)
    with pytest.raises(PrivacyError, match="clip_norm"):
        canaries.updates(1, math.inf)
    canaries.updates(1, 1.0)
    with pytest.raises(PrivacyError, match="not finite"):
        canaries.observe(1, zeros + math.nan, zeros)
    with pytest.raises(PrivacyError, match="released 3 rounds"):
        canaries.result(3, DELTA, partial(sampled_gaussian, FULL))


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "one_shot", "count": 10, "direction": "coordinate"},
        {"kind": "one_shot", "count": 1},
        {"kind": "worst_case", "count": 10, "access": "final"},
        {"kind": "worst_case", "count": 10, "guesses": [1, 1]},
        {"kind": "one_run", "count": 10, "guesses": [6, 5]},
        {"kind": "one_run", "count": 10, "guesses": [0, 0]},
        {"kind": "one_run", "count": 0},
        {"kind": "one_run", "count": 10, "confidence": 1.0},
        {"kind": "mia", "count": 10},
        {"kind": "one_run", "count": 10, "unknown": 1},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CanaryOptions(**options)


def test_guesses_come_from_yaml_as_a_list() -> None:
    assert CanaryOptions(kind="one_run", count=10, guesses=[4, 3]).guesses == (4, 3)  # type: ignore[arg-type]
