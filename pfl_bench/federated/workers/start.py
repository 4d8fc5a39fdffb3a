"""Starting the processes that a configuration asks for."""

from __future__ import annotations

import torch

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.types import ConfigError, SingleProcess, WorkerGroup


def start_workers(resolved: ResolvedConfig, device: torch.device) -> WorkerGroup:
    """Start the worker processes that the configuration asks for; "auto" is one here.

    They are loading what they need when the group, as its lead sees it, is returned.
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
