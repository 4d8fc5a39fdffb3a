"""Minibatch SGD: each client takes one step on a fraction of its examples.

``federated.local_batch_size`` does not matter: the batch is the fraction. It is drawn anew in each
round, without replacement: ``fraction`` times the client's examples, rounded down, but at least
one. Under ``weighting: examples`` a client weighs by the examples of its batch, as in LEAF. With
fraction 1, all clients, that weighting and central rate 1, a round is one step of gradient descent
on the pooled examples.

Privacy: a client sends one update and nothing else, so every mechanism covers it; the batch is no
sampling of clients and amplifies nothing.

Source: Caldas et al. 2018 (LEAF), section 3 and figure 3 ("percentage of data used per client").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from pfl_bench.config.training import FederatedOptions, Strict
from pfl_bench.federated.algorithms.fedavg import FedAvg
from pfl_bench.types import ConfigError, LocalTraining


class Options(Strict):
    """Options of minibatch SGD.

    Attributes:
        fraction: Fraction of its examples that a client's step is computed on, above 0, at most 1.
    """

    fraction: Annotated[float, Field(gt=0, le=1)]


def check(federated: FederatedOptions) -> None:
    """Refuse settings that are of several local steps, momentum among them: there is one."""
    if federated.local_momentum:
        raise ConfigError(
            f"federated.local_momentum: {federated.local_momentum:g} with minibatch_sgd, whose "
            "clients take one step a round and begin without momentum each time: it would change "
            "nothing. Leave it out; central_optimizer: {name: sgd, momentum: ...} has one that "
            "lasts over rounds"
        )
    if federated.local_epochs != 1 or federated.local_steps not in (None, 1):
        raise ConfigError(
            "federated: minibatch_sgd takes one step a client and round, but local_epochs is "
            f"{federated.local_epochs} and local_steps {federated.local_steps}; leave both out, "
            "or set the algorithm to fedavg"
        )


def build(options: Options, local_training: LocalTraining) -> FedAvg:
    """Build minibatch SGD: FedAvg's central step after one local one."""
    return FedAvg(replace(local_training, batch_fraction=options.fraction))
