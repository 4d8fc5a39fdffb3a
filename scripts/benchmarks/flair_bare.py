"""FLAIR's local training as one would write it by hand, on tensors that are already in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.local_training import autocast
from pfl_bench.client.forward import Forward
from pfl_bench.federated.sampling import build_sampler
from pfl_bench.rng import Purpose, stream
from pfl_bench.types import FederatedSplit
from privacy.sampling_scheme import scheme_named


@dataclass(frozen=True)
class Client:
    """A user's local training: every step's batch, decoded, cropped and normalised."""

    user: int
    num_examples: int
    steps: list[tuple[Tensor, Tensor]]


class Batches:
    """The users and batches of our side's rounds, on the device, in the layout of the run.

    Args:
        split: Where the users are.
        forward: Our side's, which decodes, crops and lays out.
        device: Where batches are wanted.
        cohort_seed: Seed of cohorts and noise.
        tree: The run's configuration.
    """

    def __init__(
        self,
        split: FederatedSplit,
        forward: Forward,
        device: torch.device,
        cohort_seed: int,
        tree: dict[str, Any],
    ) -> None:
        self._split, self._forward, self._device = split, forward, device
        self._cohort_seed = cohort_seed
        self._seed, self._federated = tree["seed"], tree["federated"]
        scheme, cohort = (
            scheme_named(tree["federated"]["sampling"]),
            tree["federated"]["cohort_size"],
        )
        self._sampler = build_sampler(scheme, split.num_users, cohort)
        self._kept: tuple[int, list[Client]] = (0, [])

    def users_of_round(self, index: int) -> list[int]:
        """The cohort."""
        rng = stream(self._cohort_seed, Purpose.SAMPLING, index)
        return self._sampler.draw(rng).tolist()

    def noise_of_round(self, index: int) -> np.random.Generator:
        """The stream that our side's noise comes from."""
        return stream(self._cohort_seed, Purpose.NOISE, index)

    def of_round(self, index: int) -> list[Client]:
        """The cohort's clients; those of the last round asked for are kept, older ones freed."""
        if self._kept[0] != index:
            self._kept = (index, [])
            self._kept = (index, [self.client(u, index) for u in self.users_of_round(index)])
        return self._kept[1]

    def client(self, user: int, index: int) -> Client:
        """A user's batches in a round, 1-based."""
        rng = stream(self._seed, Purpose.AUGMENTATION, index, user)
        examples = self._split.read_user(user, rng)
        rng = stream(self._seed, Purpose.LOCAL_TRAINING, index, user)
        steps = []
        size = self._federated["local_batch_size"]
        for _ in range(self._federated["local_epochs"]):
            order = torch.from_numpy(rng.permutation(len(examples)))
            draws = self._forward.draw(len(examples), rng)
            for place, rows in enumerate(order.split(size)):
                own = None if draws is None else draws[place * size : (place + 1) * size]
                inputs = examples.inputs[rows.to(examples.inputs.device)].to(self._device)
                batch = self._forward.prepare(inputs, None if own is None else own.to(self._device))
                steps.append((batch, examples.targets[rows].to(self._device)))
        return Client(user, len(examples), steps)


def train_locally(module: nn.Module, client: Client, tree: dict[str, Any]) -> None:
    """Local SGD of one client, from the weights that the module has.

    Args:
        module: Trained in place.
        client: Its batches.
        tree: The configuration of our side, whose settings it takes.
    """
    federated = tree["federated"]
    bound = federated["local_gradient_clip_norm"]
    parameters = [p for p in module.parameters() if p.requires_grad]
    device = parameters[0].device
    optimizer = torch.optim.SGD(parameters, lr=federated["local_learning_rate"])
    for inputs, targets in client.steps:
        optimizer.zero_grad()
        with autocast(device, tree["precision"]):
            outputs = module(inputs)
        functional.binary_cross_entropy_with_logits(outputs.float(), targets).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        # Waiting for the answer costs a GPU more than scaling by 1 does.
        if device.type != "cpu" or bool((norms > bound).any()):
            torch._foreach_mul_(gradients, (bound / norms.clamp_min(bound)).unbind())
        optimizer.step()
    optimizer.zero_grad()


class BareSide:
    """A loop over users and batches: nothing decoded, logged or accounted.

    Args:
        module: Trained in place.
        batches: Its data.
        tree: The configuration of our side, whose settings it takes.
    """

    def __init__(self, module: nn.Module, batches: Batches, tree: dict[str, Any]) -> None:
        self._module, self._batches, self._tree = module, batches, tree
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._central = [p.detach().clone() for p in self._parameters]
        self._device = self._central[0].device
        options = tree["federated"]["central_optimizer"]
        self._optimizer = torch.optim.Adam(
            self._central,
            lr=tree["federated"]["central_learning_rate"],
            betas=(options["beta1"], options["beta2"]),
            eps=options["epsilon"],
        )
        self._clip_norm = math.inf
        if "privacy" in tree:
            self._clip_norm = tree["privacy"]["mechanism"]["clip_norm"]

    def prepare(self, index: int) -> None:
        self._batches.of_round(index)

    def round(self, index: int) -> None:
        private = "privacy" in self._tree
        total = [torch.zeros_like(p) for p in self._central]
        weights = 0.0
        num_within = num_users = 0
        for client in self._batches.of_round(index):
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, self._central)
            train_locally(self._module, client, self._tree)
            with torch.no_grad():
                update = torch._foreach_sub(self._parameters, self._central)
            scale = weight = 1.0
            if private:
                norm = float(torch.stack(torch._foreach_norm(update)).norm())
                scale = min(1.0, self._clip_norm / norm)
                num_within += norm <= self._clip_norm
            else:
                scale = weight = float(client.num_examples)
            torch._foreach_add_(total, update, alpha=scale)
            weights += weight
            num_users += 1
        if private:
            self._add_noise(total, index, num_within - num_users / 2)
            weights = self._tree["federated"]["cohort_size"]
        for parameter, part in zip(self._central, total, strict=True):
            parameter.grad = part.div_(-weights)
        self._optimizer.step()

    def _add_noise(self, total: list[Tensor], index: int, bit_sum: float) -> None:
        """Noise the sum and the count, and move the bound (Andrew et al. 2021)."""
        privacy, cohort = self._tree["privacy"], self._tree["federated"]["cohort_size"]
        mechanism, noise_cohort = privacy["mechanism"], privacy["noise_cohort_size"]
        z, count_noise = privacy["noise_multiplier"], noise_cohort / 20
        update_noise = (z**-2 - (2 * count_noise) ** -2) ** -0.5
        rng = self._batches.noise_of_round(index)
        drawn = rng.standard_normal(sum(part.numel() for part in total))
        drawn *= update_noise * self._clip_norm * cohort / noise_cohort
        noise = torch.from_numpy(drawn).float().to(self._device)
        for part, own in zip(total, noise.split([p.numel() for p in total]), strict=True):
            # In the order of memory, as our side's vector has it.
            part.add_(own.as_strided(part.size(), part.stride(), own.storage_offset()))
        bit_sum += count_noise * cohort / noise_cohort * float(rng.standard_normal())
        off = bit_sum / cohort + 0.5 - mechanism["quantile"]
        self._clip_norm *= math.exp(-mechanism["clip_learning_rate"] * off)

    def vector(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._central]).cpu()


class LargeBatches:
    """The same network trained on large batches that are already in memory: how fast it can be.

    Args:
        module: Trained in place.
        size: Images a batch.
        crop: Side of the images.
        num_classes: Labels.
        tree: The configuration of our side: its precision and layout.
        compiled: Whether ``torch.compile`` makes one program of the network, with CUDA graphs
            where there are some.
    """

    def __init__(
        self,
        module: nn.Module,
        size: int,
        crop: int,
        num_classes: int,
        tree: dict[str, Any],
        compiled: bool,
    ) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        device = self._parameters[0].device
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn((size, 3, crop, crop), generator=generator).to(device)
        layout = torch.channels_last if tree["channels_last"] else torch.contiguous_format
        self._inputs = inputs.contiguous(memory_format=layout)
        self._targets = torch.zeros((size, num_classes), device=device)
        self._device, self._precision, self._size = device, tree["precision"], size
        self._optimizer = torch.optim.SGD(self._parameters, lr=1e-4)
        self._network: Any = module
        if compiled:
            self._network = torch.compile(module, mode="reduce-overhead")

    def train(self, steps: int) -> int:
        """Take steps; gives the images trained on."""
        for _ in range(steps):
            self._optimizer.zero_grad()
            with autocast(self._device, self._precision):
                outputs = self._network(self._inputs)
            loss = functional.binary_cross_entropy_with_logits(outputs.float(), self._targets)
            loss.backward()
            self._optimizer.step()
        return steps * self._size
