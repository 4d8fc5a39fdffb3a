"""Choice of the trained parameters: the fewer, the less noise a private update takes.

Noise is added to every coordinate of the update, so its norm grows with the square root of P, the
number of trainable parameters. All others stay in the module, frozen, and cost no backward pass
that the trained ones do not need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from pfl_bench.types import ConfigError
from tasks.common.vision.normalization import FrozenStatisticsNorm

Train = Literal["all", "head", "last_block", "film", "lora"]

NORMALIZATIONS = (nn.GroupNorm, nn.LayerNorm, FrozenStatisticsNorm)
OPENED_ABOVE = 0.9


class LowRankAdapter(nn.Module):
    """A frozen layer plus a trainable one of low rank: ``layer(x) + up(down(x))``.

    ``up`` begins at zero, so the start is the frozen layer; the sum is the layer whose weight, as a
    matrix of outputs by inputs, is W + B A with B from ``up`` and A from ``down``. A grouped
    convolution has an A and a B in each group.

    ``layer`` is a convolution or a linear layer, whose parameters are frozen; ``rank`` is that of B
    A, in each group.

    Source: Hu et al. 2022, "LoRA", section 4.1, with alpha equal to the rank.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down: nn.Module
        self.up: nn.Conv2d | nn.Linear
        if isinstance(layer, nn.Linear):
            self.down = nn.Linear(layer.in_features, rank, bias=False)
            self.up = nn.Linear(rank, layer.out_features, bias=False)
        else:
            channels = rank * layer.groups
            self.down = nn.Conv2d(
                layer.in_channels, channels, layer.kernel_size, layer.stride,  # type: ignore[arg-type]
                layer.padding, layer.dilation, layer.groups, False, layer.padding_mode,  # type: ignore[arg-type]
            )  # fmt: skip
            self.up = nn.Conv2d(channels, layer.out_channels, 1, groups=layer.groups, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Give the frozen layer's outputs plus the adapter's; shapes are that layer's."""
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def keep_trainable(
    module: nn.Module, train: Train, head: str, called: frozenset[str], rank: int
) -> None:
    """Freeze, in place, the parameters that are not to be trained.

    - "all": none.
    - "head": all but the last layer's.
    - "last_block": all before the last block. Of the root's children the last one with a weight
      matrix or kernel outside the head is the block; while it holds more than nine tenths of all
      such weights, its own children are looked at. It is trained, with all that follows it: layer4
      and fc of a ResNet, the last encoder layer, its norm and the head of a ViT.
    - "film": all but the last layer's and the scales and biases of normalisation layers.
    - "lora": all but the last layer's; a low-rank adapter is added to each other convolution and
      linear layer. Layers that are no larger than their adapter, such as depthwise convolutions,
      get none, nor do layers whose weights the network uses without calling them, such as the
      projections of torch's attention.

    ``head`` names the last layer, ``called`` the layers that a forward pass calls; ``rank``, at
    least 1, is that of the adapters.
    """
    if train == "all":
        return
    kept = {f"{head}.{name}" for name, _ in module.get_submodule(head).named_parameters()}
    if train == "last_block":
        names = [name for name, _ in module.named_parameters()]
        block = f"{_last_block(module, head)}."
        first = next(i for i, name in enumerate(names) if name.startswith(block))
        kept |= set(names[first:])
    elif train == "film":
        kept |= _scales_and_biases(module)
    elif train == "lora":
        kept |= _add_adapters(module, head, called, rank)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in kept)


def _last_block(module: nn.Module, head: str) -> str:
    total = _weights(module.named_parameters(), head)
    name, block = "", module
    while True:
        children = [
            (f"{name}.{child}".lstrip("."), layer) for child, layer in block.named_children()
        ]
        sizes = [
            (_weights(layer.named_parameters(prefix=path), head), path, layer)
            for path, layer in children
        ]
        last = [(size, path, layer) for size, path, layer in sizes if size]
        if not last:
            if not name:
                raise ConfigError("model.train: 'last_block' needs a network with a block")
            return name
        size, name, block = last[-1]
        if size <= OPENED_ABOVE * total:
            return name


def _weights(parameters: Iterable[tuple[str, Tensor]], head: str) -> int:
    """Entries of weight matrices and kernels outside the head."""
    return sum(
        parameter.numel()
        for name, parameter in parameters
        if parameter.dim() > 1 and not name.startswith(f"{head}.")
    )


def _scales_and_biases(module: nn.Module) -> set[str]:
    kept = {
        f"{name}.{parameter}"
        for name, layer in module.named_modules()
        if isinstance(layer, NORMALIZATIONS)
        for parameter, _ in layer.named_parameters()
    }
    if not kept:
        raise ConfigError(
            "model.train: 'film' trains scales and biases of normalisation layers, but the network "
            "model.name has none; choose another network, or model.train=head"
        )
    return kept


def _add_adapters(module: nn.Module, head: str, called: frozenset[str], rank: int) -> set[str]:
    kept: set[str] = set()
    for name in sorted(called - {head}):
        layer = module.get_submodule(name)
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        outputs, inputs = layer.weight.shape[0], layer.weight[0].numel()
        if rank * (groups * inputs + outputs) < layer.weight.numel():
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, LowRankAdapter(layer, rank))
            kept |= {f"{name}.down.weight", f"{name}.up.weight"}
    if not kept:
        raise ConfigError(
            f"model.lora_rank: adapters of rank {rank} are not smaller than any layer of the "
            "network; lower it, or use model.train=all"
        )
    return kept
