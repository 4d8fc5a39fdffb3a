"""Evaluation by fine-tuning: each client adapts the model on a part of its examples.

The rest of its examples test the adapted model. This is how Reptile's models are judged.

Source: Nichol, Achiam and Schulman 2018, section 6; Caldas et al. 2018 (LEAF), appendix B.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_bench.client.batches import Batch
from pfl_bench.client.flat_model import FlatModel, descend
from pfl_bench.client.forward import Forward
from pfl_bench.config.sections import AdaptationOptions
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.types import FederatedSplit

# So that 0.57 of 100 examples are 57, although the product is a little less.
_ROUNDING = 1e-9


class FineTuning:
    """Gives each client the model after some steps of SGD on a part of its examples.

    Its draws come from a stream of the client's own, named by the run's seed, the split and the
    client: the part is the same at each evaluation, and the order of clients does not matter.
    Examples are read as evaluation sees them, without augmentation. The model's memory is the
    working copy.

    Use: ``begin``, then ``personalise`` client by client, then ``end``.
    """

    def __init__(
        self, forward: Forward, model: FlatModel, options: AdaptationOptions, seed: int
    ) -> None:
        self._forward = forward
        self._model = model
        self._options = options
        self._seed = seed
        self._start: Tensor | None = None
        self._buffers: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Take the model as it is now for the start of every client."""
        self._start = self._model.vector.clone()
        self._buffers = self._model.buffers()

    def personalise(self, split: FederatedSplit, user: int) -> NDArray[np.int64]:
        """Fine-tune the model for a user; gives ascending positions of the user's other examples.

        A part of ``fraction`` of the user's examples, rounded down but at least one and never all,
        is drawn without replacement. A user with one example gets the model as it is, and its
        example is evaluated. RuntimeError if ``begin`` was not called.
        """
        if self._start is None:
            raise RuntimeError("fine-tuning has no model to start from; call begin() first")
        self._reset(self._start)
        first, stop = int(split.offsets[user]), int(split.offsets[user + 1])
        count = stop - first
        if count < 2:
            return np.arange(count)
        # Two streams would share their draws if splits had one number: users are counted in each.
        number = zlib.crc32(split.name.encode())
        rng = stream(self._seed, Purpose.PERSONAL, number, user)
        seed_torch(self._seed, Purpose.PERSONAL, self._model.device, number, user)
        size = min(max(1, math.floor(self._options.fraction * count + _ROUNDING)), count - 1)
        order = rng.permutation(count)
        examples = split.read_range(first, stop)
        part = torch.from_numpy(np.sort(order[:size]))
        device = self._model.device
        batches = self._batches(
            examples.inputs[part].to(device), examples.targets[part].to(device), rng
        )
        was_training = self._model.module.training
        self._model.module.train()
        take_steps(self._model, self._forward, batches, self._options.learning_rate)
        self._model.module.train(was_training)
        return np.sort(order[size:])

    def _reset(self, start: Tensor) -> None:
        self._model.vector.copy_(start)
        self._model.load_buffers(self._buffers)

    def _batches(
        self, inputs: Tensor, targets: Tensor, rng: np.random.Generator
    ) -> Iterator[Batch]:
        """Pass after pass over the part, each in an order of its own, until there are enough."""
        left = self._options.num_steps
        while left:
            order = torch.from_numpy(rng.permutation(len(inputs))).to(inputs.device)
            for chosen in torch.split(order, self._options.batch_size)[:left]:
                yield inputs[chosen], targets[chosen], None
                left -= 1


@torch.enable_grad()
def take_steps(
    model: FlatModel, forward: Forward, batches: Iterable[Batch], learning_rate: float
) -> int:
    """Take a step of SGD on each batch, also where gradients are switched off around it.

    The model is trained in place, in the mode that it is in. Batches are inputs as read, targets
    and draws of the augmentation (None for none). Gives the number of steps.
    """
    steps = 0
    for steps, batch in enumerate(batches, start=1):  # noqa: B007
        gradients = torch.autograd.grad(
            forward.loss(*batch), model.parameters, materialize_grads=True
        )
        descend(model.slices, gradients, learning_rate)
    return steps
