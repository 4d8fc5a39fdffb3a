"""A privacy guarantee in plain words: what is promised, to whom, what it rests on, and what not.

Guarantee: nothing here computes an epsilon. The words are of the numbers that a statement or a
calculation gives: its unit, adjacency, sampling, rounds and noise. Whatever follows from an epsilon
is rounded up, so that the words never promise more than the numbers do.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from privacy.statement.assumptions import count, stated_assumptions
from privacy.statement.statement import Accounted, Guarantee, round_up, small

# Part of the absent units that an attacker takes for present ones, for the worked example.
_FALSE_ALARMS = 0.01
# e ** epsilon beyond this is no bound of anything.
_LARGEST_FACTOR = 1e12

NOTHING = "Nothing: updates are neither clipped nor noised, and every epsilon is infinite."


def detection_bound(epsilon: float, delta: float, false_alarms: float) -> float:
    """Largest part of the present units that any test of the releases can find, in [0, 1].

    ``false_alarms`` is the part of the absent ones that the test takes for present; at epsilon and
    delta 0, where nothing can be told, it is the answer.

    Source: Kairouz et al. 2015, "The composition theorem for differential privacy", theorem 2.1.
    """
    of_absence = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    if epsilon > math.log(_LARGEST_FACTOR):
        return min(1.0, of_absence)
    return min(1.0, math.exp(epsilon) * false_alarms + delta, of_absence)


def explain(guarantee: Guarantee, width: int = 96) -> str:
    """The explanation as text: headings, and sentences behind dashes, in ``width`` columns."""
    lines = []
    for heading, sentences in sections(guarantee).items():
        lines.append(heading)
        for sentence in sentences:
            lines += textwrap.wrap(
                sentence,
                width,
                initial_indent="- ",
                subsequent_indent="  ",
                break_on_hyphens=False,
                break_long_words=False,
            )
    return "\n".join(lines)


def sections(guarantee: Guarantee) -> dict[str, list[str]]:
    """The explanation's sentences by heading."""
    if guarantee.unit == "none":
        return {"What is promised": [NOTHING]}
    told = {
        "What is promised": list(_promises(guarantee)),
        "What it rests on": list(stated_assumptions(guarantee)),
    }
    if guarantee.notes:
        told["What else to know of this run"] = list(guarantee.notes)
    told["What is not covered"] = list(guarantee.not_covered)
    return told


def _promises(guarantee: Guarantee) -> Iterator[str]:
    simulated, actual = guarantee.simulated, guarantee.actual
    most = "at most " if guarantee.status == "planned" else ""
    if simulated == actual:
        yield f"Epsilon is {most}{_claim(guarantee, simulated)}. No other cohort is simulated."
        yield from _meaning(guarantee, simulated, "")
        return
    yield (
        f"Epsilon (simulated) is {most}{_claim(guarantee, simulated)}. That is a deployment which "
        "nobody has run: its noise is used, scaled to the smaller sum, to learn how good its model "
        "would be."
    )
    yield (
        f"Epsilon (actual) is {most}{_claim(guarantee, actual)}. That is the run itself, if its "
        "noise were secret: the one to ask for where the run's own data are to be protected."
    )
    yield from _meaning(guarantee, simulated, "In the simulated deployment: ")
    yield from _meaning(guarantee, actual, "In the run itself: ")


def _claim(guarantee: Guarantee, accounted: Accounted) -> str:
    step = guarantee.step
    delta = "" if accounted.delta is None else f" at delta {small(accounted.delta)}"
    return (
        f"{round_up(accounted.epsilon, 4)}{delta}, for {count(accounted.population_size)} "
        f"{guarantee.unit}s, {count(accounted.cohort_size)} of them a {step}, "
        f"{count(guarantee.rounds)} {step}s, and noise multiplier {accounted.noise_multiplier:.6g}"
    )


def _meaning(guarantee: Guarantee, accounted: Accounted, where: str) -> Iterator[str]:
    epsilon, delta, unit = accounted.epsilon, accounted.delta or 0.0, guarantee.unit
    if not math.isfinite(epsilon):
        yield _sentence(f"{where}nothing is promised, since epsilon is infinite.")
        return
    other, found_out = _compared_with(guarantee)
    factor = f"e^{round_up(epsilon, 4)}"
    if epsilon < math.log(_LARGEST_FACTOR):
        factor += f" = {round_up(math.exp(epsilon), 3)}"
    yield _sentence(
        f"{where}take any one {unit}. Whatever is seen in all that is released, the model of every "
        f"{guarantee.step} included, has with the data of that {unit} at most {factor} times the "
        f"probability that it has {other}, plus delta; and the other way round."
    )
    found = round_up(100.0 * detection_bound(epsilon, delta, _FALSE_ALARMS), 3)
    yield _sentence(where + found_out.format(unit=unit, found=found))


def _compared_with(guarantee: Guarantee) -> tuple[str, str]:
    """The neighbouring data of a unit, and what an attacker finds out, in words."""
    if guarantee.adjacency == "replace-one":
        return "with any other data in their place", (
            "somebody who tells two values of the data of a {unit} apart, and who takes the first "
            "for the second once in 100 times, knows the second at most {found} times in 100. "
            "Blind guessing knows it once."
        )
    if guarantee.adjacency == "zero-out" and guarantee.unit == "example":
        return "if the gradients of that example had been zero", (
            "somebody who knows in which steps an example was, and who takes one whose gradients "
            "were zero for one that counted once in 100 times, knows one that counted at most "
            "{found} times in 100. Blind guessing knows it once."
        )
    if guarantee.adjacency == "zero-out":
        return f"if the device of that {guarantee.unit} had sent nothing", (
            "somebody who knows when a {unit} took part, and who takes a device that sent nothing "
            "for one that sent data once in 100 times, knows one that did at most {found} times "
            "in 100. Blind guessing knows it once."
        )
    return f"without that {guarantee.unit}", (
        "somebody who searches all of it for {unit}s, and who takes 1 of 100 absent ones for "
        "present, finds at most {found} of 100 present ones on average. Blind guessing finds 1."
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
