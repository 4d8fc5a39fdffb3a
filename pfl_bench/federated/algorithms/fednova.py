"""FedNova: clients' updates count by the step, so that who takes more steps does not pull more.

A client takes n local steps of momentum m, each begun anew as ``LocalTraining`` says. The last of
its gradients has weight 1 in its update, earlier ones more, and the weights sum to

    a = (n - m (1 - m^n) / (1 - m)) / (1 - m),    which is n without momentum.

It sends its normalised update d = (w' - w) / a, and a itself. With the clients' weights p of the
round, which sum to 1 (alike, or by their examples), the central optimizer gets

    (sum of p a) (sum of p d)

in place of FedAvg's sum of p a d. Where all clients take as many steps, it is FedAvg. The first
factor is the paper's tau_eff; ``effective_steps`` sets it to a constant, and a is not sent then.

The local rate may move over rounds, since all clients of a round have one. ``local_weight_decay``
is the penalty of the client's objective: its gradient is one of those that are counted. There is no
proximal term, whose steps the paper normalises by another a.

Costs: a takes 4 bytes beside the update.

Guarantee: with ``effective_steps`` a client sends its normalised update alone. The mechanism clips
that, so the clip is of the size of one step rather than of a round's, and one user moves the sum
by as much as with FedAvg; the constant is applied to what was released. Every mechanism covers it.
Without ``effective_steps`` there is no privacy: a tells how many steps a client took, hence how
many examples it has, and neither a nor its mean is clipped or noised.

Source: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", theorem 1, equation 9 and section 4 (a of momentum and of a proximal term).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.config.training import Strict
from pfl_bench.types import (
    Algorithm,
    ClientUpload,
    LocalResult,
    LocalTraining,
    UpdateTransform,
)

_BYTES_OF_NORMALIZER = 4


class Options(Strict):
    """Options of FedNova.

    Attributes:
        effective_steps: What the mean of the normalised updates is multiplied by, above 0; null for
            the mean of what clients divided by, which they then send.
    """

    effective_steps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def normalizer(num_steps: int, momentum: float) -> float:
    """The sum of the weights that the gradients of local steps have in an update: the module's a.

    It is 0 where there were no steps; momentum is from 0 to below 1.
    """
    rest = 1.0 - momentum
    return (num_steps - momentum * (1.0 - momentum**num_steps) / rest) / rest


class Normalizes(UpdateTransform):
    """Divides a client's update by its a, which goes beside it if asked to; see the module."""

    def __init__(self, momentum: float, sends_normalizer: bool) -> None:
        self._momentum = momentum
        self._sends_normalizer = sends_normalizer

    def send(self, upload: ClientUpload, result: LocalResult, round_index: int) -> ClientUpload:
        """See ``UpdateTransform``; an update without a step is 0 and stays so."""
        divisor = normalizer(result.num_steps, self._momentum)
        if divisor:
            upload.update = upload.update / divisor
        if self._sends_normalizer:
            upload.scalar = divisor
            upload.num_bytes += _BYTES_OF_NORMALIZER
        return upload


class FedNova(Algorithm):
    """See the module."""

    follows_mean = False
    # Written anew in each round before it is read.
    scratch = ("_effective_steps",)

    def __init__(self, effective_steps: float | None, local_training: LocalTraining) -> None:
        self.local_training = local_training
        self._is_fixed = effective_steps is not None
        self._effective_steps = effective_steps or 0.0
        self.uploads = ("update",) if self._is_fixed else ("update", "normalizer")
        self.transform: UpdateTransform = Normalizes(local_training.momentum, not self._is_fixed)

    def begin(self, num_users: int, central: Tensor) -> None:
        """See ``Algorithm``."""
        if not self._is_fixed:
            update = float(central.numel() * BYTES_PER_PARAMETER)
            self.transform.expected_bytes = update + _BYTES_OF_NORMALIZER

    def receive(self, weight: float, mean_scalar: float) -> None:
        """Take the mean of what clients divided by."""
        if not self._is_fixed:
            self._effective_steps = mean_scalar

    def central_gradient(self, mean_update: Tensor, out: Tensor) -> None:
        """Write the negative mean normalised update, times the effective steps, to ``out``."""
        torch.mul(mean_update, -self._effective_steps, out=out)


def build(options: Options, local_training: LocalTraining) -> FedNova:
    """Build FedNova for clients that train as ``local_training`` says."""
    return FedNova(options.effective_steps, local_training)
