"""``pfl-bench privacy tuning``: the price before any run, from numbers or from a row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dp_accounting import dp_event, rdp

from pfl_bench.cli.main import main

Capture = pytest.CaptureFixture[str]
SETTING = ["--population", "1000", "--cohort", "100", "--rounds", "50", "--delta", "1e-5"]


def answers(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["privacy", "tuning", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {f"{one['distribution']} {one['eta']}": one for one in found["answers"]} | {"all": found}


def test_prices_are_dp_accountings(capsys: Capture) -> None:
    found = answers(capsys, "--mean", "10", "--noise-multiplier", "2", *SETTING)
    sampled = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))
    run = dp_event.SelfComposedDpEvent(sampled, 50)

    def epsilon(event: Any) -> float:
        accountant = rdp.RdpAccountant()
        accountant.compose(event)
        return float(accountant.get_epsilon(1e-5))

    shapes = {"poisson None": float("inf"), "geometric 1.0": 1.0}
    for name, shape in {**shapes, "truncated_negative_binomial 0.0": 0.0}.items():
        expected = epsilon(dp_event.RepeatAndSelectDpEvent(run, 10.0, shape))
        assert found[name]["selection"]["simulated"] == pytest.approx(expected, rel=1e-9)
        assert found[name]["run"]["simulated"] == pytest.approx(epsilon(run), rel=1e-9)
    ten = epsilon(dp_event.SelfComposedDpEvent(sampled, 500))
    assert found["all released None"]["selection"]["simulated"] == pytest.approx(ten, rel=1e-9)


def test_a_budget_is_solved_for_the_noise(capsys: Capture) -> None:
    trials = ["--trials", "geometric", "--gamma", "0.2"]
    found = answers(capsys, *trials, "--epsilon", "3", *SETTING)
    solved = found["geometric 1.0"]
    assert 2.99 < solved["selection"]["simulated"] <= 3.0
    assert solved["run"]["simulated"] < 2.0
    noise = str(solved["noise_multiplier"])
    again = answers(capsys, *trials, "--noise-multiplier", noise, *SETTING)["geometric 1.0"]
    assert again == solved


def test_a_row_says_its_own_numbers(capsys: Capture) -> None:
    arguments = ["--trials", "geometric", "--mean", "4", "--row", "demo/private_federated"]
    found = answers(capsys, *arguments, "federated.num_rounds=3")
    one = found["geometric 1.0"]
    assert found["all"]["rounds"] == 3
    assert one["run"]["simulated"] == pytest.approx(4.0, rel=1e-3)
    assert one["selection"]["actual"] > one["selection"]["simulated"] > 4.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--noise-multiplier", "2", *SETTING], "--mean is left out"),
        (["--mean", "3", *SETTING], "give one of --epsilon"),
        (["--mean", "3", "--eta", "1", *SETTING], "--eta and --gamma belong to one"),
        (["--gamma", "0.2", *SETTING], "--eta and --gamma belong to one"),
        (["--mean", "0.5", "--noise-multiplier", "2", *SETTING], "from 1 to"),
        (["--mean", "3", "--noise-multiplier", "2"], "--population --cohort --rounds"),
        (["--mean", "3", "--row", "demo/private_federated", "--rounds", "3"], "the row says that"),
        (["--mean", "3", "--row", "demo/federated"], "claims no privacy"),
    ],
)
def test_a_wrong_question_is_refused(arguments: list[str], words: str, capsys: Capture) -> None:
    assert main(["privacy", "tuning", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
