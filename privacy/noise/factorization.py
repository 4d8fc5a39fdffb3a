"""Factorisations of the prefix sums: what noise that is correlated over rounds costs, and gives.

Guarantee: unit user, added or removed; in each round that a user is in, the user's vector has norm
at most 1 (``clip_norm`` in the mechanisms). With updates X (a row a round) a mechanism releases
X + M Z, Z standard normal times z, as post-processing of the Gaussian mechanism C X + z N, whose
squared L2 sensitivity is what the functions here compute, exactly:

- participation: a user is in rounds g, g + b, g + 2b, ... of the rounds 1 .. T, for one g of
  1 .. b (b: ``separation``), or in any part of them; b = 1 is every round. For every g at once.
  Or (functions named ``separated``) in any rounds of which no two are less than b apart, and at
  most k of them.
- C has no negative element, so that no two of a user's rounds can cancel: all of the user's rounds,
  with the same vector of norm 1, are the worst case, whatever the vectors depend on.
- the vectors may depend on all that was released before: C is lower triangular (Denisov et al.
  2022, theorem 2.1: what holds for fixed vectors holds for these).
- after t of T rounds what was released rests on the first t rows of C alone: the sensitivities are
  given for every t, so that a run that stops early claims what it has spent.

Two strategies C: *banded Toeplitz* (M = C^-1, square), here, and the *binary tree*, in
``privacy.noise.tree_factorization``.

A banded Toeplitz C of T rows has columns of norm at most that of its coefficients: the last
bands - 1 columns are cut short by the end, the others are whole. With coefficients of norm 1 every
column is so within 1 for every T, and none is rescaled. Columns that are ``bands`` or more apart
have no row in common.

Source: Fichtenberger, Henzinger, Upadhyay 2022 (arXiv 2202.11205; square root); Kalinin and
Lampert 2024 (arXiv 2405.13763; banded square root, sensitivity in theorem 2); Choquette-Choo et
al. 2023 (arXiv 2306.08153; bands); McKenna 2024 (arXiv 2405.15913; Toeplitz coefficients by
L-BFGS).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError, check_count

# Columns of more elements are convolved by FFT, which is exact to 1e-15 of the largest sum.
_LONG = 1024


def square_root_coefficients(bands: int) -> NDArray[np.float64]:
    """First coefficients of the square root of the prefix-sum matrix, of norm 1.

    Shape (bands,), float64, positive, falling.

    Source: Fichtenberger, Henzinger, Upadhyay 2022, equation 3; cut to bands by Kalinin and
    Lampert 2024.
    """
    check_count("bands", bands)
    index = np.arange(1, bands)
    raw = np.concatenate([[1.0], np.cumprod((2.0 * index - 1.0) / (2.0 * index))])
    return _unit(raw)


@lru_cache(maxsize=64)
def _optimized(num_rounds: int, bands: int) -> tuple[float, ...]:
    from scipy.optimize import minimize
    from scipy.signal import fftconvolve

    start = square_root_coefficients(bands)
    if bands == 1:
        return (1.0,)
    weights = np.arange(num_rounds, 0, -1) / num_rounds

    def loss(tail: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Logarithm of error times squared norm, of 1 and then ``tail``; and its gradient."""
        coefficients = np.concatenate([[1.0], tail])
        with np.errstate(over="ignore", invalid="ignore"):
            sums = _divide(np.ones(num_rounds), coefficients)
            error = float(weights @ sums**2)
            # The filter's response to a change of coefficient k is this one's, k rounds later.
            response = _divide(sums, coefficients)
        if not (np.isfinite(error) and np.isfinite(response).all()):
            return 1e3, np.zeros_like(tail)  # An unstable filter: the line search steps back.
        slopes = fftconvolve(weights * sums, response[::-1])[num_rounds - 1 :][1:bands]
        squares = float(coefficients @ coefficients)
        return (
            float(np.log(error) + np.log(squares)),
            -2.0 * slopes / error + 2.0 * tail / squares,
        )

    first = start[1:] / start[0]
    # Coefficients below 0 would make the aligned pattern's sensitivity no longer the worst.
    found = minimize(
        loss,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * (bands - 1),
        options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-9},
    )
    best = found.x if loss(found.x)[0] < loss(first)[0] else first
    return tuple(float(value) for value in _unit(np.concatenate([[1.0], best])))


def optimized_coefficients(num_rounds: int, bands: int) -> NDArray[np.float64]:
    """Coefficients of norm 1 with the least mean squared error of the prefix sums of a run.

    Fitted to one column's sensitivity: the best where ``separation`` is ``bands`` or more.

    Shape (bands,), float64, none negative; ``bands`` is from 1 to the number of rounds.

    Source: McKenna 2024, section 3.2 (objective, L-BFGS).
    """
    check_count("num_rounds", num_rounds)
    check_count("bands", bands)
    if bands > num_rounds:
        raise PrivacyError(
            f"bands is {bands}, but the run has {num_rounds} rounds, so that the later bands would "
            f"have nothing to act on; set bands to {num_rounds} or less"
        )
    return np.array(_optimized(int(num_rounds), int(bands)))


def noise_coefficients(coefficients: NDArray[np.float64], rounds: int) -> NDArray[np.float64]:
    """First column of C^-1, which is Toeplitz too: weights of this round's draw, the last's, ...

    Of C's coefficients, shape (bands,), of which the first is positive, to shape (rounds,),
    float64.
    """
    impulse = np.zeros(rounds)
    impulse[:1] = 1.0
    return _divide(impulse, coefficients)


def toeplitz_profile(
    weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standard deviation of each round's noise C^-1 Z, and its correlation with the round before's.

    Of the first column of C^-1, shape (T,), to shape (T,) each: in multiples of z, and 0 first.
    """
    stddevs = np.sqrt(np.cumsum(weights**2))
    products = np.cumsum(weights[1:] * weights[:-1])
    correlations = np.concatenate([[0.0], products / (stddevs[1:] * stddevs[:-1])])
    return stddevs, correlations[: len(weights)]


def prefix_errors(coefficients: NDArray[np.float64], rounds: int) -> NDArray[np.float64]:
    """Expected squared error of each prefix sum, an element of it, at z = 1.

    Its mean and its maximum (the last) are what the literature calls mean and max squared error;
    independent noise, C = I, has 1, 2, ... T.

    Shape (rounds,), float64, rising.
    """
    return np.cumsum(_divide(np.ones(rounds), coefficients) ** 2)


def squared_sensitivities(
    coefficients: NDArray[np.float64], separation: int, rounds: int
) -> NDArray[np.float64]:
    """Squared sensitivity of C X after each round, for users every ``separation`` rounds.

    The group that begins with round 1 is the worst: any other's sum of columns is that one's,
    later, and so cut shorter by the end.

    Of C's coefficients, shape (bands,), none negative, to shape (rounds,), float64, rising.
    """
    check_count("separation", separation)
    _check_nonnegative(coefficients)
    pattern = np.zeros(rounds)
    pattern[::separation] = 1.0
    return np.cumsum(_filter(coefficients, np.ones(1), pattern) ** 2)


def separated_squared_sensitivity(
    coefficients: NDArray[np.float64], separation: int, participations: int, rounds: int
) -> float:
    """Squared sensitivity of C X, for users in at most k rounds, each two at least b apart.

    Where the coefficients fall, the worst rounds are 1, 1 + b, 1 + 2 b, ... (exact). Where they do
    not, a bound is given instead: the i-th and the (i + m)-th round of a user are at least m b
    apart, and so the product of their columns at most the largest that any such distance has.

    Coefficients, shape (bands,), may not be negative; there are at most ceil(rounds / separation)
    participations.

    Source: Kalinin and Lampert 2024, theorem 2 (falling coefficients).
    """
    check_count("separation", separation)
    _check_nonnegative(coefficients)
    if (np.diff(coefficients) <= 0.0).all():
        pattern = np.zeros(rounds)
        pattern[: participations * separation : separation] = 1.0
        return float(np.square(_filter(coefficients, np.ones(1), pattern)).sum())
    products = np.correlate(coefficients, coefficients, "full")[len(coefficients) - 1 :]
    # The largest product at this distance or a larger one.
    largest = np.maximum.accumulate(products[::-1])[::-1]
    apart = largest[separation::separation][: max(participations - 1, 0)]
    pairs = participations - np.arange(1, len(apart) + 1)
    return float(participations * products[0] + 2.0 * pairs @ apart)


def _filter(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], signal: NDArray[np.float64]
) -> NDArray[np.float64]:
    from scipy.signal import fftconvolve, lfilter

    answer: NDArray[np.float64]
    if len(denominator) == 1 and len(numerator) > _LONG:
        answer = fftconvolve(signal, numerator)[: len(signal)]
        return answer
    answer = lfilter(numerator, denominator, signal)
    return answer


def _divide(signal: NDArray[np.float64], coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve C x = signal for the lower triangular Toeplitz C with these coefficients."""
    return _filter(np.ones(1), coefficients, signal)


def _unit(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = coefficients / np.linalg.norm(coefficients)
    return unit


def _check_nonnegative(coefficients: NDArray[np.float64]) -> None:
    if not (coefficients >= 0.0).all():
        raise PrivacyError(
            "a coefficient of the strategy is negative, for which the aligned pattern need not be "
            "the worst case; use coefficients of at least 0"
        )
