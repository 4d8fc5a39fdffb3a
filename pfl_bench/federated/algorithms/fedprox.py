"""FedProx: FedAvg whose clients are held near the central model by a quadratic term.

The term is part of the objective that clients descend, so ``local_momentum`` covers it.

Source: Li et al., 2020, "Federated Optimization in Heterogeneous Networks", algorithm 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from pfl_bench.config.training import Strict
from pfl_bench.federated.algorithms.fedavg import FedAvg
from pfl_bench.types import LocalTraining


class Options(Strict):
    """Options of FedProx.

    Attributes:
        proximal_weight: The paper's mu, 0 or larger; 0 is FedAvg.
    """

    proximal_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]


def build(options: Options, local_training: LocalTraining) -> FedAvg:
    """Build FedProx: FedAvg's central step, and the proximal term in each local gradient."""
    return FedAvg(replace(local_training, proximal_weight=options.proximal_weight))
