"""Description of the recorded rounds, from the ledger's constants in the guarantee's words.

Guarantee: none of its own. How rounds compose is derived here from what a mechanism states of its
noise (``privacy.description``), once more and apart from the code that runs are accounted by.
Nothing is asked of the mechanism but, for selected users under correlated noise, its sensitivity.
Sampling schemes that are not described here are taken at their word; what such a scheme leaves
unsaid is not known, and a check that needs it is incomplete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.amplification import Composition
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number
from privacy.description import Columns, Description, Tree
from privacy.errors import PrivacyError
from privacy.sampling_scheme import Participation

_LARGEST_TREE = 1 << 24
# Kinds of events under schemes that a user is in by chance.
_SAMPLED = {
    "poisson": "sampled ", "cyclic_poisson": "sampled ", "truncated_poisson": "truncated ",
    "fixed_size": "fixed-size ",
}  # fmt: skip
_POISSON = ("poisson", "cyclic_poisson")
# How each scheme is accounted: written down here once more, independent of the plan's table.
ADJACENCY = {
    "poisson": "add-or-remove-one",
    "truncated_poisson": "add-or-remove-one",
    "cyclic_poisson": "add-or-remove-one",
    "full": "add-or-remove-one",
    "fixed_size": "replace-one",
    "selected": "zero-out",
    "shuffled": "zero-out",
}


@dataclass(frozen=True, slots=True)
class Described:
    """The recorded rounds in the words of the guarantee."""

    # "sampled gaussian", "truncated gaussian", "gaussian", "fixed-size gaussian", "sampled
    # laplace", "laplace" or "answers".
    kind: str
    noise: float  # multiplier, or scale, of one event; of "answers" the epsilon of one
    count: int  # events that one user can be in
    rate: float = 1.0  # probability of a user's part in each; 1 without sampling
    note: str = ""  # what was taken from the mechanism itself, in words; empty for nothing
    # Noise multipliers of Gaussians that are released once, beside the events.
    beside: tuple[float, ...] = ()
    sizes: tuple[int, int] = (0, 0)  # population and most users of a round, of "truncated gaussian"


def contradictions(described: Described, part: Composition) -> list[str]:
    """Differences between a mechanism's composition of its rounds and the description."""
    event, problems = part.event, []
    if part.count != described.count:
        problems.append(
            f"{part.count} events are composed where a user can be in {described.count}"
        )
    inner = getattr(event, "event", event)
    rate = getattr(event, "sampling_probability", 1.0)
    noise = getattr(inner, "noise_multiplier", math.nan)
    expected = described.noise
    if described.kind == "fixed-size gaussian":
        # A replaced user moves the sum by two bounds.
        expected = described.noise / 2.0
        rate = getattr(event, "sample_size", math.nan) / getattr(event, "source_dataset_size", 1)
    if described.kind == "answers":
        lie = getattr(inner, "noise_parameter", math.nan) / getattr(inner, "num_buckets", 2)
        truth = 1.0 - lie * (getattr(inner, "num_buckets", 2) - 1)
        noise = math.log(truth / lie) if lie > 0.0 else math.nan
    for what, found, own, near in (
        ("the sampling probability", rate, described.rate, 1e-9),
        ("the noise multiplier", noise, expected, 1e-6),
    ):
        if not math.isclose(found, own, rel_tol=near):
            problems.append(f"{what} is accounted as {found:.6g}, not {own:.6g}")
    sizes = tuple(getattr(event, key, 0) for key in ("dataset_size", "truncated_batch_size"))
    beside = tuple(getattr(event, "noise_multiplier", math.nan) for event in part.beside)
    for what, accounted, described_as in (
        ("population and cap", sizes, described.sizes),
        ("noise multipliers of releases beside the steps", beside, described.beside),
    ):
        if accounted != described_as:
            problems.append(f"{what} are accounted as {accounted}, not {described_as}")
    return problems


def describe(
    evidence: Evidence, inputs: AuditInputs, label: str, rounds: int, part: Composition
) -> Described | str:
    """Describe the rounds by the recorded constants; in words, why they cannot be described.

    The ledger has one set of constants. ``part`` is what the mechanism says that the rounds compose
    to, used for a sensitivity that is not added up here. ``ValueError``: a number is none.
    """
    constants, stated = evidence.constants, inputs.configured.description
    side: Mapping[str, Any] = constants.get(label) or {}
    name = str(constants.get("mechanism"))
    population, cohort = (as_number(side.get(key)) for key in ("population_size", "cohort_size"))
    noise, scheme = as_number(side.get("noise_multiplier")), str(constants.get("sampling"))
    apart = int(as_number(constants.get("separation", 1)))
    most = -(-rounds // apart)
    if constants.get("max_participations") is not None:
        most = min(most, int(as_number(constants["max_participations"])))
    own = own_users(constants, label)
    if own is not None:
        most = own.most_participations(rounds)
        if own.sampling_probability != 1.0 or own.scheme.sensitivity != 1.0:
            return f"there is no second description of the sampling scheme {scheme!r}"
    if scheme == "shuffled":
        # Full batches of one order of the examples; an example is in one of them at most.
        most = -(-rounds // max(1, int(population // cohort)))
    rate = cohort * apart / population
    if not (math.isfinite(noise) and (scheme not in _POISSON or 0 < rate <= 1)):
        return "the recorded noise or sampling probability is no such number"
    if stated.reports == "direction":
        return Described("answers", 1.0 / noise, most)
    unstated = _unstated(stated)
    if unstated or stated.stddev is None:
        return f"there is no second implementation of the mechanism {name!r}: {unstated}"
    # Of one event, in multiples of clip_norm.
    deviation = noise * stated.stddev
    if stated.reports == "noised":
        # Two values of a report are two bounds apart.
        return Described("gaussian", deviation / 2.0, most)
    sampled = "sampled " if scheme in _POISSON else ""
    if stated.law == "laplace":
        scale = deviation / math.sqrt(2.0)
        return Described(f"{sampled}laplace", scale, most, rate if sampled else 1.0)
    column = stated.strategy if isinstance(stated.strategy, tuple) else None
    if column is not None and (
        len(column) == 1 or (scheme == "cyclic_poisson" and apart >= len(column))
    ):
        # Each of a user's rounds touches rows of its own: one Gaussian, entered by chance.
        fresh = _fresh(scheme, deviation / math.hypot(*column), most, rate)
        if scheme == "truncated_poisson":
            # Four standard deviations above the cohort.
            cap = min(population, math.ceil(cohort + 4.0 * math.sqrt(cohort)))
            fresh = replace(fresh, sizes=(int(population), int(cap)))
        # Mean and mean square of the features, where they are released.
        released = (constants.get("mechanism_options") or {}).get("statistics")
        if isinstance(released, Mapping):
            fresh = replace(fresh, beside=(as_number(released.get("noise_multiplier")),) * 2)
        return fresh
    if isinstance(stated.strategy, Columns) and apart >= stated.strategy.bands:
        # The same, with columns of norm 1.
        return _fresh(scheme, deviation, most, rate)
    return _correlated(evidence, inputs, rounds, deviation, part)


def _unstated(stated: Description) -> str:
    """Parts that a description leaves out, or from which nothing is derived here; in words."""
    if stated.reports == "other":
        return "its clients randomise their updates in a way that is not known here"
    missing = [
        what
        for what, value in (
            ("the law of its noise", stated.law),
            ("its standard deviation", stated.stddev),
            ("how the noise of rounds goes together", stated.strategy),
        )
        if value is None
    ]
    if missing:
        return f"it does not state {', '.join(missing)}"
    if stated.law == "laplace":
        if stated.norm != "l1" or stated.correlates_rounds or stated.reports:
            return "Laplace noise is known here drawn anew in each round, on a sum clipped in L1"
    elif stated.reports and stated.correlates_rounds:
        return "reports are known here whose noise is drawn anew each round"
    return ""


def _fresh(scheme: str, noise: float, most: int, rate: float) -> Described:
    """Gaussian noise that is drawn anew for each of a user's rounds."""
    kind = _SAMPLED.get(scheme, "")
    return Described(f"{kind}gaussian", noise, most, rate if kind else 1.0)


def _correlated(
    evidence: Evidence, inputs: AuditInputs, rounds: int, noise: float, part: Composition
) -> Described:
    """All rounds as one Gaussian mechanism."""
    constants = evidence.constants
    apart = int(as_number(constants.get("separation", 1)))
    squared, strategy = None, inputs.configured.description.strategy
    column = inputs.configured.description.column(rounds)
    if constants.get("sampling") in ("cyclic_poisson", "full"):
        if isinstance(strategy, Tree):
            squared = tree_sensitivity(rounds, apart, strategy.restart_every)
        elif column is not None:
            squared = banded_sensitivity(column, rounds, apart)
    if squared is not None:
        return Described("gaussian", noise / math.sqrt(squared) if squared else noise, 1)
    seen = getattr(part.event, "noise_multiplier", None)
    if seen is None:
        raise PrivacyError("the mechanism does not say that it is one Gaussian")
    note = "; the sensitivity of all rounds is the mechanism's own"
    return Described("gaussian", float(seen), part.count, note=note)


def tree_sensitivity(rounds: int, apart: int, restart: int | None) -> float | None:
    """Squared sensitivity of all complete nodes, for a user in rounds g, g + b, ... of the worst g.

    ``apart`` is b, ``restart`` the rounds of a tree (None for one tree). None where it would take
    too long to add up.
    """
    size = restart or rounds
    if rounds * min(apart, rounds) > _LARGEST_TREE:
        return None
    worst = 0.0
    for group in range(min(apart, rounds)):
        is_in = np.zeros(rounds)
        is_in[group::apart] = 1.0
        total = 0.0
        for start in range(0, rounds, size):
            counts = is_in[start : start + size]
            while len(counts):
                total += float(np.square(counts).sum())
                counts = counts[: len(counts) // 2 * 2].reshape(-1, 2).sum(axis=1)
        worst = max(worst, total)
    return worst


def banded_sensitivity(coefficients: NDArray[np.float64], rounds: int, apart: int) -> float:
    """Squared sensitivity of a banded matrix, for a user in rounds g, g + b, ... of the worst g.

    ``coefficients``, shape (bands,), are of its first column; ``apart`` is b.
    """
    worst = 0.0
    for group in range(min(apart, rounds)):
        column = np.zeros(rounds + len(coefficients))
        for start in range(group, rounds, apart):
            column[start : start + len(coefficients)] += np.abs(coefficients)
        worst = max(worst, float(np.square(column[:rounds]).sum()))
    return worst


def own_users(constants: Mapping[str, Any], label: str = "actual") -> Participation | None:
    """Users as a scheme draws them that is not described here; None of any other."""
    if str(constants.get("sampling")) in ADJACENCY or not isinstance(constants.get(label), Mapping):
        return None
    with suppress(ValueError):
        return users_of(constants, label)
    return None


def users_of(constants: Mapping[str, Any], label: str) -> Participation:
    """Users as a side of the constants has them drawn; ``ValueError`` for numbers that are none."""
    side, cap = constants.get(label) or {}, constants.get("max_participations")
    return Participation.named(
        str(constants.get("sampling")),
        _whole(side.get("population_size"), f"{label}.population_size"),
        as_number(side.get("cohort_size")),
        _whole(constants.get("separation", 1), "separation"),
        None if cap is None else _whole(cap, "max_participations"),
    )


def _whole(value: Any, name: str) -> int:
    number = as_number(value)
    if not number.is_integer():
        raise PrivacyError(f"{name} is {value!r} in the ledger, but must be a whole number")
    return int(number)
