"""Renyi's accountant of composed events, by dp-accounting.

Guarantee: none of its own; what may be composed is checked by ``privacy.accountant``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Error of one round's divergence: twice the largest that was measured, at sampling rates up to 0.9.
_ROUNDING = 2e-15


class Divergences(NamedTuple):
    """Divergences at orders above 1."""

    orders: Sequence[float]
    rdp: NDArray[np.float64]  # shape (k,), as the orders


def renyi_epsilon(
    parts: Sequence[tuple[Any, int]], delta: float, selected_of: tuple[float, float] | None = None
) -> float:
    """Epsilon at delta of what ``renyi_of`` composes."""
    from dp_accounting import rdp

    return float(rdp.compute_epsilon(*renyi_of(parts, selected_of), delta)[0])


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
    import numpy as np
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


@lru_cache(maxsize=256)
def _of_one_round(event: Any, relation: Any) -> Divergences:
    """Divergences of an event that is run once; they add up over rounds.

    They take a tenth of a second, and a run asks for epsilon after many numbers of equal rounds.
    """
    from dp_accounting import rdp

    with _without_excluded_orders():
        accountant = rdp.RdpAccountant(neighboring_relation=relation).compose(event)
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
