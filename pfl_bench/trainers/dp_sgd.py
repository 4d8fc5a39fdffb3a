"""DP-SGD steps by Opacus.

Guarantee: see ``privacy.plan.example_level``; the batches must be drawn as it says, which is the
caller's part (``central.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from pfl_bench.client.flat_model import FlatModel, is_same
from pfl_bench.client.forward import Forward, is_mean_of_singles
from pfl_bench.client.machine import keep_freed_memory
from pfl_bench.client.optimizers import optimizer_form
from pfl_bench.client.precision import new_loss_sum
from pfl_bench.client.prefetch import MicroBatch
from pfl_bench.config.training import CentralOptions
from pfl_bench.trainers.private_statistics import RECORD_FORM
from pfl_bench.types import ConfigError, GivesExampleLosses, Task
from privacy.plan.example_level import ExampleLevelPlan
from privacy.recording.step_observation import StepObserver


class PrivateSteps:
    """DP-SGD steps by Opacus on batches that the trainer draws.

    The model's module is wrapped for per-example gradients; ``observer`` sees each step after it
    was taken. ConfigError if a layer of the model mixes examples, or Opacus has no rule for it.
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
        # Of other losses one batch may hide what the next one shows, such as a rare class's weight.
        self._has_example_losses = (
            isinstance(task, GivesExampleLosses)
            and (own := _class_of(task.loss)) is not None
            and own == _class_of(task.example_losses)
        )
        keep_freed_memory()
        try:
            self._module = _with_example_gradients(model.module)
        except NotImplementedError as error:  # Opacus', of a layer that it has no rule for
            raise _unfit(error) from error
        self._optimizer = _clipping_optimizer(
            optimizer,
            noise_multiplier=plan.setting.noise_multiplier,
            max_grad_norm=plan.request.clip_norm,
            expected_batch_size=options.batch_size,
            loss_reduction="mean",
            generator=self.generator,
        )

    def take(self, micro_batch: MicroBatch) -> tuple[Tensor, int]:
        """Add the gradients of a micro-batch; with the last one of a step, noise and take the step.

        A step without any example is noise alone. Gives the sum of the examples' losses, a scalar
        tensor, and how many examples' gradients were not finite.
        """
        device = self._model.device
        loss_sum = new_loss_sum(device)
        self._optimizer.zero_grad(set_to_none=True)
        if micro_batch.size:
            inputs, targets, draws = micro_batch.to(device)
            before = self._model.vector.clone()
            outputs = self._outputs(self._forward.prepare(inputs, draws))
            loss = self._task.loss(outputs, targets)
            if micro_batch.size > 1 and not (self._checked and self._has_example_losses):
                self._checked = True
                self._check_loss(outputs, targets)
            with warnings.catch_warnings():
                # Opacus hooks the first layer too, whose inputs need no gradient.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                try:
                    loss.backward()  # type: ignore[no-untyped-call]
                except AttributeError as error:  # as of a LayerNorm without the bias
                    raise _unfit(error) from error
            loss_sum += loss.detach() * micro_batch.size
            self._check_gradients()
            if not is_same(self._model.vector, before):
                raise ConfigError(
                    "model: a pass over examples changed its trained weights by itself, which "
                    "would be released neither clipped nor noised; keep what the model learns to "
                    "the gradients of its loss"
                )
        else:
            for parameter in self._model.parameters:
                cast("Any", parameter).grad_sample = parameter.new_zeros((0, *parameter.shape))
        self._optimizer.signal_skip_step(do_skip=not micro_batch.is_last)
        self._optimizer.step()
        lost = self._optimizer.lost
        if micro_batch.is_last:
            # Opacus' clipped sum at each parameter, and the gradient that the step was along.
            stepped: list[Any] = [*self._model.parameters]
            self._observer.step([p.summed_grad for p in stepped], [p.grad for p in stepped])
            self._optimizer.zero_grad(set_to_none=True)
        return loss_sum, lost

    def close(self) -> None:
        """Take Opacus' hooks off the model; they would keep its memory after the run."""
        self._module.remove_hooks()

    def _outputs(self, inputs: Tensor) -> Tensor:
        try:
            outputs: Tensor = self._module(inputs)
        except (RuntimeError, AttributeError) as error:
            # Opacus' hooks hand layers' outputs on as views, which must not be written to, and
            # take each of a layer's inputs for a tensor.
            if "inplace" in str(error) or "'detach'" in str(error):
                raise _unfit(error) from error
            raise
        return outputs

    def _check_loss(self, outputs: Tensor, targets: Tensor) -> None:
        """Check that the loss is the plain mean over examples, as the scaling back assumes.

        A masked or weighted mean would let one example move another's gradient beyond the clip.
        """
        if not is_mean_of_singles(self._task.loss, outputs, targets):
            raise ConfigError(
                "task: its loss of a batch is not the mean of its examples' losses, so gradients "
                "of single examples cannot be bounded; example-level DP needs a plain mean over "
                "examples"
            )

    def _check_gradients(self) -> None:
        if any(getattr(p, "grad_sample", None) is None for p in self._model.parameters):
            raise ConfigError(
                "model: a trainable parameter takes no part in the loss, so it has no gradient of "
                "single examples; freeze or remove it for example-level DP"
            )


def _class_of(method: Callable[..., Tensor]) -> tuple[str, str] | None:
    """Module and name of the class that defines a method; None of a function of no class.

    A task around another has the other's.
    """
    name = getattr(method, "__qualname__", "").rpartition(".")[0]
    return None if not name or name.endswith("<locals>") else (method.__module__, name)


@dataclass(frozen=True, slots=True)
class LinearGradients:
    """Gradients of a linear layer's weights, one an example, as products that are not computed.

    ``left`` has the gradients of the outputs, shape (n, outputs), ``right`` the inputs, shape (n,
    inputs).
    """

    left: Tensor
    right: Tensor

    def __getitem__(self, chosen: Tensor) -> LinearGradients:
        """Those of chosen examples."""
        return LinearGradients(self.left[chosen], self.right[chosen])

    def to(self, dtype: torch.dtype) -> LinearGradients:
        """The products of factors of another type."""
        return LinearGradients(self.left.to(dtype), self.right.to(dtype))

    def norms(self) -> Tensor:
        """L2 norm of each example's gradient, shape (n,): that of an outer product."""
        return _norms(self.left) * _norms(self.right)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum of the gradients times ``weights``, shape (n,): shape (outputs, inputs)."""
        return (self.left * weights.unsqueeze(1)).t() @ self.right


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.unsqueeze(-1).flatten(1), dim=1)
    return norms


def clipped_sums(
    samples: Sequence[Tensor | LinearGradients], clip_norm: float
) -> tuple[list[Tensor], int]:
    """Sum the gradients of examples, each clipped.

    Guarantee: an example, added or removed, moves the sums by at most ``clip_norm`` in the L2 norm
    over all of them, whatever its gradient; one whose norm is not finite counts nothing.

    Samples are of each parameter its gradients, shape (n, ...), or products of as many examples.
    Gives a sum a parameter, and how many examples' norms were not finite.
    """
    norms = [s.norms() if isinstance(s, LinearGradients) else _norms(s) for s in samples]
    norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    finite = norm.isfinite()
    lost = len(norm) - int(finite.sum())
    if lost:  # 0 * inf would poison the sum.
        samples, norm = [s[finite] for s in samples], norm[finite]
    factors = (clip_norm / (norm + 1e-6)).clamp(max=1.0)
    sums = [
        s.weighted_sum(factors)
        if isinstance(s, LinearGradients)
        else torch.einsum("i,i...", factors, s)
        for s in samples
    ]
    return sums, lost


def _clipping_optimizer(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    """Opacus' optimizer, with noise and scale as they are there, that clips by ``clipped_sums``.

    Its attribute ``lost`` is how many examples of the last micro-batch counted nothing.
    """
    from opacus.optimizers import DPOptimizer

    class ClippingOptimizer(DPOptimizer):  # type: ignore[misc]
        """Takes gradients of one micro-batch at a time."""

        lost = 0
        accumulated_iterations = 1

        @property
        def grad_samples(self) -> list[Any]:
            return [p.grad_sample for p in self.params]

        def clip_and_accumulate(self) -> None:
            samples = [s.to(p.dtype) for s, p in zip(self.grad_samples, self.params, strict=True)]
            sums, self.lost = clipped_sums(samples, self.max_grad_norm)
            for parameter, total in zip(self.params, sums, strict=True):
                before = parameter.summed_grad
                parameter.summed_grad = total if before is None else before.add_(total)

    return ClippingOptimizer(optimizer, **options)


def _with_example_gradients(module: nn.Module) -> Any:
    """Opacus' module that gives gradients of single examples, whatever the layout of images.

    Those of a linear layer of rows are left as products. Those of a parameter that a batch uses
    once are not copied.

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
        """Opacus' rules, but for convolutions and linear layers of rows."""

        GRAD_SAMPLERS: ClassVar = {**GradSampleModule.GRAD_SAMPLERS, nn.Conv2d: of_convolution}

        def capture_backprops_hook(
            self, module: Any, inputs: Any, outputs: Any, loss_reduction: str, batch_first: bool
        ) -> None:
            trained: list[Any] = [p for p in module.parameters(recurse=False) if p.requires_grad]
            sampler = self.GRAD_SAMPLERS.get(type(module))
            is_used_once = all(
                p._forward_counter == 1 and not hasattr(p, "_current_grad_sample") for p in trained
            )
            if sampler is None or not is_used_once or not batch_first:
                super().capture_backprops_hook(module, inputs, outputs, loss_reduction, batch_first)
                return
            activations, backprops = self.rearrange_grad_samples(
                module=module,
                backprops=outputs[0].detach(),
                loss_reduction=loss_reduction,
                batch_first=batch_first,
            )
            del module.max_batch_len
            samples: dict[Any, Any] = {}
            if type(module) is nn.Linear and backprops.dim() == 2:
                weight = module.weight
                if weight.requires_grad:
                    samples[weight] = LinearGradients(backprops, activations[0])
                if module.bias is not None and module.bias.requires_grad:
                    samples[module.bias] = backprops
            else:
                samples = sampler(module, activations, backprops)
            for parameter, sample in samples.items():
                parameter._forward_counter = 0
                parameter.grad_sample = sample

    return WithExampleGradients(module, loss_reduction="mean")


def _unfit(error: Exception) -> ConfigError:
    reason = str(error).split(". ")[0].splitlines()[0]
    return ConfigError(
        f"model: Opacus cannot compute gradients of single examples through it ({reason}); train "
        "fewer of its layers (for FLAIR's: model.train=head or lora), or choose a network without "
        "in-place operations, such as small_cnn"
    )


def saved_form(
    model: FlatModel, options: CentralOptions, generator: torch.Generator | None
) -> dict[str, Any]:
    """Form of what a private run saves of a model, by the noise generator (None: not at hand).

    None stands for anything in it, too.
    """
    return {
        "central": model.vector,
        "optimizer": optimizer_form(options.optimizer, model.parameters),
        "buffers": model.buffers(),
        "noise_generator": None if generator is None else generator.get_state(),
        "ledger": "",
        "seed": 0,
        "statistics": RECORD_FORM,
    }
