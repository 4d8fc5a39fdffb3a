"""Weights trained on ImageNet, from torchvision's own files: given, cached or downloaded."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import OrderedDict
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import torch
from torch import Tensor, nn

from pfl_bench.types import ConfigError

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30.0
# Of torchvision's files; of others the digits in the name are all that is published.
SHA256 = {
    "resnet18-f37072fd.pth": "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
}
# Classifiers beside the trunk, which are not built.
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
# The published DenseNet files are older than the names of its layers.
OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A published file of weights.

    Attributes:
        file_name: Its name, which ends with the first digits of its SHA-256.
        digest_prefix: Those digits, hexadecimal, or all of them where they are known.
    """

    url: str
    file_name: str
    digest_prefix: str


def published_weights(name: str) -> PublishedWeights | None:
    """Look up torchvision's first ImageNet weights of a classifier, its ``IMAGENET1K_V1``.

    None if torchvision has none, or none whose file name holds a digest.
    """
    from torchvision.models import get_model_weights

    version = getattr(get_model_weights(name), "IMAGENET1K_V1", None)
    if version is None:
        return None
    url = str(version.url)
    file_name = url.rsplit("/", 1)[-1]
    digest = re.search(r"-([0-9a-f]{8,64})\.", file_name)
    if digest is None:
        return None
    return PublishedWeights(url, file_name, SHA256.get(file_name, digest.group(1)))


def find_weights(name: str, given: str | None) -> tuple[Path, str]:
    """Find the file of a classifier's ImageNet weights, or download it to torch's cache.

    A ``given`` file with the published name must have the published content; one with another name
    may hold other weights of the same network. Without it torch's cache is looked at, then the file
    is downloaded.

    Returns:
        The file's path, and why numbers of the published weights are not comparable: empty unless
        a given file has another content.
    """
    weights = published_weights(name)
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(f"model.weights: there is no file {path}; give torchvision's file")
        if weights is not None and path.name == weights.file_name:
            _check_digest(path, weights, "give it another name if it holds other weights")
        return path, _departure(path, weights)
    if weights is None:
        raise ConfigError(
            f"model.init: torchvision has no IMAGENET1K_V1 weights of '{name}'; choose another "
            "network, give a file of its weights with model.weights=PATH, or use model.init=random"
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / weights.file_name
    if not path.exists():
        _download(weights, path)
    _check_digest(path, weights, "delete it, and it is downloaded again")
    return path, ""


def _departure(path: Path, weights: PublishedWeights | None) -> str:
    """Difference of a given file from the published content; empty if there is none."""
    found = _sha256(path)
    if weights is None:
        return f"model.weights: {path.name} (SHA-256 {found[:8]}...) is compared with no digest"
    if found.startswith(weights.digest_prefix):
        return ""
    return (
        f"model.weights: {path.name} (SHA-256 {found[:8]}...) is not torchvision's "
        f"{weights.file_name} (SHA-256 {weights.digest_prefix[:8]}...)"
    )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); give a file with model.weights=PATH"
        ) from error


def _check_digest(path: Path, weights: PublishedWeights, mend: str) -> None:
    found = _sha256(path)
    if not found.startswith(weights.digest_prefix):
        raise ConfigError(
            f"{path}: is damaged or not torchvision's file: its SHA-256 should begin with "
            f"{weights.digest_prefix}, but is {found}; {mend}"
        )


def _download(weights: PublishedWeights, path: Path) -> None:
    """Fetch the file; it appears under its name whole, however many processes fetch it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urlopen(weights.url, timeout=TIMEOUT_S) as answer, partial.open("wb") as file:
            shutil.copyfileobj(answer, file, CHUNK_BYTES)
        _check_digest(partial, weights, "run again, or give it with model.weights=PATH")
        partial.replace(path)
    except (OSError, HTTPException) as error:
        raise ConfigError(
            f"model.init: 'imagenet' needs torchvision's file {weights.file_name}, which is not in "
            f"{path.parent} and could not be downloaded from {weights.url} ({error}); put it into "
            "that folder, or say where it is with model.weights=PATH"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def load_weights(module: nn.Module, path: Path, head: str) -> None:
    """Load all weights of a classifier but its last layer's, which is to be replaced.

    ``module`` is as torchvision builds it, and changed in place; the file is a state dict saved by
    ``torch.save``; ``head`` names the last layer.
    """
    state = _read_state(path)
    entries: OrderedDict[str, Tensor] = OrderedDict()
    for key, value in state.items():
        if not key.startswith((f"{head}.", *AUXILIARY)):
            entries[OLD_DENSENET.sub(r"\1\2.", key)] = value
    if hasattr(state, "_metadata"):
        # Versions of layers, by which some networks read their older files.
        cast("Any", entries)._metadata = state._metadata
    try:
        result = module.load_state_dict(entries, strict=False)
    except (RuntimeError, ValueError) as error:
        raise _foreign(path, " ".join(str(error).split())) from error
    missing = [
        key
        for key in result.missing_keys
        if not key.endswith(".num_batches_tracked") and not key.startswith(f"{head}.")
    ]
    if missing or result.unexpected_keys:
        differences = [f"it lacks '{key}'" for key in missing[:2]]
        differences += [f"it has '{key}'" for key in result.unexpected_keys[:2]]
        raise _foreign(path, ", ".join(differences))


def _foreign(path: Path, difference: str) -> ConfigError:
    return ConfigError(
        f"{path}: these are not weights of the network model.name: {difference[:400]}; give the "
        "file of that network, or change model.name"
    )


def _is_whole(value: object) -> bool:
    """Whether a value is a tensor with all of its elements in the file, none of them repeated."""
    return (
        isinstance(value, Tensor)
        and (value.layout, value.device.type) == (torch.strided, "cpu")
        and not value.is_quantized
        and value.nbytes <= value.untyped_storage().nbytes()
    )


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no common class for what a damaged file raises
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise ConfigError(
            f"{path}: cannot be read as a file of weights ({reason}); give a state dict saved by "
            "torch.save, such as torchvision's own file"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and _is_whole(value) for key, value in state.items()
    ):
        raise ConfigError(
            f"{path}: holds no state dict (names of weights, each with a tensor); give one, such "
            "as torchvision's own file"
        )
    odd = [key for key, value in state.items() if not bool(torch.isfinite(value).all())]
    if odd:
        raise ConfigError(f"{path}: the weights '{odd[0]}' are not finite; give a sound file")
    return cast("dict[str, Tensor]", state)
