"""Assumptions of a guarantee, a sentence each.

Guarantee: every assumption that the accounting makes is said: unit, adjacency, sampling and its
secrecy, clipping, noise, trust, delta, accountant, what is public, and composition. How updates are
noised, and by whom, is what the mechanism says of itself (``privacy.description``).
"""

from __future__ import annotations

from collections.abc import Iterator

from privacy.description import Tree
from privacy.sampling_scheme import Participation, scheme_type
from privacy.statement.statement import Accounted, Guarantee, small

_ACCOUNTANTS = {
    "rdp": "Renyi differential privacy; a valid bound, and usually the loosest of the three",
    "pld": "privacy loss distributions; a bound that is usually tight to 1 %, less so below "
    "epsilon 0.1 or beyond 100,000 rounds",
    "prv": "privacy random variables; a bound that adds 0.01, or 0.2 % of the epsilon of rdp, for "
    "its own error",
}


def stated_assumptions(guarantee: Guarantee) -> Iterator[str]:
    """Say what the accounting of a guarantee rests on, whose unit is not "none"."""
    yield _unit(guarantee)
    yield _adjacency(guarantee)
    yield f"Sampling: {_sampling(guarantee)}"
    yield _clipping(guarantee)
    yield _noise(guarantee)
    yield _trust(guarantee)
    yield from _delta(guarantee)
    how = _ACCOUNTANTS.get(guarantee.accountant, "which is not known here")
    yield f"Accountant: {guarantee.accountant}, {how}."
    step, unit = guarantee.step, guarantee.unit
    known = f"how many {unit}s there are"
    if guarantee.adjacency == "zero-out":
        known = f"which {unit} took part in which {step}"
    elif guarantee.adjacency == "add-or-remove-one":
        known = f"the probability with which a {unit} takes part"
    yield (
        f"Public: {known}, the cohort that the sum is divided by, the number of {step}s, the noise "
        "multiplier and how clipping is set. Nobody may have chosen them by looking at the data."
    )
    yield (
        f"Composition: {count(guarantee.rounds)} {step}s, all of them together. A {step} more, or "
        "another training on the same data, mostly costs more, and never less."
    )


def _unit(guarantee: Guarantee) -> str:
    if guarantee.unit == "example":
        return "Unit: one example. A person with several examples is protected less."
    return (
        "Unit: one user, with all the data that this user holds, in every round. Somebody with two "
        "accounts is two users, and is protected less."
    )


def _adjacency(guarantee: Guarantee) -> str:
    unit = guarantee.unit
    if guarantee.adjacency == "replace-one":
        return (
            f"Adjacency: replace one. Two data sets are compared in which one {unit} has other "
            f"data. That the {unit} is there at all is not protected."
        )
    if guarantee.adjacency == "zero-out" and unit == "example":
        return (
            "Adjacency: zero-out. Two runs are compared in which the gradients of one example "
            "count in one and are zero in the other, while the same examples are in the same "
            "batches. That the example is there at all is not protected."
        )
    if guarantee.adjacency == "zero-out":
        return (
            f"Adjacency: zero-out. Two runs are compared in which the device of one {unit} sends "
            f"its updates in one and nothing in the other, while the same {unit}s take part in the "
            f"same {guarantee.step}s. That the {unit} takes part is not protected."
        )
    return (
        f"Adjacency: add or remove one. Two data sets are compared of which one has one {unit} "
        f"more. So it is protected, too, whether a {unit} is there at all."
    )


def _sampling(guarantee: Guarantee) -> str:
    unit, step, accounted = guarantee.unit, guarantee.step, guarantee.simulated
    apart, cap = accounted.separation, accounted.max_participations
    rounds = -(-guarantee.rounds // apart)
    if scheme_type(accounted.sampling).of_examples:
        size = accounted.population_size, accounted.cohort_size
        users = Participation.named(accounted.sampling, *size)
        rounds = users.most_participations(guarantee.rounds)
    most = count(rounds if cap is None else min(cap, rounds))
    rate, own = f"{accounted.sampling_probability:.4g}", guarantee.actual.sampling_probability
    if own != accounted.sampling_probability:
        rate += f" (in the run itself {own:.4g})"
    secret = f"Who took part in which {step} must stay secret: the epsilon counts on it."
    if isinstance(guarantee.described.strategy, Tree):
        secret = f"The epsilon counts a {unit} in all of those."
    if guarantee.described.randomizes_clients:
        bound = f", which is at most {most} times, {apart} rounds apart"
        if apart == 1 and cap is None:
            bound = ""
        return (
            f"{accounted.sampling.replace('_', ' ')}. It lowers no epsilon: who takes part when "
            f"may be known to all, and every report of a user counts{bound}."
        )
    return scheme_type(accounted.sampling).assumed.format(
        unit=unit,
        step=step,
        rate=rate,
        most=most,
        b=apart,
        cohort=count(accounted.cohort_size),
        population=count(accounted.population_size),
        secret=secret,
    )


def _clipping(guarantee: Guarantee) -> str:
    settings = ", ".join(
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for key, value in guarantee.clip.items()
    )
    what = "batch" if guarantee.unit == "example" else "cohort"
    bound = f"the clipping bound{f' ({settings})' if settings else ''}"
    if guarantee.described.randomizes_clients:
        adds = f"clips its own update to {bound}, and sends one report of it"
    else:
        adds = f"adds to a {guarantee.step}'s sum a vector no longer than {bound}"
    beside = "Nothing else that depends on the data is released"
    if guarantee.described.draws_count:
        beside = (
            "Beside it the noisy count of unclipped updates is released, and the bound that "
            "follows from it; nothing else that depends on the data is"
        )
    if "statistics_noise_multiplier" in guarantee.clip:
        beside = (
            "Before the first step, mean and mean square of each channel of the features are "
            "released with Gaussian noise, clipped to bounds of their own, and the epsilon counts "
            "both; nothing else that depends on the data is"
        )
    return (
        f"Clipping: every {guarantee.unit} weighs the same, and {adds}. The sum is divided by the "
        f"expected {what}, never by how many came. {beside}: no numbers of examples, losses or "
        "BatchNorm statistics."
    )


def _noise(guarantee: Guarantee) -> str:
    multiplier, own = guarantee.simulated.noise_multiplier, guarantee.actual.noise_multiplier
    text = guarantee.described.words.replace("{z}", f"{multiplier:.6g}")
    scaled = "" if own == multiplier else f" (in the run itself {own:.6g}, scaled with the cohort)"
    return (
        f"Noise: {text}{scaled}. It is drawn by a generator whose state nobody knows; this "
        "toolkit's is seeded, so that runs can be repeated, and so protects nobody."
    )


def _trust(guarantee: Guarantee) -> str:
    if guarantee.described.randomizes_clients:
        return (
            "Trust: none in the server, which sees noised reports alone. Each client must run the "
            "right program, with a secret source of noise."
        )
    if guarantee.unit == "example":
        return (
            "Trust: whoever trains sees all the data, clips and noises as is said here, and keeps "
            "the rest secret."
        )
    return (
        "Trust: the server is trusted. It sees every update in the clear, clips and noises as is "
        "said here, and keeps the rest secret. Against the server itself nothing is promised."
    )


def _delta(guarantee: Guarantee) -> Iterator[str]:
    simulated, actual, unit = guarantee.simulated, guarantee.actual, guarantee.unit
    if simulated.delta is None:
        return
    yield (
        f"Delta: {small(simulated.delta)}. Outcomes of so much probability, all together, may "
        f"escape the bound, whatever they disclose. Publishing one {unit} at random has a delta of "
        f"one over their number, {_compared(simulated)}."
    )
    if actual.delta is not None and actual.population_size != simulated.population_size:
        yield (
            f"Delta of the run itself: {small(actual.delta)}, for its "
            f"{count(actual.population_size)} {unit}s; one over their number is "
            f"{_compared(actual)}."
        )


def _compared(accounted: Accounted) -> str:
    one = 1.0 / accounted.population_size
    if accounted.delta is not None and accounted.delta < one:
        return f"{one:.3g}; this one is below that, as it must be"
    return f"{one:.3g}; this one is NOT below that, and so promises little"


def count(value: float) -> str:
    """A number of users or rounds, with its thousands apart."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,g}"
