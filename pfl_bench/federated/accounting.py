"""Accounting without a run: epsilon of noise, and noise of an epsilon, for any mechanism.

Guarantee: unit user. Adjacency is the sampling scheme's (``SamplingScheme.adjacency``), and the
epsilon is that of the scheme and mechanism which are named, composed over all rounds. An accountant
that does not know them is refused.

``pfl-bench privacy`` and the functions of ``pfl_bench.api`` account by this module, so that they
give the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from pfl_bench.types import ConfigError, did_you_mean, returned
from privacy.accountant import check_accountant
from privacy.amplification import (
    Composition,
    MechanismComposition,
    Participation,
    sampled_gaussian,
)
from privacy.calibration import default_delta
from privacy.description import GAUSSIAN, Description
from privacy.errors import PlanError
from privacy.plan.types import Setting
from privacy.sampling_scheme import scheme_named

# Of a calculation that names none: sampled Gaussians, for which no mechanism, nor torch, is loaded.
DEFAULT_MECHANISM = "gaussian"


class Accounting(TypedDict, total=False):
    """Settings of the accounting of rounds, where it is not the default.

    Attributes:
        sampling: "poisson" (default), "truncated_poisson", "cyclic_poisson", "fixed_size", "full"
            or "selected".
        separation: Rounds between two of one user (cyclic_poisson, selected); default 1.
        max_participations: Rounds of one user at most (selected); default None, no cap.
        mechanism: Name, or a mapping of the name and options as in a row; default "gaussian".
    """

    sampling: str
    separation: int
    max_participations: int | None
    mechanism: str | Mapping[str, Any]


def epsilon(
    noise_multiplier: float,
    *,
    population_size: int,
    cohort_size: float,
    num_rounds: int,
    delta: float | None = None,
    accountant: str = "rdp",
    **accounting: Unpack[Accounting],
) -> float:
    """Epsilon of a private run's noise, the number that ``pfl-bench privacy epsilon`` prints.

    Guarantee: unit user. Adjacency is that of the sampling: add-or-remove-one for poisson,
    cyclic_poisson and full; replace-one for fixed_size; zero-out for selected. The returned value
    is an upper bound of the epsilon of all rounds together, if users are drawn by that sampling.
    Where a small cohort simulates a large one, there are two epsilons. With a deployment's cohort
    this is the simulated one. With the run's own cohort, and noise scaled by the ratio of the two,
    it is the actual one.

    Args:
        noise_multiplier: z, standard deviation of the noise on the sum in multiples of the clipping
            norm (Laplace noise: scale), at least 0.
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under the Poisson schemes, exact otherwise.
        num_rounds: Number of rounds, at least 0.
        delta: In (0, 1); None for population_size ** -1.1.
        accountant: "rdp", "pld" or "prv".
        **accounting: Sampling and mechanism, see ``Accounting``.

    Returns:
        Epsilon at ``delta``; infinite where nothing is promised.

    Raises:
        ConfigError: An argument has the wrong type, or there is no such argument.
        PluginError: There is no such mechanism.
        privacy.errors.PrivacyError: A number is out of its range, or the accountant does not know
            the sampling or the mechanism.
    """
    sizes = (population_size, cohort_size, num_rounds)
    setting, rounds = _setting("epsilon", sizes, delta, accountant, accounting)
    noise = _number("pfl_bench.epsilon", "noise_multiplier", noise_multiplier)
    if setting.composition is sampled_gaussian:
        check_accountant(accountant, setting.participation.scheme)
    return replace(setting, noise_multiplier=noise).epsilon(rounds)


def calibrate(
    epsilon: float,
    *,
    population_size: int,
    cohort_size: float,
    num_rounds: int,
    delta: float | None = None,
    accountant: str = "rdp",
    **accounting: Unpack[Accounting],
) -> float:
    """Noise multiplier for a budget, the number that ``pfl-bench privacy calibrate`` prints.

    Guarantee: as of ``epsilon``. With the returned multiplier and the same arguments, ``epsilon``
    is at most the budget.

    Args:
        epsilon: Budget, positive and finite.
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under the Poisson schemes, exact otherwise. Of the
            deployment, where a small cohort simulates a large one.
        num_rounds: Number of rounds, at least 1.
        delta: In (0, 1); None for population_size ** -1.1.
        accountant: "rdp", "pld" or "prv".
        **accounting: Sampling and mechanism, see ``Accounting``.

    Returns:
        The smallest multiplier within the budget, to a relative tolerance of 5e-5.

    Raises:
        ConfigError: An argument has the wrong type, or there is no such argument.
        PluginError: There is no such mechanism.
        privacy.errors.PrivacyError: A number is out of its range, the accountant does not know the
            sampling or the mechanism, or no noise is enough.
    """
    sizes = (population_size, cohort_size, num_rounds)
    setting, rounds = _setting("calibrate", sizes, delta, accountant, accounting)
    return setting.calibrated(_number("pfl_bench.calibrate", "epsilon", epsilon), rounds)


def _setting(
    function: str,
    sizes: tuple[object, object, object],
    delta: float | None,
    accountant: str,
    accounting: Accounting,
) -> tuple[Setting, int]:
    """Check what a function was given: the setting, as yet without noise, and the rounds.

    ``sizes`` are population, cohort and rounds.
    """
    where = f"pfl_bench.{function}"
    for name in accounting:
        if name not in Accounting.__annotations__:
            names = ", ".join(Accounting.__annotations__)
            hint = did_you_mean(name, Accounting.__annotations__, ".")
            raise ConfigError(f"{where}: no argument {name!r}{hint} Beside numbers: {names}")
    population, cohort, rounds = sizes
    cap = accounting.get("max_participations")
    users = Participation(
        scheme_named(
            accounting.get("sampling", "poisson"),
            _whole(where, "separation", accounting.get("separation", 1)),
            None if cap is None else _whole(where, "max_participations", cap),
        ),
        _whole(where, "population_size", population),
        _number(where, "cohort_size", cohort),
    )
    given = accounting.get("mechanism", DEFAULT_MECHANISM)
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    if not isinstance(options.get("name"), str):
        raise ConfigError(
            f"{where}: mechanism is {given!r}, but must be a name, or a mapping with a name "
            "and options, such as {'name': 'tree_aggregation'}"
        )
    num_rounds = _whole(where, "num_rounds", rounds)
    composition = composition_of(
        options.pop("name"),
        options,
        where,
        (users.cohort_size, users.cohort_size),
        num_rounds,
        users.min_separation,
    )
    if delta is None:
        delta = default_delta(users.population_size)
    delta = _number(where, "delta", delta)
    return Setting(users, 0.0, delta, accountant, composition), num_rounds


def _number(where: str, name: str, value: object) -> float:
    # numpy's numbers, too.
    if not isinstance(value, str | bytes | bool):
        try:
            with suppress(TypeError, ValueError):
                return float(cast("float", value))
        except OverflowError:
            raise ConfigError(f"{where}: {name} is larger than a float holds") from None
    raise ConfigError(f"{where}: {name} is {value!r}, but must be a number")


def _whole(where: str, name: str, value: Any) -> int:
    if not isinstance(value, bool):
        with suppress(TypeError):
            return operator.index(value)
    raise ConfigError(f"{where}: {name} is {value!r}, but must be a whole number")


def composition_of(
    name: str,
    options: Mapping[str, Any],
    where: str,
    cohorts: tuple[float, float],
    rounds: int | None,
    separation: int = 1,
) -> MechanismComposition:
    """Composition of the rounds of a mechanism.

    Args:
        name: The mechanism.
        options: Its options.
        where: What messages name as the place, such as the command.
        cohorts: Cohort of the run, and the cohort whose noise is simulated.
        rounds: Number of rounds that are planned, at most; None where they are asked for.
        separation: Rounds between two of one user.
    """
    if name == DEFAULT_MECHANISM and not options:
        return sampled_gaussian
    from pfl_bench import plugins
    from pfl_bench.config.errors import Given
    from pfl_bench.config.loading import validate_tree
    from privacy.mechanism import NoiseScale

    kind = plugins.options_type(plugins.MECHANISM, name)
    described = module_description(name)
    if not options and described is not None and described.is_sampled_gaussian:
        return sampled_gaussian
    if "clip_norm" in kind.model_fields:
        # Noise is in multiples of it, so that no epsilon depends on it.
        options = {"clip_norm": 1.0, **options}
    typed = validate_tree(kind, options, "", Given(Path(f"{where}, mechanism {name}")))

    def built(cohort: float, noise_cohort: float, rounds: int) -> Any:
        # Without noise none can be infeasible, and the multiplier is asked for when composing.
        noise = NoiseScale(0.0, cohort, noise_cohort, rounds, separation)
        return plugins.build(plugins.MECHANISM, name, typed, noise)

    mechanism = built(*cohorts, rounds or 0)
    if not mechanism.is_private:
        raise PlanError(
            f"the mechanism {name} neither clips nor noises, so that there is nothing to account; "
            "choose a private one, such as gaussian"
        )
    in_use = lru_cache(maxsize=8)(built)
    are_planned = rounds is not None

    def composition(participation: Participation, noise: float, rounds: int) -> Composition:
        cohort = participation.cohort_size
        # Where the rounds are asked for, none are planned that noise could be fitted to.
        composed: Composition = in_use(cohort, cohort, rounds if are_planned else 0).composition(
            participation, noise, rounds
        )
        return composed

    return composition


def module_description(mechanism: str) -> Description | None:
    """Description in a mechanism's module; None if there is no such module, or no description."""
    if mechanism == DEFAULT_MECHANISM:
        return GAUSSIAN
    from pfl_bench import plugins

    if mechanism not in plugins.available(plugins.MECHANISM):
        return None
    module = plugins.load(plugins.MECHANISM, mechanism)
    found = getattr(module, "DESCRIPTION", None)
    return None if found is None else returned(module, "DESCRIPTION", found, Description)
