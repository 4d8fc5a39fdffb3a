"""Stochastic quantisation (QSGD): each element is rounded to one of a few levels, without bias.

An update is cut into buckets of ``bucket_size`` neighbouring elements. Of a bucket with L2 norm n,
an element v becomes sign(v) n j / s, where s is the number of ``levels`` and j one of the two whole
numbers beside s |v| / n, drawn such that its expectation is that. With d elements in a bucket, the
expected squared error is at most min(d / s^2, sqrt(d) / s) of its squared norm. Draws are those of
the client in the round.

Bytes: each element in a fixed width, ceil(log2(2 s + 1)) bits for its sign and level, and 32 bits
for each bucket's norm. (The paper's variable code is shorter for few levels.) Where that is not
less than the update's 4 P bytes it is sent as it is. A bucket with an element that is not finite
comes out as NaN.

Privacy: the client clips what it sends, as without compression; rounding may lengthen an update,
and the clip is after it.

Source: Alistarh et al. 2017, sections 3.1 (lemma 3.1 for the bound) and 4 (buckets).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pfl_bench.config.training import Strict
from pfl_bench.federated.compression import Compression
from pfl_bench.rng import Purpose, stream

_NORM_BITS = 32


class Options(Strict):
    """Options of stochastic quantisation.

    Attributes:
        levels: s, levels above 0 that an element can have, 1 to 32767: 1 takes 2 bits an element,
            7 takes 4, 127 takes 8.
        bucket_size: Elements that share a norm, 2 or more.
    """

    levels: Annotated[int, Field(ge=1, le=32_767)]
    bucket_size: Annotated[int, Field(ge=2)] = 512


def quantize(vector: Tensor, levels: int, bucket_size: int, rng: np.random.Generator) -> Tensor:
    """Round a vector, shape (P,), float32, to levels without bias; in memory of its own.

    The last bucket may have fewer elements. ``rng`` decides between the two levels beside an
    element.
    """
    length = vector.numel()
    count = math.ceil(length / bucket_size)
    buckets = vector.new_zeros(count * bucket_size)
    buckets[:length] = vector
    buckets = buckets.view(count, bucket_size)
    # In float64, so that neither squares of large elements overflow nor those of small ones vanish.
    wide = buckets.cpu() if buckets.device.type == "mps" else buckets  # Metal has no float64
    norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True, dtype=torch.float64).float()
    norms = norms.to(buckets.device)
    draws = torch.from_numpy(rng.random(buckets.numel(), dtype=np.float32)).view(buckets.shape)
    divisors = torch.where(norms == 0, 1.0, norms)
    places = (buckets.abs() / divisors).mul_(levels).add_(draws.to(vector.device)).floor_()
    # A norm may be rounded down, and an element then be a little beyond the last level.
    places.clamp_(max=levels).mul_(norms / levels)
    return places.copysign_(buckets).view(-1)[:length]


class Quantization(Compression):
    """See the module."""

    def __init__(self, options: Options, num_parameters: int, seed: int) -> None:
        width = math.ceil(math.log2(2 * options.levels + 1))
        norms = math.ceil(num_parameters / options.bucket_size)
        size = math.ceil((num_parameters * width + norms * _NORM_BITS) / 8)
        super().__init__(num_parameters, size)
        self._options = options
        self._seed = seed

    def compress(self, update: Tensor, user: int, round_index: int) -> Tensor:
        """Round by draws of the client's own, shape (P,)."""
        rng = stream(self._seed, Purpose.COMPRESSION, round_index, user)
        return quantize(update, self._options.levels, self._options.bucket_size, rng)


build = Quantization
