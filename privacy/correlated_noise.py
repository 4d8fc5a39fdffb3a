"""What mechanisms whose noise is correlated over rounds share: accounting, checks, and adding it.

Guarantee: unit user, added or removed in the rounds of a fixed pattern ("selected": zeroed out, in
rounds of any pattern within separation and cap). ``unamplified`` is the one
Gaussian mechanism that all rounds are together; it is refused where the sampler keeps no pattern.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from privacy.amplification import Composition, Participation, check_composition_numbers
from privacy.errors import PlanError, PrivacyError
from privacy.mechanism import NoiseScale


def unamplified(
    mechanism: str, participation: Participation, noise_multiplier: float, squared: float
) -> Composition:
    """One Gaussian over all rounds, for a user whose rounds are all those of the pattern.

    Args:
        mechanism: Name for the error message.
        participation: "cyclic_poisson", "full" or "selected".
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm.
        squared: Squared sensitivity of all rounds, in multiples of clip_norm squared; 0 if none
            was released.

    Raises:
        PlanError: The scheme keeps no pattern.
    """
    from dp_accounting import dp_event

    scheme = participation.scheme
    if scheme.pattern == "none" and scheme.adjacency != "replace-one":
        raise PlanError(
            f"the mechanism {mechanism} under {scheme.name} sampling: nothing keeps two rounds of "
            "a user apart, so that correlated noise has no amplified guarantee, and no better one "
            "than for a user who is in every round; sample by cyclic_poisson with a separation (at "
            "least the bands, for amplification), or use the mechanism gaussian"
        )
    if scheme.pattern == "none":
        raise PlanError(
            f"the mechanism {mechanism} under {scheme.name} sampling: replacing a user moves the "
            "rounds of two users, and who is drawn depends on who else is, which no sensitivity "
            "here covers; sample by cyclic_poisson, or use the mechanism gaussian"
        )
    if squared <= 0.0:
        return Composition(dp_event.GaussianDpEvent(noise_multiplier), 0, participation.adjacency)
    event = dp_event.GaussianDpEvent(noise_multiplier / math.sqrt(squared))
    return Composition(event, 1, participation.adjacency)


def check_setting(
    noise: NoiseScale, participation: Participation, multiplier: float, rounds: int
) -> None:
    """Check the numbers of a composition, and that it is of the sampler that the run has.

    Raises:
        PrivacyError: The multiplier or the rounds are not allowed.
        PlanError: The separation is not the one that the mechanism was built for.
    """
    check_composition_numbers(multiplier, rounds)
    if noise.num_rounds and participation.min_separation != noise.separation:
        raise PlanError(
            f"the rounds of a user are to be accounted as {participation.min_separation} apart, "
            f"but the mechanism was built for a separation of {noise.separation}; take both from "
            "federated.separation"
        )


def check_rounds(noise: NoiseScale, done: int) -> None:
    """Check that a coming round was planned.

    Args:
        noise: Of the mechanism; ``num_rounds`` 0 allows any.
        done: Rounds that were released.

    Raises:
        PrivacyError: All planned rounds were released.
    """
    if noise.num_rounds and done >= noise.num_rounds:
        raise PrivacyError(
            f"round {done + 1} is beyond the {noise.num_rounds} rounds that the noise was planned "
            "for, and that the privacy statement is about; raise federated.num_rounds from the "
            "start"
        )


def check_vectors(mechanism: str, vectors: Any, count: int) -> list[Tensor]:
    """Check the noise vectors of a saved state.

    Args:
        mechanism: Name for the error message.
        vectors: What the state holds: tensors of one shape (P,), float32, finite.
        count: How many there must be.

    Raises:
        PrivacyError: They are not that.
    """
    good = isinstance(vectors, list) and all(
        isinstance(vector, Tensor)
        and vector.dtype == torch.float32
        and vector.shape == vectors[0].shape
        and vector.dim() == 1
        and bool(vector.isfinite().all())
        for vector in vectors
    )
    if not good or len(vectors) != count:
        raise PrivacyError(
            f"the saved noise of the {mechanism} mechanism is not {count} finite float32 vectors "
            "of one length: without it the coming rounds could not take back what the last ones "
            "added; the checkpoint is damaged or of another configuration, start the run anew"
        )
    return list(vectors)
