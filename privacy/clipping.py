"""Clipping of updates, in L2 or (for Laplace noise) in L1: our mechanisms' way into their sums.

Guarantee: one unit (a user, or an example) changes the sum by a vector whose L2 norm (L1 norm for
``add_clipped_l1_``) is at most ``clip_norm``, when the unit is added or removed, and by at most
twice that when it is replaced.

- Updates beyond the bound are scaled down to it; updates within it are added bit for bit, never
  lifted to it.
- The factor is smaller than ``clip_norm / norm`` by 2**-22 of it, which is more than the float32
  rounding of the factor and of every product can add, so a clipped update is within the bound
  after rounding too. An update counts as within the bound by its norm in float64; the rounding of
  that norm (relative error below 1e-12) is the only slack.
- An update with a NaN or an infinity contributes nothing, as if its unit had not taken part.
- The rounding of the sum itself is not covered: like every float implementation, this one treats
  the sum and the noise as real numbers. A sum in float64 (``Aggregate.zeros``) rounds less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Smallest and largest finite bound: far inside float32, so that the margin below, which is
# relative, also covers the absolute rounding of denormal products.
MIN_CLIP_NORM = 2.0**-64
MAX_CLIP_NORM = 2.0**64

_MARGIN = 1.0 - 2.0**-22
# Below this a float32 factor would be denormal, and lose the direction of the update.
_SMALLEST_FLOAT32_FACTOR = 2.0**-100
# On the CPU, a float64 copy of this many elements stays in the cache: 6.6 million elements take
# 2.5 ms, where torch.linalg.vector_norm(dtype=float64) takes 31 ms. Half of it is a quarter slower.
_CHUNK = 1 << 17


class ClipOutcome(NamedTuple):
    """Outcome of clipping one update.

    Attributes:
        norm: L2 norm before clipping; NaN or infinite if the update was not finite.
        unclipped: Whether the update was within the bound (False if it was not finite).
        finite: Whether every element was finite; if not, the update contributed nothing.
        clipped_norm: L2 norm of what was contributed, before its rounding to float32.
    """

    norm: float
    unclipped: bool
    finite: bool
    clipped_norm: float


def check_clip_norm(clip_norm: float) -> None:
    """Check a clipping bound, ``inf`` for none.

    It may not be NaN, not positive, or finite and outside [``MIN_CLIP_NORM``, ``MAX_CLIP_NORM``].
    """
    if clip_norm == math.inf or MIN_CLIP_NORM <= clip_norm <= MAX_CLIP_NORM:
        return
    raise ValueError(
        f"clip_norm is {clip_norm!r}, but must be between {MIN_CLIP_NORM:.3g} and "
        f"{MAX_CLIP_NORM:.3g}, or inf for no clipping; use a bound near the norms of the updates, "
        "such as 0.1"
    )


def l2_norm(update: Tensor) -> float:
    """L2 norm accumulated in float64, so that neither overflow nor summation order matters.

    The update has shape (P,) and is float32, whose squares cannot overflow float64. The norm is NaN
    or infinite if and only if an element is NaN or infinite.
    """
    if update.device.type not in ("cpu", "mps"):
        return float(torch.linalg.vector_norm(update.detach(), dtype=torch.float64))
    return math.sqrt(_sum_of_parts(update, lambda part: torch.dot(part, part)))


def _sum_of_parts(update: Tensor, of_part: Callable[[Tensor], Tensor]) -> float:
    """Sum on the CPU, since MPS has no float64, of float64 parts that may be written over."""
    update = update.detach().cpu()
    if update.numel() <= _CHUNK:
        return float(of_part(update.to(torch.float64, copy=True)))
    buffer = torch.empty(_CHUNK, dtype=torch.float64)
    total = 0.0
    for start in range(0, update.numel(), _CHUNK):
        chunk = update[start : start + _CHUNK]
        total += float(of_part(buffer[: chunk.numel()].copy_(chunk)))
    return total


def clip_factor(norm: float, clip_norm: float) -> float:
    """Factor that brings an update of a finite norm within the bound, ``inf`` for none.

    Exactly 1 if ``norm <= clip_norm``, else slightly less than ``clip_norm / norm``.
    """
    if norm <= clip_norm:
        return 1.0
    return clip_norm / norm * _MARGIN


def _outcome(norm: float, clip_norm: float) -> tuple[ClipOutcome, float]:
    if not math.isfinite(norm):
        return ClipOutcome(norm, unclipped=False, finite=False, clipped_norm=0.0), 0.0
    factor = clip_factor(norm, clip_norm)
    return ClipOutcome(norm, factor == 1.0, finite=True, clipped_norm=norm * factor), factor


def _as_float32(update: Tensor) -> Tensor:
    """Take the update in float32: halves gain range; a double beyond it becomes an infinity."""
    if update.dim() != 1 or not update.is_floating_point():
        raise ValueError(
            f"an update must be a flat tensor of floats, but this one has shape "
            f"{tuple(update.shape)} and dtype {update.dtype}; flatten the parameters first"
        )
    return update.detach().to(torch.float32)


def add_clipped_(total: Tensor, update: Tensor, clip_norm: float) -> ClipOutcome:
    """Add ``update * min(1, clip_norm / ||update||)`` to ``total``, in place.

    ``total``, shape (P,), is float32 or float64, ``update``, shape (P,), of any float dtype on the
    same device, and taken in float32; one that is not finite leaves ``total`` untouched. The bound
    is positive; ``inf`` adds the update as it is. A ValueError says what does not fit.

    Guarantee: ``total`` moves by at most ``clip_norm`` in L2 norm (see the module).
    """
    check_clip_norm(clip_norm)
    update = _as_float32(update)
    if total.dtype not in (torch.float32, torch.float64) or total.shape != update.shape:
        raise ValueError(
            f"total must be float32 or float64 of the update's shape {tuple(update.shape)}, but is "
            f"{total.dtype} of shape {tuple(total.shape)}; use torch.zeros(P, dtype=torch.float32)"
        )
    if total.dtype == torch.float64 and update.device.type == "mps":
        update = update.cpu()  # MPS has no float64, so such a sum is on the CPU.
    if total.device != update.device:
        raise ValueError(
            f"total is on {total.device} and the update on {update.device}; move the update first"
        )
    outcome, factor = _outcome(l2_norm(update), clip_norm)
    if not outcome.finite:
        return outcome
    if factor >= _SMALLEST_FLOAT32_FACTOR:
        add_scaled_(total, update, factor)
    else:
        total.add_(update.to(torch.float64).mul_(factor).to(torch.float32))
    return outcome


def add_scaled_(total: Tensor, update: Tensor, factor: float = 1.0) -> None:
    """Add ``factor * update``, float32 of shape (P,), to a float32 or float64 sum, in place."""
    if total.dtype == update.dtype or total.device.type != "cpu":
        total.add_(update, alpha=factor)
        return
    # PyTorch's own mixture of types takes three times as long: 33 ms for 6.6 million elements,
    # where this takes 10 and a sum in float32 takes 3.
    buffer = torch.empty(min(_CHUNK, total.numel()), dtype=total.dtype)
    for start in range(0, total.numel(), _CHUNK):
        chunk = update[start : start + _CHUNK]
        part = buffer[: chunk.numel()].copy_(chunk)
        total[start : start + _CHUNK].add_(part, alpha=factor)


def clip(update: Tensor, clip_norm: float) -> Tensor:
    """Clip one update, shape (P,), of any float dtype, without touching it; ``inf`` is no bound.

    Shape (P,), float32 (rounding back to a half could exceed the bound); zeros if the update was
    not finite.
    """
    update = _as_float32(update)
    clipped = torch.zeros_like(update)
    add_clipped_(clipped, update, clip_norm)
    return clipped


def l1_norm(update: Tensor) -> float:
    """L1 norm of an update of shape (P,), as ``l2_norm`` has it."""
    if update.device.type not in ("cpu", "mps"):
        return float(torch.linalg.vector_norm(update.detach(), ord=1, dtype=torch.float64))
    return _sum_of_parts(update, lambda part: part.abs_().sum())


def add_clipped_l1_(total: Tensor, update: Tensor, clip_norm: float) -> ClipOutcome:
    """Add ``update * min(1, clip_norm / ||update||_1)`` to ``total``, as ``add_clipped_`` does.

    Shapes are (P,); norms of the outcome are L1.

    Guarantee: ``total`` moves by at most ``clip_norm`` in L1 norm: the margin of the module is
    relative to each element, and so holds for this norm as it does for L2; updates within the
    bound are added bit for bit, and the rounding of the sum is not covered.
    """
    check_clip_norm(clip_norm)
    update = _as_float32(update)
    outcome, factor = _outcome(l1_norm(update), clip_norm)
    if outcome.finite and factor != 1.0:
        if factor >= _SMALLEST_FLOAT32_FACTOR:
            update = update * factor
        else:
            update = update.to(torch.float64).mul_(factor).to(torch.float32)
    # Within the bound already, or not finite: this checks what must fit, and adds or does not.
    add_clipped_(total, update, math.inf)
    return outcome


def linf_norm(update: Tensor) -> float:
    """Largest magnitude of an element, shape (P,), P at least 1; NaN or infinite as ``l2_norm``."""
    return float(update.detach().abs().max())


# By what ``privacy.description.Norm`` calls them.
NORMS = {"l1": l1_norm, "l2": l2_norm, "linf": linf_norm}
_ORDERS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}


def norm_in_place(vector: Tensor, norm: str) -> float | Tensor:
    """A norm where the vector is, so that the host does not wait for a GPU.

    Of shape (P,), P at least 1, by a norm of ``NORMS``: of a vector on a GPU a float64 scalar
    there. MPS has none, and is waited for.
    """
    if vector.device.type in ("cpu", "mps"):
        return NORMS[norm](vector)
    found: Tensor = torch.linalg.vector_norm(vector.detach(), _ORDERS[norm], dtype=torch.float64)
    return found
