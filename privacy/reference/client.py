"""One client's part of a round: local SGD from the central parameters, by autograd.

A batch is a part of a random order of the client's examples. One stream gives all that is random:
for each epoch a permutation of the examples, and then what the task draws to augment them. Dropout
draws from torch's generator, which is seeded anew for each client and round.

A step on a batch takes the gradient g of the mean loss, clips it if that is configured (which is no
part of privacy), and adds ``mu (w - central) + correction + decay w``. With ``v = momentum v + g``,
zero at first, the parameters move to ``w - rate v``.

Source: McMahan et al. 2017, algorithm 1 (ClientUpdate); Li et al. 2020, algorithm 2 (mu).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privacy.reference.streams import AUGMENTATION, LOCAL_TRAINING, stream, torch_seed


@dataclass(frozen=True)
class Learner:
    """Data, model and loss, shared with the run."""

    module: nn.Module  # in float32 on the CPU; its parameters are written over
    # ``inputs`` and ``targets`` of a user in a round (attackers' examples change by rounds).
    read: Callable[[int, int, np.random.Generator], Any]
    loss: Callable[[Tensor, Tensor], Tensor]  # the mean one, of outputs and targets
    transform: Any  # the task's augmentation of batches; None for none
    local: Any  # ``pfl_bench.types.LocalTraining``, of which fields are read
    seed: int  # the run's own
    bfloat16: bool = False  # whether the model computes under autocast
    channels_last: bool = False  # whether kernels lie in the flat vector channels last

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [weight for weight in self.module.parameters() if weight.requires_grad]

    def flat(self, tensors: list[Tensor]) -> Tensor:
        """One vector, shape (P,), of tensors of the weights' shapes."""
        last = self.channels_last
        return torch.cat(
            [(t.movedim(1, 3) if last and t.ndim == 4 else t).ravel() for t in tensors]
        )

    def shaped(self, vector: Tensor) -> list[Tensor]:
        """Tensors of the weights' shapes of a vector, shape (P,): the inverse of ``flat``."""
        parts = torch.split(vector, [weight.numel() for weight in self.weights])
        return [
            part.view(weight.movedim(1, 3).shape).movedim(3, 1)
            if self.channels_last and weight.ndim == 4
            else part.view(weight.shape)
            for weight, part in zip(self.weights, parts, strict=True)
        ]


@dataclass(frozen=True)
class Trained:
    """Result of a client's training."""

    update: Tensor  # shape (P,), float32: local minus central parameters
    num_examples: int  # once each
    num_steps: int
    num_processed: int  # examples of all steps
    loss: float  # mean


def train(
    learner: Learner,
    central: Tensor,
    user: int,
    number: int,
    rate: float,
    added: Tensor | None,
    go_on: Callable[[], None],
) -> Trained:
    """Train one client in a round, from 1, at its learning rate; ``go_on`` may raise to give up.

    ``central`` and ``added``, the algorithm's correction of gradients, have shape (P,), float32.
    """
    local, weights, start = learner.local, learner.weights, learner.shaped(central)
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value)
    # What is zero is left out: it would take most of a large model's time.
    velocity = [torch.zeros_like(weight) for weight in weights] if local.momentum else weights
    beside = [None for _ in weights] if added is None else learner.shaped(added)
    # Not torch.manual_seed, which takes longer than training a small client does.
    torch.default_generator.manual_seed(torch_seed(learner.seed, LOCAL_TRAINING, number, user))
    examples = learner.read(user, number, stream(learner.seed, AUGMENTATION, number, user))
    steps, processed, losses = 0, 0, 0.0
    precision = torch.autocast("cpu", torch.bfloat16) if learner.bfloat16 else nullcontext()
    learner.module.train()
    for inputs, targets in _batches(learner, examples, number, user):
        go_on()
        with precision:
            outputs = learner.module(inputs)
        loss = learner.loss(outputs.float(), targets)
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        with torch.no_grad():
            gradients = _clipped(found, weights, local)
            for w, c, g, v, k in zip(weights, start, gradients, velocity, beside, strict=True):
                if local.proximal_weight or local.weight_decay:
                    g = g + local.proximal_weight * (w - c) + local.weight_decay * w
                if k is not None and not local.corrects_beside_momentum:
                    g = g + k
                step = v.mul_(local.momentum).add_(g) if local.momentum else g
                w.sub_(step, alpha=rate)
                if k is not None and local.corrects_beside_momentum:
                    w.sub_(k, alpha=rate)
        steps, processed, losses = steps + 1, processed + len(inputs), losses + loss.item()
    update = learner.flat([weight.detach() for weight in weights]).sub_(central)
    count, fraction = len(examples.inputs), local.batch_fraction
    used = count if fraction is None else max(1, int(fraction * count))
    return Trained(update, used, steps, processed, losses / max(1, steps))


def places(count: int, local: Any) -> Iterator[tuple[int, int, int]]:
    """Batches of a client with so many examples: the pass over them, begin and end of each."""
    passes, length, size, most = lengths(count, local)
    found = ((e, at) for e in range(passes if length else 0) for at in range(0, length, size))
    return ((e, at, min(at + size, length)) for e, at in islice(found, most))


def lengths(count: int, local: Any) -> tuple[int, int, int, int | None]:
    """Passes over examples, their length, size of a batch, and most batches."""
    passes, length, size, most = local.epochs, count, local.batch_size, local.max_steps
    if local.batches_across_epochs:
        passes, length = 1, count * local.epochs
    if local.batch_fraction is not None:
        size, most = max(1, int(local.batch_fraction * count)), 1
    return passes, length, size, most


def _batches(
    learner: Learner, examples: Any, number: int, user: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of each step; an epoch's order is drawn when its first batch is due."""
    local, count, transform = learner.local, len(examples.inputs), learner.transform
    rng = stream(learner.seed, LOCAL_TRAINING, number, user)
    order, first = torch.empty(0, dtype=torch.int64), 0
    draws: Any = None
    for epoch, at, end in places(count, local):
        # Places in all epochs' orders one after another, of which those before are let go.
        begin, stop = epoch * count + at, epoch * count + end
        order, draws = order[begin - first :], None if draws is None else draws[begin - first :]
        first = begin
        while len(order) < stop - begin:
            more = torch.from_numpy(rng.permutation(count))
            drawn: Any = None if transform is None else transform.draw(count, rng)
            draws = torch.cat([draws, drawn]) if draws is not None and len(order) else drawn
            order = torch.cat([order, more])
        chosen = order[: stop - begin]
        inputs = examples.inputs[chosen]
        if transform is not None:
            inputs = transform(inputs, draws[: stop - begin])
        if learner.channels_last and inputs.ndim == 4:  # dropout draws in the order of memory
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        yield inputs, examples.targets[chosen]


def _clipped(found: Any, weights: list[nn.Parameter], local: Any) -> list[Tensor]:
    pairs = zip(found, weights, strict=True)
    gradients = [torch.zeros_like(w) if g is None else g.to_dense() for g, w in pairs]
    norms = (torch.linalg.vector_norm(gradient) for gradient in gradients)
    if local.gradient_clip_norm is not None:
        bound = local.gradient_clip_norm
        return [g * (bound / n.clamp_min(bound)) for g, n in zip(gradients, norms, strict=True)]
    if local.gradient_clip_global_norm is not None:
        bound, norm = local.gradient_clip_global_norm, torch.stack([*norms]).norm()
        return [gradient * (bound / norm.clamp_min(bound)) for gradient in gradients]
    return gradients
