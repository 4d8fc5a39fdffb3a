"""Models of the FLAIR task: torchvision's image classifiers, and a small network for small images.

What a row chooses: the network, where its weights begin, how it normalises, and which of its
parameters are trained.
"""

from __future__ import annotations

from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfl_bench.types import ConfigError, DataFacts, did_you_mean
from tasks.common.options import StrictOptions
from tasks.common.vision.normalization import batchnorm_names, freeze_statistics, use_group_norm
from tasks.common.vision.small_cnn import SMALL_CNN, small_cnn
from tasks.flair.pretrained import find_weights, load_weights
from tasks.flair.trainable import Train, keep_trainable


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
            ``trainable.keep_trainable``. The last layer, which is new, always is.
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
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"model.name: '{name}' does not take images of shape {tuple(facts.input_shape)}: "
            f"{reason[:200]}; change task.crop (torchvision's networks are made for 224), or "
            "choose another network"
        ) from error
    finally:
        module.train()
        for hook in hooks:
            hook.remove()
    return frozenset(called)
