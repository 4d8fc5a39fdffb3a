"""``epsilon`` and ``calibrate``: the command's numbers, and those of dp_accounting itself."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

import pfl_bench
from pfl_bench.cli.main import main
from pfl_bench.types import ConfigError, PluginError
from privacy.errors import PrivacyError

SMALL: dict[str, Any] = {"population_size": 1000, "cohort_size": 100, "num_rounds": 20}
FLAGS = ["--population", "1000", "--cohort", "100", "--rounds", "20"]
# What Python takes, and what the command takes, of one setting.
SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"delta": 1e-5, "accountant": "pld"}, ["--delta", "1e-5", "--accountant", "pld"]),
    ({"accountant": "prv"}, ["--accountant", "prv"]),
    ({"sampling": "fixed_size"}, ["--sampling", "fixed_size"]),
    (
        {"sampling": "cyclic_poisson", "separation": 4},
        ["--sampling", "cyclic_poisson", "--separation", "4"],
    ),
    (
        {"sampling": "selected", "separation": 2, "max_participations": 3},
        ["--sampling", "selected", "--separation", "2", "--max-participations", "3"],
    ),
    (
        {"mechanism": "laplace", "accountant": "pld"},
        ["--mechanism", "laplace", "--accountant", "pld"],
    ),
    (
        {"mechanism": "tree_aggregation", "sampling": "selected", "separation": 5},
        ["--mechanism", "tree_aggregation", "--sampling", "selected", "--separation", "5"],
    ),
    (
        {
            "mechanism": {"name": "banded_matrix_factorization", "bands": 4},
            "sampling": "cyclic_poisson",
            "separation": 4,
        },
        [
            *("--mechanism", "banded_matrix_factorization", "bands=4"),
            *("--sampling", "cyclic_poisson", "--separation", "4"),
        ],
    ),
    # Its bands overlap, so that the strategy for these rounds matters.
    (
        {
            "mechanism": {"name": "banded_matrix_factorization", "bands": 4},
            "sampling": "selected",
            "separation": 2,
        },
        [
            *("--mechanism", "banded_matrix_factorization", "bands=4"),
            *("--sampling", "selected", "--separation", "2"),
        ],
    ),
    # Of which both cohorts must be one.
    ({"mechanism": "local_gaussian"}, ["--mechanism", "local_gaussian"]),
]
each_setting = pytest.mark.parametrize(
    ("given", "flags"), SETTINGS, ids=[" ".join(flags) or "default" for _, flags in SETTINGS]
)
Capture = pytest.CaptureFixture[str]


def command(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["privacy", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@each_setting
def test_epsilon_is_the_command_s(given: dict[str, Any], flags: list[str], capsys: Capture) -> None:
    ours = pfl_bench.epsilon(4.0, **SMALL, **given)
    theirs = command(capsys, "epsilon", "--noise-multiplier", "4", *FLAGS, *flags)["epsilon"]
    assert ours == theirs
    assert ours > 0


@pytest.mark.parametrize(("given", "flags"), [SETTINGS[0], SETTINGS[5], SETTINGS[8]])
def test_calibrate_is_the_command_s_and_within_the_budget(
    given: dict[str, Any], flags: list[str], capsys: Capture
) -> None:
    noise = pfl_bench.calibrate(3.0, **SMALL, **given)
    answer = command(capsys, "calibrate", "--epsilon", "3", *FLAGS, *flags)
    assert noise == answer["noise_multiplier"]
    assert pfl_bench.epsilon(noise, **SMALL, **given) <= 3.0
    assert pfl_bench.epsilon(noise * 0.99, **SMALL, **given) > 3.0


def test_the_numbers_are_those_of_dp_accounting() -> None:
    sampled = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.5))
    rounds = dp_event.SelfComposedDpEvent(sampled, 20)
    wanted = RdpAccountant().compose(rounds).get_epsilon(1e-5)
    assert pfl_bench.epsilon(1.5, **SMALL, delta=1e-5) == pytest.approx(wanted, rel=0.02)
    tight = PLDAccountant().compose(rounds).get_epsilon(1e-5)
    ours = pfl_bench.epsilon(1.5, **SMALL, delta=1e-5, accountant="pld")
    assert ours == pytest.approx(tight, rel=0.01)
    everybody = {**SMALL, "cohort_size": 1000}
    plain = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(30.0), 20)
    wanted = PLDAccountant().compose(plain).get_epsilon(1e-5)
    ours = pfl_bench.epsilon(30.0, **everybody, delta=1e-5, sampling="full", accountant="pld")
    assert ours == pytest.approx(wanted, rel=0.01)


def test_both_epsilons_of_a_simulated_cohort() -> None:
    deployment = {**SMALL, "cohort_size": 500}
    noise = pfl_bench.calibrate(2.0, **deployment)
    simulated = pfl_bench.epsilon(noise, **deployment)
    actual = pfl_bench.epsilon(noise * 100 / 500, **SMALL)
    assert simulated <= 2.0 < actual


def test_no_noise_promises_nothing_and_no_rounds_spend_nothing() -> None:
    assert pfl_bench.epsilon(0.0, **SMALL) == math.inf
    assert pfl_bench.epsilon(1.0, **{**SMALL, "num_rounds": 0}) == 0.0


def test_numpy_s_numbers_are_numbers() -> None:
    given = {"population_size": np.int64(1000), "cohort_size": np.float32(100)}
    ours = pfl_bench.epsilon(np.float64(4.0), **given, num_rounds=np.int32(20))  # type: ignore[arg-type]
    assert ours == pfl_bench.epsilon(4.0, **SMALL)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"num_rounds": "20"}, ConfigError, "num_rounds is '20', but must be a whole number"),
        ({"num_rounds": 2.5}, ConfigError, "must be a whole number"),
        ({"population_size": True}, ConfigError, "population_size is True"),
        ({"cohort_size": "many"}, ConfigError, "cohort_size is 'many', but must be a number"),
        ({"delta": "small"}, ConfigError, "delta is 'small'"),
        ({"separatin": 2}, ConfigError, "did you mean 'separation'"),
        ({"mechanism": None}, ConfigError, "a mapping with a name and options"),
        ({"mechanism": {"bands": 2}}, ConfigError, "a mapping with a name and options"),
        ({"mechanism": {"name": "laplace", "band": 2}}, ConfigError, "unknown key"),
        ({"mechanism": {"name": "laplace", "clip_norm": -1.0}}, ConfigError, "clip_norm"),
        ({"mechanism": {"name": "gaussian", "clip": 1.0}}, ConfigError, "clip: unknown key"),
        ({"mechanism": "laplce"}, PluginError, "did you mean 'laplace'"),
        ({"mechanism": "none"}, PrivacyError, "neither clips nor noises"),
        ({"num_rounds": -1}, PrivacyError, "at least 0"),
        ({"cohort_size": math.nan}, PrivacyError, "must be positive and finite"),
        ({"cohort_size": 2000}, PrivacyError, "lower the cohort"),
        ({"population_size": 10**400}, PrivacyError, "population_size is larger than a float"),
        ({"cohort_size": 10**400}, ConfigError, "cohort_size is larger than a float"),
        ({"num_rounds": 10**5000}, PrivacyError, "rounds is larger than a float"),
        ({"delta": 1.0}, PrivacyError, "below 1"),
        ({"accountant": "rpd"}, PrivacyError, "must be one of"),
        ({"sampling": "fixed_size", "accountant": "prv"}, PrivacyError, "does not know"),
        ({"max_participations": 3}, PrivacyError, "max_participations is 3"),
        ({"sampling": "selected", "max_participations": 0}, PrivacyError, "left out for no cap"),
        ({"sampling": "selected", "max_participations": "3"}, ConfigError, "must be a whole"),
    ],
)
def test_what_is_wrong_is_said(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pfl_bench.epsilon(1.0, **{**SMALL, **wrong})
    with pytest.raises(error, match=words.replace("at least 0", "at least 1")):
        pfl_bench.calibrate(1.0, **{**SMALL, **wrong})


@pytest.mark.parametrize("budget", [0.0, -1.0, math.inf, math.nan, "2"])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises((PrivacyError, ConfigError), match="epsilon is"):
        pfl_bench.calibrate(budget, **SMALL)
    with pytest.raises((PrivacyError, ConfigError), match="noise_multiplier is"):
        pfl_bench.epsilon("2" if budget == "2" else -1.0, **SMALL)  # type: ignore[arg-type]
