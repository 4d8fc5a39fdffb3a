"""Models of the hub task: by the kind of inputs those of other tasks."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from pfl_bench.types import ConfigError, DataFacts
from tasks.common import dense
from tasks.common.images import models as images
from tasks.common.text import models as text

_OF_IMAGES = ("lenet", "mcmahan_cnn", "opacus_cnn", "small_cnn", "softmax", "tfp_cnn", "timm")
_OF_KIND = {
    "images": (*_OF_IMAGES, "tramer_cnn"),
    "vectors": ("mlp", "softmax"),
    "text": (text.BAG, text.LSTM),
}


class Options(images.Options):
    """Options of the models, beside those of images.

    Attributes:
        name: Of images those of the tasks on images, but for the two on features; of vectors
            "softmax" or "mlp"; of text "bag_log_reg" or "stacked_lstm".
        hidden: Of "mlp" and "stacked_lstm": units of a hidden layer.
        embedding_size: Of "stacked_lstm": width of the words' vectors, which are learned.
    """

    name: Literal[  # type: ignore[assignment]  # some more than those of images
        "lenet",
        "mcmahan_cnn",
        "opacus_cnn",
        "small_cnn",
        "softmax",
        "tfp_cnn",
        "timm",
        "tramer_cnn",
        "mlp",
        "bag_log_reg",
        "stacked_lstm",
    ]
    hidden: int = Field(default=64, ge=1, le=4096)
    embedding_size: int = Field(default=100, ge=1, le=4096)

    @model_validator(mode="after")
    def _of_this_model(self) -> Self:
        own = {"mlp": ["hidden"], text.LSTM: ["hidden", "embedding_size"]}.get(self.name, [])
        foreign = [one for one in self.changed("hidden", "embedding_size") if one not in own]
        if foreign:
            raise ValueError(f"{', '.join(foreign)}: no option of {self.name}; leave it out")
        return self


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model that gives logits of shape (n, num_classes)."""
    kind, name = facts.extra["kind"], options.name
    if name not in _OF_KIND[kind]:
        raise ConfigError(
            f"model.name: '{name}' does not take the {kind} of this store; for them there are: "
            f"{', '.join(_OF_KIND[kind])}"
        )
    if name in ("softmax", "mlp"):
        return dense.build(dense.Options(name=name, hidden=options.hidden), facts)
    if name == "bag_log_reg":
        return text.build_model(text.Options(name=name), facts, "hub")
    if name == "stacked_lstm":
        lstm = text.Options(
            name=name,
            embedding_size=options.embedding_size,
            hidden_size=options.hidden,
            max_words=facts.input_shape[0],
        )
        return text.build_model(lstm, facts, "hub")
    module = images.build(options, facts)
    try:
        with torch.no_grad():
            module(torch.zeros(1, *facts.input_shape))
    except RuntimeError as error:
        raise ConfigError(
            f"model.name: {name} does not take images of shape {facts.input_shape}: "
            f"{' '.join(str(error).split())[:200]}; prepare the data with another size=N, such as "
            "32, or take another model"
        ) from None
    return module
