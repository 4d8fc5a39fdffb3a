"""Starting the processes that a configuration asks for."""

from __future__ import annotations

import torch

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.types import ConfigError, SingleProcess, WorkerGroup


def start_workers(resolved: ResolvedConfig, device: torch.device) -> WorkerGroup:
    """Start worker processes, if the configuration asks for any.

    Args:
        resolved: The configuration. "auto", which ``autotune.settle`` makes a number of, is one.
        device: Where the model lives.

    Returns:
        The group as its lead sees it; the workers are loading what they need.

    Raises:
        ConfigError: Worker processes are asked for on a GPU.
    """
    federated = resolved.config.federated
    if federated is None or federated.workers in (1, "auto"):
        return SingleProcess()
    if device.type != "cpu":
        raise ConfigError(
            f"federated.workers: {federated.workers} processes would share one {device.type} "
            "device; leave it out, or start a process for each GPU by torchrun --nproc-per-node K "
            "-m pfl_bench run"
        )
    from pfl_bench.federated.workers.multiprocess import LeadOfProcesses
    from pfl_bench.federated.workers.worker_loop import follow

    return LeadOfProcesses(int(federated.workers), follow)
