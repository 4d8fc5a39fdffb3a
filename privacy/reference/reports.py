"""Noise that clients add to their own clipped updates, before they send them.

The stream of (private seed, CLIENT_NOISE, round, user) gives what a report needs, in this order.
An update that is not finite is reported as zeros are.

local_gaussian sends u + z S g, g of P normal draws.

privunit, with epsilon = 1 / z, sends a vector of length S / m. A coin (one uniform draw) makes of
an update u of length r S the direction d = u / |u| with probability (1 + r) / 2, else d = -u / |u|.
With probability p (a uniform draw below p) the report's direction V is uniform on the cap
{v: <v, d> >= c} of the unit sphere, else on the rest: (1 + <V, d>) / 2 has the law Beta(h, h),
h = (P - 1) / 2, which is inverted at one more uniform draw. The part of V across d has the
direction of P normal draws. A zero update sends the direction of the normal draws alone.

With k the cap's share of the sphere, p / (1 - p) = e^epsilon k / (1 - k), so that the densities of
any two reports differ by e^epsilon at most. The mean of V is m d, m = A (e^epsilon - 1) /
(1 + k (e^epsilon - 1)), A = (1 - c^2)^h / (2 h B(1/2, h)); c makes m largest, which is where m = c.

Source: Kasiviswanathan et al. 2011 (local noise); Bhowmick et al. 2018, algorithm 1 (PrivUnit).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import betaincc, betainccinv, betaln
from torch import Tensor

from privacy.reference.noise import Gaussian, Setting
from privacy.reference.streams import CLIENT_NOISE, stream


class LocalGaussian(Gaussian):
    """Each report has its own normal noise."""

    reports: Tensor

    def begin(self, number: int) -> None:
        """Begin a round, without a report."""
        super().begin(number)
        self.reports = torch.zeros(self.setting.length, dtype=torch.float64)
        self.margin, self.lengths = math.inf, []

    def report(self, user: int, clipped: Tensor) -> None:
        """Add what a user's report differs from its clipped update by, shape (P,), float64."""
        rng = stream(self.setting.seed, CLIENT_NOISE, self.number, user)
        noise = self._randomized(clipped, rng) - clipped
        self.reports += noise
        self.lengths.append(float(noise.norm()))

    def _randomized(self, clipped: Tensor, rng: np.random.Generator) -> Tensor:
        return clipped + super().stddev * torch.from_numpy(rng.standard_normal(len(clipped)))

    def noise(self, rng: np.random.Generator) -> Tensor:
        """That of all reports."""
        return self.reports

    @property
    def stddev(self) -> float:
        """Of all reports that came."""
        return math.sqrt(len(self.lengths)) * super().stddev


class PrivUnit(LocalGaussian):
    """Each report is a random direction near that of the update."""

    is_fresh = False

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.multiplier == 0.0:
            return
        self.half = (setting.length - 1) / 2.0
        self.gain = math.expm1(1.0 / setting.multiplier)
        low, high = 0.0, 1.0
        for _ in range(100):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.mean(middle) > middle else (low, middle)
        self.threshold, self.cap = low, self._share(low)
        # Along d a report has m + 6 deviations at most; z, whose part across d it has, makes two
        # draws, along d and along the move of d, of 5 deviations each.
        self.follows = 16.0 + math.sqrt(setting.length) * self.threshold
        self.chosen = (self.gain + 1.0) * self.cap / (1.0 + self.gain * self.cap)

    def _share(self, threshold: float) -> float:
        return float(betaincc(self.half, self.half, (1.0 + threshold) / 2.0))

    def mean(self, threshold: float) -> float:
        """m, of c."""
        lift = self.half * math.log1p(-(threshold**2)) - math.log(2.0 * self.half)
        a = math.exp(lift - float(betaln(0.5, self.half)))
        return a * self.gain / (1.0 + self.gain * self._share(threshold))

    def _randomized(self, clipped: Tensor, rng: np.random.Generator) -> Tensor:
        if self.setting.multiplier == 0.0:
            return clipped
        norm = float(clipped.norm())
        coin, most = rng.random(), (1.0 + min(norm / self.bound, 1.0)) / 2.0
        self.margin = min(self.margin, abs(coin - most))
        direction, inner = clipped, 0.0
        if norm:
            direction = clipped / (norm if coin < most else -norm)
            in_cap, uniform = rng.random() < self.chosen, 1.0 - rng.random()
            share = self.cap * uniform if in_cap else self.cap + (1.0 - self.cap) * uniform
            inner = 2.0 * float(betainccinv(self.half, self.half, share)) - 1.0
        across = torch.from_numpy(rng.standard_normal(len(clipped)))
        across -= (across @ direction) * direction
        across *= math.sqrt((1.0 - inner) * (1.0 + inner)) / float(across.norm())
        return (inner * direction + across) * self.bound / self.threshold

    @property
    def stddev(self) -> float:
        """That of an element's root mean square, at most."""
        if self.setting.multiplier == 0.0:
            return 0.0
        return math.sqrt(len(self.lengths) / self.setting.length) * self.bound / self.threshold
