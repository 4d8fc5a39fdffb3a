"""FedAvg: local SGD, then a central step along the mean update.

Source: McMahan et al., 2017, algorithm 1; with a central optimizer, Reddi et al., 2021,
algorithm 1 (FedOpt), of which FedAvg is the case of SGD with rate 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from pfl_bench.types import LocalTraining


class Options(BaseModel):
    """FedAvg has no options beyond those of every federated run."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class FedAvg:
    """See the module."""

    local_training: LocalTraining
    uploads: tuple[str, ...] = ("update",)

    def central_gradient(self, mean_update: Tensor, out: Tensor) -> None:
        """Write the negative mean update to ``out``: optimizers descend."""
        torch.neg(mean_update, out=out)


def build(options: Options, local_training: LocalTraining) -> FedAvg:
    """Build FedAvg for clients that train as ``local_training`` says."""
    return FedAvg(local_training)
