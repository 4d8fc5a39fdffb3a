"""SCAFFOLD: local steps that are corrected for how a client's gradient differs from the mean one.

The centre keeps a control variate c, each client one of its own, c_i, both zero at first. With the
client's gradient g (of its loss and ``local_weight_decay``), its K steps of the round's rate r from
the central x are w <- w - r (g - c_i + c), and end in y. Then (option II of the paper)

    c_i' = c_i - c + (x - y) / (K r),    c' = c + (1 / N) sum over the cohort of (c_i' - c_i)

with N users in all, and x moves by the central optimizer along the mean of y - x, as in FedAvg. The
client's own gradients are clipped, if clipping is set, before they are corrected. A client that
takes no step, or whose rate is 0, or whose update is not finite, keeps its c_i and moves c by
nothing. There is no local momentum: with it (x - y) / (K r) is no mean of gradients.

``variant: niid_bench`` is what the benchmark NIID-Bench runs. Local momentum and ``weighting:
examples`` are allowed: each step is that of SGD with momentum and weight decay, followed by
w <- w - r (c - c_i). The clients' control variates are computed as above, and c moves by |S| / N
times the mean of c_i' - c_i over the cohort S, in which clients weigh as in the mean of y - x: so
does Flower's rerun of the benchmark. Without momentum, and of clients that count alike, it is the
paper's.

N counts users who never take part, too: where only a few are ever available, c stays near zero, and
so do the corrected steps of those who return. It then learns more slowly than FedAvg.

Costs: c goes down beside x, and c_i' - c_i up beside the update: twice FedAvg's bytes both ways. A
compression makes the update smaller, not the control variate. A simulation holds the c_i of all
clients that were ever drawn, 4 P bytes each, in memory (not the GPU's) and in each checkpoint, and
trains in one process.

Privacy: none. What a client sends beside its update, and what it remembers, no clip bounds.

Source: Karimireddy et al. 2020, algorithm 1; of the variant, Li et al. 2022, "Federated Learning on
Non-IID Data Silos: An Experimental Study", section 5, and its code; and Flower's baseline
niid_bench.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from pfl_bench.client.costs import BYTES_PER_PARAMETER
from pfl_bench.config.training import FederatedOptions, Strict
from pfl_bench.federated.algorithms._client_memory import LearnsFromClients
from pfl_bench.types import Algorithm, ConfigError, LocalResult, LocalTraining, UpdateTransform
from privacy.clipping import l2_norm


class Options(Strict):
    """Options of SCAFFOLD.

    Attributes:
        variant: "paper", or "niid_bench": with local momentum and clients' weights.
    """

    variant: Literal["paper", "niid_bench"] = "paper"


class Scaffold(Algorithm):
    """See the module."""

    uploads = ("update", "control_variate")
    downloads = ("central", "control_variate")
    corrects_steps = True
    # All but the last are zero between rounds; that is written anew for each client.
    scratch = ("_change", "_cohort", "_total_weight", "_correction")

    def __init__(self, local_training: LocalTraining) -> None:
        self.local_training = local_training
        # The difference of a client's control variates goes beside its update.
        self.transform: UpdateTransform = LearnsFromClients(self.learn, sends_vector=True)
        self._num_users = 0
        # Clients of the round, and what they count for together.
        self._cohort = 0
        self._total_weight = 0.0
        self._control = torch.zeros(0)
        self._change = torch.zeros(0)
        self._correction = torch.zeros(0)
        # On the CPU: of many clients, they are more than a GPU holds.
        self._own: dict[int, Tensor] = {}

    def begin(self, num_users: int, central: Tensor) -> None:
        """See ``Algorithm``."""
        self._num_users = num_users
        self._control = torch.zeros_like(central)
        self._change = torch.zeros_like(central)
        self._correction = torch.zeros_like(central)
        # An update and a control variate.
        self.transform.expected_bytes = 2.0 * central.numel() * BYTES_PER_PARAMETER

    def correction(self, user: int) -> Tensor | None:
        """See ``Algorithm``: c - c_i, or None while both are zero."""
        if not self._own:
            return None
        self._correction.copy_(self._control)
        own = self._own.get(user)
        if own is not None:
            self._correction.sub_(own.to(self._correction.device))
        return self._correction

    def learn(self, result: LocalResult, weight: float, round_index: int) -> None:
        """Replace a client's control variate by what its training in a round, from 1, has shown.

        The client counts for ``weight``, 1 in the paper's variant.
        """
        self._cohort += 1
        self._total_weight += weight
        per_step = result.num_steps * self.local_training.rate(round_index)
        if not per_step:
            return
        device = self._control.device
        before = self._own.get(result.user)
        moved = (result.update / -per_step).sub_(self._control)
        if not math.isfinite(l2_norm(moved)):
            return
        # The difference c_i' - c_i is what was just computed; the sum is the client's new one.
        self._change.add_(moved, alpha=weight)
        self._own[result.user] = (moved if before is None else moved + before.to(device)).cpu()

    def central_gradient(self, mean_update: Tensor, out: Tensor) -> None:
        """Write the negative mean update to ``out``, and move c: a round has ended."""
        torch.neg(mean_update, out=out)
        if self._total_weight:
            part = self._cohort / self._total_weight / self._num_users
            self._control.add_(self._change, alpha=part)
        self._change.zero_()
        self._cohort, self._total_weight = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """The control variates: c, and those of the clients that were drawn."""
        return {"control": self._control, "clients": dict(self._own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._control.copy_(state["control"])
        self._own = {int(user): own.cpu() for user, own in state["clients"].items()}


def check(federated: FederatedOptions) -> None:
    """Refuse what would not be the paper's SCAFFOLD, unless the variant is another.

    Clients must not weigh by their examples, as c is the plain mean of the c_i; nor have momentum,
    as what they learn of their gradients is that of plain SGD.
    """
    if federated.algorithm.get("variant", "paper") != "paper":
        return
    if federated.local_momentum:
        raise ConfigError(
            f"federated.local_momentum: {federated.local_momentum:g} with scaffold, whose control "
            "variates are mean gradients of plain local SGD, (central - local) / (steps * rate); "
            "leave it out, set the algorithm's variant to niid_bench, or the algorithm to fedavg"
        )
    if federated.weighting != "uniform":
        raise ConfigError(
            f"federated.weighting: '{federated.weighting}' with scaffold, whose control variate is "
            "the plain mean over clients; set weighting: uniform, the algorithm's variant to "
            "niid_bench, or the algorithm to fedavg"
        )


def build(options: Options, local_training: LocalTraining) -> Scaffold:
    """Build SCAFFOLD for clients that train as ``local_training`` says."""
    beside = options.variant == "niid_bench"
    return Scaffold(replace(local_training, corrects_beside_momentum=beside))
