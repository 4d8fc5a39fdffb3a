"""Ditto: FedAvg, and a model of each client's own that is held near the central one.

The central model x is trained as with FedAvg. Beside that, each client of a round takes steps from
its own model v_i on

    F_i(v) + proximal_weight / 2 |v - x|^2

where x is the central model that it was sent, and keeps what it ends in. With weight 0 it trains
alone; the larger the weight, the nearer v_i stays to x. Batch size, momentum, weight decay and
clipping are those of local training, and so are rate and epochs unless the options say otherwise. A
client begins with the model that it is sent when it first takes part (the paper's clients with
models of their own from round 0), and both of its models see the same batches.

Evaluation measures both: "test/accuracy" of the central model, "test/personal_accuracy" of clients'
own, each on its client's examples. A client that was in no round yet has the central model. The
data must be split by example, so that a client has examples of each split. ``select_best`` selects
the central model; clients' own are those of the last round.

Costs: a client sends its update alone. A run counts the steps of both models; a virtual clock and
``pfl-bench show`` reckon with the central model's. A simulation holds the v_i of all clients that
were ever drawn, 4 P bytes each, in memory (not the GPU's) and in each checkpoint, and trains in one
process.

Guarantee: none: a private run is refused. A client's update is made of its data and of x, so that x
is FedAvg's bit for bit, and FedAvg has its guarantee. The v_i are made of data without noise, and
no statement covers them: they stay with their clients in a deployment, but a simulation's
checkpoints and metrics hold what comes of them, and the object that keeps them also takes the
central step.

Source: Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization",
algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from pfl_bench.config.training import PositiveFloat, PositiveInt, Strict
from pfl_bench.types import Algorithm, LocalTraining


class Options(Strict):
    """Options of Ditto.

    Attributes:
        proximal_weight: The paper's lambda, 0 or larger: how strongly a client's own model is drawn
            to the central one.
        epochs: Passes of a client's own model over its examples in a round; null for
            ``local_epochs``.
        learning_rate: Rate of a client's own model, which ``local_schedule`` moves too; null for
            ``local_learning_rate``.
    """

    proximal_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    epochs: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None


class Ditto(Algorithm):
    """See the module; ``local_training`` is that of the central model."""

    def __init__(self, options: Options, local_training: LocalTraining) -> None:
        self.local_training = local_training
        self.personal_training = replace(
            local_training,
            proximal_weight=options.proximal_weight,
            epochs=options.epochs or local_training.epochs,
            learning_rate=options.learning_rate or local_training.learning_rate,
        )
        # On the CPU: of many clients, they are more than a GPU holds.
        self._own: dict[int, Tensor] = {}

    def own_model(self, user: int) -> Tensor | None:
        """See ``Algorithm``."""
        return self._own.get(user)

    def keep(self, user: int, model: Tensor) -> None:
        """See ``Algorithm``."""
        self._own[user] = model.clone() if model.device.type == "cpu" else model.cpu()


build = Ditto
