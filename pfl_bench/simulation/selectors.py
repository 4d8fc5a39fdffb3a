"""Interface of selections: what they are given, answer, and are told of their rounds.

A selection is a plug-in (``pfl_bench/simulation/selection/<name>.py``): ``build(options, users)``
gives a ``Selector``. It is offered candidates and names those who are to take part; who of them
finishes in time is decided by their devices. Who may not take part, because of
``federated.separation`` or ``max_participations``, is never offered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import Stateful

Ids = NDArray[np.int64]
# Waiting times for it are finite, and longer than any other.
_LEAST_WEIGHT = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class Users:
    """The users of a run, U of them, as a selection may know them before the first round.

    Attributes:
        num_examples: Shape (U,), each user's training examples.
        expected_seconds: Shape (U,), simulated seconds that download, training and upload take the
            user's device, if nothing comes between.
    """

    num_examples: Ids
    expected_seconds: NDArray[np.float64]

    def __len__(self) -> int:
        """Number of users, U."""
        return len(self.num_examples)


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """Facts of a round that has ended, of each of its n participants, for a selection.

    Attributes:
        index: The round, from 1.
        users: Shape (n,), those who were selected, ascending.
        outcomes: Shape (n,), of ``pfl_bench.simulation.devices.timeline.Outcome``.
        seconds: Shape (n,), simulated seconds until the participant finished; of one who did not,
            until it was lost or the round ended.
        losses: Shape (n,), mean training loss of those who counted, NaN of others; all NaN for a
            selector that does not use clients' data.
        num_examples: Shape (n,), their training examples.
    """

    index: int
    users: Ids
    outcomes: NDArray[np.int8]
    seconds: NDArray[np.float64]
    losses: NDArray[np.float64]
    num_examples: Ids


class Selector(Stateful):
    """Base of selections: chooses who is to take part in a round.

    Attributes:
        only_available: Whether it is offered only those who are available as the round begins, or
            everybody. Who is chosen without being available is lost.
        uses_data: Whether its choice depends on what clients have learned: their losses. No
            privacy plan covers such a choice: who takes part would tell of their data.
    """

    only_available: bool = True
    uses_data: bool = False

    def select(self, candidates: Ids, number: int, index: int, rng: np.random.Generator) -> Ids:
        """Choose; must change nothing, for a round that is cut off is selected again.

        Args:
            candidates: Shape (n,), ascending; may be empty.
            number: How many are wanted.
            index: The round, from 1.
            rng: Where all randomness is from.

        Returns:
            At most ``number`` of the candidates, none twice, in any order.
        """
        raise NotImplementedError

    def report(self, feedback: Feedback) -> None:
        """Take in a round that has ended; one that does not learn has nothing to do."""


def draw_by_weight(
    candidates: Ids, weights: NDArray[np.float64], number: int, rng: np.random.Generator
) -> Ids:
    """Draw without replacement, each time with probabilities proportional to the weights left.

    Args:
        candidates: Shape (n,).
        weights: Shape (n,), at least 0; those of weight 0 come last.
        number: How many, at most n.
        rng: Decides who.

    Returns:
        Shape (number,).

    Source: Efraimidis and Spirakis 2006, algorithm A-Res, in logarithms.
    """
    if number >= len(candidates):
        return candidates
    # Of exponential waiting times with these rates, the shortest come first.
    waits = rng.exponential(size=len(candidates)) / np.maximum(weights, _LEAST_WEIGHT)
    chosen: Ids = candidates[np.argpartition(waits, number)[:number]]
    return chosen
