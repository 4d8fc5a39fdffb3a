"""Reptile: learn a model that fine-tunes well, by moving towards what clients' steps end in.

A client takes a few steps of SGD, and the centre moves by the meta-rate towards the mean of the
clients' results: FedAvg's update and central step, whose other names are

| Nichol et al. | here |
|---|---|
| outer step size (meta-rate) | ``federated.central_learning_rate`` |
| its linear decay to 0 | ``federated.central_schedule: {decay: linear}`` |
| k inner steps | ``federated.local_steps`` (with ``local_epochs`` enough for them) |
| tasks of a meta-batch | ``federated.cohort_size`` |
| outer Adam | ``federated.central_optimizer`` |

Of N rounds, round t has the fraction 1 - t / N of the meta-rate, so the last one moves nothing;
where the decay counts from 0, as in the paper's code, round t has 1 - (t - 1) / N.

The model is meant to be tested after fine-tuning: ``evaluation.adaptation``. LEAF's Reptile has
central_learning_rate 2, linear decay, local_steps 5, local_batch_size 10 and adapts by 50
mini-batches of 5; its local_epochs must be large enough that a client with few examples takes
5 steps.

Privacy: a client sends one update and nothing else, so every mechanism covers it. What a client
fine-tunes stays with it.

Source: Nichol, Achiam and Schulman 2018, algorithm 2 (the batched version); Caldas et al. 2018
(LEAF), table 2 and appendix B.
"""

from __future__ import annotations

from pfl_bench.config.training import FederatedOptions, NoOptions
from pfl_bench.federated.algorithms.fedavg import FedAvg
from pfl_bench.types import ConfigError, LocalTraining

Options = NoOptions


def check(federated: FederatedOptions) -> None:
    """Refuse clients that weigh by their examples: Reptile's tasks count alike."""
    if federated.weighting != "uniform":
        raise ConfigError(
            f"federated.weighting: '{federated.weighting}' with reptile, whose tasks (clients) "
            "count alike; set weighting: uniform, or the algorithm to fedavg"
        )


def build(options: Options, local_training: LocalTraining) -> FedAvg:
    """Build Reptile for clients that train as ``local_training`` says."""
    return FedAvg(local_training)
