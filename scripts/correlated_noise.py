#!/usr/bin/env python
"""Costs of mechanisms of correlated noise: the table of docs/privacy.md.

    python scripts/correlated_noise.py

A cell is the mean squared error of the prefix sums times the squared sensitivity, over that of
independent noise in the same rounds: the squared noise at equal epsilon without amplification. A
user is in every separation-th round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.mechanisms.banded_inverse_square_root import inverse_square_root
from privacy.noise.buffered_toeplitz import optimized_buffers
from privacy.noise.factorization import (
    optimized_coefficients,
    prefix_errors,
    square_root_coefficients,
    squared_sensitivities,
)
from privacy.noise.tree_factorization import tree_prefix_errors, tree_squared_sensitivity

SETTINGS = ((200, 200), (1000, 100), (2000, 400))


def loss(column: NDArray[np.float64], rounds: int, separation: int) -> float:
    """Mean squared error times squared sensitivity of a Toeplitz strategy."""
    squared = squared_sensitivities(column, separation, rounds)[-1]
    return float(prefix_errors(column, rounds).mean() * squared)


def losses(rounds: int, separation: int) -> dict[str, float]:
    """Of each mechanism, by its name and memory."""
    found = {"independent (`gaussian`), 0": loss(np.ones(1), rounds, separation)}
    squared = tree_squared_sensitivity(rounds, separation, None)
    found[f"`tree_aggregation`, up to {int(rounds).bit_length()}"] = (
        float(tree_prefix_errors(rounds, None).mean()) * squared
    )
    for buffers in (2, 4):
        strategy = optimized_buffers(rounds, buffers, separation)
        found[f"`buffered_toeplitz`, {buffers}"] = loss(strategy.column(rounds), rounds, separation)
    for bands in (16, separation):
        column = inverse_square_root(bands, rounds).column(rounds)
        name = f"`banded_inverse_square_root`, {_bands(bands)}"
        found[name] = loss(column, rounds, separation)
    for bands in (16, separation):
        own = f"`banded_matrix_factorization`, {_bands(bands)}"
        found[f"{own}, square_root"] = loss(square_root_coefficients(bands), rounds, separation)
        found[f"{own}, optimized"] = loss(optimized_coefficients(rounds, bands), rounds, separation)
    return found


def _bands(bands: int) -> str:
    return f"{bands - 1}" if bands == 16 else "separation - 1"


def markdown() -> str:
    """The table."""
    columns = [losses(*setting) for setting in SETTINGS]
    heads = [f"{rounds:,} rounds, separation {apart}" for rounds, apart in SETTINGS]
    lines = ["| mechanism, vectors of memory | " + " | ".join(heads) + " |"]
    lines.append("|---|" + "---:|" * len(heads))
    first = [next(iter(column.values())) for column in columns]
    names = list(columns[0])
    names[1] = "`tree_aggregation`, up to log2(rounds) + 1"
    for index, name in enumerate(names):
        cells = [list(column.values())[index] for column in columns]
        parts = [f"{cell / whole:.3g}" for cell, whole in zip(cells, first, strict=True)]
        lines.append(f"| {name} | " + " | ".join(parts) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
