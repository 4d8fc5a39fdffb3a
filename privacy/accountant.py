"""Epsilon of so many equal rounds, by one of three accountants behind one interface.

Guarantee: what is returned is an upper bound of the epsilon of ``rounds`` adaptive compositions of
the event, at the given delta and adjacency. "rdp" (dp-accounting) is the loosest; "pld"
(dp-accounting) and "prv" (Opacus) are numerical compositions with pessimistic rounding, tight to
well below 1 %.

An epsilon above ``LARGEST_EPSILON`` is returned as infinity: it promises nothing, and the
numerical accountants cannot represent it.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, get_args

from privacy.errors import PlanError, PrivacyError

Accountant = Literal["rdp", "pld", "prv"]
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)

LARGEST_EPSILON = 1e6

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


def check_accountant(accountant: str, scheme: str) -> None:
    """Check that an accountant exists and knows a sampling scheme.

    Args:
        accountant: "rdp", "pld" or "prv".
        scheme: "poisson", "fixed_size" or "full".

    Raises:
        PrivacyError: There is no accountant of that name.
        PlanError: It does not know the scheme.
    """
    if accountant not in ACCOUNTANTS:
        raise PrivacyError(f"the accountant is {accountant!r}, but must be one of {ACCOUNTANTS}")
    if scheme == "fixed_size" and accountant != "rdp":
        raise PlanError(
            f"the accountant {accountant} does not know fixed-size sampling without replacement, "
            "and accounting it as Poisson would be wrong; use the accountant rdp, or sample by "
            "poisson. Supported: rdp with poisson, fixed_size, full; pld and prv with poisson, full"
        )


def check_delta(delta: float) -> None:
    """Check a delta.

    Raises:
        PrivacyError: It is not in (0, 1).
    """
    if not 0.0 < delta < 1.0:
        raise PrivacyError(
            f"delta is {delta!r}, but must be above 0 and below 1; the usual choice is "
            "population_size ** -1.1"
        )


def compute_epsilon(
    event: Any, rounds: int, delta: float, accountant: str, adjacency: str
) -> float:
    """Upper bound of epsilon after so many equal rounds.

    Args:
        event: One round, from ``privacy.amplification.round_event``: a Poisson-sampled, a
            without-replacement-sampled or a plain Gaussian ``DpEvent``.
        rounds: Number of rounds, at least 0.
        delta: In (0, 1).
        accountant: "rdp", "pld" or "prv".
        adjacency: "add-or-remove-one", or "replace-one" for sampling without replacement.

    Returns:
        Epsilon, at least 0; 0 for no rounds; infinity without noise or above ``LARGEST_EPSILON``.

    Raises:
        PrivacyError: An argument is out of its range.
        PlanError: The accountant does not know the event or the adjacency.
    """
    return epsilon_at(event, rounds, delta, accountant, adjacency, coarseness=1.0)


def epsilon_at(
    event: Any, rounds: int, delta: float, accountant: str, adjacency: str, coarseness: float
) -> float:
    """``compute_epsilon`` on a grid that is ``coarseness`` times coarser, for searches.

    Args:
        event: One round.
        rounds: Number of rounds, at least 0.
        delta: In (0, 1).
        accountant: "rdp", "pld" or "prv".
        adjacency: As in ``compute_epsilon``.
        coarseness: At least 1; only "pld" takes it. The result stays an upper bound.

    Returns:
        Epsilon, as ``compute_epsilon`` gives it.

    Raises:
        PrivacyError: An argument is out of its range.
        PlanError: The accountant does not know the event or the adjacency.
    """
    scheme, gaussian = _scheme_of(event)
    check_accountant(accountant, scheme)
    check_delta(delta)
    expected = "replace-one" if scheme == "fixed_size" else "add-or-remove-one"
    if adjacency != expected:
        raise PlanError(
            f"a {scheme} event is accounted under {expected} adjacency, not {adjacency!r}: its "
            "sensitivity would be another; use privacy.amplification.round_event for both"
        )
    if rounds < 0 or rounds != int(rounds):
        raise PrivacyError(f"rounds is {rounds!r}, but must be a whole number, at least 0")
    if rounds == 0:
        return 0.0
    if gaussian.noise_multiplier == 0:
        return math.inf
    epsilon = _epsilon(event, int(rounds), float(delta), accountant, coarseness)
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf


def _scheme_of(event: Any) -> tuple[str, Any]:
    from dp_accounting import dp_event

    if isinstance(event, dp_event.GaussianDpEvent):
        return "full", event
    scheme = {
        dp_event.PoissonSampledDpEvent: "poisson",
        dp_event.SampledWithoutReplacementDpEvent: "fixed_size",
    }.get(type(event))
    if scheme is None or not isinstance(event.event, dp_event.GaussianDpEvent):
        raise PlanError(
            f"cannot account the event {event!r}; supported are a Gaussian, and a Gaussian sampled "
            "by Poisson or without replacement"
        )
    return scheme, event.event


@lru_cache(maxsize=4096)
def _epsilon(event: Any, rounds: int, delta: float, accountant: str, coarseness: float) -> float:
    rdp = _rdp_epsilon(event, rounds, delta)
    if accountant == "rdp" or rdp > 10 * LARGEST_EPSILON:
        return rdp
    if accountant == "pld":
        return _pld_epsilon(event, rounds, delta, rdp, coarseness)
    return _prv_epsilon(event, rounds, delta, rdp)


def _rdp_epsilon(event: Any, rounds: int, delta: float) -> float:
    from dp_accounting import dp_event, rdp
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent):
        relation = NeighboringRelation.REPLACE_ONE
    with _without_excluded_orders():
        accountant = rdp.RdpAccountant(neighboring_relation=relation).compose(event, rounds)
        return float(accountant.get_epsilon(delta))


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


def _pld_interval(rdp_epsilon: float) -> float:
    """Grid of the privacy loss: dp-accounting's 1e-4 around epsilon 2, in proportion elsewhere.

    Pessimistic rounding adds about 0.75 * rounds * interval**2 to epsilon [measured], below 0.2 %
    for 40,000 rounds. Few steps, and coarser only as epsilon grows: epsilon stays monotone.
    """
    if rdp_epsilon < 0.2:
        return 1e-5
    if rdp_epsilon < 20.0:
        return 1e-4
    return float(10.0 ** (math.floor(math.log10(rdp_epsilon / 2.0)) - 4))


def _pld_epsilon(
    event: Any, rounds: int, delta: float, rdp_epsilon: float, coarseness: float
) -> float:
    from dp_accounting import pld

    accountant = pld.PLDAccountant(
        value_discretization_interval=_pld_interval(rdp_epsilon) * coarseness
    )
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def _prv_epsilon(event: Any, rounds: int, delta: float, rdp_epsilon: float) -> float:
    from dp_accounting import dp_event
    from opacus.accountants import PRVAccountant

    if delta < _PRV_SMALLEST_DELTA:
        # At 1e-14 its answer was seen below a lower bound: cancellation in double precision.
        raise PlanError(
            f"delta {delta:.3g} is below {_PRV_SMALLEST_DELTA:g}, where the accountant prv loses "
            "its precision and may understate epsilon; use the accountant pld or rdp"
        )
    if isinstance(event, dp_event.GaussianDpEvent):
        # So many Gaussians are one of multiplier z / sqrt(rounds), exactly.
        noise, rate = event.noise_multiplier / math.sqrt(rounds), 1.0
        rounds = 1
    else:
        noise, rate = event.event.noise_multiplier, event.sampling_probability
    error = min(max(_PRV_EPSILON_ERROR, _PRV_RELATIVE_ERROR * rdp_epsilon), _PRV_LARGEST_ERROR)
    _check_prv_grid(noise, rate, rounds, delta, error)
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, rounds)]
    try:
        # At rate 1 Opacus takes log(1 - 1) = -inf as the least privacy loss, as it should.
        with _without_order_warning(), _numpy_errstate():
            return float(accountant.get_epsilon(delta, eps_error=error))
    except (ValueError, RuntimeError) as error_of_opacus:
        raise PlanError(
            f"the accountant prv cannot compute this epsilon (noise_multiplier {noise:.6g}, "
            f"sampling probability {rate:.6g}, {rounds} rounds, delta {delta:.3g}): "
            f"{error_of_opacus}; use the accountant pld or rdp"
        ) from error_of_opacus


def _check_prv_grid(noise: float, rate: float, rounds: int, delta: float, error: float) -> None:
    """Refuse before Opacus fills the memory.

    Source: the domain and the mesh of Opacus' PRVAccountant, after Gopi et al. 2021, remark 5.6.
    """
    from opacus.accountants import RDPAccountant

    delta_error = delta / 1000.0
    loss = 0.0
    with _without_order_warning():
        for count, part in ((rounds, 4.0), (1, 8.0 * rounds)):
            accountant = RDPAccountant()
            accountant.history = [(noise, rate, count)]
            loss = max(loss, float(accountant.get_epsilon(delta_error / part)))
    mesh = error / math.sqrt(rounds * math.log(12.0 / delta_error) / 2.0)
    points = 2.0 * (loss + 3.0) / mesh
    if loss > _PRV_LARGEST_LOSS or points > _PRV_LARGEST_GRID:
        raise PlanError(
            f"the accountant prv would need a grid of {points:.2g} privacy losses up to "
            f"{loss:.4g} for noise_multiplier {noise:.6g}, sampling probability {rate:.6g}, "
            f"{rounds} rounds and delta {delta:.3g}, more than the {_PRV_LARGEST_GRID} up to "
            f"{_PRV_LARGEST_LOSS:.0f} that it can take; use the accountant pld or rdp"
        )


@contextmanager
def _without_order_warning() -> Iterator[None]:
    """Keep back one warning of Opacus' RDP, whose bound only sizes PRV's grid and may be loose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the", category=UserWarning)
        yield


@contextmanager
def _numpy_errstate() -> Iterator[None]:
    import numpy as np

    with np.errstate(divide="ignore"):
        yield
