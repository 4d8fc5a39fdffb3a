"""DP-SGD steps by Opacus.

Guarantee: see ``privacy.plan.example_level``; the batches must be drawn as it says, which is the
caller's part (``central.py``).
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.client.precision import new_loss_sum
from pfl_bench.client.prefetch import MicroBatch
from pfl_bench.config.training import CentralOptions
from pfl_bench.types import ConfigError, Task
from privacy.plan.example_level import ExampleLevelPlan
from privacy.step_observation import StepObserver


class PrivateSteps:
    """DP-SGD steps by Opacus on batches that the trainer draws.

    Args:
        plan: Noise multiplier and clipping bound.
        model: Its module is wrapped for per-example gradients.
        optimizer: Steps along the noised gradient.
        task: Loss.
        forward: From a batch as it was read to what the model takes.
        options: Expected and physical batch size.
        observer: Sees each step after it was taken.

    Raises:
        ConfigError: A layer of the model mixes examples, or Opacus has no rule for it.
    """

    def __init__(
        self,
        plan: ExampleLevelPlan,
        model: FlatModel,
        optimizer: torch.optim.Optimizer,
        task: Task,
        forward: Forward,
        options: CentralOptions,
        observer: StepObserver,
    ) -> None:
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator

        errors = ModuleValidator.validate(model.module, strict=False)
        if errors:
            raise ConfigError(f"model: not fit for example-level DP: {errors[0]}")
        self.generator = torch.Generator(device=model.device)
        self._task = task
        self._forward = forward
        self._model = model
        self._observer = observer
        self._checked = False
        try:
            self._module = _with_example_gradients(model.module)
        except NotImplementedError as error:  # Opacus', of a layer that it has no rule for
            raise _unfit(error) from error
        self._optimizer = DPOptimizer(
            optimizer,
            noise_multiplier=plan.noise_multiplier,
            max_grad_norm=plan.clip_norm,
            expected_batch_size=options.batch_size,
            loss_reduction="mean",
            generator=self.generator,
        )

    def take(self, micro_batch: MicroBatch) -> tuple[Tensor, int]:
        """Add the gradients of a micro-batch; with the last one of a step, noise and take the step.

        Args:
            micro_batch: The examples; none: with nothing else in the step, it is noise alone.

        Returns:
            Sum of the examples' losses, a scalar tensor, and how many examples' gradients were not
            finite.
        """
        device = self._model.device
        loss_sum = new_loss_sum(device)
        lost = 0
        self._optimizer.zero_grad(set_to_none=True)
        if micro_batch.size:
            inputs, targets, draws = micro_batch.to(device)
            outputs = self._outputs(self._forward.prepare(inputs, draws))
            loss = self._task.loss(outputs, targets)
            if not self._checked:
                self._check_loss(loss.detach(), outputs.detach(), targets)
            with warnings.catch_warnings():
                # Opacus hooks the first layer too, whose inputs need no gradient.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.detach() * micro_batch.size
            lost = self._drop_nonfinite()
        else:
            for parameter in self._model.parameters:
                cast("Any", parameter).grad_sample = parameter.new_zeros((0, *parameter.shape))
        self._optimizer.signal_skip_step(do_skip=not micro_batch.is_last)
        self._optimizer.step()
        if micro_batch.is_last:
            self._observer.step(*zip(*map(_sum_and_gradient, self._model.parameters), strict=True))
            self._optimizer.zero_grad(set_to_none=True)
        return loss_sum, lost

    def close(self) -> None:
        """Take Opacus' hooks off the model; they would keep its memory after the run."""
        self._module.remove_hooks()

    def _outputs(self, inputs: Tensor) -> Tensor:
        try:
            outputs: Tensor = self._module(inputs)
        except RuntimeError as error:
            # Opacus' hooks hand layers' outputs on as views, which must not be written to.
            if "inplace" in str(error):
                raise _unfit(error) from error
            raise
        return outputs

    def _check_loss(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Check once that the loss is the plain mean over examples, as the scaling back assumes.

        A masked or weighted mean would let one example move another's gradient beyond the clip.
        """
        self._checked = True
        singles = [
            self._task.loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))
        ]
        mean = torch.stack(singles).mean()
        if torch.isfinite(loss) and not torch.allclose(loss, mean, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                f"task: its loss of a batch ({float(loss):.6g}) is not the mean of its examples' "
                f"losses ({float(mean):.6g}), so gradients of single examples cannot be bounded; "
                "example-level DP needs a plain mean over examples"
            )

    def _drop_nonfinite(self) -> int:
        """Zero the gradients of examples that are not finite: 0 * inf would poison the sum."""
        samples = [cast("Tensor", getattr(p, "grad_sample", None)) for p in self._model.parameters]
        if any(sample is None for sample in samples):
            raise ConfigError(
                "model: a trainable parameter takes no part in the loss, so it has no gradient of "
                "single examples; freeze or remove it for example-level DP"
            )
        finite = torch.stack([s.flatten(1).isfinite().all(dim=1) for s in samples]).all(dim=0)
        lost = int((~finite).sum())
        if lost:
            for sample in samples:
                sample[~finite] = 0.0
        return lost


def _sum_and_gradient(parameter: Any) -> tuple[Tensor, Tensor]:
    """What Opacus leaves of a step at a parameter: the clipped sum, and what the step was along."""
    return parameter.summed_grad, parameter.grad


def _with_example_gradients(module: nn.Module) -> Any:
    """Opacus' module that gives gradients of single examples, whatever the layout of images.

    Raises:
        NotImplementedError: It has no rule for a layer.
    """
    from opacus import GradSampleModule
    from opacus.grad_sample.conv import compute_conv_grad_sample

    def of_convolution(layer: nn.Conv2d, activations: list[Tensor], backprops: Tensor) -> Any:
        # Opacus 1.6 reads inputs as if each channel lay in one piece, whatever their strides.
        inputs = [part.contiguous() for part in activations]
        return compute_conv_grad_sample(layer, inputs, backprops)

    class WithExampleGradients(GradSampleModule):  # type: ignore[misc]
        """Opacus' rules, but for convolutions."""

        GRAD_SAMPLERS: ClassVar = {**GradSampleModule.GRAD_SAMPLERS, nn.Conv2d: of_convolution}

    return WithExampleGradients(module, loss_reduction="mean")


def _unfit(error: Exception) -> ConfigError:
    reason = str(error).split(". ")[0].splitlines()[0]
    return ConfigError(
        f"model: Opacus cannot compute gradients of single examples through it ({reason}); train "
        "fewer of its layers (for FLAIR's: model.train=head or lora), or choose a network without "
        "in-place operations, such as small_cnn"
    )
