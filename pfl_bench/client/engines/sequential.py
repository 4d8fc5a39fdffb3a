"""The sequential engine: one client after another. It is the reference that others must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from pfl_bench.client.batches import local_batches, num_used
from pfl_bench.client.factored_gradients import FactoredGradient, FactoredGradients
from pfl_bench.client.flat_model import (
    FlatModel,
    clip_each,
    descend,
    global_clip_factor,
    view_like,
)
from pfl_bench.client.forward import Forward
from pfl_bench.client.prefetch import read_users
from pfl_bench.client.step_terms import add_to_momentum_, apply_proximal_and_decay_
from pfl_bench.config.training import Strict
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.types import Examples, FederatedSplit, LocalResult, LocalTraining

# Whether it gives algorithms what they may need beyond steps of SGD: a correction of each step,
# the loss at the start.
SERVES_ALGORITHMS: Final = True
Correction = Callable[[int], Tensor | None]
# Examples of a batch whose loss is computed before training. No activations are kept for them.
_BATCH_AT_START = 128


class Options(Strict):
    """Options of the sequential engine.

    Attributes:
        data_workers: Threads that read clients ahead of training; 0 reads in line.
    """

    data_workers: int = Field(default=0, ge=0)


class SequentialEngine:
    """Trains clients one by one on the memory of one flat model.

    A client's draws come from its own streams, named by (seed, round, user): neither the order of
    clients nor the number of reading threads changes a result. The model's dropout, if any, is on
    during training. ``correction`` is added to the gradients of a user's steps, see
    ``Algorithm.correction``. There is nothing to give ``notice`` of.
    """

    description = "sequential"
    trains_alone = True

    # The interface of engines, whose last parameter is for those that serve algorithms.
    def __init__(
        self,
        options: Options,
        model: FlatModel,
        split: FederatedSplit,
        forward: Forward,
        local: LocalTraining,
        seed: int,
        notice: Callable[[str], None] | None = None,
        correction: Correction | None = None,
    ) -> None:
        self._options = options
        self._model = model
        self._split = split
        self._forward = forward
        self._local = local
        self._seed = seed
        self._correction = correction
        self._update = torch.empty_like(model.vector)
        self._velocity = torch.empty_like(model.vector) if local.momentum else None
        self._products = FactoredGradients(
            model.module, model.parameters, forward.precision == "bfloat16"
        )

    def train(
        self, users: NDArray[np.int64], round_index: int, central: Tensor
    ) -> Iterator[LocalResult]:
        """Train each user from ``central``, shape (P,); see ``Engine.train``.

        Results come in the order of ``users``. An ``update`` is overwritten by the next client: use
        it before asking for the next.
        """
        self._model.module.train()
        read = read_users(
            self._split, users.tolist(), self._seed, round_index, self._options.data_workers
        )
        for user, examples in read:
            with self._products:
                result = self._train_client(user, examples, round_index, central)
            yield result

    def _train_client(
        self, user: int, examples: Examples, round_index: int, central: Tensor
    ) -> LocalResult:
        model, local, forward = self._model, self._local, self._forward
        work = model.vector
        rate = local.rate(round_index)
        rng = stream(self._seed, Purpose.LOCAL_TRAINING, round_index, user)
        seed_torch(self._seed, Purpose.LOCAL_TRAINING, work.device, round_index, user)
        work.copy_(central)
        start_loss = self._loss_of(examples, rng.spawn(1)[0]) if local.measures_start else None
        correction = None if self._correction is None else self._correction(user)
        if self._velocity is not None:
            self._velocity.zero_()
        total_loss = torch.zeros((), device=work.device)
        steps = processed = 0
        for batch in local_batches(examples, local, forward, rng, work.device):
            loss = forward.loss(*batch)
            self._step(loss, central, correction, rate)
            total_loss += loss.detach()
            # Freed now, its memory serves the next step; kept, it would be paged in anew.
            del loss
            steps += 1
            processed += len(batch[0])
        torch.sub(work, central, out=self._update)
        loss = total_loss / max(steps, 1)
        used = num_used(len(examples), local)
        return LocalResult(user, self._update, used, steps, loss, processed, start_loss)

    @torch.no_grad()
    def _loss_of(self, examples: Examples, rng: np.random.Generator) -> float:
        """Mean loss of the weights as they are, by draws of ``rng`` where it needs any."""
        forward, device = self._forward, self._model.device
        total = 0.0
        self._model.module.eval()
        draws = forward.draw_to_measure(len(examples), rng)
        for start in range(0, len(examples), _BATCH_AT_START):
            part = slice(start, start + _BATCH_AT_START)
            inputs, targets = examples.inputs[part].to(device), examples.targets[part].to(device)
            of_part = None if draws is None else draws[part].to(device)
            total += float(forward.loss(inputs, targets, of_part)) * len(inputs)
        self._model.module.train()
        return total / len(examples)

    def _step(self, loss: Tensor, central: Tensor, correction: Tensor | None, rate: float) -> None:
        """Take a local step along the gradient of a loss; see ``LocalTraining``."""
        model, local, velocity = self._model, self._local, self._velocity
        found = torch.autograd.grad(loss, model.parameters, allow_unused=True)
        pairs = zip(model.slices, self._products.take(found), strict=True)
        used = [(weight, gradient) for weight, gradient in pairs if gradient is not None]
        weights = [weight for weight, _ in used]
        gradients: Sequence[Tensor | FactoredGradient] = [gradient for _, gradient in used]
        factor: Tensor | None = None
        if local.gradient_clip_norm is not None:
            gradients = clip_each(gradients, local.gradient_clip_norm)
        elif local.gradient_clip_global_norm is not None:
            factor = global_clip_factor(gradients, local.gradient_clip_global_norm)
        if velocity is None:
            apply_proximal_and_decay_(model.vector, central, local, rate)
            if correction is not None:
                model.vector.add_(correction, alpha=-rate)
            descend(weights, gradients, rate, factor)
            return
        velocity.mul_(local.momentum)
        # The update is written when the client has ended; until then its memory is free.
        add_to_momentum_(velocity, model.vector, central, local, self._update)
        if correction is not None and not local.corrects_beside_momentum:
            velocity.add_(correction)
        descend([view_like(weight, velocity) for weight in weights], gradients, -1.0, factor)
        model.vector.add_(velocity, alpha=-rate)
        if correction is not None and local.corrects_beside_momentum:
            model.vector.add_(correction, alpha=-rate)


build = SequentialEngine
