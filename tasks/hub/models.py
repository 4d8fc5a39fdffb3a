"""Models of the hub task: by the kind of inputs those of other tasks."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, JsonValue, model_validator
from torch import nn

from pfl_bench.types import ConfigError, DataFacts
from tasks.common import dense
from tasks.common.images import models as images
from tasks.common.text import models as text
from tasks.common.text.words import PAD_ID
from tasks.hub.classifiers import build_classifier

_OF_IMAGES = ("lenet", "mcmahan_cnn", "opacus_cnn", "small_cnn", "softmax", "tfp_cnn", "timm")
_OF_KIND = {
    "images": (*_OF_IMAGES, "tramer_cnn"),
    "vectors": ("mlp", "softmax"),
    "text": (text.BAG, text.LSTM, "transformers"),
}


class Options(images.Options):
    """Options of the models, beside those of images.

    Attributes:
        name: Of images those of the tasks on images, but for the two on features; of vectors
            "softmax" or "mlp"; of text "bag_log_reg", "stacked_lstm" or "transformers".
        hidden: Of "mlp" and "stacked_lstm": units of a hidden layer.
        embedding_size: Of "stacked_lstm": width of the words' vectors, which are learned.
        architecture: Of "transformers" its name of a network, such as "distilbert", that begins
            from scratch; of "timm" as there.
        settings: Of that network, those of its configuration in ``transformers``, such as
            {dim: 64, n_layers: 2}.
        weights: Of "transformers": folder with config.json and model.safetensors to begin from,
            but for the head, which is new.
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
        "transformers",
    ]
    hidden: int = Field(default=64, ge=1, le=4096)
    embedding_size: int = Field(default=100, ge=1, le=4096)
    settings: dict[str, JsonValue] = Field(default={})
    weights: str | None = None

    @model_validator(mode="after")
    def _timm_has_an_architecture(self) -> Self:
        given = self.changed("architecture", "weights")
        takes = {"timm": [["architecture"]], "transformers": [["architecture"], ["weights"]]}
        if given not in takes.get(self.name, [[]]):
            raise ValueError(
                "architecture: name: timm needs one, such as resnet18, and name: transformers one, "
                "such as distilbert, or else weights, a folder; no other has any"
            )
        if self.settings and (self.name, given) != ("transformers", ["architecture"]):
            raise ValueError("settings: of name: transformers with an architecture alone")
        return self

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
    taken: tuple[str, ...] = _OF_KIND[kind]
    if facts.extra.get("vocabulary", {}).get("pad_id", PAD_ID) != PAD_ID:
        taken = ("transformers",)  # the others pad by this number
    if name not in taken:
        raise ConfigError(
            f"model.name: '{name}' does not take the {kind} of this store; for them there are: "
            f"{', '.join(taken)}"
        )
    if name in ("softmax", "mlp"):
        return dense.build(dense.Options(name=name, hidden=options.hidden), facts)
    if name == "transformers":
        return build_classifier(options.weights, options.architecture, options.settings, facts)
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
