"""DP-SGD on shuffled batches: accounted as what they are, and the published numbers beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from privacy.amplification import Participation
from privacy.audit.inputs import json_equal
from privacy.empirical.gaussian_dp import epsilon_of_mu
from privacy.noise.feature_statistics import FeatureStatistics
from privacy.statement.explaining import explain
from privacy.statement.statement import round_up
from tests.privacy.plan.test_example_level import plan

# Orders of the sources' accountants.
ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
# Source: examples, batch, steps, noise multiplier, that of two statistics or None, epsilon at 1e-5.
PUBLISHED: dict[str, tuple[int, int, int, float, float | None, float]] = {
    "Opacus, examples/mnist_README.md, 45 epochs": (60_000, 240, 45 * 250, 0.7, None, 6.86),
    "Opacus, 60 epochs": (60_000, 240, 60 * 250, 1.1, None, 2.91),
    "Opacus, 15 epochs": (60_000, 240, 15 * 250, 1.3, None, 1.16),
    "TensorFlow Privacy, tutorials/README.md, 60": (60_000, 256, 60 * 234, 1.12, None, 2.92),
    "TensorFlow Privacy, 30 epochs": (60_000, 256, 30 * 234, 0.6, None, 9.74),
    "TensorFlow Privacy, 10 epochs": (60_000, 256, 10 * 234, 1.2, None, 1.20),
    "Handcrafted-DP, README.md, MNIST": (60_000, 512, 40 * 117, 1.23, None, 3.0),
    "Handcrafted-DP, Fashion-MNIST": (60_000, 2048, 40 * 29, 2.15, None, 3.0),
    "Handcrafted-DP, CIFAR-10": (50_000, 1024, 30 * 48, 1.54, None, 3.0),
    "Handcrafted-DP, MNIST, features": (60_000, 4096, 40 * 14, 3.04, 8.0, 3.0),
    "Handcrafted-DP, Fashion-MNIST, features": (60_000, 8192, 40 * 7, 4.05, None, 3.0),
    "Handcrafted-DP, CIFAR-10, features": (50_000, 8192, 60 * 6, 5.67, 8.0, 3.0),
}


def planned(examples: int, batch: int, steps: int, noise: float, of_two: float | None) -> Any:
    statistics = None if of_two is None else FeatureStatistics(of_two, 1.0, 0.1)
    return plan(
        num_examples=examples,
        batch_size=batch,
        steps=steps,
        noise_multiplier=noise,
        statistics=statistics,
    )


@pytest.mark.parametrize("source", PUBLISHED)
def test_published_epsilons_are_of_poisson_samples_by_the_older_conversion(source: str) -> None:
    *settings, published = PUBLISHED[source]
    examples, batch, steps, noise, of_two = settings
    referee = rdp.RdpAccountant(ORDERS)
    gaussian = dp_event.GaussianDpEvent(noise)
    referee.compose(dp_event.PoissonSampledDpEvent(batch / examples, gaussian), steps)
    if of_two is not None:
        referee.compose(dp_event.GaussianDpEvent(of_two), 2)
    older = np.array(referee._rdp) + math.log(1e5) / (np.array(ORDERS) - 1.0)
    # 9.74 was computed before the accountant's series for small orders was mended.
    assert older.min() == pytest.approx(published, abs=0.015)
    stated = planned(*settings).statement(steps).actual.epsilon
    # The accountant's own orders are more; the newer theorem is never above the older.
    assert referee.get_epsilon(1e-5) * 0.98 < stated <= referee.get_epsilon(1e-5) * (1 + 1e-9)
    assert stated < published


@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv"])
def test_steps_are_one_gaussian_an_epoch_under_zero_out(accountant: str) -> None:
    settings: dict[str, Any] = {"accountant": accountant, "batch_size": 512}
    settings["noise_multiplier"] = 3.7
    shuffled = plan(sampling="shuffled", **settings)
    # 117 full batches an epoch; a step more begins another epoch.
    true = [epsilon_of_mu(math.sqrt(epochs) / 3.7, 1e-5) for epochs in (1, 40, 41)]
    stated = [shuffled.statement(steps).actual.epsilon for steps in (1, 40 * 117, 40 * 117 + 1)]
    for exact, epsilon in zip(true, stated, strict=True):
        assert exact * (1 - 1e-6) <= epsilon <= exact * 1.12 + 0.02
    statement = shuffled.statement(40 * 117)
    assert (statement.adjacency, statement.actual.sampling) == ("zero-out", "shuffled")
    poisson = plan(**settings)
    as_poisson = poisson.statement(40 * 117).actual.epsilon
    assert any(f"epsilon {round_up(as_poisson, 4)}:" in note for note in statement.notes)
    assert statement.actual.epsilon > 5 * as_poisson
    assert "no amplification" in statement.to_text()
    words = " ".join(explain(statement).split())
    assert "Each example is in at most one step of an epoch, in at most 40 of all steps" in words
    assert "gradients of one example count in one and are zero in the other" in words
    assert "which example took part in which step" in words


def test_batches_of_an_epoch_are_disjoint_and_of_one_size() -> None:
    users = Participation.named("shuffled", 103, 10)
    scheme, rng = users.scheme, np.random.default_rng(0)
    assert (scheme.rounds_of_epoch(users), users.sampling_probability) == (10, 1.0)
    left = np.zeros(103)
    for _ in range(300):
        order = scheme.assign(users, rng)
        epoch = np.concatenate([scheme.draw(users, rng, step, order) for step in range(1, 11)])
        assert len(np.unique(epoch)) == len(epoch) == 100
        assert np.array_equal(epoch[:10], np.sort(order[:10]))
        assert np.array_equal(epoch[:10], scheme.draw(users, rng, 11, order)), "an epoch more"
        left[np.setdiff1d(np.arange(103), epoch)] += 1
    assert Participation.named("poisson", 103, 10).scheme.rounds_of_epoch(users) == 11
    # Who is left out is drawn anew: of 900 places, none has far more than its 9.
    assert left.max() < 30
    assert [users.most_participations(steps) for steps in (0, 1, 10, 11, 20)] == [0, 1, 1, 2, 2]


def test_statistics_are_composed_with_the_steps_and_before_them() -> None:
    statistics = FeatureStatistics(8.0, 1.0, 0.1)
    with_them, without = plan(statistics=statistics), plan()
    assert with_them.statement(0).actual.epsilon > 0.0 == without.statement(0).actual.epsilon
    referee = rdp.RdpAccountant()
    gaussian = dp_event.GaussianDpEvent(1.1)
    referee.compose(dp_event.PoissonSampledDpEvent(256 / 60_000, gaussian), 3000)
    alone = referee.get_epsilon(1e-5)
    referee.compose(dp_event.GaussianDpEvent(8.0), 2)
    assert with_them.statement(3000).actual.epsilon == pytest.approx(referee.get_epsilon(1e-5))
    assert without.statement(3000).actual.epsilon == pytest.approx(alone)
    # What is left of a budget goes to the steps.
    budget = {"epsilon": 2.0, "noise_multiplier": None}
    calibrated = plan(**budget, statistics=statistics, clip_norm=0.5)
    assert 1.99 < calibrated.statement(3000).actual.epsilon <= 2.0
    assert calibrated.setting.noise_multiplier > plan(**budget).setting.noise_multiplier
    constants = calibrated.ledger_constants("sha256:0")["mechanism_options"]
    claimed = {"noise_multiplier": 8.0, "mean_clip_norm": 1.0, "square_clip_norm": 0.1}
    assert json_equal(constants, {"clip_norm": 0.5, "statistics": claimed})
    clip = calibrated.statement(3000).clip
    assert (clip["statistics_noise_multiplier"], clip["mean_clip_norm"]) == (8.0, 1.0)
    assert clip["square_clip_norm"] == 0.1
    words = explain(calibrated.statement(3000))
    assert "mean and mean square of each channel" in " ".join(words.split())
