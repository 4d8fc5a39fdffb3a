"""How many lanes, and for which models ``engine: auto`` takes them."""

from __future__ import annotations

import torch
from torch import nn

from pfl_bench.flat_model import FlatModel
from pfl_bench.lanes.program import unsupported
from pfl_bench.precision import cpu_has_bfloat16

# On a CPU lanes share the Python between two steps. Small models gain from that; large ones only
# lose the caches, and have one lane, where what is gained is the layers' own passes.
CPU_LANES, CPU_BYTES = 24, 1 << 23
# On a GPU they fill the processor. A lane's weights, gradients and activations together, in
# multiples of its weights. (Local momentum adds one, which is not reckoned with: lanes are halved
# where memory does not suffice.)
CUDA_LANES, CUDA_SHARE, CUDA_COPIES = 256, 0.25, 4

# Measured on one thread of a CPU, federated rounds of FEMNIST (docs/performance.md): softmax
# regression (48,670 parameters) and two networks (1.2 and 6.6 million) are faster, LSTMs are not.
# So they are in bfloat16 where the processor has units for it.
MEASURED_LAYERS = (nn.Linear, nn.Conv2d)
MEASURED_SIZES = (40_000, 7_000_000)


def automatic_lanes(num_parameters: int, device: torch.device) -> int:
    """Lanes for a model.

    On a CPU 24, but no more than have their weights in 8 MiB, at least one; on a GPU 256, but no
    more than have four copies of their weights in a quarter of its memory. It depends on nothing
    that changes from run to run on a machine, so that a run is repeated bit for bit.

    Args:
        num_parameters: P.
        device: Where the model lives.
    """
    size = 4 * num_parameters
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        most = int(memory * CUDA_SHARE) // (CUDA_COPIES * size)
        return max(1, min(CUDA_LANES, most))
    return max(1, min(CPU_LANES, CPU_BYTES // size))


def is_measured_faster(model: FlatModel, precision: str) -> bool:
    """Whether the vectorized engine was measured to be faster for such a model where it lives.

    Args:
        model: The model.
        precision: Of ``RunConfig``.
    """
    on_one_thread = model.device.type == "cpu" and torch.get_num_threads() == 1
    fewest, most = MEASURED_SIZES
    return (
        on_one_thread
        and (precision == "float32" or cpu_has_bfloat16())
        and fewest <= model.num_parameters <= most
        and unsupported(model) is None
        and all(
            isinstance(layer, MEASURED_LAYERS)
            for layer in model.module.modules()
            if any(p.requires_grad for p in layer.parameters(recurse=False))
        )
    )
