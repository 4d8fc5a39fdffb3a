"""Checks of a model's layers: what private training cannot bound, or what joins examples."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from pfl_bench.types import UserInputError


def check_weights(module: nn.Module) -> None:
    """Refuse a private run's model with layers that write to their weights as they read them.

    PyTorch's embeddings with ``max_norm`` shrink the rows that a batch looks up, whatever it is
    read for: who has the released weights sees which rows these were.

    Raises:
        UserInputError: There is such a layer.
    """
    for name, part in module.named_modules():
        if getattr(part, "max_norm", None) is not None:
            raise UserInputError(
                f"model: layer {name} has max_norm, by which it writes to the weights of the rows "
                "that are looked up: they would be released neither clipped nor noised; leave "
                "max_norm out"
            )


def check_forgets(module: nn.Module, inputs: Tensor) -> None:
    """Refuse a private run's model whose outputs depend on the examples that it has seen before.

    What it keeps of them, such as a mean of earlier batches in an attribute that is no buffer,
    would move what other examples give, in this client and the next. Two copies of the model get
    the second half of the inputs, shape (n, ...), and the same draws; one has seen the first half.
    Weights and buffers, whose moves are watched while a model trains, are put back in between.

    Raises:
        UserInputError: Their outputs differ.
    """
    if any(map(is_lazy, module.parameters())):
        return  # ``FlatModel`` refuses it
    first, last = inputs.tensor_split(2)
    fresh, used = (copy.deepcopy(module).train() for _ in range(2))
    kept = dict(module.named_parameters()) | dict(module.named_buffers())
    found = []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            used(first)
            for name, tensor in (*used.named_parameters(), *used.named_buffers()):
                if name in kept and kept[name].shape == tensor.shape:
                    tensor.copy_(kept[name])
            for probe in (fresh, used):
                torch.default_generator.manual_seed(0)
                found.append(probe(last).nan_to_num(0.0, 0.0, 0.0))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return  # the first step tells what does not fit, and of which part
    scale = 1e-6 * float(found[0].abs().max())
    if not torch.allclose(found[0], found[1], 1e-5, scale):
        raise UserInputError(
            "model: its outputs for examples depend on what it was given before them: it keeps "
            "something of earlier examples outside its weights, which no clipping bounds, or draws "
            "by a generator of its own; keep nothing, and draw by torch's own generator"
        )


def batchnorm_layers(module: nn.Module) -> tuple[str, ...]:
    """Names of BatchNorm (and InstanceNorm) layers that keep running statistics.

    Such statistics are computed from examples and would leave the client outside the update: no
    clipping or noise covers them.
    """
    return tuple(
        name
        for name, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.track_running_stats
    )


def mixing_layer(module: nn.Module, inputs: Tensor, training: bool) -> str | None:
    """Find a layer that lets the examples of a batch see one another; weights and modes stay.

    Outputs of the batch, shape (n, ...), in training or in evaluation, are held against those of
    its examples alone, without layers of dropout. Outputs that are random all the same are passed
    over. Gives the name of the first such layer without layers of its own ("the model itself" where
    it is none of them); None for a model that keeps examples apart.
    """
    seen: list[dict[str, Tensor]] = []
    leaves = {name: part for name, part in module.named_modules() if not any(part.children())}

    def note(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim:
                seen[-1].setdefault(name, output)

        return hook

    probe = copy.deepcopy(module).train(training)
    for part in probe.modules():
        if isinstance(part, _DropoutNd):
            part.eval()
    hooked = [(name, probe.get_submodule(name)) for name in leaves if name]
    for name, part in [*hooked, ("the model itself", probe)]:
        part.register_forward_hook(note(name))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for batch in (inputs, inputs, *(inputs[at : at + 1] for at in range(len(inputs)))):
            seen.append({})
            try:
                probe(batch)
            except ValueError:
                # BatchNorm takes no single example in training: the first that did not get through.
                return next((name for name in seen[0] if name not in seen[-1]), "the model itself")
    for name, whole in seen[0].items():
        single = [alone[name] for alone in seen[2:] if name in alone]
        rows = sum(len(part) for part in single)
        again = seen[1].get(name, torch.empty(0))  # a layer may be left out at random
        is_repeated = torch.equal(whole.nan_to_num(), again.nan_to_num())
        if rows == len(whole) and is_repeated and whole.is_floating_point():
            size = whole.nan_to_num(0, 0, 0).abs().max()
            scale = 1e-3 * float(size.clamp_min(1e-3))
            if not torch.allclose(whole, torch.cat(single), 1e-3, scale, equal_nan=True):
                return name
    return None
