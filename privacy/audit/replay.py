"""What the recorded seed of a run gives anew: who took part, and the first draws of the noise.

Guarantee: none of its own. It draws for an audit alone, and releases nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.mechanism import ReplayedNoise

Cohort = Callable[[int], NDArray[np.int64]]


# Of a round and the number of its canaries.
Noise = Callable[[int, int], ReplayedNoise]


@dataclass(frozen=True, slots=True)
class Replay:
    """Draws of a run's streams, made anew.

    Attributes:
        seeds: The seed as each file has it, by the file's name.
        configured_seed: The seed of the configuration, which must not be the private one.
        nonce: What pins the seed, which all runs of it share; None for a seed of the run's own.
        cohort: Users of a round (from 1), ascending; in words, why they are not drawn anew.
        cohort_rounds: The most rounds that cohorts are drawn of.
        noise: What a round's stream of noise gives, called for ascending rounds; in words, why it
            is not drawn anew.
        noise_rounds: The most rounds that noise is drawn of.
        needs_every_round: Whether a round's noise follows from the rounds before.
    """

    seeds: Mapping[str, int]
    configured_seed: int
    nonce: str | int | None
    cohort: Cohort | str
    cohort_rounds: int
    noise: Noise | str
    noise_rounds: int
    needs_every_round: bool = False


def chosen_rounds(rounds: int, most: int) -> NDArray[np.int64]:
    """Rounds to look at, from 1: all, or so many evenly spaced ones, the last among them.

    Args:
        rounds: How many there are.
        most: How many are looked at, at least 1.
    """
    if rounds <= most:
        return np.arange(1, rounds + 1)
    return np.unique(np.linspace(1, rounds, most).round().astype(np.int64))
