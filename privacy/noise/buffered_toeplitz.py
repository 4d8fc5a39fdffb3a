"""Buffered linear Toeplitz strategies: columns that are sums of a few geometric series.

Guarantee: that of ``privacy.noise.toeplitz_noise``. Every strategy that is made here has weights of
at least 0, of sum at most 1, and decays in (0, 1): its column is positive and falls, whatever the
optimizer returns, and the sensitivity is computed from the column itself.

Source: Dvijotham et al. 2024 (arXiv 2404.16706); McMahan, Xu, Zhang 2024 (arXiv 2408.08868; several
participations).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.description import Buffers
from privacy.errors import check_count
from privacy.noise.factorization import squared_sensitivities

# Of the logits that are optimized: so that machines whose last bits differ find one strategy.
_DECIMALS = 3
# Decays nearer to 1 than so many runs' lengths are no different from 1.
_REACH = 20.0


def buffered_errors(strategy: Buffers, rounds: int) -> NDArray[np.float64]:
    """Expected squared error of each prefix sum, an element of it, at z = 1; shape (rounds,)."""
    return np.cumsum(np.cumsum(noise_column(strategy, rounds)) ** 2)


def noise_column(strategy: Buffers, rounds: int) -> NDArray[np.float64]:
    """First column of C^-1, shape (rounds,): what one draw adds to each round's noise."""
    weights, decays = np.array(strategy.weights), np.array(strategy.decays)
    buffers = np.zeros_like(decays)
    noise = np.zeros(rounds)
    for number in range(rounds):
        noise[number] = (number == 0) / strategy.first - weights @ buffers
        buffers = decays * buffers + noise[number]
    return noise


@lru_cache(maxsize=64)
def optimized_buffers(rounds: int, buffers: int, separation: int) -> Buffers:
    """Strategy of least mean squared error of the prefix sums, of a column of norm 1.

    Error times squared sensitivity is made small, for users in every ``separation``-th round.
    """
    from scipy.optimize import minimize

    check_count("rounds", rounds)
    check_count("buffers", buffers)
    check_count("separation", separation)
    if rounds == 1:
        return Buffers(1.0, (0.0,) * buffers, (0.0,) * buffers)

    def loss(logits: NDArray[np.float64]) -> float:
        strategy = _strategy(logits, rounds)
        error = _mean_error(strategy, rounds)
        squared = squared_sensitivities(strategy.column(rounds), separation, rounds)[-1]
        return float(np.log(error) + np.log(squared))

    bounds = [(-5.0, np.log(_REACH * rounds))] * buffers + [(-20.0, 10.0)] * buffers
    points = []
    for end in (rounds, separation, 0.2 * separation):
        # Decays spread evenly in the logarithm of their reach, with the square root's weights.
        reach = np.geomspace(1.5, max(2.0, min(end, rounds)), buffers)
        start = np.concatenate([np.log(reach), -0.5 * np.log(reach)])
        options = {"maxiter": 300, "ftol": 1e-12, "gtol": 1e-7}
        found = minimize(loss, start, method="L-BFGS-B", bounds=bounds, options=options)
        points += [start, found.x]
    return _strategy(np.round(min(points, key=loss), _DECIMALS), rounds)


def _strategy(logits: NDArray[np.float64], rounds: int) -> Buffers:
    """Of a logit for each decay, and then one for each weight."""
    decays, weights = np.split(logits, 2)
    decays = 1.0 / (1.0 + np.exp(-decays))
    weights = np.exp(weights)
    weights = weights / (1.0 + weights.sum())
    order = np.argsort(decays)
    raw = Buffers(1.0, tuple(weights[order].tolist()), tuple(decays[order].tolist()))
    norm = float(np.linalg.norm(raw.column(rounds)))
    return Buffers(1.0 / norm, raw.weights, raw.decays)


def _mean_error(strategy: Buffers, rounds: int) -> float:
    """Mean of ``buffered_errors``, by a recursion of polynomials: quick, for the search alone."""
    from scipy.signal import lfilter

    poles = np.poly(strategy.decays)
    zeros = poles.copy()
    for index, weight in enumerate(strategy.weights):
        others = np.poly(np.delete(strategy.decays, index))
        zeros[1:] += weight * others
    sums = lfilter(poles, strategy.first * zeros, np.ones(rounds))
    return float(np.arange(rounds, 0, -1) @ sums**2) / rounds
