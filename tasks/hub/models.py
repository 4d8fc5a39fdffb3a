"""Models of the hub task: by the kind of inputs those of other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from pfl_bench.types import ConfigError, DataError, DataFacts, UserInputError, did_you_mean
from tasks.common import dense
from tasks.common.images import models as images
from tasks.common.options import refuse
from tasks.common.sources import reason
from tasks.common.text import models as text
from tasks.common.text.words import PAD_ID, import_transformers

# Settings that the data decide, or that name code.
_NOT_SET = ("num_labels", "id2label", "label2id", "pad_token_id", "auto_map")
# Code in a folder is not run, and nothing is downloaded.
_HERE = {"trust_remote_code": False, "local_files_only": True}
# Attention in plain operations is the same everywhere, and for clients in slots.
_PLAIN = {"attn_implementation": "eager", "dtype": torch.float32}


class TextClassifier(nn.Module):
    """A network of ``transformers`` that reads all tokens of a text but its padding."""

    pad_id: Tensor

    def __init__(self, network: nn.Module, pad_id: int) -> None:
        super().__init__()
        self.network = network
        # It decides what the weights compute; buffers are in the digest of a run's first model.
        self.register_buffer("pad_id", torch.tensor(pad_id))
        self._count = 0
        for layer in network.modules():
            if type(layer) is nn.Embedding:
                layer.register_forward_pre_hook(self._give_each_text_its_own)

    def _give_each_text_its_own(self, _: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        # Positions, one row for all texts. A text's own gradient, and a slot's, need them by text.
        (numbers,) = args
        if len(numbers) not in (1, self._count):
            raise ValueError("it embeds pairs of positions, which are no text's own")
        return (numbers.expand(self._count, *numbers.shape[1:]),)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, shape (n, num_classes), of texts of shape (n, L), int64.

        The first token is read always, so that no text is empty.
        """
        self._count = len(inputs)
        is_read = inputs != self.pad_id
        mask = torch.cat([torch.ones_like(is_read[:, :1]), is_read[:, 1:]], dim=1)
        logits: Tensor = self.network(input_ids=inputs, attention_mask=mask.long()).logits
        return logits


def build_classifier(
    weights: str | None, architecture: str | None, settings: Mapping[str, Any], facts: DataFacts
) -> nn.Module:
    """Build a classifier with a new head, from a folder of weights or from an architecture.

    Refused are settings and files that ``transformers`` does not take, pickled weights, and a model
    of fewer tokens or positions than the data's.
    """
    transformers = import_transformers("hub", "transformers")
    words, length = facts.extra["vocabulary"], facts.input_shape[0]
    size, padding = int(words["size"]), int(words.get("pad_id", PAD_ID))
    origin = f"weights: {weights}" if weights is not None else f"architecture: {architecture}"
    try:
        if weights is not None:
            _check_folder(Path(weights), words["from"])
            config = transformers.AutoConfig.from_pretrained(weights, **_HERE)
        else:
            _check_settings(transformers.AutoConfig.for_model(architecture), settings)
            sizes = {"vocab_size": size, **settings}
            config = transformers.AutoConfig.for_model(architecture, **sizes)
        config.num_labels, config.pad_token_id = facts.num_classes, padding
        kind = transformers.AutoModelForSequenceClassification
        network = kind.from_config(config, trust_remote_code=False, **_PLAIN)
        if weights is not None:
            _load(transformers, network, weights, config)
        classifier = TextClassifier(network, padding).eval()
        # The largest numbers, at all positions.
        text = (-1 - torch.arange(length)) % size
        with torch.no_grad():
            classifier(torch.stack([text, torch.full_like(text, padding)]))
    except UserInputError:
        raise
    # What does not go together is refused by whichever library notices.
    except Exception as error:
        raise ConfigError(
            f"model.{origin} cannot be used: {reason(error, 300)}; the data have "
            f"texts of {length} tokens of {size}, as they were prepared by tokenizer and max_words"
        ) from error
    return classifier.train()


def _check_settings(default: Any, settings: Mapping[str, Any]) -> None:
    known = {*default.to_dict(), *default.attribute_map}.difference(_NOT_SET)
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"model.settings: {name} is none that a row sets of {default.model_type}"
                f"{did_you_mean(name, known, '; leave it out')}"
            )


def _check_folder(folder: Path, words_from: str) -> None:
    is_whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    if not is_whole or words_from != "tokenizer":
        raise DataError(
            f"model.weights: {folder} must be a folder with config.json and model.safetensors "
            "(pickled weights, pytorch_model.bin, are not read; nothing is downloaded), and the "
            f"data be prepared by its tokenizer (they are of {words_from})"
        )


def _load(transformers: Any, network: Any, weights: str, config: Any) -> None:
    """Give a network the folder's weights; its head stays new."""
    # Neither the table of what is new in the head, nor a bar.
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    choices = {"use_safetensors": True, "ignore_mismatched_sizes": True, **_HERE, **_PLAIN}
    loaded, info = type(network).from_pretrained(
        weights, config=config, output_loading_info=True, **choices
    )
    keys = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    body = f"{network.base_model_prefix}."
    # A checkpoint of a language model has no pooler, which is before the head.
    lacking = [key for key in keys if key.startswith(body) and "pooler" not in key]
    if lacking:
        raise DataError(
            f"model.weights: {weights} lacks weights of the model in its config.json, or has them "
            f"in other shapes: {', '.join(lacking[:3])}"
        )
    network.base_model.load_state_dict(loaded.base_model.state_dict())


_OF_KIND = {
    "images": get_args(images.OfPixels),
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

    name: Literal[  # type: ignore[assignment]  # those of features are not among them
        images.OfPixels, "mlp", "bag_log_reg", "stacked_lstm", "transformers"
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
        refuse(foreign, f"no option of {self.name}; leave it out")
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
            f"{reason(error)}; prepare the data with another size=N, such as "
            "32, or take another model"
        ) from None
    return module
