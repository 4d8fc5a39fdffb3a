"""What one round is worth to an accountant, given how its users are drawn.

Guarantee: unit user (or example); the round's release is a Gaussian mechanism with multiplier z
on a sum that one unit changes by at most ``clip_norm`` (added or removed).

- poisson: each user takes part independently with probability q = cohort / population; adjacency
  add-or-remove-one; sensitivity clip_norm.
- fixed_size: a uniformly random set of exactly ``cohort_size`` users, none twice; the population
  size is public, so adjacency is replace-one, under which the sum moves by twice clip_norm and
  the multiplier is z / 2.
- full: every user in every round, no amplification; adjacency add-or-remove-one.

The scheme must be the one that the sampler draws by; accounting a fixed-size cohort as Poisson is
a claim about another algorithm.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from privacy.errors import PrivacyError

Scheme = Literal["poisson", "fixed_size", "full"]
Adjacency = Literal["add-or-remove-one", "replace-one"]

SCHEMES: tuple[str, ...] = get_args(Scheme)
ADJACENCY: dict[str, Adjacency] = {
    "poisson": "add-or-remove-one",
    "fixed_size": "replace-one",
    "full": "add-or-remove-one",
}


def check_scheme(scheme: str) -> None:
    """Check the name of a sampling scheme.

    Raises:
        PrivacyError: It is unknown.
    """
    if scheme not in SCHEMES:
        raise PrivacyError(f"the sampling scheme is {scheme!r}, but must be one of {SCHEMES}")


def check_population(scheme: str, population_size: int, cohort_size: float) -> None:
    """Check that a cohort can be drawn from a population by a scheme.

    Args:
        scheme: "poisson", "fixed_size" or "full".
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under "poisson", exact otherwise.

    Raises:
        PrivacyError: The sizes do not fit.
    """
    check_scheme(scheme)
    if population_size < 1 or population_size != int(population_size):
        raise PrivacyError(
            f"population_size is {population_size!r}, but must be a whole number of users, at "
            "least 1"
        )
    if not (math.isfinite(cohort_size) and cohort_size > 0):
        raise PrivacyError(f"cohort_size is {cohort_size!r}, but must be positive and finite")
    if cohort_size > population_size:
        raise PrivacyError(
            f"cohort_size {cohort_size!r} is more than population_size {population_size}; a round "
            "cannot have more users than there are; lower the cohort or name the right population"
        )
    if scheme == "full" and cohort_size != population_size:
        raise PrivacyError(
            f"under full participation the cohort is the population, but cohort_size is "
            f"{cohort_size!r} and population_size {population_size}; make them equal or sample by "
            "poisson"
        )
    if scheme == "fixed_size" and cohort_size != int(cohort_size):
        raise PrivacyError(
            f"a fixed-size cohort must be a whole number of users, not {cohort_size!r}"
        )


def round_event(
    scheme: str, noise_multiplier: float, population_size: int, cohort_size: float
) -> tuple[Any, Adjacency]:
    """Describe one round to an accountant.

    Args:
        scheme: How users are drawn: "poisson", "fixed_size" or "full".
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm, at least 0.
        population_size: Users to draw from.
        cohort_size: Users of a round; expected under "poisson", exact otherwise.

    Returns:
        A ``dp_accounting.DpEvent`` and the adjacency under which it holds.

    Raises:
        PrivacyError: The scheme is unknown, or the sizes or the multiplier are not allowed.

    Source: Abadi et al. 2016 (poisson); Wang et al. 2019, theorem 27 (fixed_size).
    """
    check_population(scheme, population_size, cohort_size)
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise PrivacyError(
            f"noise_multiplier is {noise_multiplier!r}, but must be finite and at least 0"
        )
    from dp_accounting import dp_event

    adjacency = ADJACENCY[scheme]
    if scheme == "poisson":
        gaussian = dp_event.GaussianDpEvent(noise_multiplier)
        return dp_event.PoissonSampledDpEvent(cohort_size / population_size, gaussian), adjacency
    if scheme == "fixed_size":
        gaussian = dp_event.GaussianDpEvent(noise_multiplier / 2.0)
        return (
            dp_event.SampledWithoutReplacementDpEvent(
                int(population_size), int(cohort_size), gaussian
            ),
            adjacency,
        )
    return dp_event.GaussianDpEvent(noise_multiplier), adjacency
