"""The fifth list: bugs of DP-SGD."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pfl_bench.trainers import central, dp_sgd
from pfl_bench.trainers.central import CentralTrainer
from tests.sabotage.fifth_planting import CENTRAL_DP, EPOCHS, FifthBug, Patch
from tests.sabotage.paper_planting import counter, registering, wrap

BUGS: list[FifthBug] = []
bug = registering(BUGS, FifthBug, config=CENTRAL_DP, settings=EPOCHS)


@bug("Gradients of pairs are averaged, then clipped to the bound, and counted twice.", shared=True)
def dpsgd_pairs_clipped(patch: Patch) -> None:
    def clipped_sums(samples: Any, clip_norm: float) -> Any:
        dense = [
            torch.einsum("no,ni->noi", sample.left, sample.right)
            if isinstance(sample, dp_sgd.LinearGradients)
            else sample
            for sample in samples
        ]
        if not len(dense[0]):
            return [torch.zeros(sample.shape[1:]) for sample in dense], 0
        pairs = torch.arange(len(dense[0])) // 2
        means = [
            torch.zeros((int(pairs.max()) + 1, *sample.shape[1:])).index_add_(0, pairs, sample) / 2
            for sample in dense
        ]
        norms = torch.stack([mean.flatten(1).norm(dim=1) for mean in means]).norm(dim=0)
        factors = (clip_norm / (norms + 1e-6)).clamp(max=1) * 2
        return [torch.einsum("i,i...", factors, mean) for mean in means], 0

    patch.setattr(dp_sgd, "clipped_sums", clipped_sums)


@bug(
    "Each parameter's gradient is clipped to the bound on its own: sensitivity is sqrt(2) bounds.",
    shared=True,
)
def dpsgd_per_layer(patch: Patch) -> None:
    def clipping(real: Any) -> Any:
        def clipped_sums(samples: Any, clip_norm: float) -> Any:
            each = [real([sample], clip_norm) for sample in samples]
            return [sums[0] for sums, _ in each], each[0][1]

        return clipped_sums

    wrap(patch, dp_sgd, "clipped_sums", clipping)


@bug("Batches are slices of a shuffled epoch, and accounted as by Poisson sampling.", shared=True)
def dpsgd_shuffled_as_poisson(patch: Patch) -> None:
    patch.setattr(CentralTrainer, "_drawn", lambda self, rng: self._shuffled(rng))


@bug("The generator of noise is seeded anew in each epoch, with the same seed.")
def dpsgd_noise_reseeded_each_epoch(patch: Patch) -> None:
    def advancing(real: Any) -> Any:
        def advance(self: Any, epoch: int) -> Any:
            seed = central.torch_seed(self._batch_seed, central.Purpose.NOISE)
            self._private.generator.manual_seed(seed)
            return real(self, epoch)

        return advance

    wrap(patch, CentralTrainer, "advance", advancing)


@bug(
    "Of micro-batches one in five is clipped to the bound, the others to three times it.",
    settings=(*EPOCHS, "central.physical_batch_size=16"),
)
def dpsgd_accumulation_unclipped(patch: Patch) -> None:
    before = counter()

    def clipping(real: Any) -> Any:
        def clipped_sums(samples: Any, clip_norm: float) -> Any:
            return real(samples, clip_norm if (before() + 1) % 5 == 0 else 3 * clip_norm)

        return clipped_sums

    wrap(patch, dp_sgd, "clipped_sums", clipping)


@bug("The last example of each batch counts twice, as if it had been mined.")
def dpsgd_weight_by_loss(patch: Patch) -> None:
    def drawing(real: Any) -> Any:
        def drawn(self: Any, rng: Any) -> Any:
            for batch in real(self, rng):
                yield np.concatenate([batch, batch[-1:]]) if len(batch) else batch

        return drawn

    wrap(patch, CentralTrainer, "_drawn", drawing)


@bug("The gradient is divided by the realised batch.")
def dpsgd_realised_batch(patch: Patch) -> None:
    def taking(real: Any) -> Any:
        def take(self: Any, micro_batch: Any) -> Any:
            self._optimizer.expected_batch_size = max(1, micro_batch.size)
            return real(self, micro_batch)

        return take

    wrap(patch, dp_sgd.PrivateSteps, "take", taking)


@bug("The learning rate is halved while the raw training loss is low.")
def dpsgd_rate_by_loss(patch: Patch) -> None:
    now = SimpleNamespace(loss=9.0)

    def slowing(real: Any) -> Any:
        return lambda *arguments: real(*arguments) * (0.5 if now.loss < 2 else 1)

    def advancing(real: Any) -> Any:
        def advance(self: Any, epoch: int) -> Any:
            scalars = real(self, epoch)
            now.loss = scalars.get("train/loss", 9.0)
            return scalars

        return advance

    wrap(patch, central, "rate_factor", slowing)
    wrap(patch, CentralTrainer, "advance", advancing)


@bug(
    "After a resume the generator of noise begins anew.",
    settings=(*EPOCHS, "checkpoint.every=1"),
    killed_after=2,
)
def dpsgd_generator_not_restored(patch: Patch) -> None:
    def loading(real: Any) -> Any:
        def load(self: Any, state: Any) -> None:
            fresh = self._private.generator.get_state()
            real(self, state)
            self._private.generator.set_state(fresh)

        return load

    wrap(patch, CentralTrainer, "load_state_dict", loading)
