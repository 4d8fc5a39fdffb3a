"""From text to token numbers: by the tokenizer of a checkpoint, or by the commonest words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pfl_bench.types import ConfigError, DataError
from tasks.common.text.transformers_package import import_transformers
from tasks.common.text.words import choose_vocabulary, split_words
from tasks.reddit_albert.masking import FIRST_WORD, SPECIAL, UNKNOWN_ID

FILES = ("tokenizer.json", "spiece.model")


class Words:
    """The commonest words of the training texts, in small letters; all others are unknown.

    The ``size`` counts the special tokens too.
    """

    def __init__(self, counts: Counter[str], size: int) -> None:
        # Its own two special ones are the first of ours.
        words = choose_vocabulary(counts, size - FIRST_WORD + 2)[2:]
        self.vocabulary = [*SPECIAL, *words]
        self._ids = {word: FIRST_WORD + place for place, word in enumerate(words)}
        self.facts: Mapping[str, Any] = {"tokenizer": "commonest words of train"}

    def __call__(self, text: str) -> list[int]:
        """Numbers of a text's words."""
        return [self._ids.get(word, UNKNOWN_ID) for word in split_words(text, lowercase=True)]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Number of occurrences of each word."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text, lowercase=True))
    return counts


class Pieces:
    """ALBERT's own tokenizer, of a folder with one of ``FILES``, as albert-base-v2 is published.

    ``transformers``, or ``sentencepiece`` for its model, that is not installed is a ConfigError;
    files that are missing, damaged, or of another model are a DataError.
    """

    def __init__(self, folder: Path) -> None:
        if not any((folder / name).is_file() for name in FILES):
            raise DataError(
                f"tokenizer={folder}: must be a folder with {' or '.join(FILES)}, such as a copy "
                "of albert-base-v2; nothing is downloaded"
            )
        transformers = import_transformers("reddit_albert", "albert")
        if not (folder / FILES[0]).is_file():
            _need_sentencepiece()
        try:
            self._tokenizer = transformers.AlbertTokenizer.from_pretrained(
                folder, local_files_only=True
            )
        # What a damaged file raises is the choice of whichever library reads it.
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"tokenizer={folder}: cannot be loaded ({reason})") from error
        size = len(self._tokenizer)
        self.vocabulary: list[str] = self._tokenizer.convert_ids_to_tokens(list(range(size)))
        first = tuple(self.vocabulary[:FIRST_WORD])
        if first != SPECIAL or size == FIRST_WORD:
            raise DataError(
                f"tokenizer={folder}: its first tokens are {', '.join(map(str, first))} of {size}, "
                f"but ALBERT's are {', '.join(SPECIAL)} and then words; give ALBERT's tokenizer"
            )
        self.facts: Mapping[str, Any] = {
            "tokenizer": folder.name,
            "transformers": transformers.__version__,
        }

    def __call__(self, text: str) -> list[int]:
        """Numbers of a text's pieces."""
        # Of texts longer than the model takes, it would warn.
        found = self._tokenizer(text, add_special_tokens=False, verbose=False)
        return list(found["input_ids"])


# Has the token of each number (``SPECIAL`` first), and facts for the store.
Tokenizer = Words | Pieces


def _need_sentencepiece() -> None:
    # Without it, transformers takes the model for one of another library.
    try:
        import sentencepiece  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"tokenizer: {FILES[1]} needs the package sentencepiece, which is not there ({error}); "
            f"`pip install 'pfl-bench[albert]'`, or put {FILES[0]} beside it"
        ) from error
