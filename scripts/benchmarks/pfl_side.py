"""PyPI's ``pfl`` as a side of a benchmark: its simulated backend and federated averaging."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


def is_installed() -> bool:
    """Whether there is a ``pfl`` to compare with."""
    return importlib.util.find_spec("pfl") is not None


@dataclass(frozen=True)
class Privacy:
    """Its Gaussian mechanism.

    Attributes:
        clip_norm: L2 bound of an update.
        noise_multiplier: Standard deviation of the sum's noise in multiples of ``clip_norm``.
    """

    clip_norm: float
    noise_multiplier: float


class PflSide:
    """``pfl`` on users that the caller names.

    Args:
        module: With ``loss`` and ``metrics``, as pfl wants its models; it is trained in place.
        cohort: Gives the users of a round.
        read_user: Gives a user's tensors (inputs, targets), on the device.
        central: Optimizer of the module's parameters.
        local: Settings of local training (pfl's ``NNTrainHyperParams``).
        privacy: None for none.
        **kwargs: Arguments that the module's ``loss`` gets beside the batch.

    Attributes:
        num_examples: Examples of the last round's users.
    """

    def __init__(
        self,
        module: nn.Module,
        cohort: Callable[[int], Sequence[Any]],
        read_user: Callable[[Any], Sequence[Tensor]],
        central: torch.optim.Optimizer,
        local: Mapping[str, Any],
        privacy: Privacy | None,
        **kwargs: Any,
    ) -> None:
        # pfl takes a GPU wherever it finds one; it is to compute where the others do.
        device = next(module.parameters()).device
        os.environ.setdefault("PFL_PYTORCH_DEVICE", str(device))
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel
        from pfl.privacy.gaussian_mechanism import GaussianMechanism
        from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

        def make_user(user: Any) -> Any:
            tensors = list(read_user(user))
            self.num_examples += len(tensors[0])
            return Dataset(raw_data=tensors, user_id=str(user), train_kwargs=kwargs)

        self._module, self._cohort = module, cohort
        self._users: Iterator[Any] = iter(())
        self.num_examples = 0
        dataset = FederatedDataset(make_user, lambda: next(self._users))
        steps = []
        if privacy is not None:
            gaussian = GaussianMechanism(privacy.clip_norm, privacy.noise_multiplier)
            steps.append(CentrallyAppliedPrivacyMechanism(gaussian))
        self._backend = SimulatedBackend(dataset, dataset, postprocessors=steps)
        self._model = PyTorchModel(module, torch.optim.SGD, central)
        self._algorithm = FederatedAveraging()
        self._train = NNTrainHyperParams(**local)
        self._eval = NNEvalHyperParams(local_batch_size=local["local_batch_size"])
        self._params = NNAlgorithmParams

    def round(self, index: int) -> None:
        cohort = self._cohort(index)
        self.num_examples = 0
        self._users = iter(cohort)
        # No round is one of pfl's evaluations, which other sides do not do either.
        params = self._params(
            central_num_iterations=10_000,
            evaluation_frequency=10_000,
            train_cohort_size=len(cohort),
            val_cohort_size=None,
        )
        contexts, model, _ = self._algorithm.get_next_central_contexts(
            self._model, index, params, self._train, self._eval
        )
        for context in contexts:
            result, metrics = self._backend.gather_results(
                model, self._algorithm, central_context=context
            )
            self._algorithm.process_aggregated_statistics(context, metrics, model, result)

    def vector(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._module.parameters()])
