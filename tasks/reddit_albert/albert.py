"""ALBERT by the package ``transformers``: from a random start, or from a folder; never fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.data import parse_json
from pfl_bench.types import ConfigError, DataError
from tasks.common.text.transformers_package import import_transformers

if TYPE_CHECKING:
    from torch import nn

# Position embeddings of albert-base-v2; no block is longer.
MOST_POSITIONS = 512
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def random_albert(vocabulary_size: int, sizes: dict[str, Any]) -> nn.Module:
    """Build ALBERT with weights drawn from torch's global generator.

    The ``sizes`` are settings of ``transformers.AlbertConfig``; those that do not go together are
    refused.
    """
    transformers = import_transformers("reddit_albert", "albert")
    try:
        config = transformers.AlbertConfig(
            vocab_size=vocabulary_size, max_position_embeddings=MOST_POSITIONS, **sizes
        )
        module: nn.Module = transformers.AlbertForMaskedLM(config)
    except ValueError as error:
        raise ConfigError(f"model albert: {error}; change the sizes") from error
    return module


def load_albert(folder: Path, vocabulary_size: int) -> nn.Module:
    """Load ALBERT from a folder as albert-base-v2 is published, with the sizes that it says.

    A missing or damaged file, another model or another vocabulary are refused.
    """
    transformers = import_transformers("reddit_albert", "albert")
    _check_folder(folder, vocabulary_size)
    try:
        module, info = transformers.AlbertForMaskedLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype="float32"
        )
    # What a damaged file raises is the choice of whichever library reads it.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"model.weights: {folder} cannot be loaded ({reason})") from error
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
        raise DataError(f"model.weights: {path} is of a model {kind!r}, not 'albert'")
    if config.get("vocab_size") != vocabulary_size:
        raise DataError(
            f"model.weights: {path} has {config.get('vocab_size')} tokens and the data "
            f"{vocabulary_size}; prepare the data with tokenizer={folder}"
        )
