"""One local step of several clients as one batched program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pfl_bench.client.batched import layers
from pfl_bench.client.batched.dropout import drop
from pfl_bench.client.batched.gradients import Dense, Gradients
from pfl_bench.client.batched.slot_masks import SlotMasks
from pfl_bench.client.batched.slot_weights import SlotWeights
from pfl_bench.client.batched.step_context import StepContext
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward, have_same_gradients
from pfl_bench.types import ConfigError, is_out_of_memory


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The batches of the first slots, padded to the largest of them and laid end to end.

    Attributes:
        inputs: Shape (L * n, ...), on the device, as they were read.
        targets: Shape (L * n, ...).
        draws: Shape (L * n, k), or None.
        shares: Shape (L, n): what an example counts for in its slot's mean; 0 for padding.
        sizes: Real examples of each slot.
    """

    inputs: Tensor
    targets: Tensor
    draws: Tensor | None
    shares: Tensor
    sizes: Sequence[int]


Step = tuple[Tensor, list[Gradients | None]]


def unsupported(model: FlatModel) -> str | None:
    """Reason why a model's layers have no replacements in ``batched.layers``; None if they have."""
    trained = {id(parameter) for parameter in model.parameters}
    for name, layer in model.module.named_modules():
        own = [p for p in layer.parameters(recurse=False) if id(p) in trained]
        if not own:
            continue
        if layers.find(layer) is None:
            return f"layer '{name}' ({type(layer).__name__}) has weights, and no form for slots"
        reason = layers.refusal(layer)
        if reason is not None or "forward" in vars(layer):
            return f"layer '{name}' ({type(layer).__name__}) {reason or 'is patched'}"
    return None


class LayerProgram:
    """Steps by layers that are replaced, while a step runs, by those of ``batched.layers``.

    ``unsupported`` says None of the model.
    """

    def __init__(self, model: FlatModel, forward: Forward, weights: SlotWeights) -> None:
        self._forward = forward
        self._context = StepContext(weights)
        self._patches: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
        self._dropouts: list[nn.Dropout] = []
        trained = {id(parameter) for parameter in model.parameters}
        for layer in model.module.modules():
            if type(layer) is nn.Dropout:
                self._dropouts.append(layer)
                patch = drop(layer, self._context, forward.channels_last)
                self._patches.append((layer, patch))
            elif type(layer) is nn.Flatten:
                self._patches.append((layer, partial(layers.flatten, layer)))
            elif any(id(p) in trained for p in layer.parameters(recurse=False)):
                build = layers.find(layer)
                assert build is not None
                self._patches.append((layer, build(layer, self._context)))
        self._patches += layers.pool_first(model.module)

    @property
    def draws_masks(self) -> bool:
        """Whether slots' dropout draws masks."""
        return any(0 < layer.p < 1 for layer in self._dropouts)

    def outputs(self, batch: StepBatch, masks: SlotMasks | None) -> tuple[Tensor, list[Tensor]]:
        """The model's outputs, shape (L * n, ...), and the weights that they depend on."""
        leaves = self._context.begin(batch.sizes, masks)
        for layer, patch in self._patches:
            layer.forward = patch
        try:
            outputs = self._forward.outputs(batch.inputs, batch.draws)
        finally:
            for layer, _ in self._patches:
                del layer.forward
        return outputs, leaves

    def step(self, batch: StepBatch, masks: SlotMasks | None) -> Step:
        """Losses and gradients of a step: mean loss of each slot, shape (L,), and by parameter.

        ``masks`` is what the slots' dropout is drawn from, if the model has any.
        """
        outputs, leaves = self.outputs(batch, masks)
        losses = self._forward.example_losses(outputs, batch.targets)
        # No loss is summed over slots: one that is not finite stays in its own.
        shares = batch.shares.flatten()
        found = torch.autograd.grad(losses, leaves, shares, allow_unused=True)
        by_slot = (losses.detach() * shares).view(batch.shares.shape).sum(1)
        return by_slot, self._context.take(found)


class VmapProgram:
    """Steps by ``torch.func``: for models with layers that have no form for slots."""

    draws_masks = False

    def __init__(self, model: FlatModel, forward: Forward, weights: SlotWeights) -> None:
        self._module, self._forward, self._weights = model.module, forward, weights
        trained = {id(p): at for at, p in enumerate(model.parameters)}
        self._names = [
            (name, trained[id(p)])
            for name, p in model.module.named_parameters(remove_duplicate=False)
            if id(p) in trained
        ]

    def outputs(self, batch: StepBatch, masks: SlotMasks | None) -> tuple[Tensor, list[Tensor]]:
        """The model's outputs, shape (L * n, ...), and the weights that they depend on."""
        slots = len(batch.sizes)
        weights = self._weights.active(slots)
        inputs = self._forward.prepare(batch.inputs, batch.draws)
        by_slot = _split(inputs, slots)
        outputs = torch.func.vmap(self._call)(weights, by_slot)
        return outputs.flatten(0, 1), weights

    def step(self, batch: StepBatch, masks: SlotMasks | None) -> Step:
        """See ``LayerProgram.step``."""
        slots = len(batch.sizes)
        inputs = _split(self._forward.prepare(batch.inputs, batch.draws), slots)
        targets = _split(batch.targets, slots)

        def loss(
            weights: list[Tensor], inputs: Tensor, targets: Tensor, shares: Tensor
        ) -> tuple[Tensor, Tensor]:
            losses = self._forward.example_losses(self._call(weights, inputs), targets)
            mean = (losses * shares).sum()
            return mean, mean

        # Layers that draw numbers raise an error here: they have no stream of their own.
        compute = torch.func.vmap(torch.func.grad(loss, has_aux=True), randomness="error")
        weights = self._weights.active(slots)
        gradients, losses = compute(weights, inputs, targets, batch.shares)
        return losses, [Dense(gradient) for gradient in gradients]

    def _call(self, weights: list[Tensor], inputs: Tensor) -> Tensor:
        named = {name: weights[at] for name, at in self._names}
        outputs: Tensor = self._forward.apply(
            lambda given: torch.func.functional_call(self._module, named, (given,)), inputs
        )
        return outputs


def _split(tensor: Tensor, slots: int) -> Tensor:
    """(L n, ...) to (L, n, ...)."""
    return tensor.reshape(slots, -1, *tensor.shape[1:])


Program = LayerProgram | VmapProgram


def build_program(model: FlatModel, forward: Forward, weights: SlotWeights) -> Program:
    """Build the program of a model: by layers where each has its form, else by vmap."""
    if unsupported(model) is None:
        return LayerProgram(model, forward, weights)
    return VmapProgram(model, forward, weights)


def check(
    program: Program, model: FlatModel, forward: Forward, weights: SlotWeights, batch: StepBatch
) -> None:
    """Try a program on a batch of all slots: each must compute what the model computes alone.

    Slots get weights that differ, and are left with them; the model's memory is used.

    Raises:
        ConfigError: A slot's outputs depend on other slots, on the original weights, or on random
            numbers that come from no client's stream; or the loss is no mean over examples.
    """
    slots = len(batch.sizes)
    generator = torch.Generator().manual_seed(0)
    start = model.vector.clone()
    try:
        vectors = [_perturbed(start, generator) for _ in range(slots)]
        for slot, vector in enumerate(vectors):
            weights.load(slot, weights.views(vector))
        _check_outputs(program, model, forward, vectors, batch)
        _check_draws(program, model, batch)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # what torch.func refuses by
        if isinstance(error, ConfigError) or is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:300]
        why = unsupported(model)
        raise ConfigError(
            f"federated.engine: this model cannot be trained by the vectorized engine"
            f"{f' ({why}, and vmap cannot either)' if why else ''}: {reason}; "
            "use engine: sequential"
        ) from error
    finally:
        model.vector.copy_(start)
        model.module.train()


def _perturbed(vector: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(vector.shape, generator=generator).to(vector.device)
    return vector + 0.1 * noise * vector.abs().mean()


@torch.no_grad()
def _check_outputs(
    program: Program,
    model: FlatModel,
    forward: Forward,
    vectors: Sequence[Tensor],
    batch: StepBatch,
) -> None:
    model.module.eval()
    given = program.outputs(batch, None)[0]
    rows = len(given) // len(vectors)
    tolerance = 1e-3 if forward.precision == "float32" else 5e-2
    for slot in {0, len(vectors) - 1}:
        model.vector.copy_(vectors[slot])
        part = slice(slot * rows, slot * rows + batch.sizes[slot])
        draws = None if batch.draws is None else batch.draws[part]
        alone = forward.outputs(batch.inputs[part], draws)
        own = given[part]
        if alone.shape != own.shape or not _close(own, alone, tolerance):
            raise ConfigError(
                "federated.engine: a client's outputs in the vectorized engine are not those that "
                "it has alone: the model computes over several examples, or uses a layer's weights "
                "outside the layer; use engine: sequential"
            )
        if not _is_mean_of_losses(forward, alone, batch.targets[part], tolerance):
            raise ConfigError(
                "federated.engine: the task's loss is not the plain mean of its examples' losses, "
                "which the vectorized engine needs; use engine: sequential"
            )


def _is_mean_of_losses(
    forward: Forward, outputs: Tensor, targets: Tensor, tolerance: float
) -> bool:
    return have_same_gradients(
        lambda given: forward.example_losses(given, targets).mean(),
        lambda given: forward.mean_loss(given, targets),
        outputs,
        tolerance,
    )


def _close(ours: Tensor, alone: Tensor, tolerance: float) -> bool:
    # Of a client that overflows some outputs may not be finite, by the model and not by the engine.
    finite = alone.isfinite()
    scale = alone.where(finite, 0.0).abs().max().clamp_min(1e-6)
    is_near = (ours - alone).abs() <= tolerance * scale
    return bool(is_near.where(finite, ~ours.isfinite()).all())


def _check_draws(program: Program, model: FlatModel, batch: StepBatch) -> None:
    model.module.train()
    device = model.device
    before = _states(device)
    program.step(batch, SlotMasks(len(batch.sizes), device))
    after = _states(device)
    if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        raise ConfigError(
            "federated.engine: the model draws random numbers in training other than by "
            "torch.nn.Dropout, which the vectorized engine cannot draw from each client's stream; "
            "use engine: sequential"
        )


def _states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
