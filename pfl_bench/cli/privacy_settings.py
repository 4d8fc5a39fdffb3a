"""Arguments that the actions of ``pfl-bench privacy`` share, as settings to be accounted.

Guarantee: unit user, or example where ``--sampling`` draws examples. With ``--noise-cohort`` or
``--users`` there are two settings, as in a run's statement: *simulated*, a deployment of
``--population`` users of whom ``--noise-cohort`` take part in a round; and *actual*, a run of
``--users`` users of whom ``--cohort`` take part, with noise scaled by the ratio of the cohorts.
Without them both are one.
"""

from __future__ import annotations

import argparse
from typing import Any

from pfl_bench.federated.accounting import DEFAULT_MECHANISM, composition_of, module_description
from pfl_bench.types import ConfigError
from privacy.accountant import check_accountant, check_composition
from privacy.amplification import MechanismComposition, Participation, sampled_gaussian
from privacy.calibration import default_delta
from privacy.errors import PrivacyError
from privacy.plan.notes import delta_notes
from privacy.plan.types import Setting
from privacy.sampling_scheme import SamplingScheme, scheme_named
from privacy.statement.statement import (
    NOT_COVERED,
    PATTERN_NOT_COVERED,
    Accounted,
    Guarantee,
    json_epsilon,
)


def simulates(arguments: argparse.Namespace) -> bool:
    """Whether a simulated and an actual setting are told apart."""
    return arguments.noise_cohort is not None or arguments.users is not None


def sides(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The settings of a ``Guarantee`` that are told apart."""
    return ("simulated", "actual") if simulates(arguments) else ("simulated",)


def scheme_of(arguments: argparse.Namespace) -> SamplingScheme:
    """The sampling scheme; one group alone that takes turns is refused, as no row may have it."""
    scheme = scheme_named(arguments.sampling, arguments.separation, arguments.max_participations)
    if scheme.is_drawn and scheme.keeps_distance and arguments.separation == 1:
        raise ConfigError(
            f"pfl-bench privacy: --sampling {arguments.sampling} draws from separation groups in "
            "turn: give --separation B with B of 2 or more, or --sampling poisson, which is what "
            "one group comes to"
        )
    return scheme


def check_noise_cohort(arguments: argparse.Namespace) -> None:
    """Check that ``--noise-cohort`` and ``--users`` are 1 or more."""
    for flag, value in (("--noise-cohort", arguments.noise_cohort), ("--users", arguments.users)):
        if value is not None and value < 1:
            raise ConfigError(
                f"pfl-bench privacy: {flag} is {value}, but must be a whole number of users, at "
                "least 1"
            )


def mechanism_composition(arguments: argparse.Namespace) -> MechanismComposition:
    """Composition of the rounds of ``--mechanism``, with its key=value options."""
    options = arguments.overrides
    alone = [text for text in options if "=" not in text]
    if alone:
        raise ConfigError(
            f"pfl-bench privacy: {' '.join(alone)}: is a further value of an option that takes one "
            "(in `table`, --rounds and --noise-multiplier take several): call the command for each "
            "value; an option of --mechanism is written key=value"
        )
    if arguments.mechanism is None and options:
        raise ConfigError(
            f"pfl-bench privacy: {' '.join(options)}: there is no --mechanism that it could be an "
            "option of; give one, or leave key=value out"
        )
    if options:
        from pfl_bench.config.yaml_text import with_overrides

        options = with_overrides({}, options)
    cohort = arguments.cohort or arguments.noise_cohort or 1
    rounds = arguments.rounds
    try:
        return composition_of(
            arguments.mechanism or DEFAULT_MECHANISM,
            options or {},
            "pfl-bench privacy",
            (cohort, arguments.noise_cohort or cohort),
            max(rounds) if isinstance(rounds, list) else rounds,
            arguments.separation,
        )
    except ConfigError as error:
        if options:
            raise
        raise ConfigError(
            f"{error}; options follow --mechanism as key=value, such as bands=4"
        ) from None


def default_accountant(arguments: argparse.Namespace, composition: MechanismComposition) -> str:
    """The accountant "rdp"; "pld", which knows all, where rdp does not know these rounds."""
    cohort = arguments.cohort or arguments.noise_cohort or 10
    try:
        users = Participation(scheme_of(arguments), arguments.population or 100 * cohort, cohort)
        noise = getattr(arguments, "noise_multiplier", None) or 1.0
        check_composition(composition(users, noise, arguments.rounds or 1), "rdp")
    except PrivacyError:  # what else is wrong is said where the arguments are used
        return "pld"
    return "rdp"


def settings_of(
    arguments: argparse.Namespace,
    composition: MechanismComposition,
    noise_multiplier: float,
    accountant: str,
) -> dict[str, Setting]:
    """The setting of the deployment, "simulated", and of the run, "actual", if that is another.

    Of the command's arguments, population is of the deployment, and of the run unless ``--users``
    says otherwise; cohort is of the run, and of the deployment unless ``--noise-cohort`` does. The
    noise multiplier is the deployment's.
    """
    scheme, population, cohort = scheme_of(arguments), arguments.population, arguments.cohort
    noise_cohort = arguments.noise_cohort or cohort

    def setting(size: int, drawn: int, noise: float) -> Setting:
        users = Participation(scheme, size, drawn)
        delta = default_delta(size) if arguments.delta is None else arguments.delta
        return Setting(users, noise, delta, accountant, composition)

    found = {"simulated": setting(population, noise_cohort, noise_multiplier)}
    if simulates(arguments):
        scaled = noise_multiplier * cohort / noise_cohort
        found["actual"] = setting(arguments.users or population, cohort, scaled)
    return found


def unit_of(scheme: SamplingScheme) -> str:
    """Whom rounds of this scheme protect: "user", or "example" of central training."""
    return "example" if scheme.of_examples else "user"


def account(
    arguments: argparse.Namespace,
    composition: MechanismComposition,
    noise_multiplier: float,
    rounds: int,
    accountant: str,
) -> Guarantee:
    """The guarantee of ``settings_of``; its notes are what a statement says of their deltas.

    Raises:
        PrivacyError: A number is out of its range, or the accountant does not know the mechanism.
    """
    scheme, mechanism = scheme_of(arguments), arguments.mechanism or DEFAULT_MECHANISM
    if composition is sampled_gaussian:
        # It says what to do in the words of the command, before any event is made.
        check_accountant(accountant, scheme)
    settings = settings_of(arguments, composition, noise_multiplier, accountant)
    notes: list[str] = []
    for side, one in settings.items():
        notes += delta_notes(one, f"The {side} delta" if len(settings) > 1 else "The delta")
    adjacency = settings["simulated"].composed(noise_multiplier, rounds).adjacency
    found = [one.accounted(rounds) for one in settings.values()]
    return Guarantee(
        unit=unit_of(scheme),
        adjacency=adjacency,
        mechanism=mechanism,
        accountant=accountant,
        rounds=rounds,
        simulated=found[0],
        actual=found[-1],
        notes=tuple(notes),
        not_covered=NOT_COVERED + (() if scheme.is_drawn else PATTERN_NOT_COVERED),
        mechanism_description=module_description(mechanism),
    )


def accounted_to_json(accounted: Accounted) -> dict[str, Any]:
    """One of two settings, as JSON takes it."""
    keys = ("population_size", "cohort_size", "sampling_probability", "noise_multiplier", "delta")
    facts = {key: getattr(accounted, key) for key in keys}
    return {**facts, "epsilon": json_epsilon(accounted.epsilon)}
