"""``pfl-bench privacy tuning``: what choosing the best of several runs costs, before any is run.

Guarantee: that of ``privacy.tuning``; unit and adjacency are those of one run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pfl_bench.cli import privacy_settings as shared
from pfl_bench.cli.speech import answer_json, print_table, write
from pfl_bench.types import ConfigError
from privacy.accountant import compose_epsilon
from privacy.amplification import Composition, Participation
from privacy.plan.types import Setting
from privacy.statement.statement import json_epsilon, round_up, small
from privacy.tuning import DISTRIBUTIONS, Trials, calibrate_selection, repeated, selection_epsilon

COVERS = (
    "The price of a selection holds if each trial draws its settings uniformly from the grid, and "
    "has noise and cohorts of its own; if the number of trials is drawn as is said here and stays "
    "secret; and if nothing but the best trial is released. A choice by held-out users covers the "
    "training users alone: held-out users' data are read without noise. A score that is private "
    'itself must be a part of each trial\'s plan. "all released" is the composition of as many '
    "runs as the mean, rounded up: it allows everything of all of them to be published."
)


@dataclass(frozen=True)
class _Question:
    """A question; the noise multipliers of its sides are in multiples of the deployment's."""

    unit: str
    rounds: int
    noise_multiplier: float | None
    sides: dict[str, Setting]


def main(arguments: argparse.Namespace) -> int:
    """Print, for each distribution of the number of trials, what the selection costs."""
    distributions = _trials(arguments)
    question = _of_row(arguments) if arguments.row else _of_arguments(arguments)
    if (arguments.epsilon is None) == (question.noise_multiplier is None):
        raise ConfigError(
            "pfl-bench privacy tuning: give one of --epsilon E (of the selection: the noise "
            "multiplier is solved for), --noise-multiplier Z, and --row ROW"
        )
    answers = list(_answers(question, distributions, arguments.epsilon))
    if arguments.json:
        head = {"unit": question.unit, "rounds": question.rounds, "accountant": "rdp"}
        sides = {label: side.to_json_dict() for label, side in question.sides.items()}
        for side in sides.values():
            del side["noise_multiplier"]
        answer_json({**head, **sides, "answers": answers, "covers": COVERS})
        return 0
    _print(question, answers)
    return 0


def _trials(arguments: argparse.Namespace) -> list[Trials]:
    """The distribution that is asked about, or several, all of one mean."""
    if arguments.trials is not None:
        return [Trials.named(arguments.trials, arguments.mean, arguments.eta, arguments.gamma)]
    if arguments.eta is not None or arguments.gamma is not None:
        raise ConfigError(
            f"pfl-bench privacy tuning: --eta and --gamma belong to one distribution; give "
            f"--trials, one of {', '.join(DISTRIBUTIONS)}"
        )
    if arguments.mean is None:
        raise ConfigError(
            "pfl-bench privacy tuning: --mean is left out; give the expected number of runs, such "
            "as --mean 20"
        )
    some = [Trials.named(name, arguments.mean) for name in DISTRIBUTIONS[:2]]
    return [*some, *(Trials.named(DISTRIBUTIONS[2], arguments.mean, eta) for eta in (-0.5, 0.0))]


def _of_arguments(arguments: argparse.Namespace) -> _Question:
    wanted = ("population", "cohort", "rounds")
    missing = [f"--{name}" for name in wanted if getattr(arguments, name) is None]
    if missing:
        raise ConfigError(
            f"pfl-bench privacy tuning: {' '.join(missing)} is left out; give it, or a row with "
            "--row ROW"
        )
    shared.check_noise_cohort(arguments)
    composition = shared.mechanism_composition(arguments)
    sides = shared.settings_of(arguments, composition, 1.0, "rdp")
    unit = shared.unit_of(shared.scheme_of(arguments))
    return _Question(unit, arguments.rounds, arguments.noise_multiplier, sides)


def _of_row(arguments: argparse.Namespace) -> _Question:
    names = (
        *("noise_multiplier", "population", "cohort", "rounds", "delta"),
        *("noise_cohort", "users", "mechanism", "max_participations"),
    )
    given = [
        f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is not None
    ]
    if given:
        raise ConfigError(
            f"pfl-bench privacy tuning: {' '.join(given)}: the row says that; leave it out, or "
            "leave --row out. key=value changes settings of the row"
        )
    from pfl_bench.config.loading import load_config
    from pfl_bench.config.row_files import locate_row
    from pfl_bench.runs.base_plan import compose_of, planned

    resolved = load_config(locate_row(arguments.row), arguments.overrides)
    plan = planned(resolved, Path("runs") / resolved.config.name / "planned")
    compose = compose_of(resolved)

    def composition(users: Participation, noise: float, rounds: int) -> Any:
        return compose(plan["mechanism"], plan["mechanism_options"], users, noise, rounds)

    noise = float(plan["simulated"]["noise_multiplier"])
    sides = {}
    for label in ("simulated", "actual"):
        said = plan[label]
        users = Participation.named(
            said["sampling"],
            said["population_size"],
            said["cohort_size"],
            said["separation"],
            said["max_participations"],
        )
        scale = said["noise_multiplier"] / noise
        sides[label] = Setting(users, scale, said["delta"], "rdp", composition)
    fixed = noise if arguments.epsilon is None else None
    return _Question(plan["unit"], plan["rounds"], fixed, sides)


def _answers(
    question: _Question, distributions: list[Trials], target: float | None
) -> Iterator[dict[str, Any]]:
    """An answer for each distribution, and one for as many runs as the mean, all published."""
    first = question.sides["simulated"]
    assert first.composition is not None
    assert first.delta is not None
    noise = question.noise_multiplier or 0.0
    for trials in distributions:
        if target is not None:
            noise = calibrate_selection(
                target, first.delta, first.participation, question.rounds, first.composition, trials
            )
        head = {**trials.to_json_dict(), "probability_of_no_trial": trials.probability_of_none}
        yield _answer(question, head, noise, partial(selection_epsilon, trials=trials))
    runs = math.ceil(distributions[0].mean)

    def together(users: Participation, noise: float, rounds: int) -> Any:
        assert first.composition is not None
        return repeated(first.composition(users, noise, rounds), runs)

    if target is not None:
        noise = replace(first, composition=together).calibrated(target, question.rounds)
    head = {"distribution": "all released", "mean": runs, "eta": None, "gamma": None}
    head["probability_of_no_trial"] = 0.0

    def price(plans: list[Composition], delta: float) -> float:
        return compose_epsilon([repeated(plan, runs) for plan in plans], delta, "rdp")

    yield _answer(question, head, noise, price)


def _answer(
    question: _Question, head: dict[str, Any], noise: float, price: Callable[..., float]
) -> dict[str, Any]:
    """The epsilons of one run and of the selection, of which ``price`` makes the latter."""
    answer = {**head, "noise_multiplier": noise, "run": {}, "selection": {}}
    for label, side in question.sides.items():
        plans = [side.composed(noise * side.noise_multiplier, question.rounds)]
        assert side.delta is not None
        answer["run"][label] = json_epsilon(compose_epsilon(plans, side.delta, "rdp"))
        answer["selection"][label] = json_epsilon(price(plans, delta=side.delta))
    return answer


def _print(question: _Question, answers: list[dict[str, Any]]) -> None:
    from pfl_bench.report.table import Table

    for label, side in question.sides.items():
        users = side.participation
        write(
            f"{label}: {users.cohort_size:g} of {users.population_size} a round "
            f"(q = {users.sampling_probability:.4g}), {question.rounds} rounds, delta "
            f"{small(side.delta or 0.0, 4)}, unit {question.unit}, accountant rdp"
        )
    labels = tuple(question.sides)
    headings = ["number of trials", "mean", "eta", "gamma", "noise multiplier"]
    headings += [f"epsilon of a run ({label})" for label in labels]
    headings += [f"epsilon of the selection ({label})" for label in labels]
    lines = [list(_cells(answer, labels)) for answer in answers]
    print_table(Table.of(headings, lines), None)
    write(f"\n{COVERS}")


def _cells(answer: dict[str, Any], labels: tuple[str, ...]) -> Iterator[str]:
    yield answer["distribution"].replace("_", " ")
    for key in ("mean", "eta", "gamma"):
        yield "-" if answer[key] is None else f"{answer[key]:.6g}"
    yield small(answer["noise_multiplier"], 6)
    for key in ("run", "selection"):
        for label in labels:
            value = answer[key][label]
            yield value if isinstance(value, str) else round_up(value, 5)
