"""What transforms make of an update, between local training and the centre."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.types import Algorithm, Resizes, SendsMore, UpdateTransform


def upload_bytes(transforms: Sequence[UpdateTransform], num_parameters: int) -> float:
    """Bytes that a client sends in a round, known before it trains.

    Args:
        transforms: What updates go through.
        num_parameters: P.
    """
    dense = float(num_parameters * BYTES_PER_PARAMETER)
    resizing = [transform for transform in transforms if isinstance(transform, Resizes)]
    return dense + sum(transform.expected_bytes - dense for transform in resizing)


def download_bytes(algorithm: Algorithm, num_parameters: int) -> float:
    """Bytes that a client is sent in a round: its algorithm's vectors, not compressed."""
    vectors = len(algorithm.downloads) if isinstance(algorithm, SendsMore) else 1
    return float(vectors * num_parameters * BYTES_PER_PARAMETER)
