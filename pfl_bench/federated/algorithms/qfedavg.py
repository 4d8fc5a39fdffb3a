"""q-FedAvg: clients on which the central model does badly count for more.

The objective (q-FFL) is the mean over clients of F^(q + 1) / (q + 1), where F is the mean loss on a
client's examples. A client computes F of the central parameters w before it trains (a forward pass
of its own: no mean of the losses of its steps), then trains to w'. With L = 1 / the round's local
rate and D = L (w - w'),

    h = q F^(q - 1) |D|^2 + L F^q,    w <- w - sum of F^q D / sum of h

which is the mean of the updates (w' - w) / a with weights F^q a, where a = 1 + q L |w' - w|^2 / F.
That is how it is computed, so that central optimizers, rates and compression come after it as they
do after FedAvg. With q = 0 it is FedAvg, bit for bit. Under ``weighting: examples`` the weights are
multiplied by the client's examples, and so is its part of the objective; the paper draws clients by
their share of the examples instead, where this toolkit draws all alike. L is the bound on the
curvature for which plain SGD takes that rate, and F the loss alone: local momentum and weight decay
are refused. In a round of rate 0 nobody moves, and neither does w.

Costs: beside its update a client sends its weight, 4 bytes. The forward pass is not among the FLOPs
that a run counts (a third of an epoch's), nor in the work of a virtual clock.

Privacy: none. The weight tells how badly the model does on a client's data, and lets one client
move the mean by more than another.

Source: Li et al. 2020, "Fair Resource Allocation in Federated Learning", algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field

from pfl_bench.config.training import FederatedOptions, Strict
from pfl_bench.types import (
    Algorithm,
    ClientUpload,
    ConfigError,
    LocalResult,
    LocalTraining,
    UpdateTransform,
)
from privacy.clipping import l2_norm

# A loss of 0 has no power below 0; the paper's published code adds as much to it.
_SMALLEST_LOSS = 1e-10
_BYTES_OF_WEIGHT = 4
# Sums are in float32: room for those of a hundred million such clients.
_LARGEST = 1e30


class Options(Strict):
    """Options of q-FedAvg.

    Attributes:
        q: How much clients with a large loss count for, 0 or larger; 0 is FedAvg.
    """

    q: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class WeighsByLoss(UpdateTransform):
    """Scales a client's update and sets its weight; L is one over the round's local rate."""

    q: float
    local: LocalTraining

    def send(self, upload: ClientUpload, result: LocalResult, round_index: int) -> ClientUpload:
        """See ``UpdateTransform``; what would be too large for the sum is sent as NaN.

        The mechanism then counts it as not finite.
        """
        upload.num_bytes += _BYTES_OF_WEIGHT
        assert result.start_loss is not None, "the engine measures the loss at the start"
        loss = max(result.start_loss, _SMALLEST_LOSS)
        norm = l2_norm(upload.update)
        rate = self.local.rate(round_index)
        # Without a rate the update is 0, whatever divides it.
        lipschitz = 1.0 / rate if rate else 0.0
        divisor = 1.0 + self.q * lipschitz * norm * norm / loss
        try:
            weight = upload.weight * loss**self.q * divisor
        except OverflowError:
            weight = math.inf
        # NaN fails it too.
        if not weight * max(1.0, norm) < _LARGEST:
            upload.update = torch.full_like(upload.update, math.nan)
            return upload
        upload.update = upload.update / divisor
        upload.weight = weight
        return upload


@dataclass(frozen=True, slots=True)
class QFedAvg(Algorithm):
    """See the module."""

    local_training: LocalTraining
    transform: WeighsByLoss
    uploads: tuple[str, ...] = ("update", "weight")
    follows_mean: bool = False


def check(federated: FederatedOptions) -> None:
    """Refuse local steps that are not those of plain SGD on the loss: momentum or weight decay."""
    for key, reason in (
        ("local_momentum", "takes one over the local rate for the curvature that plain SGD meets"),
        ("local_weight_decay", "weighs clients by the loss that they descend, without a penalty"),
    ):
        given = getattr(federated, key)
        if given:
            raise ConfigError(
                f"federated.{key}: {given:g} with qfedavg, which {reason}; leave it out, or set "
                "the algorithm to fedavg"
            )


def build(options: Options, local_training: LocalTraining) -> QFedAvg:
    """Build q-FedAvg for clients that train as ``local_training`` says."""
    transform = WeighsByLoss(options.q, local_training)
    return QFedAvg(replace(local_training, measures_start=True), transform)
