"""Starting the processes that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

import torch

from pfl_bench.building import build_algorithm, needs_one_process
from pfl_bench.config_file import ResolvedConfig
from pfl_bench.costs import StepFlops
from pfl_bench.crew.cores import usable_cores
from pfl_bench.crew.types import Alone, Crew
from pfl_bench.hands import number_of_hands
from pfl_bench.types import ConfigError, FederatedSplit

# What "auto" goes by. A worker takes seconds to start, and half a gigabyte of memory for torch.
_WORTH_SECONDS = 60.0
_BYTES_A_WORKER = 2 << 30
_MOST_WORKERS = 16
# Of one core, about: results never depend on them.
_SECONDS_A_STEP, _FLOPS_A_SECOND = 2e-4, 3e10


# Of the cores, what a command that has several runs at once leaves to this one.
_limit: int | None = None


def limit_cores(cores: int) -> None:
    """Let "auto" take so many cores at most in this process."""
    global _limit
    _limit = cores


def start_crew(
    resolved: ResolvedConfig, split: FederatedSplit, step: StepFlops, device: torch.device
) -> Crew:
    """Start worker processes, if the configuration asks for any.

    Args:
        resolved: The configuration.
        split: The training split.
        step: FLOPs of a training step.
        device: Where the model lives.

    Returns:
        The crew as its lead sees it; the workers are loading what they need.

    Raises:
        ConfigError: Worker processes are asked for on a GPU.
    """
    federated = resolved.config.federated
    if federated is None:
        return Alone()
    wanted = federated.workers
    if wanted == "auto":
        wanted = _automatic(resolved, split, step) if device.type == "cpu" else 1
    elif wanted > 1 and device.type != "cpu":
        raise ConfigError(
            f"federated.workers: {wanted} processes would share one {device.type} device; leave it "
            "out, or start a process for each GPU by torchrun --nproc-per-node K -m pfl_bench run"
        )
    if wanted == 1:
        return Alone()
    from pfl_bench.crew.following import follow
    from pfl_bench.crew.processes import LeadOfProcesses

    return LeadOfProcesses(wanted, follow)


def _automatic(resolved: ResolvedConfig, split: FederatedSplit, step: StepFlops) -> int:
    """As many as there are cores, memory and clients for; one for a run of seconds."""
    options = resolved.config.federated
    assert options is not None
    if resolved.config.privacy is not None and options.engine not in ("auto", "sequential"):
        # The noise of such a run belongs to a number of processes; it is not the machine's choice.
        return 1
    if needs_one_process(resolved, options):
        return 1
    local = build_algorithm(resolved, options).local_training
    examples = split.num_examples / split.num_users * local.epochs
    steps = max(1.0, examples / local.batch_size)
    if local.max_steps is not None:
        steps = min(steps, local.max_steps)
        examples = min(examples, steps * local.batch_size)
    flops = step.per_step * steps + step.per_example * examples
    clients = options.num_rounds * options.cohort_size
    if clients * (steps * _SECONDS_A_STEP + flops / _FLOPS_A_SECOND) < _WORTH_SECONDS:
        return 1
    room = [_limit or usable_cores(), _MOST_WORKERS, number_of_hands(options.cohort_size)]
    memory = _available_memory()
    if memory is not None:
        room.append(max(1, memory // _BYTES_A_WORKER))
    return min(room)


def _available_memory() -> int | None:
    """Bytes of memory that can be had, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None
