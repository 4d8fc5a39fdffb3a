"""What one client does in a round: local SGD from the central parameters, by autograd.

A batch is a part of a random order of the client's examples. One stream gives all that is random:
for each epoch a permutation of the examples, and then what the task draws to augment them. Dropout
draws from torch's generator, which is seeded anew for each client and round.

A step on a batch takes the gradient g of the mean loss, clips it if that is configured, and adds
``mu (w - central) + correction + decay w``. With ``v = momentum v + g``, zero at first, the
parameters move to ``w - rate v``.

Source: McMahan et al. 2017, algorithm 1 (ClientUpdate); Li et al. 2020, algorithm 2 (mu).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privacy.reference.streams import AUGMENTATION, LOCAL_TRAINING, stream, torch_seed


@dataclass(frozen=True)
class Learner:
    """What is shared with the run: data, model and loss.

    Attributes:
        module: The model, in float32 on the CPU; its parameters are written over.
        read: Examples of a user (``inputs`` and ``targets``), of the user and a stream.
        loss: Mean loss of the model's outputs and targets.
        transform: The task's augmentation of batches; None for none.
        local: How clients train: ``pfl_bench.types.LocalTraining``, of which fields are read.
        seed: The run's own.
        bfloat16: Whether the model computes under autocast.
        channels_last: Whether kernels of convolutions lie in the flat vector channels last.
    """

    module: nn.Module
    read: Callable[[int, np.random.Generator], Any]
    loss: Callable[[Tensor, Tensor], Tensor]
    transform: Any
    local: Any
    seed: int
    bfloat16: bool = False
    channels_last: bool = False

    @property
    def weights(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [weight for weight in self.module.parameters() if weight.requires_grad]

    def flat(self, tensors: list[Tensor]) -> Tensor:
        """One vector, shape (P,), of tensors of the weights' shapes."""
        last = [self.channels_last and tensor.ndim == 4 for tensor in tensors]
        pairs = zip(tensors, last, strict=True)
        return torch.cat([(t.movedim(1, 3) if moved else t).reshape(-1) for t, moved in pairs])

    def shaped(self, vector: Tensor) -> list[Tensor]:
        """What ``flat`` makes a vector of, shape (P,): tensors of the weights' shapes."""
        parts, start = [], 0
        for weight in self.weights:
            part, start = vector[start : start + weight.numel()], start + weight.numel()
            moved = self.channels_last and weight.ndim == 4
            shape = weight.movedim(1, 3).shape if moved else weight.shape
            parts.append(part.view(shape).movedim(3, 1) if moved else part.view(shape))
        return parts


@dataclass(frozen=True)
class Trained:
    """What a client's training came to.

    Attributes:
        update: Shape (P,), float32: local minus central parameters.
        num_examples: Examples that it trained on, once each.
        num_steps: Steps.
        num_processed: Examples of all steps.
        loss: Mean loss of the steps.
    """

    update: Tensor
    num_examples: int
    num_steps: int
    num_processed: int
    loss: float


def train(
    learner: Learner,
    central: Tensor,
    user: int,
    number: int,
    rate: float,
    correction: Tensor | None = None,
) -> Trained:
    """Train one client.

    Args:
        learner: Data, model and loss.
        central: Shape (P,), float32.
        user: Whose data.
        number: The round, from 1.
        rate: Learning rate of the round.
        correction: Shape (P,): what the algorithm adds to each gradient; None for nothing.
    """
    local, weights, start = learner.local, learner.weights, learner.shaped(central)
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value)
    velocity = [torch.zeros_like(weight) for weight in weights]
    beside = learner.shaped(torch.zeros_like(central) if correction is None else correction)
    # Not torch.manual_seed, which takes longer than training a small client does.
    torch.default_generator.manual_seed(torch_seed(learner.seed, LOCAL_TRAINING, number, user))
    examples = learner.read(user, stream(learner.seed, AUGMENTATION, number, user))
    steps, processed, losses = 0, 0, 0.0
    learner.module.train()
    for inputs, targets in _batches(learner, examples, number, user):
        with torch.autocast("cpu", torch.bfloat16, enabled=learner.bfloat16):
            outputs = learner.module(inputs)
        loss = learner.loss(outputs.float(), targets)
        with torch.no_grad():
            gradients = _clipped(_gradients(loss, weights), local)
            for w, c, g, v, k in zip(weights, start, gradients, velocity, beside, strict=True):
                g = g + local.proximal_weight * (w - c) + local.weight_decay * w
                g = g if local.corrects_beside_momentum else g + k
                v.mul_(local.momentum).add_(g)
                w.sub_(rate * v)
                if local.corrects_beside_momentum:
                    w.sub_(rate * k)
        steps, processed, losses = steps + 1, processed + len(inputs), losses + loss.item()
    update = learner.flat([w.detach() - c for w, c in zip(weights, start, strict=True)])
    used = _num_used(len(examples.inputs), local)
    return Trained(update, used, steps, processed, losses / max(1, steps))


def _num_used(count: int, local: Any) -> int:
    fraction = local.batch_fraction
    return count if fraction is None else max(1, int(fraction * count))


def _batches(
    learner: Learner, examples: Any, number: int, user: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of each step."""
    local, count = learner.local, len(examples.inputs)
    rng = stream(learner.seed, LOCAL_TRAINING, number, user)
    orders: list[Tensor] = []
    draws: list[Any] = []
    for _ in range(local.epochs):
        orders.append(torch.from_numpy(rng.permutation(count)))
        draws.append(None if learner.transform is None else learner.transform.draw(count, rng))
    if local.batches_across_epochs:
        orders = [torch.cat(orders)]
        draws = [None if draws[0] is None else torch.cat(draws)]
    size, most = local.batch_size, local.max_steps
    if local.batch_fraction is not None:
        size, most = _num_used(count, local), 1
    places = [(e, at) for e, order in enumerate(orders) for at in range(0, len(order), size)]
    for epoch, at in places[:most]:
        chosen = orders[epoch][at : at + size]
        inputs = examples.inputs[chosen]
        if learner.transform is not None:
            inputs = learner.transform(inputs, draws[epoch][at : at + size])
        if learner.channels_last and inputs.ndim == 4:  # dropout draws in the order of memory
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        yield inputs, examples.targets[chosen]


def _gradients(loss: Tensor, weights: list[nn.Parameter]) -> list[Tensor]:
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    pairs = zip(found, weights, strict=True)
    return [torch.zeros_like(w) if g is None else g.to_dense() for g, w in pairs]


def _clipped(gradients: list[Tensor], local: Any) -> list[Tensor]:
    """Gradients as the local clipping, which is no part of privacy, leaves them."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    if local.gradient_clip_norm is not None:
        bound = local.gradient_clip_norm
        return [g * (bound / n.clamp_min(bound)) for g, n in zip(gradients, norms, strict=True)]
    if local.gradient_clip_global_norm is not None:
        bound, norm = local.gradient_clip_global_norm, torch.stack(norms).norm()
        return [gradient * (bound / norm.clamp_min(bound)) for gradient in gradients]
    return gradients
