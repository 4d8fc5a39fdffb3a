"""``pfl-bench privacy``: calculations without a run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.cli import privacy_settings as shared
from pfl_bench.cli import speech
from pfl_bench.federated.accounting import module_description
from pfl_bench.types import ConfigError, RunFolderError
from privacy.statement.statement import Guarantee, json_epsilon, round_up, small

if TYPE_CHECKING:
    from privacy.amplification import MechanismComposition
    from privacy.plan.solving import Solution

_DIGITS = 6


def main(arguments: argparse.Namespace) -> int:
    """Answer one action of ``pfl-bench privacy``."""
    if arguments.action == "explain":
        return _explain_run(arguments)
    if arguments.action == "tuning":
        from pfl_bench.cli import privacy_tuning

        return privacy_tuning.main(arguments)
    shared.check_noise_cohort(arguments)
    composition = shared.mechanism_composition(arguments)
    if arguments.action == "table":
        from pfl_bench.cli import privacy_table

        return privacy_table.main(arguments, composition)
    if arguments.accountant is None:
        arguments.accountant = shared.default_accountant(arguments, composition)
    rounds, solved = arguments.rounds, {}
    if arguments.action == "solve":
        solution = _solve(arguments, composition)
        rounds, noise, solved = solution.rounds, solution.noise_multiplier, _solved(solution)
    elif arguments.action == "calibrate":
        settings = shared.settings_of(arguments, composition, 0.0, arguments.accountant)
        noise = settings["simulated"].calibrated(arguments.epsilon, rounds)
    else:
        noise = arguments.noise_multiplier
    guarantee = shared.account(arguments, composition, noise, rounds, arguments.accountant)
    answer = _answer(arguments, guarantee) | solved
    if getattr(arguments, "epsilon", None) is not None:
        answer["target_epsilon"] = arguments.epsilon
    if guarantee.notes:
        answer["notes"] = guarantee.notes
    _print(arguments, answer, guarantee)
    return 0


def _solve(arguments: argparse.Namespace, composition: MechanismComposition) -> Solution:
    """Find the one number that is left out, and complete the arguments by it."""
    from privacy.errors import PrivacyError
    from privacy.plan.question import Question
    from privacy.plan.solving import solve

    cohort = arguments.noise_cohort or arguments.cohort
    if shared.simulates(arguments) and arguments.cohort is None:
        raise PrivacyError(
            "--cohort is left out with --noise-cohort or --users: the budget is the simulated "
            "deployment's, whose epsilon the cohort of the run does not change; give --cohort, or "
            "leave both out to solve for the cohort"
        )
    solution = solve(
        Question(
            epsilon=arguments.epsilon,
            noise_multiplier=arguments.noise_multiplier,
            rounds=arguments.rounds,
            cohort_size=cohort,
            population_size=arguments.population,
            delta=arguments.delta,
            scheme=shared.scheme_of(arguments),
            accountant=arguments.accountant,
        ),
        composition,
    )
    # What was left out, population or cohort, is known now.
    arguments.population = solution.participation.population_size
    arguments.cohort = int(arguments.cohort or solution.participation.cohort_size)
    return solution


def _solved(solution: Solution) -> dict[str, Any]:
    beyond = None
    if solution.beyond is not None:
        value, epsilon = solution.beyond
        beyond = {solution.unknown: value, "epsilon": json_epsilon(epsilon)}
    return {"solved_for": solution.unknown, "rule": solution.rule, "beyond": beyond}


def _answer(arguments: argparse.Namespace, guarantee: Guarantee) -> dict[str, Any]:
    """The answer as JSON takes it: one epsilon, or two labelled ones."""
    answer: dict[str, Any] = {"unit": guarantee.unit, "adjacency": guarantee.adjacency}
    answer["sampling"] = arguments.sampling
    if arguments.mechanism is not None:
        answer["mechanism"] = arguments.mechanism
    if arguments.separation != 1:
        answer["separation"] = arguments.separation
    if arguments.max_participations is not None:
        answer["max_participations"] = arguments.max_participations
    simulated = shared.accounted_to_json(guarantee.simulated)
    found = {**simulated, "rounds": guarantee.rounds, "accountant": guarantee.accountant}
    if shared.simulates(arguments):
        answer |= {key: found[key] for key in ("rounds", "accountant", "noise_multiplier")}
        actual = shared.accounted_to_json(guarantee.actual)
        return answer | {"simulated": simulated, "actual": actual}
    # In this order, which is what the command has always printed.
    sizes = ("population_size", "cohort_size", "sampling_probability", "rounds")
    keys = (*sizes, "delta", "accountant", "noise_multiplier", "epsilon")
    return answer | {key: found[key] for key in keys}


def _print(arguments: argparse.Namespace, answer: dict[str, Any], guarantee: Guarantee) -> None:
    told = None
    if arguments.explain:
        from privacy.statement.explaining import explain, sections

        # The notes are a part of the answer already.
        plain = replace(guarantee, notes=())
        answer, told = answer | {"explanation": sections(plain)}, explain(plain)
    if arguments.json:
        speech.answer_json(answer)
        return
    for key, value in answer.items():
        if key in ("simulated", "actual"):
            speech.write(f"{f'epsilon ({key})':22} {_setting(value)}")
        elif key == "beyond" and value is not None:
            (name, number), (_, epsilon) = value.items()
            over = f"{name} {_text(name, number)} has epsilon {_text('epsilon', epsilon)}"
            speech.write(f"{'beyond':22} {over}")
        elif key == "notes":
            for note in value:
                speech.write(f"{'note':22} {note}")
        elif key not in ("explanation", "beyond"):
            speech.write(f"{key:22} {_text(key, value)}")
    if told is not None:
        speech.write(f"\n{told}")


def _text(key: str, value: Any) -> str:
    """A value as text; what a user may type again is no weaker than what was calculated."""
    if key == "epsilon" and isinstance(value, float):
        return round_up(value, _DIGITS)
    if key in ("delta", "noise_multiplier"):
        return small(value, _DIGITS)
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def _setting(accounted: dict[str, Any]) -> str:
    return (
        f"{_text('epsilon', accounted['epsilon'])} at delta {_text('delta', accounted['delta'])}: "
        f"{accounted['cohort_size']} of {accounted['population_size']} a round (q = "
        f"{accounted['sampling_probability']:.4g}), noise multiplier "
        f"{_text('noise_multiplier', accounted['noise_multiplier'])}"
    )


def _planned(row: str, overrides: list[str]) -> dict[str, Any]:
    from pfl_bench.config.loading import load_config
    from pfl_bench.config.row_files import locate_row
    from pfl_bench.runs.preview import preview

    resolved = load_config(locate_row(row), overrides)
    statement = preview(resolved, Path("runs") / resolved.config.name).statement
    if statement is None or statement.unit == "none":
        raise ConfigError(
            f"{row}: the row claims no privacy, so there is no guarantee to explain; give a "
            "private one, such as demo/private_federated.yaml"
        )
    return statement.to_json_dict()


def _explain_run(arguments: argparse.Namespace) -> int:
    """Explain the statement of a run folder, or of a row as planned."""
    from pfl_bench.config.row_files import is_row
    from pfl_bench.files import read_json
    from pfl_bench.report.words import selection_words
    from privacy.statement.explaining import explain, sections
    from privacy.statement.statement import PrivacyStatement

    folder = Path(arguments.run)
    path = folder / "privacy.json"
    document = read_json(path)
    if arguments.overrides and folder.is_dir():
        raise ConfigError(
            f"{arguments.run} is a run's folder, whose settings are those that it ran with; give "
            f"a row to change {' '.join(arguments.overrides)}"
        )
    if document is None and not folder.is_dir() and is_row(arguments.run):
        document = _planned(arguments.run, arguments.overrides)
    if document is None:
        raise RunFolderError(
            f"{path} does not exist: {arguments.run} is neither the folder of a private run that "
            "has begun nor a row; give one, such as runs/demo/private_federated/seed-0 or "
            "demo/private_federated.yaml"
        )
    choice = selection_words(read_json(folder / "selection.json"))
    try:
        statement = PrivacyStatement.from_json_dict(document)
        if statement.mechanism_description is None:
            module = module_description(statement.mechanism)
            statement = replace(statement, mechanism_description=module)
        if choice:
            note = f"A sweep has chosen this run: epsilon with that choice, its price, is {choice}."
            statement = replace(statement, notes=(note, *statement.notes))
        told, text = sections(statement), explain(statement)
    except (ValueError, TypeError, AttributeError, KeyError, ArithmeticError) as error:
        raise RunFolderError(
            f"{path} is not a privacy statement: {error}; run the row again, or give another "
            "run's folder"
        ) from None
    if arguments.json:
        speech.answer_json({"run": arguments.run, "explanation": told})
    else:
        speech.answer(text)
    return 0
