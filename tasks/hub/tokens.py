"""From text to token numbers by a tokenizer of the package ``transformers``; never fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfl_bench.types import ConfigError, DataError
from tasks.common.text.transformers_package import import_transformers

# Of a tokenizer's files.
_ENDINGS = (".json", ".model", ".txt")


class Tokens:
    """The first tokens of texts, ``width`` with special ones, by the tokenizer of a folder.

    It may be a name of the Hub that is in the Hub's cache. ``facts`` say what the tokenizer was.
    """

    def __init__(self, name: str, width: int) -> None:
        transformers = import_transformers("hub", "transformers")
        from huggingface_hub import snapshot_download

        try:
            is_here = Path(name).is_dir()
            folder = Path(name if is_here else snapshot_download(name, local_files_only=True))
            # Code in the folder is not run.
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            files = [path for path in sorted(folder.iterdir()) if path.suffix in _ENDINGS]
            contents = [[path.name, hashlib.sha256(path.read_bytes()).digest()] for path in files]
        # What a damaged file raises is the choice of whichever library reads it.
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"tokenizer={name}: cannot be loaded ({reason}); nothing is downloaded: name a "
                "folder with a tokenizer's files, or get them by `hf download NAME`"
            ) from error
        if self._tokenizer.pad_token_id is None:
            raise DataError(
                f"tokenizer={name}: has no padding; set pad_token in its tokenizer_config.json"
            )
        if width <= (special := self._tokenizer.num_special_tokens_to_add()):
            raise ConfigError(f"max_words: {width}, but the tokenizer alone adds {special} tokens")
        self._width = width
        self.facts = {
            "from": "tokenizer",
            "tokenizer": folder.resolve().name if is_here else name,
            "files": f"sha256:{hashlib.sha256(repr(contents).encode()).hexdigest()}",
            "size": max(self._tokenizer.get_vocab().values()) + 1,
            "pad_id": self._tokenizer.pad_token_id,
        }

    def __call__(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Numbers of n texts, shape (n, width), padded at their ends."""
        options = {"padding": "max_length", "padding_side": "right", "truncation": True}
        found = self._tokenizer(list(texts), max_length=self._width, **options)
        return np.array(found["input_ids"], np.uint32)
