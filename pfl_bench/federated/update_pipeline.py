"""What happens on a client between its local training and the centre: one stage after another."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.types import Algorithm, ClientStage, Resizes, SendsMore


def upload_bytes(stages: Sequence[ClientStage], num_parameters: int) -> float:
    """Bytes that a client sends in a round, known before it trains.

    Args:
        stages: What updates go through.
        num_parameters: P.
    """
    dense = float(num_parameters * BYTES_PER_PARAMETER)
    resizing = [stage for stage in stages if isinstance(stage, Resizes)]
    return dense + sum(stage.expected_bytes - dense for stage in resizing)


def download_bytes(algorithm: Algorithm, num_parameters: int) -> float:
    """Bytes that a client is sent in a round: its algorithm's vectors, not compressed."""
    vectors = len(algorithm.downloads) if isinstance(algorithm, SendsMore) else 1
    return float(vectors * num_parameters * BYTES_PER_PARAMETER)
