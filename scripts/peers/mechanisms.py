"""Errors of clipping and noise: what is noised is not what is claimed, and one of settings."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from peers.common import Row, epsilon, exactly, plan_request, poisson, refusal
from pfl_bench.config.loading import load_config
from privacy.accountant import compose_epsilon
from privacy.aggregate import Aggregate
from privacy.amplification import Participation, sampled_gaussian
from privacy.clipping import clip
from privacy.mechanism import NoiseScale
from privacy.mechanisms import adaptive_gaussian, gaussian, local_gaussian
from privacy.mechanisms.adaptive_gaussian import split_noise
from privacy.plan.plan import make_plan


def raised_noise() -> Row:
    """Opacus to 1.5.4, and FLSim: the update's noise is accounted, the count's is not."""
    users, cohort, rounds, noise, count, delta = 1_000, 20, 500, 1.0, 1.0, 1e-5
    raised = split_noise(noise, count)
    sampling = poisson(users, cohort)
    mechanism = adaptive_gaussian.build(
        adaptive_gaussian.Options(clip_norm=1.0, quantile=0.5, count_noise_stddev=count),
        NoiseScale(noise, cohort, cohort),
    )
    composed = mechanism.composition(sampling, noise, rounds)
    assert composed == sampled_gaussian(sampling, noise, rounds)
    return Row(
        peer="opacus 1.5.2, 1.5.4; FLSim 6a41f5f",
        files="opacus/optimizers/adaclipoptimizer.py, opacus/accountants/accountant.py; "
        "flsim/privacy/privacy_engine.py, user_update_clip.py",
        error=f"adaptive clipping: the update's multiplier ({raised:.4f}) is also the accounted "
        "one, so the noisy count goes unpaid (mended in opacus 1.6.0); of centred bits (row "
        "8)",
        setting="20 of 1,000, 500 rounds, multiplier 1, count noise 1 (cohort / 20), delta 1e-5",
        quantity="epsilon",
        claimed=epsilon(sampling, raised, rounds, delta, "rdp"),
        true=exactly(epsilon(sampling, noise, rounds, delta, "rdp")),
        here="noise_multiplier is the effective one; the accountant never sees the update's",
        test="tests/privacy/mechanisms/test_mechanisms.py::"
        "test_update_and_count_together_cost_the_effective_multiplier",
        evidence=f"accounted {noise:g}, update {mechanism.update_noise_multiplier:.4f}",
    )


def uncentred_bit() -> Row:
    """Opacus 1.6.0: a bit of 0 or 1, accounted as one of -1/2 or 1/2."""
    users, cohort, rounds, noise, count, delta = 1_000, 20, 500, 1.0, 1.0, 1e-5
    raised = split_noise(noise, count)
    whole = (raised**-2 + count**-2) ** -0.5
    mechanism = gaussian.build(gaussian.Options(clip_norm=1.0), NoiseScale(noise, cohort, cohort))
    aggregate = Aggregate.zeros(4)
    mechanism.accumulate(aggregate, torch.zeros(4), 1.0)
    assert abs(aggregate.bit_sum) == 0.5
    return Row(
        peer="opacus 1.6.0",
        files="opacus/optimizers/adaclipoptimizer.py",
        error="the count adds 1 for an unclipped example, so one moves it by 1, with noise for 1/2 "
        "(the divisor is the realised batch: one more release, not in this number)",
        setting="20 of 1,000, 500 rounds, multiplier 1, count noise 1, delta 1e-5",
        quantity="epsilon",
        claimed=epsilon(poisson(users, cohort), noise, rounds, delta, "rdp"),
        true=exactly(epsilon(poisson(users, cohort), whole, rounds, delta, "rdp")),
        here="bits are centred and move their sum by 1/2; the divisor is the configured cohort",
        test="tests/privacy/mechanisms/test_mechanisms.py::"
        "test_one_user_moves_the_sums_by_at_most_what_the_noise_is_scaled_to",
        evidence=f"one user moved the sum of bits by {abs(aggregate.bit_sum):g}",
    )


def wrong_sign() -> Row:
    """Flower: the bound moves away from the quantile."""
    cohort, rounds, rate, quantile = 100, 100, 0.2, 0.5
    norms = np.exp(np.random.default_rng(0).standard_normal(cohort))
    norms /= np.median(norms)
    rng = np.random.default_rng(1)
    theirs = 0.1
    for _ in range(rounds):
        clipped = float((norms > theirs).sum()) + cohort / 20 * rng.standard_normal()
        theirs *= math.exp(-rate * (clipped / cohort - quantile))
    mechanism = adaptive_gaussian.build(
        adaptive_gaussian.Options(clip_norm=0.1, quantile=quantile, clip_learning_rate=rate),
        NoiseScale(1.0, cohort, cohort),
    )
    for _ in range(rounds):
        aggregate = Aggregate.zeros(1)
        for norm in norms:
            mechanism.accumulate(aggregate, torch.tensor([norm], dtype=torch.float32), 1.0)
        mechanism.release(aggregate, rng)
    ours = float(mechanism.clip_norm or math.nan)
    assert abs(math.log(ours)) < 0.3
    return Row(
        peer="flwr 1.41.0, 1.42.0",
        files="flwr/serverapp/strategy/dp_adaptive_clipping.py, "
        "flwr/supercore/differential_privacy.py",
        error="the count is of clipped updates, the rule that of unclipped ones: a bound below the "
        "quantile falls for ever, one above it rises for ever",
        setting="its defaults (bound 0.1, rate 0.2, quantile 0.5), 100 clients, median norm 1, "
        "count noise 5",
        quantity="bound after 100 rounds",
        claimed=1.0,
        true=exactly(theirs),
        here="the bound converges to the quantile from either side",
        test="tests/privacy/mechanisms/test_mechanisms.py::test_the_bound_converges_to_the_quantile",
        evidence=f"the bound here after the same rounds: {ours:.3f}",
    )


def next_bound() -> Row:
    """Flower: noise in multiples of the bound of the next round."""
    cohort, rate, quantile, noise = 100, 0.2, 0.5, 1.0
    count = cohort / 20
    moved = math.exp(-rate * (1.0 - quantile))
    update = split_noise(noise, count) * moved
    mechanism = adaptive_gaussian.build(
        adaptive_gaussian.Options(clip_norm=0.1, quantile=quantile),
        NoiseScale(noise, cohort, cohort),
    )
    release = mechanism.release(Aggregate.zeros(4), np.random.default_rng(0))
    assert release.clip_norm == 0.1
    share = release.update_noise_stddev / 0.1
    assert abs(share / mechanism.update_noise_multiplier - 1.0) < 1e-9
    return Row(
        peer="flwr 1.41.0, 1.42.0",
        files="flwr/serverapp/strategy/dp_adaptive_clipping.py",
        error="the bound moves before the noise is scaled to it, so noise is that of the next "
        "round's bound, smaller whenever it falls; of centred bits (row 8)",
        setting="all of 100 updates clipped, rate 0.2, quantile 0.5, count noise 5",
        quantity="noise multiplier",
        claimed=noise,
        true=exactly((update**-2 + (2.0 * count) ** -2) ** -0.5),
        here="a release carries the bound that clipped it and the noise that was scaled to it",
        test="tests/privacy/mechanisms/test_mechanisms.py::test_update_noise_has_the_scale_that_is_accounted",
        evidence=f"noise of {share:.4f} times the bound that clipped",
    )


def weighted_mean() -> Row:
    """Flower: a mean weighted by examples, noised as if all weights were equal."""
    cohort, noise, times = 100, 1.0, 10.0
    share = times / (cohort - 1 + times)
    return Row(
        peer="flwr 1.41.0, 1.42.0",
        files="flwr/serverapp/strategy/fedavg.py, dp_fixed_clipping.py, dp_adaptive_clipping.py",
        error="clipped updates are averaged by number of examples (FedAvg's default), with noise "
        "for equal weights; only fixed clipping with its optional accountant checks",
        setting="100 clients, one with 10 times the others' examples",
        quantity="noise multiplier",
        claimed=noise,
        true=exactly(noise / (share * cohort)),
        here="weighting by examples is refused with a private mechanism",
        test="tests/privacy/mechanisms/test_mechanisms.py::test_private_mechanisms_refuse_weights",
        evidence=refusal(lambda: make_plan(plan_request(weighting="examples"))),
    )


def lifted() -> Row:
    """FLUTE: every update is brought to the bound, small ones too."""
    bound, norm = 0.008, 0.001
    update = torch.full((16,), norm / 4.0)
    theirs = bound * (update / torch.linalg.vector_norm(update))
    ours = clip(update, bound)
    assert torch.equal(ours, update)
    return Row(
        peer="msrflute c28e2e6",
        files="extensions/privacy/__init__.py",
        error="local noise: updates are rescaled to the bound, not clipped: small ones are lifted, "
        "a zero one becomes NaN",
        setting="max_grad 0.008 (a comment in its sample configuration), an update of norm 0.001",
        quantity="norm after clipping",
        claimed=norm,
        true=exactly(float(torch.linalg.vector_norm(theirs))),
        here="an update within the bound is added bit for bit; a non-finite one contributes "
        "nothing",
        test="tests/privacy/test_clipping.py::test_small_updates_are_unchanged_bit_for_bit",
        evidence=f"norm here {float(torch.linalg.vector_norm(ours)):.4g}",
    )


def local_epsilon() -> Row:
    """FLUTE: the textbook's Gaussian formula at epsilon 100, and for half of the sensitivity."""
    claimed, delta = 100.0, 1e-7
    noise = math.sqrt(2.0 * math.log(1.25 / delta)) / claimed
    one = Participation.named("full", 1, 1)
    mechanism = local_gaussian.build(local_gaussian.Options(clip_norm=1.0), NoiseScale(noise, 1, 1))
    composed = mechanism.composition(one, noise, 1)
    assert composed.adjacency == "replace-one"
    near = compose_epsilon([sampled_gaussian(one, noise, 1)], delta, "pld")
    return Row(
        peer="msrflute c28e2e6",
        files="extensions/privacy/__init__.py, configs/hello_world_nlg_gru_json.yaml 4eda3ea; "
        "flwr/clientapp/mod/localdp_mod.py",
        error="local noise by sqrt(2 ln(1.25 / delta)) / epsilon, proven for epsilon up to 1, in "
        "multiples of one bound, where two updates can be two apart (LocalDpMod of flwr "
        "1.42.0: the same for any epsilon, of a sensitivity that its user states)",
        setting="eps 100 (a comment in its sample configuration), delta 1e-7 (its default), one "
        "update",
        quantity="local epsilon",
        claimed=claimed,
        true=exactly(compose_epsilon([composed], delta, "pld")),
        here="every Gaussian is accounted by rdp, pld or prv; a local report's sensitivity is two "
        "bounds",
        test="tests/privacy/mechanisms/test_local_gaussian.py::"
        "test_the_accounting_is_dp_accountings_for_a_sensitivity_of_two",
        evidence=f"epsilon {near:.4g} if two updates were one bound apart",
    )


def two_truths() -> Row:
    """pfl-research: ``--option=value`` loses to the file."""
    demo = Path(__file__).resolve().parents[2] / "configs" / "demo" / "private_federated.yaml"
    ours = load_config(demo, ["privacy.epsilon=8"]).tree["privacy"]["epsilon"]
    assert ours == 8.0
    parser = argparse.ArgumentParser()
    parser.add_argument("--central_epsilon", type=float)
    words = ["--central_epsilon=8"]
    if "--central_epsilon" not in words:
        words += ["--central_epsilon", "2.0"]
    theirs = parser.parse_args(words).central_epsilon
    return Row(
        peer="pfl-research 92ef79a",
        files="benchmarks/utils/argument_parsing.py",
        error="an option written `--central_epsilon=8` is not recognised as set, and the file's "
        "value is appended after it",
        setting="the FLAIR benchmark's file, its DP baseline turned on (epsilon 2), with "
        "`--central_epsilon=8`",
        quantity="epsilon of the run",
        claimed=8.0,
        true=exactly(theirs),
        here="an override always wins over the file, and is marked in the run's config.yaml",
        test="tests/pfl_bench/config/test_config_file.py::test_an_override_wins_over_the_file",
        evidence=f"epsilon here {ours:g}",
    )
