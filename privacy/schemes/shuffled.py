"""Shuffled batches: each epoch puts the examples into a random order and cuts it into batches.

Guarantee: unit example, adjacency *zero-out*: one example's gradient is nothing, in every step that
it is in, while the order of the examples stays the same. An epoch has floor(population / cohort)
steps of exactly ``cohort`` examples each; what is left of the order takes no part in the epoch. So
an example is in at most one step of an epoch, in full, and the sum of that step moves by at most
clip_norm. Of T steps it is in at most ceil(T / steps of an epoch). No chance is accounted: the
bound holds with the order of every epoch made public.

Why this is not add-or-remove: the place of an example that is not there goes to another one, so
that the sum moves by up to twice clip_norm. And why it is not Poisson sampling, as which such
batches are often accounted: an example is in a step for certain within each epoch, and what is
known of the amplification by a secret order is far less than that of Poisson sampling.

Source: Chua et al. 2024, "How private are DP-SGD implementations?" (zero-out adjacency; shuffled
batches that are accounted as Poisson samples).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.sampling_scheme import SamplingScheme

if TYPE_CHECKING:
    from privacy.sampling_scheme import Ids, Participation, Rng


@dataclass(frozen=True, slots=True)
class Shuffled(SamplingScheme):
    """Batches of an epoch are disjoint; ``assign`` draws the order of one epoch."""

    name = "shuffled"
    title = "shuffled batches"
    adjacency = "zero-out"
    of_examples = True
    phrase = "each epoch's batches are cut from a random order, so that no chance is accounted"
    noted = (
        "Batches are cut from a shuffled order, each example in at most one step of an epoch: no "
        "chance is accounted, and adjacency is zero-out."
    )
    assumed = (
        "shuffled batches. An epoch's batches are cut from a random order, without replacement. "
        "Each {unit} is in at most one {step} of an epoch, in at most {most} of all {step}s, and "
        "counts in full in each. The order may be known to all."
    )

    def assign(self, users: Participation, rng: Rng) -> Ids:
        """The order of one epoch, shape (population_size,), int64."""
        import numpy as np

        return rng.permutation(users.population_size).astype(np.int64, copy=False)

    def draw(self, users: Participation, rng: Rng, round_index: int, groups: Ids | None) -> Ids:
        """The batch of a step, shape (cohort_size,), ascending: its part of the epoch's order."""
        import numpy as np

        assert groups is not None
        size = int(users.cohort_size)
        start = (round_index - 1) % self.rounds_of_epoch(users) * size
        return np.sort(groups[start : start + size])

    def rounds_of_epoch(self, users: Participation) -> int:
        """Full batches of one order; what is left over is dropped."""
        return int(users.population_size // users.cohort_size)

    def most_participations(self, users: Participation, rounds: int) -> int:
        """One an epoch that is begun."""
        return -(-rounds // self.rounds_of_epoch(users))

    def sampling_probability(self, users: Participation) -> float:
        """1, whatever the batch: no chance is accounted."""
        return 1.0


Scheme = Shuffled
