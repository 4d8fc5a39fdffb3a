"""The most that rounding may come to, round by round.

Guarantee: none of its own; it bounds R and A of ``privacy.audit.recomputed``, which compares.

Local training of a deep model at a large rate makes more of a rounding than R. Where a round
differs, and not in cohort, bound or noise, it is computed up to twelve times more, from central
parameters that are disturbed by what one rounding of each (in float32 then 4, 16 and 64), and the
distance that they may have by then, come to. Twice the most that the sum, its norm and one client's
norm move by is then added to A, to what is allowed of the sum's norm, and to R; in float32 to the
second as much as to A, for a client that diverges goes any way. A difference that four times this
would explain decides nothing: trials have long tails. From R = 1 on, where rounding decides which
clients diverge, cohort, bound and noise alone are compared.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.audit.recomputed_noise import ULP
from privacy.reference.central import Optimizer
from privacy.reference.round import Round

# What local training may round a contribution by, relative: 1024 roundings of float32, 64 of the
# 11 bits of TF32, 32 of the 8 bits of bfloat16.
ROUNDING = {"float32": 2.0**-14, "tf32": 2.0**-5, "bfloat16": 2.0**-4}
# Precisions with a smaller rounding are fine ones. In the others the norm of a sum may be off by
# this part of R: what ties clients together moves it more.
FINE = 2.0**-10
# Of what one client or example may contribute, and of the noise: a difference beyond it, though
# rounding explains it, could hide either.
PART_OF_ONE = 0.25
# Roundings of their norm to which central parameters are known, where all that is recorded of them
# is that near (found: three). Of ones that are d roundings off it is, with probability (64 / d)^2.
KNOWN = 64.0
# Of a vector's norm: sketches of one vector are added up in float64, and written in nine digits.
_OF_SKETCHES = 1e-7
SIGNS = 20_250
# In the place of infinity: 0 times that would be no number.
_ANYTHING = 1e9


def is_same_sketch(one: NDArray[np.float64], other: NDArray[np.float64], norm: float) -> bool:
    """Whether two sketches, or parts of such, of one shape are of one vector of that norm."""
    near = _OF_SKETCHES * float(np.nan_to_num(norm))
    return np.allclose(one, other, rtol=0.0, atol=near, equal_nan=True)


def _signs(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (length,), generator=generator) * 2.0 - 1.0


def of_moment(disturbed: Optimizer, name: str, own: Tensor) -> float:
    """Distance that rounding may explain of a moment, shape (P,): four times what disturbs it."""
    # Squares feel where an error lies: more, where it lies at the largest elements.
    factor = 4.0 if name == "first" else 64.0
    return factor * float((getattr(disturbed, name) - own).norm()) + 64.0 * ULP * float(own.norm())


class Allowed:
    """Largest effect of rounding since the parameters were last known.

    ``rounds`` counts those since then, the one that is compared included; ``central`` is the
    distance of the central parameters; ``clients``, ``total`` and ``length`` are what is added to
    R, to A and to what is allowed of the sum's norm, of the round. ``of_one`` is the most that a
    part of one client has moved the central parameters by in a round. ``each`` is of ``ROUNDING``;
    the central optimizer, as it was then, is copied.
    """

    def __init__(self, each: float, optimizer: Optimizer) -> None:
        self.each, self.rounds, self.central = each, 0, 0.0
        self.clients = self.total = self.length = self.of_one = 0.0
        self._disturbed = copy.deepcopy(optimizer)
        self._shift: Tensor | float = 0.0
        self._float32 = 0.0

    @property
    def relative(self) -> float:
        """R."""
        return self.each * self.rounds + self.clients

    def of_moment(self, name: str, own: Tensor) -> float:
        """Distance that rounding may explain of a moment of the central optimizer, shape (P,)."""
        return math.inf if self.relative >= 1.0 else of_moment(self._disturbed, name, own)

    def begin(self) -> None:
        """Begin the next round."""
        self.rounds += 1
        self.clients = self.total = self.length = 0.0

    def disturbed(self, central: Tensor, place: int) -> Tensor:
        """Central parameters, float32, that are off by what rounding may have come to, shape (P,).

        Each of several places is disturbed in other directions, and in float32 by four times as
        much after every third.
        """
        signs = _signs(len(central), SIGNS + 1 + place)
        apart = self.central / (4.0 * math.sqrt(len(central)))
        one = 2.0**-10 * 4.0 ** (place // 3) if self.each < FINE else 2.0**-5
        return central + signs * (central.abs() * (self.each * one) + apart)

    def measure(self, made: Round, disturbed: Round) -> None:
        """Take what local training made of rounding, from how a disturbed round came out."""
        moved = float((disturbed.total - made.total).norm())
        self.total = max(self.total, 2.0 * moved)
        along = moved if self.each < FINE else abs(disturbed.length - made.length)
        self.length = max(self.length, 2.0 * along)
        for one, same in zip(made.contributions, disturbed.contributions, strict=True):
            apart = abs(one.norm - same.norm) / max(one.norm, 1e-30)
            # Of one that is not finite no norm is held against the record any more.
            self.clients = max(self.clients, 2.0 * apart if math.isfinite(apart) else _ANYTHING)

    def see(self, apart: float, central: Tensor) -> None:
        """Take central parameters, shape (P,), as known if their record is off by no more."""
        near = KNOWN * ULP * float(central.double().norm())
        if not apart <= near:
            return
        self.rounds = 0
        if 4.0 * near < self.central:
            self.central = self._float32 = 4.0 * near
            self._shift = 0.0

    def at_most(self) -> Allowed:
        """The same after trials in which training made anything of rounding."""
        wide = copy.copy(self)
        wide.clients = wide.total = wide.length = _ANYTHING
        return wide

    def widened(self) -> Allowed:
        """The same with what trials may have missed of how local training diverges, in float32."""
        wide = copy.copy(self)
        if self.each < FINE:
            wide.total, wide.length = 4.0 * self.total, 4.0 * self.length
            wide.clients = 4.0 * self.clients
        return wide

    def step(self, made: Round, gradient: float) -> None:
        """Take the central step of a round whose gradient is off by a distance."""
        signs = _signs(len(made.before), SIGNS).double()
        off = made.gradient.double() + signs * (gradient / math.sqrt(len(signs)))
        after = self._disturbed.step(made.before.double() + self._shift, off, made.rate)
        self._shift = after - made.central.double()
        self._float32 += 8.0 * ULP * float(made.central.double().norm())
        self.central = 4.0 * float(self._shift.norm()) + self._float32
