"""Epsilon by the accountant PRV of Opacus, where it keeps its precision and its memory.

Guarantee: what is returned is an upper bound; where rounding or the size of the grid would put that
in doubt, it is refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from privacy.errors import PlanError

# PRV: its upper bound lies this much above its estimate ...
_PRV_EPSILON_ERROR = 0.01
# ... or this part of epsilon, where that is more; Opacus allows less than 1.
_PRV_RELATIVE_ERROR = 0.002
_PRV_LARGEST_ERROR = 0.5
# Points of its grid that a small machine can transform in a few seconds.
_PRV_LARGEST_GRID = 1 << 22
_PRV_SMALLEST_DELTA = 1e-12
# exp() of a privacy loss beyond this overflows in Opacus.
_PRV_LARGEST_LOSS = 350.0


def prv_epsilon(
    parts: tuple[tuple[Any, int], ...], delta: float, rdp_epsilon: float, margin: float
) -> float:
    """Epsilon of composed events and their counts: of Gaussians, plain or Poisson-sampled.

    ``rdp_epsilon`` is a rough upper bound, which sizes the error that is allowed, and ``margin``
    what rounding may get wrong of delta.

    Raises:
        PlanError: It is beyond the precision or the memory.
    """
    from dp_accounting import dp_event
    from opacus.accountants import PRVAccountant

    if delta < _PRV_SMALLEST_DELTA:
        # At 1e-14 its answer was seen below a lower bound: cancellation in double precision.
        raise PlanError(
            f"delta {delta:.3g} is below {_PRV_SMALLEST_DELTA:g}, where the accountant prv loses "
            "its precision and may understate epsilon; use the accountant pld or rdp"
        )
    if margin > delta / 2.0:
        raise PlanError(
            f"so many rounds at delta {delta:.3g} are beyond the precision of the accountant prv, "
            f"whose rounding may come to {margin:.2g} of delta; use the accountant rdp, or pld"
        )
    history = []
    for event, rounds in parts:
        if isinstance(event, dp_event.GaussianDpEvent):
            # So many Gaussians are one of multiplier z / sqrt(rounds), exactly.
            history.append((event.noise_multiplier / math.sqrt(rounds), 1.0, 1))
        else:
            history.append((event.event.noise_multiplier, event.sampling_probability, rounds))
    error = min(max(_PRV_EPSILON_ERROR, _PRV_RELATIVE_ERROR * rdp_epsilon), _PRV_LARGEST_ERROR)
    accountant = PRVAccountant()
    accountant.history = history
    try:
        _check_prv_grid(history, delta, error)
        # At rate 1 Opacus takes log(1 - 1) = -inf as the least privacy loss, as it should.
        with _without_order_warning(), np.errstate(divide="ignore", over="ignore"):
            # At a large delta Opacus' bound is negative.
            return max(0.0, float(accountant.get_epsilon(delta - margin, eps_error=error)))
    except PlanError:
        raise
    except (ValueError, RuntimeError) as error_of_opacus:
        raise PlanError(
            f"the accountant prv cannot compute this epsilon ({_in_words(history)}, delta "
            f"{delta:.3g}): {error_of_opacus}; use the accountant pld or rdp"
        ) from error_of_opacus


def _in_words(history: Sequence[tuple[float, float, int]]) -> str:
    return "; ".join(
        f"noise_multiplier {noise:.6g}, sampling probability {rate:.6g}, {rounds} rounds"
        for noise, rate, rounds in history
    )


def _check_prv_grid(
    history: Sequence[tuple[float, float, int]], delta: float, error: float
) -> None:
    """Refuse before Opacus fills the memory.

    Source: the domain and the mesh of Opacus' PRVAccountant, after Gopi et al. 2021, remark 5.6.
    """
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    rounds = sum(count for _, _, count in history)
    delta_error = delta / 1000.0
    of_one = [
        rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)
        for noise, rate, _ in history
    ]
    of_all = sum(curve * count for curve, (_, _, count) in zip(of_one, history, strict=True))
    loss = 0.0
    with _without_order_warning():
        for curve, part in ((of_all, 4.0), *((curve, 8.0 * rounds) for curve in of_one)):
            found = rdp.get_privacy_spent(orders=orders, rdp=curve, delta=delta_error / part)
            loss = max(loss, float(found[0]))
    mesh = error / math.sqrt(rounds * math.log(12.0 / delta_error) / 2.0)
    points = 2.0 * (loss + 3.0) / mesh
    if loss > _PRV_LARGEST_LOSS or points > _PRV_LARGEST_GRID:
        raise PlanError(
            f"the accountant prv would need a grid of {points:.2g} privacy losses up to "
            f"{loss:.4g} for {_in_words(history)} and delta {delta:.3g}, more than the "
            f"{_PRV_LARGEST_GRID} up to {_PRV_LARGEST_LOSS:.0f} that it can take; use the "
            "accountant pld or rdp"
        )


@contextmanager
def _without_order_warning() -> Iterator[None]:
    """Keep back one warning of Opacus' RDP, whose bound only sizes PRV's grid and may be loose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the", category=UserWarning)
        yield
