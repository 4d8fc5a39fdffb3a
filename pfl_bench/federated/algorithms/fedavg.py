"""FedAvg: local SGD, then a central step along the mean update.

Source: McMahan et al., 2017, algorithm 1; with a central optimizer, Reddi et al., 2021,
algorithm 1 (FedOpt), of which FedAvg is the case of SGD with rate 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_bench.config.training import NoOptions
from pfl_bench.types import Algorithm, LocalTraining

Options = NoOptions


@dataclass(frozen=True, slots=True)
class FedAvg(Algorithm):
    """See the module; the base's central gradient is its own."""

    local_training: LocalTraining
    uploads: tuple[str, ...] = ("update",)


def build(options: Options, local_training: LocalTraining) -> FedAvg:
    """Build FedAvg for clients that train as ``local_training`` says."""
    return FedAvg(local_training)
