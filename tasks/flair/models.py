"""Models of the FLAIR task: torchvision's image classifiers, and a small network for small images.

What a row chooses: the network, where its weights begin, how it normalises, and which of its
parameters are trained.

Noise is added to every coordinate of the update, so its norm grows with the square root of P, the
number of trainable parameters. All others stay in the module, frozen, and cost no backward pass
that the trained ones do not need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfl_bench.types import ConfigError, DataFacts, did_you_mean
from tasks.common.options import StrictOptions
from tasks.common.sources import reason
from tasks.common.vision.normalization import (
    SMALL_CNN,
    FrozenStatisticsNorm,
    batchnorm_names,
    freeze_statistics,
    small_cnn,
    use_group_norm,
)
from tasks.flair.pretrained import find_weights, load_weights

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
        for child, layer in reversed(list(block.named_children())):
            path = f"{name}.{child}".lstrip(".")
            size = _weights(layer.named_parameters(prefix=path), head)
            if size:
                break
        else:
            return name
        name, block = path, layer
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


class Options(StrictOptions):
    """Options of the FLAIR models.

    Attributes:
        name: "small_cnn", or a torchvision classifier such as "resnet18".
        init: "random", or "imagenet": torchvision's IMAGENET1K_V1 weights, without the last layer.
        weights: Path of torchvision's file for "imagenet"; None takes it from torch's cache, or
            downloads it there.
        normalization: What BatchNorm layers become: "group" (GroupNorm, for "random") or "frozen"
            (the statistics of the weights, for "imagenet"). Networks without BatchNorm stay as
            they are with either.
        train: Parameters that are trained: "all", "head", "last_block", "film" or "lora"; see
            ``keep_trainable``. The last layer, which is new, always is.
        lora_rank: Rank of the adapters of "lora", 1 to 256; the others ignore it.
    """

    name: str = Field(min_length=1)
    init: Literal["random", "imagenet"] = "random"
    weights: str | None = None
    normalization: Literal["group", "frozen"] = "group"
    train: Train = "all"
    lora_rank: int = Field(default=4, ge=1, le=256)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.weights is not None and self.init != "imagenet":
            raise ValueError("weights: a file is loaded with init: imagenet alone; set it")
        if self.name == SMALL_CNN and (self.init, self.normalization) != ("random", "group"):
            raise ValueError(
                "small_cnn has no published weights: use init: random with "
                "normalization: group, or another network"
            )
        return self


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from inputs of shape (3, side, side) to logits of shape (n, num_classes).

    Returns:
        The model; what is random is drawn from torch's global generator. Parameters that are not
        to be trained require no gradient.
    """
    if options.name == SMALL_CNN:
        module = small_cnn(facts.num_classes)
        head = _last_layer(module, options.name)
    else:
        module, head = _classifier(options, facts.num_classes)
    called = _called_layers(module, options.name, facts)
    keep_trainable(module, options.train, head, called, options.lora_rank)
    return module


def _classifier(options: Options, num_classes: int) -> tuple[nn.Module, str]:
    """A torchvision classifier with a new last layer, and that layer's name."""
    from torchvision.models import get_model

    _check_name(options.name)
    settings: dict[str, Any] = {}
    if options.name in ("googlenet", "inception_v3"):
        # The published weights of these two are for inputs scaled another way, which they undo.
        pretrained = options.init == "imagenet"
        settings = {"aux_logits": False, "init_weights": True, "transform_input": pretrained}
    module = cast("nn.Module", get_model(options.name, weights=None, **settings))
    head = _last_layer(module, options.name)
    if batchnorm_names(module):
        _check_normalization(options)
    if options.init == "imagenet":
        path, departure = find_weights(options.name, options.weights)
        load_weights(module, path, head)
        cast("Any", module).departure = departure
    if options.normalization == "group":
        use_group_norm(module)
    else:
        freeze_statistics(module)
    parent, _, child = head.rpartition(".")
    old = cast("nn.Linear", module.get_submodule(head))
    setattr(module.get_submodule(parent), child, nn.Linear(old.in_features, num_classes))
    return module, head


def _check_name(name: str) -> None:
    from torchvision import models

    names = [SMALL_CNN, *models.list_models(module=models)]
    if name in names:
        return
    if name in models.list_models():
        raise ConfigError(
            f"model.name: torchvision's '{name}' is no image classifier in floating point; use "
            "one, such as resnet18"
        )
    hint = did_you_mean(name, names, ".")
    raise ConfigError(
        f"model.name: there is no network '{name}'{hint} There are small_cnn and torchvision's "
        f"{len(names) - 1} classifiers, such as resnet18, mobilenet_v3_small and vit_b_16"
    )


def _check_normalization(options: Options) -> None:
    if (options.init == "imagenet") == (options.normalization == "frozen"):
        return
    why, other = {
        "group": ("the weights were trained with BatchNorm and expect its statistics", "frozen"),
        "frozen": ("there are no statistics to freeze, so nothing would be normalised", "group"),
    }[options.normalization]
    raise ConfigError(
        f"model.normalization: '{options.normalization}' does not go with model.init="
        f"{options.init}: {why}; use model.normalization={other}"
    )


def _last_layer(module: nn.Module, name: str) -> str:
    """Name of the linear layer that gives the logits."""
    layers: list[tuple[str, nn.Module]] = [
        (path, layer)
        for path, layer in module.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
    ]
    path, layer = layers[-1]
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"model.name: '{name}' does not end in a linear layer, but in {layer}; SqueezeNet's "
            "logits, for one, come out of a ReLU, so none could say 'no'; choose another network"
        )
    return path


def _called_layers(module: nn.Module, name: str, facts: DataFacts) -> frozenset[str]:
    """Try the model on the shape of the data, without computing; names of the layers it calls."""
    called: set[str] = set()
    hooks = [
        layer.register_forward_hook(lambda *_, path=path: called.add(path))
        for path, layer in module.named_modules()
    ]
    state: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shadows = {key: torch.empty_like(value, device="meta") for key, value in state.items()}
    image = torch.empty((1, *facts.input_shape), device="meta")
    module.eval()  # dropout would draw random numbers
    try:
        with torch.no_grad():
            torch.func.functional_call(module, shadows, (image,))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"model.name: '{name}' does not take images of shape {tuple(facts.input_shape)}: "
            f"{reason(error)}; change task.crop (torchvision's networks are made for 224), or "
            "choose another network"
        ) from error
    finally:
        module.train()
        for hook in hooks:
            hook.remove()
    return frozenset(called)
