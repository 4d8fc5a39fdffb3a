"""PyPI's ``pfl`` as a side of a benchmark: its simulated backend and federated averaging."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.local_training import Material
from benchmarks.workload import CLIP_NORM, flat


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
        precision: "float32", or "bfloat16" for pfl's mixed precision.
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
        precision: str = "float32",
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
        self._model = PyTorchModel(
            module,
            torch.optim.SGD,
            central,
            amp_dtype=None if precision == "float32" else getattr(torch, precision),
        )
        self._algorithm = FederatedAveraging()
        self._train = NNTrainHyperParams(**local)
        self._eval = NNEvalHyperParams(local_batch_size=local["local_batch_size"])
        self._params = NNAlgorithmParams

    def prepare(self, index: int) -> None:
        """Nothing: the caller's ``read_user`` decides."""

    def round(self, index: int) -> None:
        cohort = self._cohort(index)
        self.num_examples = 0
        # With several processes each draws a user for all of them, also after the last user.
        self._users = itertools.chain(cohort, itertools.repeat(cohort[-1]))
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
        return flat(self._module)


class _OnMaterial(PflSide):
    """``pfl`` on the other sides' batches, in memory as the bare loop's."""

    def __init__(self, material: Material) -> None:
        module, job = material.module(), material.job
        self._clients, self._index = material.clients, 0

        def train_loss(inputs: Tensor, targets: Tensor, **_: Any) -> Tensor:
            module.train()
            return material.loss(module(inputs).float(), targets)

        module.loss, module.metrics = train_loss, lambda *_, **__: {}  # type: ignore[assignment]
        local = {
            "local_batch_size": job.load.batch_size,
            "local_num_epochs": 1,
            "local_learning_rate": job.load.learning_rate,
            "local_max_grad_norm": job.load.gradient_clip,
        }
        trained = [p for p in module.parameters() if p.requires_grad]
        super().__init__(
            module,
            self._users_of_round,
            lambda user: self._clients.client(user, self._index),
            torch.optim.SGD(trained, lr=1.0),
            local,
            Privacy(CLIP_NORM, job.load.noise_multiplier) if job.private else None,
            job.precision,
        )

    def _users_of_round(self, index: int) -> list[int]:
        self._index = index
        # The largest first: its processes take users of like size at the same time, which is what
        # its user_id_to_weight is for.
        users = self._clients.users_of_round(index)
        return sorted(users, key=lambda user: -len(self._clients.client(user, index)[0]))

    def prepare(self, index: int) -> None:
        self._clients.prepare(index)


def pfl_side(material: Material) -> PflSide:
    """``pfl``'s simulated backend, as its recipes use it, on the other sides' users and batches."""
    return _OnMaterial(material)
