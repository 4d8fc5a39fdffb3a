"""Errors of accounting and sampling: what is accounted is not what is drawn."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from peers.common import (
    COHORT,
    ROUNDS,
    USERS,
    Row,
    epsilon,
    exactly,
    least_epsilon,
    least_shuffled_epsilon,
    plan_request,
    poisson,
    refusal,
)
from pfl_bench.federated.sampling import build_sampler
from privacy.amplification import Participation
from privacy.calibration import calibrate_noise_multiplier, default_delta
from privacy.plan.plan import make_plan
from privacy.schemes.fixed_size import FixedSize
from privacy.schemes.poisson import Poisson


@cache
def flair_noise() -> float:
    """The multiplier that FLAIR's epsilon of 2 needs, by RDP."""
    delta = default_delta(USERS)
    return calibrate_noise_multiplier(2.0, delta, poisson(USERS, COHORT), ROUNDS, "rdp")


def rounds_as_epochs() -> Row:
    """ml-flair: the rounds are passed where epochs are expected."""
    delta = default_delta(USERS)
    steps = math.ceil(ROUNDS * USERS / COHORT)
    noise = calibrate_noise_multiplier(2.0, delta, poisson(USERS, COHORT), steps, "rdp")
    plan = make_plan(plan_request())
    assert abs(plan.noise.noise_multiplier / flair_noise() - 1.0) < 1e-3
    return Row(
        peer="ml-flair bebcc90",
        files="benchmark/federated_main.py (and compute_noise of tensorflow-privacy 0.8.0)",
        error=f"{ROUNDS:,} rounds are passed as epochs, so {steps:,} are accounted: noise "
        f"multiplier {noise:.2f} where {flair_noise():.2f} is enough",
        setting="FLAIR: 5,000 of 41,131 users, 5,000 rounds, delta N^-1.1, RDP",
        quantity="epsilon",
        claimed=2.0,
        true=exactly(epsilon(poisson(USERS, COHORT), noise, ROUNDS, delta, "rdp")),
        here="the rounds that run are accounted: one setting, and the ledger counts them",
        test="tests/privacy/plan/test_plan.py::test_epsilon_alone_calibrates_the_simulated_deployment",
        evidence=f"noise multiplier {plan.noise.noise_multiplier:.3f}",
    )


def fixed_as_poisson() -> Row:
    """ml-flair: cohorts of a fixed size, accounted as Poisson's."""
    delta, rate = default_delta(USERS), COHORT / USERS
    fixed = Participation.named("fixed_size", USERS, COHORT)
    return Row(
        peer="ml-flair bebcc90",
        files="benchmark/federated_main.py",
        error="fixed-size cohorts, drawn without replacement, are accounted as Poisson's; "
        "replacing a user moves the sum by twice the bound",
        setting="FLAIR, with the rounds put right",
        quantity="epsilon",
        claimed=2.0,
        true=(
            # All other users send the opposite, and so does who takes the place: two bounds.
            least_epsilon([1.0 - rate, rate], 0, flair_noise() / 2.0, ROUNDS, delta, 1e-5),
            epsilon(fixed, flair_noise(), ROUNDS, delta, "pld"),
        ),
        here="sampler and accountant share one `Participation`; fixed_size has half the "
        "multiplier under replace-one, and is refused by prv",
        test="tests/privacy/test_accountant.py::"
        "test_fixed_size_is_replace_one_with_twice_the_sensitivity",
        evidence=refusal(lambda: make_plan(plan_request(scheme=FixedSize(), accountant="prv"))),
    )


def shuffled_as_poisson() -> Row:
    """Handcrafted-DP: batches are cut from a shuffled order, accounted as Poisson's."""
    examples, batch, epochs, noise, delta = 60_000, 512, 40, 1.23, 1e-5
    shuffled = Participation.named("shuffled", examples, batch)
    steps = shuffled.scheme.rounds_of_epoch(shuffled)
    order = shuffled.scheme.assign(shuffled, np.random.default_rng(0))
    epoch = [
        shuffled.scheme.draw(shuffled, np.random.default_rng(0), step, order)
        for step in range(1, steps + 1)
    ]
    assert len(np.unique(np.concatenate(epoch))) == steps * batch
    return Row(
        peer="Handcrafted-DP 1d31943, 79e7475; tensorflow-privacy 01ab549",
        files="cnns.py, baselines.py, train_utils.py, dp_utils.py; "
        "tutorials/mnist_dpsgd_tutorial.py",
        error="batches are cut from each epoch's shuffled order, the rest dropped (the first "
        "unless `--sample_batches` is given, the second in a queue of 1,000); accounted as "
        "Poisson's (by the older conversion, which only raises epsilon)",
        setting="MNIST: 512 of 60,000, 40 epochs, noise multiplier 1.23, delta 1e-5, zero-out "
        "neighbours",
        quantity="epsilon",
        claimed=3.0,
        true=(
            least_shuffled_epsilon(shuffled, noise, epochs, delta),
            epsilon(shuffled, noise, epochs * steps, delta, "pld"),
        ),
        here="a scheme of its own, accounted without amplification; the statement has Poisson's "
        "epsilon as not proven",
        test="tests/privacy/plan/test_shuffled.py::"
        "test_steps_are_one_gaussian_an_epoch_under_zero_out",
        evidence=f"{steps} disjoint batches of {batch} an epoch",
    )


def drawn_twice() -> Row:
    """pfl-research: users are drawn with replacement, accounted as Poisson's."""
    from scipy.stats import binom

    users, cohort, rounds, noise, delta = 1_000, 100, 100, 1.0, 1e-5
    # More than 10 times in one round: beyond any delta here, and left out, which lowers epsilon.
    weights = [float(mass) for mass in binom.pmf(np.arange(11), cohort, 1.0 / users)]
    drawn = build_sampler(Poisson(), users, cohort).draw(np.random.default_rng(0))
    assert len(set(drawn.tolist())) == len(drawn)
    twice = users * (1.0 - weights[0] - weights[1])
    return Row(
        peer="pfl-research (pfl 0.6.0)",
        files="pfl/data/sampling.py, pfl/privacy/privacy_accountant.py, "
        "benchmarks/dataset/flair/pytorch.py 7a54be0",
        error="the sampler `random`, which the FLAIR benchmark takes, draws each place from all "
        f"users, so one can have several ({twice:.1f} users a round here); accounted as "
        "Poisson's",
        setting="100 of 1,000 users, 100 rounds, noise multiplier 1, delta 1e-5",
        quantity="epsilon",
        claimed=epsilon(poisson(users, cohort), noise, rounds, delta, "pld"),
        true=(least_epsilon(weights, 0, noise, rounds, delta, 1e-4), math.inf),
        here="no sampler draws a user twice in a round; the ledger counts the distinct users",
        test="tests/pfl_bench/federated/test_rng_and_sampling.py::"
        "test_no_user_is_drawn_twice_and_the_order_is_sorted",
        evidence=f"{len(drawn)} users drawn, {len(set(drawn.tolist()))} distinct",
    )


def ten_million() -> Row:
    """pfl-research: a population of ten million unless one says otherwise."""
    # What its accountant, PLD, asks for epsilon 2 of such a population.
    delta, noise = 1e-5, 0.54546
    claimed = epsilon(poisson(10**7, COHORT), noise, ROUNDS, delta, "pld")
    assert abs(claimed - 2.0) < 0.002
    return Row(
        peer="pfl-research 92ef79a",
        files="benchmarks/utils/argument_parsing.py, benchmarks/flair/configs/"
        "baseline.yaml 2c77da1",
        error="`--population` is 10,000,000 by default, and the FLAIR benchmark's file, whose DP "
        "baseline is turned on by hand, does not set it",
        setting="FLAIR's 41,131 users, cohort 5,000, 5,000 rounds, noise multiplier "
        f"{noise:g}, delta 1e-5, PLD",
        quantity="epsilon",
        claimed=claimed,
        true=exactly(epsilon(poisson(USERS, COHORT), noise, ROUNDS, delta, "pld")),
        here="population_size has no default; another than the data's is refused unless declared "
        "hypothetical in the statement",
        test="tests/privacy/plan/test_plan.py::test_refusals_say_why_and_what_to_do",
        evidence=refusal(lambda: make_plan(plan_request(population_size=10**7))),
    )


def banded_rate() -> Row:
    """pfl-research: banded matrix factorisation at the rate of ungrouped sampling."""
    users, separation, delta = 10**7, 48, 1e-5
    count = -(-ROUNDS // separation)
    # What its accountant, PLD, asks for epsilon 2 at its rate and count.
    noise = 0.46179
    claimed = epsilon(poisson(users, COHORT), noise, count, delta, "pld")
    assert abs(claimed - 2.0) < 0.002
    cyclic = Participation.named("cyclic_poisson", users, COHORT, separation)
    return Row(
        peer="pfl-research 92ef79a",
        files="benchmarks/utils/argument_parsing.py, benchmarks/dataset/flair/pytorch.py "
        "7a54be0, pfl/privacy/ftrl_mechanism.py (pfl 0.6.0)",
        error=f"banded matrix factorisation is accounted as {count} rounds at rate cohort / "
        f"population; the theorem's is {separation} times that, of users in {separation} "
        "groups (the true number), and the FLAIR benchmark's sampler keeps nobody apart, of "
        "which nothing is proven",
        setting="FLAIR's file with it, else defaults: 5,000 of 10,000,000 users, separation 48, "
        f"5,000 rounds, noise multiplier {noise:g}, delta 1e-5, PLD",
        quantity="epsilon",
        claimed=claimed,
        true=exactly(epsilon(cyclic, noise, ROUNDS, delta, "pld")),
        here="cyclic_poisson draws by groups and is accounted at their rate; too small a "
        "population is refused",
        test="tests/privacy/noise/test_correlated_noise.py::test_bands_within_the_separation_are_amplified",
        evidence=refusal(lambda: Participation.named("cyclic_poisson", USERS, COHORT, separation)),
    )
