"""Bugs of the steps of example-level DP-SGD.

Sources: Abadi et al. 2016, algorithm 1; what implementations of micro-batches,
momentum and schedules can do with bare gradients.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, optimizer

from pfl_bench.trainers import dp_sgd
from pfl_bench.trainers.central import CentralTrainer
from pfl_bench.trainers.dp_sgd import LinearGradients, PrivateSteps
from tests.sabotage.paper_planting import EPOCHS, MICRO, PaperBug, Patch, registering, wrap

BUGS: list[PaperBug] = []
bug = registering(BUGS, setting="central_dp")
_MOMENTUM = {
    "central__optimizer": {"name": "sgd", "momentum": 0.9},
    "central__learning_rate": 0.05,
}


def _clip(patch: Patch, factors: Any, after: Any = None) -> None:
    """Clip by other factors, of norms (n, tensors) and the bound; ``after`` changes the sums."""

    def clipped_sums(samples: Any, clip_norm: float) -> Any:
        dense = [
            torch.einsum("no,ni->noi", s.left, s.right) if isinstance(s, LinearGradients) else s
            for s in samples
        ]
        norms = torch.stack([sample.flatten(1).norm(dim=1) for sample in dense], dim=1)
        by = factors(norms, clip_norm).unbind(1)
        sums = [torch.einsum("i,i...", *pair) for pair in zip(by, dense, strict=True)]
        return sums if after is None else after(sums, len(norms), clip_norm), 0

    patch.setattr(dp_sgd, "clipped_sums", clipped_sums)


def _whole(norms: Any, bound: float) -> Any:
    """The right factors."""
    return (bound / norms.norm(dim=1, keepdim=True)).clamp(max=1.0).expand_as(norms)


def _scaled_to(sums: Any, norm: float) -> Any:
    length = torch.stack([total.norm() for total in sums]).norm()
    return [total * (norm / length.clamp_min(norm)) for total in sums]


@bug("Weights and bias of an example's gradient are each clipped to the whole bound.")
def dp_sgd_clips_each_tensor(patch: Patch) -> None:
    _clip(patch, lambda norms, bound: (bound / norms).clamp(max=1.0))


@bug("The norm that gradients are clipped by leaves out the bias.")
def dp_sgd_clips_by_weights_alone(patch: Patch) -> None:
    _clip(patch, lambda norms, bound: _whole(norms[:, :1], bound).expand_as(norms))


@bug("A batch's sum of bare gradients is clipped to half a bound for each of its examples.")
def dp_sgd_clips_sum(patch: Patch) -> None:
    _clip(
        patch,
        lambda norms, _: torch.ones_like(norms),
        lambda sums, count, bound: _scaled_to(sums, 0.5 * bound * max(1, count)),
    )


@bug("The mean gradient of each micro-batch is clipped, and counts for all of its examples.",
     changes=MICRO)  # fmt: skip
def dp_sgd_clips_micro_batches(patch: Patch) -> None:
    _clip(
        patch,
        lambda norms, _: torch.ones_like(norms),
        lambda sums, count, bound: _scaled_to(sums, bound * max(1, count)),
    )


@bug("Gradients are clipped to the median of their batch's norms, where that is above the bound.")
def dp_sgd_clips_to_median(patch: Patch) -> None:
    def median(norms: Any, bound: float) -> Any:
        return _whole(norms, max(bound, float(norms.norm(dim=1).median())) if len(norms) else bound)

    _clip(patch, median)


@bug("Gradients within the bound are scaled up to it.")
def dp_sgd_scales_small_gradients_up(patch: Patch) -> None:
    _clip(patch, lambda norms, bound: (bound / norms.norm(dim=1, keepdim=True)).expand_as(norms))


@bug("Every fifth step still has the clipped sum of the step before it.")
def dp_sgd_keeps_sum_of_last_step(patch: Patch) -> None:
    past: list[Any] = []

    def stale(sums: Any, _: int, __: float) -> Any:
        kept = [total.clone() for total in sums]
        if len(past) % 5 == 4:
            sums = [total + old for total, old in zip(sums, past[-1], strict=True)]
        past.append(kept)
        return sums

    _clip(patch, _whole, stale)


def _noise(patch: Patch, factor: Any) -> None:
    """Scale each tensor's noise by a factor of the tensor."""

    def scaled(real: Any) -> Any:
        def generate(std: float, reference: Any, **rest: Any) -> Any:
            return real(std, reference, **rest) * factor(reference)

        return generate

    wrap(patch, optimizer, "_generate_noise", scaled)


@bug("The bias gets half the noise.")
def dp_sgd_half_noise_on_bias(patch: Patch) -> None:
    _noise(patch, lambda reference: 0.5 if reference.dim() == 1 else 1.0)


@bug("The first epoch, a warm-up, has no noise.")
def dp_sgd_warms_up_without_noise(patch: Patch) -> None:
    now = SimpleNamespace(epoch=0)

    def noting(real: Any) -> Any:
        def advance(self: Any, index: int) -> Any:
            now.epoch = index
            return real(self, index)

        return advance

    wrap(patch, CentralTrainer, "advance", noting)
    _noise(patch, lambda _: float(now.epoch > 1))


@bug("The last step of each epoch has no noise.")
def dp_sgd_no_noise_in_last_step(patch: Patch) -> None:
    now = SimpleNamespace(step=0)

    def noting(real: Any) -> Any:
        def take(self: Any, micro_batch: Any) -> Any:
            now.step = micro_batch.step
            return real(self, micro_batch)

        return take

    wrap(patch, PrivateSteps, "take", noting)
    _noise(patch, lambda _: float(now.step != 36))


@bug("Noise is shared out over micro-batches, but added once a step: half of it is missing.",
     changes=MICRO)  # fmt: skip
def dp_sgd_noise_of_one_micro_batch(patch: Patch) -> None:
    _noise(patch, lambda _: 0.5)


@bug("Each epoch draws the noise of the first one again.")
def dp_sgd_same_noise_in_each_epoch(patch: Patch) -> None:
    def restarting(real: Any) -> Any:
        def advance(self: Any, index: int) -> Any:
            _restart_noise(self)
            return real(self, index)

        return advance

    wrap(patch, CentralTrainer, "advance", restarting)


def _restart_noise(trainer: Any) -> None:
    generator = trainer._private.generator
    generator.manual_seed(generator.initial_seed())


@bug("A resumed run draws the noise of its first steps again.", interrupt_after=2)
def dp_sgd_restarts_noise_on_resume(patch: Patch) -> None:
    _after_loading(patch, _restart_noise)


@bug("A resumed run has lost the optimizer's momentum.", interrupt_after=2, changes=_MOMENTUM)
def dp_sgd_loses_momentum_on_resume(patch: Patch) -> None:
    _after_loading(patch, lambda trainer: trainer._optimizer.state.clear())


def _after_loading(patch: Patch, change: Any) -> None:
    def loading(real: Any) -> Any:
        def load(self: Any, state: Any) -> None:
            real(self, state)
            change(self)

        return load

    wrap(patch, CentralTrainer, "load_state_dict", loading)


@bug("The noised sum is divided by the batch that was drawn, and not by the expected one.")
def dp_sgd_divides_by_realised_batch(patch: Patch) -> None:
    now = SimpleNamespace(size=0)

    def noting(real: Any) -> Any:
        def take(self: Any, micro_batch: Any) -> Any:
            now.size = max(1, micro_batch.size)
            return real(self, micro_batch)

        return take

    def dividing(self: Any) -> None:
        for p in self.params:
            p.grad /= now.size

    wrap(patch, PrivateSteps, "take", noting)
    patch.setattr(DPOptimizer, "scale_grad", dividing)


@bug("A tenth of the clipped sum goes into momentum beside the noised one.", changes=_MOMENTUM)
def dp_sgd_momentum_of_bare_sum(patch: Patch) -> None:
    def adding(real: Any) -> Any:
        def scale_grad(self: Any) -> None:
            real(self)
            for p in self.params:
                p.grad += 0.1 * p.summed_grad.view_as(p) / self.expected_batch_size

        return scale_grad

    wrap(patch, DPOptimizer, "scale_grad", adding)


@bug("The learning rate of a step follows the bare loss of the batch before.")
def dp_sgd_rate_follows_bare_loss(patch: Patch) -> None:
    now = SimpleNamespace(loss=1.0)

    def following(real: Any) -> Any:
        def take(self: Any, micro_batch: Any) -> Any:
            for group in self._optimizer.original_optimizer.param_groups:
                group["lr"] *= min(1.5, max(0.5, now.loss))
            loss, lost = real(self, micro_batch)
            now.loss = float(loss) / max(1, micro_batch.size)
            return loss, lost

        return take

    wrap(patch, PrivateSteps, "take", following)


@bug("The model that is released is that of the epoch of the lowest bare training loss.",
     changes={"central__learning_rate": 4.0})  # fmt: skip
def dp_sgd_model_chosen_by_training_loss(patch: Patch) -> None:
    seen: list[Any] = []

    def choosing(real: Any) -> Any:
        def advance(self: Any, index: int) -> Any:
            before = self._model.vector.clone()
            scalars = real(self, index)
            seen.append((scalars["train/loss"], before))
            if index == EPOCHS:
                self._model.vector.copy_(min(seen[1:], key=lambda one: one[0])[1])
            return scalars

        return advance

    wrap(patch, CentralTrainer, "advance", choosing)
