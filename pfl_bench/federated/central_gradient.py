"""The gradient that an algorithm writes for the central step, and whether it has written it."""

from __future__ import annotations

import math

from torch import Tensor

from pfl_bench.types import Algorithm, PluginError, place_of


def has_own_gradient(algorithm: Algorithm) -> bool:
    """Whether an algorithm makes more of the mean update than the step along it."""
    return type(algorithm).central_gradient is not Algorithm.central_gradient


def write_gradient(algorithm: Algorithm, mean_update: Tensor, out: Tensor) -> None:
    """Have an algorithm write the gradient of a round to ``out``; both vectors of shape (P,).

    Raises:
        PluginError: The algorithm returned something, gave ``out`` another shape, or did not write
            each element: it would train less than it says, unseen.
    """
    shape = out.shape
    # What is not written is found by it; the gradient of the round before would not be.
    out.fill_(math.nan)
    # Metrics and canaries see the release after the step: an algorithm may write to a copy alone.
    given = mean_update.clone() if has_own_gradient(algorithm) else mean_update
    # A plug-in is not held to its types.
    returned: object = algorithm.central_gradient(given, out=out)  # type: ignore[func-returns-value]
    if returned is not None:
        wrong = (
            f"returns a {type(returned).__name__}, which nothing reads: write the gradient into "
            "`out`, such as by torch.neg(mean_update, out=out) or out.copy_(gradient), and return "
            "nothing"
        )
    elif out.shape != shape:
        wrong = (
            f"gives `out` the shape {tuple(out.shape)}, where it has {tuple(shape)}: write a "
            "gradient of the shape of `mean_update`"
        )
    # One sum finds that something may be wrong. Training that diverges has such gradients too.
    elif (
        math.isnan(float(out.sum()))
        and bool(mean_update.isfinite().all())
        and (unwritten := int(out.isnan().sum()))
    ):
        wrong = (
            f"leaves {unwritten} of the {out.numel()} elements of `out` NaN, which "
            "all are before the call, though the mean update is finite: write each of them, and "
            "read none"
        )
    else:
        return
    raise PluginError(f"{place_of(algorithm, 'central_gradient')} {wrong}")


def private_gradient(
    algorithm: Algorithm, cohort_size: int, mean_update: Tensor, out: Tensor
) -> None:
    """Have an algorithm write the gradient of a private round to ``out``; both of shape (P,).

    Beside the release it is told the configured cohort size alone: what came in has no noise.
    """
    algorithm.receive(float(cohort_size), 0.0)
    write_gradient(algorithm, mean_update, out)
