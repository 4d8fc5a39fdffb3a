"""FedDyn: clients' objectives are bent so that their minima agree with the minimum of the mean.

The centre keeps a vector h, each client a vector g_i, all zero at first. From the central x a
client descends, in its local steps,

    F_i(w) - <g_i, w> + alpha / 2 |w - x|^2

and ends in y_i. Then g_i <- g_i - alpha (y_i - x), which is the gradient of F_i in y_i if the steps
have reached the minimum. F_i is its loss with ``local_weight_decay``. With N users in all,

    h <- h - alpha / N sum over the cohort of (y_i - x)
    x <- mean over the cohort of y_i - h / alpha

so the central optimizer (of the paper: SGD with rate 1) gets h / alpha minus the mean update. A
client whose update is not finite keeps its g_i and moves h by nothing, and without any client x
stays. Compression changes what reaches h, not g_i.

As everywhere here, a client's gradient is clipped before the two terms are added; the paper's code
and FLGo clip the whole of it.

Costs: a client sends its update alone. A simulation holds the g_i of all clients that were ever
drawn, 4 P bytes each, in memory (not the GPU's) and in each checkpoint, and trains in one process.

Privacy: none is claimed. What a client sends depends on what it remembers of earlier rounds.

Source: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pfl_bench.config.training import FederatedOptions, PositiveFloat, Strict
from pfl_bench.federated.algorithms._client_memory import LearnsFromClients
from pfl_bench.types import Algorithm, ConfigError, LocalResult, LocalTraining, UpdateTransform
from privacy.clipping import l2_norm


class Options(Strict):
    """Options of FedDyn.

    Attributes:
        alpha: Weight of the terms, above 0; the paper's experiments take 0.001 to 0.1.
    """

    alpha: PositiveFloat


class FedDyn(Algorithm):
    """See the module; ``local_training`` comes without the terms."""

    corrects_steps = True
    follows_mean = False
    # The one is written anew in each round, the other for each client.
    scratch = ("_count", "_correction")

    def __init__(self, alpha: float, local_training: LocalTraining) -> None:
        self.local_training = replace(local_training, proximal_weight=alpha)
        self.transform: UpdateTransform = LearnsFromClients(self.learn, sends_vector=False)
        self._alpha = alpha
        self._num_users = 0
        self._count = 0.0
        self._h = torch.zeros(0)
        self._correction = torch.zeros(0)
        # Minus g_i, on the CPU: of many clients, they are more than a GPU holds.
        self._own: dict[int, Tensor] = {}

    def begin(self, num_users: int, central: Tensor) -> None:
        """See ``Algorithm``."""
        self._num_users = num_users
        self._h = torch.zeros_like(central)
        self._correction = torch.zeros_like(central)

    def correction(self, user: int) -> Tensor | None:
        """See ``Algorithm``: minus g_i, or None while it is zero."""
        own = self._own.get(user)
        return None if own is None else self._correction.copy_(own)

    def learn(self, result: LocalResult, *_: object) -> None:
        """Move a client's g_i by what its training gave; all clients count alike."""
        if not math.isfinite(l2_norm(result.update)):
            return
        moved = (result.update * self._alpha).cpu()
        before = self._own.get(result.user)
        self._own[result.user] = moved if before is None else moved + before

    def receive(self, weight: float, mean_scalar: float) -> None:
        """Take note of how many clients sent an update; they count alike."""
        self._count = weight

    def central_gradient(self, mean_update: Tensor, out: Tensor) -> None:
        """Move h, and write h / alpha minus the mean update to ``out``: a round has ended."""
        self._h.add_(mean_update, alpha=-self._alpha * self._count / self._num_users)
        torch.sub(self._h / self._alpha, mean_update, out=out)
        if not self._count:
            out.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The vectors: h, and those of the clients that were drawn."""
        return {"h": self._h, "clients": dict(self._own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._h.copy_(state["h"])
        self._own = {int(user): own.cpu() for user, own in state["clients"].items()}


def check(federated: FederatedOptions) -> None:
    """Refuse clients that weigh by their examples: h is the plain mean of the g_i."""
    if federated.weighting != "uniform":
        raise ConfigError(
            f"federated.weighting: '{federated.weighting}' with feddyn, whose h is a plain mean "
            "over clients; set weighting: uniform, or the algorithm to fedavg"
        )


def build(options: Options, local_training: LocalTraining) -> FedDyn:
    """Build FedDyn for clients that train as ``local_training`` says, beside its terms."""
    return FedDyn(options.alpha, local_training)
