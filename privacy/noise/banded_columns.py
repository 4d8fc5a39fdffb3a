"""Banded strategies beyond Toeplitz: every column has coefficients of its own, and norm 1.

Guarantee: that of ``privacy.noise.factorization``. Columns are divided by their norms last of all,
so that each has norm 1 whatever the optimizer returns. Columns ``bands`` or more apart have no row
in common: with users' rounds that far apart the squared sensitivity is the number of a user's
rounds, for any vectors of norm at most 1 that the user adds, of any signs.

Source: Choquette-Choo et al. 2023 (arXiv 2306.08153), sections 3, 4 (banded matrices, column
normalisation); McKenna 2024 (arXiv 2405.15913; L-BFGS).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PrivacyError, check_count
from privacy.noise.factorization import optimized_coefficients

# Dense matrices of so many rows are solved in seconds.
LARGEST_ROUNDS = 2048
_STEPS = 60


@lru_cache(maxsize=8)
def optimized_columns(rounds: int, bands: int) -> NDArray[np.float64]:
    """Columns of least mean squared error of the prefix sums of a run.

    Shape (T, bands), float64: element (j, i) is C[j + i, j]; 0 beyond the last row; each row of
    norm 1, none negative. Not to be written to. There are from ``bands`` to ``LARGEST_ROUNDS``
    rounds.
    """
    from scipy.optimize import minimize

    check_count("bands", bands)
    if rounds > LARGEST_ROUNDS:
        raise PrivacyError(
            f"num_rounds is {rounds}, but columns of their own are found for {LARGEST_ROUNDS} "
            "rounds at most; take the mechanism banded_matrix_factorization"
        )
    inside = np.add.outer(np.arange(rounds), np.arange(bands)) < rounds
    start = np.where(inside, optimized_coefficients(rounds, bands), 0.0)
    where = np.nonzero(inside)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Logarithm of the error, of columns before they are divided by their norms."""
        raw = np.zeros((rounds, bands))
        raw[where] = values
        norms = np.linalg.norm(raw, axis=1, keepdims=True)
        columns = raw / norms
        error, slopes = _error(columns)
        slopes = (slopes - columns * (columns * slopes).sum(axis=1, keepdims=True)) / norms
        return float(np.log(error)), slopes[where] / error

    # Not below 0, and the diagonal above it, which keeps the matrix invertible.
    bounds = [(0.02, 2.0) if lag == 0 else (0.0, 2.0) for lag in where[1]]
    options = {"maxiter": _STEPS, "ftol": 1e-10, "gtol": 1e-9}
    found = minimize(
        loss, start[where], jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    best = np.zeros((rounds, bands))
    best[where] = found.x if found.fun < loss(start[where])[0] else start[where]
    best /= np.linalg.norm(best, axis=1, keepdims=True)
    best.setflags(write=False)
    return best


def matrix_of(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """C, shape (T, T), of columns of shape (T, bands)."""
    rounds, bands = columns.shape
    matrix = np.zeros((rounds, rounds))
    for lag in range(bands):
        rows = np.arange(lag, rounds)
        matrix[rows, rows - lag] = columns[: rounds - lag, lag]
    return matrix


def noise_profile(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standard deviation of each round's noise at z = 1, and its correlation with the last one.

    Of columns of shape (T, bands), to shape (T,) each.
    """
    from scipy.linalg import solve_triangular

    inverse = solve_triangular(matrix_of(columns), np.eye(len(columns)), lower=True)
    stddevs = np.linalg.norm(inverse, axis=1)
    products = (inverse[1:] * inverse[:-1]).sum(axis=1)
    return stddevs, np.concatenate([[0.0], products / (stddevs[1:] * stddevs[:-1])])


def column_prefix_errors(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected squared error of each prefix sum, an element of it, at z = 1; shape (T,)."""
    errors: NDArray[np.float64] = np.square(_prefix_noise(matrix_of(columns))).sum(axis=1)
    return errors


def _prefix_noise(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """B of A = B C, A the prefix sums."""
    from scipy.linalg import solve_triangular

    prefix = np.tri(len(matrix))
    noise: NDArray[np.float64] = solve_triangular(matrix, prefix.T, lower=True, trans="T").T
    return noise


def _error(columns: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Sum of squared errors, and its slopes by each element of the columns."""
    from scipy.linalg import solve_triangular

    matrix = matrix_of(columns)
    noise = _prefix_noise(matrix)
    # Of |A C^-1|^2 by C: -2 B^T B C^-T.
    slopes = -2.0 * solve_triangular(matrix, noise.T @ noise, lower=True).T
    rounds, bands = columns.shape
    taken = np.zeros((rounds, bands))
    for lag in range(bands):
        rows = np.arange(lag, rounds)
        taken[: rounds - lag, lag] = slopes[rows, rows - lag]
    return float(np.square(noise).sum()), taken
