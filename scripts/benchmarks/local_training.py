"""The clients of our side's rounds in memory, and their local training as one writes it by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.plain_lstm import PlainLstm
from benchmarks.workload import SEED, Job, configuration
from pfl_bench.config.loading import resolve
from pfl_bench.federated.parts import build_model, build_task
from pfl_bench.federated.sampling import build_sampler
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.types import FederatedSplit
from privacy.sampling_scheme import scheme_named


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Mixed precision for bfloat16, else nothing."""
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


class Clients:
    """The users and batches of our side's rounds, as tensors in memory.

    Args:
        split: Where the users are.
        job: How they are drawn and shuffled.
    """

    def __init__(self, split: FederatedSplit, job: Job) -> None:
        self._split, self._seed = split, job.cohort_seed
        self._device = torch.device(job.device)
        scheme = "poisson" if job.private else "fixed_size"
        self._sampler = build_sampler(scheme_named(scheme), split.num_users, job.load.cohort_size)
        self._examples: dict[int, tuple[Tensor, Tensor]] = {}
        self._shuffled: dict[int, tuple[Tensor, Tensor]] = {}
        self._round = 0

    def users_of_round(self, index: int) -> list[int]:
        """The cohort of a round, 1-based."""
        users: list[int] = self._sampler.draw(stream(self._seed, Purpose.SAMPLING, index)).tolist()
        return users

    def noise_of_round(self, index: int) -> np.random.Generator:
        """The stream that our side's noise comes from."""
        return stream(self._seed, Purpose.NOISE, index)

    def client(self, user: int, index: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a user, shuffled as our engine shuffles them in that round."""
        if index == self._round and user in self._shuffled:
            return self._shuffled[user]
        if user not in self._examples:
            read = self._split.read_user(user, np.random.default_rng(0))
            self._examples[user] = (
                read.inputs.to(self._device),
                read.targets.to(self._device),
            )
        inputs, targets = self._examples[user]
        rng = stream(SEED, Purpose.LOCAL_TRAINING, index, user)
        order = torch.from_numpy(rng.permutation(len(inputs))).to(self._device)
        return inputs[order], targets[order]

    def prepare(self, index: int) -> None:
        """Have a round's batches ready: other sides find theirs in memory."""
        if index != self._round:
            users = self.users_of_round(index)
            self._shuffled = {user: self.client(user, index) for user in users}
            self._round = index


class Material:
    """Material of a side that is not ours.

    Attributes:
        job: What is measured.
        loss: Of outputs and targets.
        device: Where it trains.
        clients: The data.
        num_users: Users of the training split.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        # Only the data and the model are taken, which are those of any engine.
        self._resolved = resolve(configuration(job), Path("bench"), ())
        self.device = torch.device(job.device)
        self._task = build_task(self._resolved, self.device)
        self.loss = self._task.loss
        split = self._task.split("train")
        self.num_users = split.num_users
        self.clients = Clients(split, job)

    def module(self) -> nn.Module:
        """The model with our initial weights, as one writes it by hand."""
        ours = copy.deepcopy(build_model(self._resolved, self._task, self.device).module)
        if self.job.load.plain == "same":
            return ours
        plain = PlainLstm(ours, last_step=self.job.load.plain == "last_step")
        return plain.to(self.device)

    def train(self, module: nn.Module, user: int, index: int) -> None:
        """Train one client in a round: an epoch of its batches, in their order.

        Args:
            module: Trained in place, from the weights that it has.
            user: Whose batches.
            index: The round, 1-based.
        """
        load, precision = self.job.load, self.job.precision
        inputs, targets = self.clients.client(user, index)
        module.train()
        # For dropout.
        seed_torch(SEED, Purpose.LOCAL_TRAINING, self.device, index, user)
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=load.learning_rate)
        size = load.batch_size
        for batch, labels in zip(inputs.split(size), targets.split(size), strict=True):
            optimizer.zero_grad()
            with autocast(batch.device, precision):
                outputs = module(batch)
            self.loss(outputs.float(), labels).backward()
            if load.gradient_clip is not None:
                nn.utils.clip_grad_norm_(parameters, load.gradient_clip)
            optimizer.step()


def large_step(material: Material, size: int) -> Callable[[], None]:
    """A plain step of the model on one batch of examples that is already on the device.

    Args:
        material: Gives the model and the examples; those of the first round's clients, repeated.
        size: Examples of the batch.
    """
    module = material.module().train()
    read = [material.clients.client(u, 1) for u in material.clients.users_of_round(1)]
    inputs, targets = (torch.cat([pair[part] for pair in read]) for part in (0, 1))
    rows = torch.arange(size, device=material.device) % len(inputs)
    inputs, targets = inputs[rows], targets[rows]
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(inputs.device, material.job.precision):
            outputs = module(inputs)
        material.loss(outputs.float(), targets).backward()
        optimizer.step()

    return step
