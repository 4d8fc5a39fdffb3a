"""The number of slots of a model where the row names none."""

from __future__ import annotations

import numpy as np
import torch

from pfl_bench.client.costs import measure_step
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.types import FederatedSplit, LocalTraining

# On a CPU slots share the Python between two steps. Small models gain from that; large ones only
# lose the caches, and have one slot, where what is gained is the layers' own passes.
CPU_LANES, CPU_BYTES = 24, 1 << 23
# On a GPU they fill the processor. A slot's weights and gradients together, in multiples of its
# weights. (Local momentum adds one, which is not reckoned with: slots are halved where memory does
# not suffice.)
CUDA_LANES, CUDA_SHARE, CUDA_COPIES = 256, 0.25, 4


def slots_of(
    model: FlatModel, forward: Forward, split: FederatedSplit, local: LocalTraining
) -> int:
    """``automatic_slots`` of a model, with what a slot's step keeps for its backward pass."""
    activations = 0
    if model.device.type == "cuda":
        rows = min(local.batch_size, int(np.diff(split.offsets).max(initial=1)))
        activations = rows * measure_step(forward, model, split).saved_bytes
    return automatic_slots(model.num_parameters, model.device, activations)


def automatic_slots(num_parameters: int, device: torch.device, activations: int = 0) -> int:
    """Slots for a model.

    On a CPU 24, but no more than have their weights in 8 MiB, at least one; on a GPU 256, but no
    more than have four copies of their weights, and their ``activations`` (bytes that a slot's step
    keeps for its backward pass), in a quarter of its memory. It depends on nothing that changes
    from run to run on a machine, so that a run is repeated bit for bit.
    """
    size = 4 * num_parameters
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        most = int(memory * CUDA_SHARE) // (CUDA_COPIES * size + activations)
        return max(1, min(CUDA_LANES, most))
    return max(1, min(CPU_LANES, CPU_BYTES // size))
