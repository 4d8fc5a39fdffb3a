"""The running sum of one round: what crosses from clipping to the mechanism.

Guarantee: everything here is before the noise and protects nobody. ``total`` and ``bit_sum`` are
what a mechanism noises; the other fields are diagnostics of the simulation, which a deployment
would not see and which no statement covers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privacy.clipping import ClipOutcome, add_scaled_

# The larger a sum is, the more of each update's digits float32 rounds away. Of updates at the bound
# that have 0.9 of it in common (2,000 parameters), the sum's error was 0.0004 of the bound with
# 1,000 of them, 0.014 with 10,000, 0.037 with 20,000 and 0.15 with 50,000: from here on it is more
# than a hundredth of what one client may do. Float64 takes 7 ms a client more for 6.6 million
# parameters, beside hundreds for its training, and 26 MB.
MANY_CLIENTS = 10_000


@dataclass(slots=True)
class Aggregate:
    """A mutable accumulator; its memory does not grow with the cohort, ``updates`` excepted.

    Attributes:
        total: Shape (P,), float32, or float64 for many clients: the sum of the (clipped, weighted)
            updates.
        weight: Sum of the weights of the finite contributions.
        bit_sum: Sum over finite contributions of (1 if unclipped else 0) - 1/2; adding or removing
            one user changes it by 1/2.
        num_contributions: Updates taken in, not counting those that were not finite.
        num_nonfinite: Updates that were not finite and so contributed nothing.
        num_clipped: Updates that were scaled down.
        largest_norm: Largest norm of a finite update before clipping.
        largest_clipped_norm: Largest norm of a contribution after clipping.
        clipped_total: Shape and type of ``total``: the sum before the noise that clients added
            themselves; None where they add none.
        updates: The finite updates themselves, each of shape (P,), in the order of the sum: for
            aggregations that are no sum, none of which is private; None otherwise.
    """

    total: Tensor
    weight: float = 0.0
    bit_sum: float = 0.0
    num_contributions: int = 0
    num_nonfinite: int = 0
    num_clipped: int = 0
    largest_norm: float = 0.0
    largest_clipped_norm: float = 0.0
    clipped_total: Tensor | None = None
    updates: list[Tensor] | None = None

    @classmethod
    def zeros(
        cls, num_parameters: int, device: torch.device | str = "cpu", cohort_size: float = 0
    ) -> Aggregate:
        """Make an empty aggregate of length P.

        It is where the updates live; on a device without float64 (MPS), a sum in it is on the CPU.
        ``cohort_size`` is the configured expected cohort: more than ``MANY_CLIENTS`` are summed in
        float64. Not the realised one: no round differs from another in its arithmetic.
        """
        if cohort_size <= MANY_CLIENTS:
            return cls(total=torch.zeros(num_parameters, dtype=torch.float32, device=device))
        place = "cpu" if torch.device(device).type == "mps" else device
        return cls(total=torch.zeros(num_parameters, dtype=torch.float64, device=place))

    def count(self, outcome: ClipOutcome, weight: float = 1.0) -> None:
        """Count an update that was taken into the sum, by what clipping did to it."""
        if not outcome.finite:
            self.num_nonfinite += 1
            return
        self.weight += weight
        self.bit_sum += 0.5 if outcome.unclipped else -0.5
        self.num_contributions += 1
        self.num_clipped += not outcome.unclipped
        self.largest_norm = max(self.largest_norm, outcome.norm)
        self.largest_clipped_norm = max(self.largest_clipped_norm, outcome.clipped_norm)

    def merge(self, other: Aggregate) -> None:
        """Take in what another worker has accumulated in the same round; it is not changed."""
        if self.total.shape != other.total.shape:
            raise ValueError(
                f"cannot merge sums of shapes {tuple(self.total.shape)} and "
                f"{tuple(other.total.shape)}; all workers must train the same model"
            )
        add_scaled_(self.total, other.total.to(self.total.device))
        if other.clipped_total is not None:
            if self.clipped_total is None:
                self.clipped_total = torch.zeros_like(self.total)
            add_scaled_(self.clipped_total, other.clipped_total.to(self.total.device))
        if other.updates is not None:
            self.updates = [*(self.updates or []), *other.updates]
        self.weight += other.weight
        self.bit_sum += other.bit_sum
        self.num_contributions += other.num_contributions
        self.num_nonfinite += other.num_nonfinite
        self.num_clipped += other.num_clipped
        self.largest_norm = max(self.largest_norm, other.largest_norm)
        self.largest_clipped_norm = max(self.largest_clipped_norm, other.largest_clipped_norm)
