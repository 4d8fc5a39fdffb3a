"""A step of all slots as a CUDA graph: recorded once for each shape, then launched as a whole.

An eager step is tens of kernels, of a recurrent model thousands, and the GPU waits for the host to
launch them. A graph holds addresses and numbers: all that changes from step to step is in memory
that stays where it is, namely weights, losses, central parameters and a copy of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.client.batched.program import StepBatch

Shape = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph and the batch that it reads."""

    graph: torch.cuda.CUDAGraph
    batch: StepBatch


class StepGraphs:
    """Takes steps; of a shape that was taken before, by a graph.

    The first step of a shape is eager, so that kernels and libraries are loaded before a recording.
    What takes a step must read and write the same memory in each step, with no number of the host
    that changes, and waits for nothing on the device. A step that cannot be recorded stays eager:
    ``notice`` is told. The same kernels compute the same shapes either way.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._pool = torch.cuda.graph_pool_handle()
        # None for a shape that was taken once.
        self._recorded: dict[Shape, _Recorded | None] = {}
        self._is_eager = False

    def step(self, batch: StepBatch, take: Callable[[StepBatch], None]) -> None:
        """Take a step of a batch, padded to a shape that comes again; ``take`` is always the same.

        It is not kept: the engine, whose method it is, keeps these graphs.
        """
        tensors = _tensors(batch)
        shape = tuple(None if t is None else tuple(t.shape) for t in tensors)
        recorded = None
        if shape in self._recorded and not self._is_eager:
            recorded = self._recorded[shape] or self._record(batch, take)
        self._recorded[shape] = recorded
        if recorded is None:
            take(batch)
            return
        for held, given in zip(_tensors(recorded.batch), tensors, strict=True):
            if held is not None and given is not None:
                held.copy_(given)
        recorded.graph.replay()

    def _record(self, batch: StepBatch, take: Callable[[StepBatch], None]) -> _Recorded | None:
        draws = None if batch.draws is None else batch.draws.clone()
        inputs, targets, shares = batch.inputs.clone(), batch.targets.clone(), batch.shares.clone()
        held = StepBatch(inputs, targets, draws, shares, batch.sizes)
        recorded = _Recorded(torch.cuda.CUDAGraph(), held)
        try:
            # Threads that read ahead may allocate meanwhile. Where a recording fails, PyTorch left
            # its stream as the current one (2.15 does not), which would not wait for their work.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(
                    recorded.graph, pool=self._pool, capture_error_mode="thread_local"
                ),
            ):
                take(held)
        except RuntimeError as error:
            self._recorded.clear()
            self._is_eager = True
            reason = " ".join(str(error).split())[:200]
            self._notice(
                f"engine: steps cannot be recorded as CUDA graphs ({reason}); each of "
                "their kernels is launched by itself"
            )
            return None
        return recorded


def _tensors(batch: StepBatch) -> tuple[Tensor | None, ...]:
    return batch.inputs, batch.targets, batch.draws, batch.shares
