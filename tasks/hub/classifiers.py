"""Classifiers of texts by the package ``transformers``: from scratch, or from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pfl_bench.types import ConfigError, DataError, DataFacts, UserInputError, did_you_mean
from tasks.common.text.transformers_package import import_transformers
from tasks.common.text.words import PAD_ID

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
            f"model.{origin} cannot be used: {' '.join(str(error).split())[:300]}; the data have "
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
