"""Renyi's accountant of composed events, by dp-accounting.

Guarantee: none of its own; what may be composed is checked by ``privacy.accountant``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Error of one round's divergence: twice the largest that was measured, at sampling rates up to 0.9.
_ROUNDING = 2e-15
# An epsilon below it may be 0 by the rule of total variation, at another order.
_SMALL = 0.01


class Divergences(NamedTuple):
    """Divergences at orders above 1."""

    orders: Sequence[float]
    rdp: NDArray[np.float64]  # shape (k,), as the orders


def renyi_epsilon(
    parts: Sequence[tuple[Any, int]], delta: float, selected_of: tuple[float, float] | None = None
) -> float:
    """Epsilon at delta of what ``renyi_of`` composes."""
    from dp_accounting import rdp

    if selected_of is None and all(_is_convex(event) for event, _ in parts):
        found = _epsilon_of_best_order(parts, delta)
        if found is not None:
            return found
    return float(rdp.compute_epsilon(*renyi_of(parts, selected_of), delta)[0])


def _is_convex(event: Any) -> bool:
    """Whether dp-accounting has the divergences themselves at whole orders, and no less between."""
    from dp_accounting import dp_event

    inner = event.event if isinstance(event, dp_event.PoissonSampledDpEvent) else event
    return isinstance(inner, dp_event.GaussianDpEvent)


def _epsilon_of_best_order(parts: Sequence[tuple[Any, int]], delta: float) -> float | None:
    """The least epsilon of all orders, without those that cannot have it; None if unsure.

    At order a, epsilon is N(a) / (a - 1) with N(a) = (a - 1) D(a) + (a - 1) log(a - 1) - a log(a) -
    log(delta). Divergences D make (a - 1) D(a) convex, and so N is: of two orders, the one with the
    larger epsilon has the least on its other side. Whole orders are searched by that; between them
    dp-accounting may say more than D, so all orders next to the best whole one are tried.
    """
    from dp_accounting import rdp
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS as ORDERS

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    rounding = _ROUNDING * sum(count for _, count in parts)

    @cache
    def at(order: float) -> float:
        total = sum(count * _of_one_round(event, relation, order).rdp[0] for event, count in parts)
        return float(rdp.compute_epsilon([order], [max(total, rounding)], delta)[0])

    whole = [order for order in ORDERS if float(order).is_integer()]
    low, high = 0, len(whole) - 1
    while low < high:
        middle = (low + high) // 2
        one, other = at(whole[middle]), at(whole[middle + 1])
        if one == other or not (math.isfinite(one) and math.isfinite(other)):
            return None
        low, high = (low, middle) if one < other else (middle + 1, high)
    near = [order for order in ORDERS if abs(order - whole[low]) < 1.0]
    # Where total variation says 0, it does so at the smallest order first.
    found = min(map(at, (ORDERS[0], *near)))
    return found if found > _SMALL else None


def renyi_of(
    parts: Sequence[tuple[Any, int]], selected_of: tuple[float, float] | None = None
) -> Divergences:
    """Renyi divergences, by dp-accounting, of events and how often each is run.

    They are events that ``check_composition`` lets pass for "rdp". ``selected_of`` is mean and
    shape of the number of times that all of it is run, where the best run alone is released; None
    for one run.

    A divergence that rounding may have made of a larger one, or brought below 0, is raised to the
    error of its rounds. dp-accounting would say epsilon 0 there, whatever delta is.
    """
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if any(isinstance(event, dp_event.SampledWithoutReplacementDpEvent) for event, _ in parts):
        relation = NeighboringRelation.REPLACE_ONE
    least = _ROUNDING * sum(count for _, count in parts)
    if selected_of is not None:
        run = dp_event.ComposedDpEvent(tuple(dp_event.SelfComposedDpEvent(*one) for one in parts))
        parts = [(dp_event.RepeatAndSelectDpEvent(run, *selected_of), 1)]
    orders, total = _of_one_round(dp_event.NoOpDpEvent(), relation)
    for event, count in parts:
        total = total + count * _of_one_round(event, relation).rdp
    return Divergences(orders, np.maximum(total, least))


@lru_cache(maxsize=8192)
def _of_one_round(event: Any, relation: Any, order: float | None = None) -> Divergences:
    """Divergences, at all orders or at one, of an event that is run once; they add up over rounds.

    All take a tenth of a second, and a run asks for epsilon after many numbers of equal rounds.
    """
    from dp_accounting import rdp

    with _without_excluded_orders():
        orders = None if order is None else [order]
        accountant = rdp.RdpAccountant(orders, relation).compose(event)
    return Divergences(accountant.orders, accountant.rdp)


@contextmanager
def _without_excluded_orders() -> Iterator[None]:
    """Keep back one message: that a fractional order was left out, which only loosens the bound."""

    def keep(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
