"""Models of Reddit with ALBERT: ALBERT for masked language modelling, of any size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfl_bench.data import parse_json
from pfl_bench.types import DataError, DataFacts
from tasks.common.options import StrictOptions, check_inputs, refuse
from tasks.common.sources import reason
from tasks.common.text.words import import_transformers
from tasks.reddit_albert.task import HIDDEN

if TYPE_CHECKING:
    from torch import nn

# Position embeddings of albert-base-v2; no block is longer.
MOST_POSITIONS = 512
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def random_albert(vocabulary_size: int, sizes: dict[str, Any]) -> nn.Module:
    """Build ALBERT with weights drawn from torch's global generator.

    The ``sizes`` are settings of ``transformers.AlbertConfig`` that go together, as ``Options``
    checks.
    """
    transformers = import_transformers("reddit_albert", "albert")
    config = transformers.AlbertConfig(
        vocab_size=vocabulary_size, max_position_embeddings=MOST_POSITIONS, **sizes
    )
    module: nn.Module = transformers.AlbertForMaskedLM(config)
    return module


def load_albert(folder: Path, vocabulary_size: int) -> nn.Module:
    """Load ALBERT from a folder as albert-base-v2 is published, with the sizes that it says.

    A missing or damaged file, another model or another vocabulary are refused.
    """
    transformers = import_transformers("reddit_albert", "albert")
    _check_folder(folder, vocabulary_size)
    try:
        module, info = transformers.AlbertForMaskedLM.from_pretrained(
            folder,
            local_files_only=True,
            output_loading_info=True,
            # Reported then, and refused below.
            ignore_mismatched_sizes=True,
            dtype="float32",
        )
    # What a damaged file raises is the choice of whichever library reads it.
    except Exception as error:
        raise DataError(f"model.weights: {folder} cannot be loaded ({reason(error)})") from error
    lacking = sorted(info["missing_keys"]) + sorted(str(k) for k in info["mismatched_keys"])
    if lacking:
        raise DataError(
            f"model.weights: {folder} lacks weights of a masked language model, or has them in "
            f"other shapes: {', '.join(lacking[:3])}; give a checkpoint such as albert-base-v2"
        )
    found: nn.Module = module
    return found


def _check_folder(folder: Path, vocabulary_size: int) -> None:
    path = folder / "config.json"
    if not path.is_file() or not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise DataError(
            f"model.weights: {folder} must be a folder with config.json and "
            f"{' or '.join(WEIGHT_FILES)}, such as a copy of albert-base-v2; nothing is downloaded"
        )
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"model.weights: {path} is not JSON ({error}); copy it again") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "albert":
        raise DataError(
            f"model.weights: {path} is of a model {kind!r:.40}, not 'albert'; give ALBERT's folder"
        )
    if config.get("vocab_size") != vocabulary_size:
        raise DataError(
            f"model.weights: {path} has {config.get('vocab_size')} tokens and the data "
            f"{vocabulary_size}; prepare the data with tokenizer={folder}"
        )


# A logit so far above the others that float32 knows no loss.
SURE = 100.0
Size = Annotated[int, Field(ge=1, le=65_536)]


class Options(StrictOptions):
    """Options of the model; its sizes are albert-base-v2's unless given.

    Attributes:
        name: "albert".
        weights: Folder of a published checkpoint to begin from, whose sizes are taken; None begins
            at random, as FedScale's code does.
        embedding_size: Features of a token.
        hidden_size: Features between layers, a multiple of the heads.
        num_hidden_layers: Times that the one layer is applied.
        num_attention_heads: Heads of its attention.
        intermediate_size: Units inside it.
        dropout: Probability that an output of the layer is dropped in training.
    """

    name: Literal["albert"]
    weights: str | None = None
    embedding_size: Size = 128
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        fields = type(self).model_fields.keys()
        if self.weights is not None:
            changed = self.changed(*sorted(fields - {"name", "weights"}))
            refuse(changed, "the sizes are those of the folder in weights; leave them out")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        return self


class HiddenTokens(nn.Module):
    """Scores every token of the vocabulary at each place of a block.

    The output layer of ``transformers.AlbertForMaskedLM`` and its embedding of tokens are one
    parameter, and all its layers are one layer.

    Source: Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language
        Representations".
    """

    def __init__(self, albert: nn.Module) -> None:
        super().__init__()
        self.albert = albert

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of each place, shape (n, L, V).

        The inputs have the shape (n, L, 2), int64, of ``task.HideTokens``: tokens as they are
        read (blocks have no padding), and what need not be told. Where nothing is hidden, the
        logits are all but certain of the token: its loss is 0, and no gradient comes from there.
        """
        read, told = inputs.unbind(dim=2)
        logits: Tensor = self.albert(input_ids=read).logits
        known = told != HIDDEN
        if not known.any():
            return logits
        sure = torch.zeros_like(logits).scatter_(2, told.clamp_min(0).unsqueeze(2), SURE)
        return torch.where(known.unsqueeze(2), sure, logits)


def build(options: Options, facts: DataFacts) -> nn.Module:
    """Build a model from blocks of tokens, (n, L, 2), to logits of shape (n, L, num_classes)."""
    fits = len(facts.input_shape) == 1
    check_inputs(fits, "reddit_albert", "albert", "blocks of token numbers", facts)
    if options.weights is not None:
        return HiddenTokens(load_albert(Path(options.weights), facts.num_classes))
    sizes = options.model_dump(exclude={"name", "weights", "dropout"})
    sizes["hidden_dropout_prob"] = options.dropout
    return HiddenTokens(random_albert(facts.num_classes, sizes))
