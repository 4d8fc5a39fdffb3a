"""Words of texts, their numbers, and vectors of them; the package for other tokens.

Vectors come from a file: GloVe's text form, or the JSON that LEAF makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.data import open_store
from pfl_bench.types import DataError
from tasks.common.sources import need_package, open_json, reading

if TYPE_CHECKING:
    from torch import Tensor


PAD_ID, UNKNOWN_ID = 0, 1
SPECIAL = ("<PAD>", "<UNK>")
FIRST_WORD = len(SPECIAL)
_WORD = re.compile(r"[\w']+|[.,!?;]")


def split_words(text: str, lowercase: bool) -> list[str]:
    """Cut a text into words and the marks ``. , ! ? ;``, each of them a word.

    A word is a run of letters, digits, underscores and apostrophes; all else only divides. So
    ``@name`` gives ``name``, an address gives several words, and HTML entities stay undecoded
    (``&lt;`` gives ``lt`` and ``;``).

    LEAF does not make it lower case first.

    Source: Caldas et al. 2018, LEAF, models/utils/language_utils.py (split_line).
    """
    return _WORD.findall(text.lower() if lowercase else text)


def choose_vocabulary(counts: Mapping[str, int], size: int) -> list[str]:
    """Take the commonest words: the word of each of ``size`` numbers, 3 at least.

    Padding and unknown come first, then words from the commonest on; of equally common ones, the
    first by code points; none that never occurs. There are fewer if there are not as many words.
    """
    common = sorted((word for word in counts if counts[word]), key=lambda w: (-counts[w], w))
    return [*SPECIAL, *islice(common, size - len(SPECIAL))]


def to_ids(words: Iterable[str], ids: Mapping[str, int]) -> NDArray[np.uint32]:
    """Number n words, shape (n,); those without a number become ``UNKNOWN_ID``."""
    return np.array([ids.get(word, UNKNOWN_ID) for word in words], dtype=np.uint32)


def import_transformers(task: str, extra: str) -> Any:
    """Import ``transformers`` for a task, or say by which extra it is installed."""
    return need_package("transformers", f"task {task}", f"`pip install 'pfl-bench[{extra}]'`")


def read_words(path: Path) -> list[str]:
    """Read the words of a file, in its order; of one that comes again, only the first.

    The file is GloVe text, or JSON as LEAF's ``embs.json`` (the name ends in ``.json``).
    """
    _check(path)
    is_json = path.suffix == ".json"
    words = _json_words(path) if is_json else (word for word, _ in _lines(path))
    once = list(dict.fromkeys(words))
    if not once:
        raise DataError(f"{path}: holds no word; give {_FORMS}")
    return once


def read_vectors(path: Path, ids: Mapping[str, int], num_rows: int) -> NDArray[np.float32]:
    """Read the vectors of a vocabulary's words; memory grows with the vocabulary, not the file.

    Shape (V, D), zero where the file has no vector. ``path`` is as for ``read_words``; ``ids`` are
    the rows of the words, all below ``num_rows``, V.
    """
    _check(path)
    found = np.zeros(num_rows, dtype=np.bool_)
    values: NDArray[np.float32] | None = None
    for word, vector in _json_vectors(path) if path.suffix == ".json" else _lines(path):
        row = ids.get(word)
        if values is None:
            values = np.zeros((num_rows, len(vector)), dtype=np.float32)
        if row is None or found[row]:
            continue
        try:
            values[row] = np.asarray(vector, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path}: the vector of {word!r} is not made of numbers ({error}); give {_FORMS}"
            ) from error
        if not np.isfinite(values[row]).all():
            raise DataError(f"{path}: the vector of {word!r} has numbers that are not finite")
        found[row] = True
    if values is None or not found.any():
        raise DataError(
            f"{path}: has a vector for none of the vocabulary's words; give the file of the "
            "data's language (GloVe's are lower case: prepare the data with lowercase=true)"
        )
    return values


def read_store_vectors(
    path: Path, store: str, task: str, counts: Callable[[str], bool] = lambda word: True
) -> Tensor:
    """Read the vectors of a store's vocabulary, shape (V, D), float32.

    ``path`` is as for ``read_words``. Words for which ``counts`` says no, padding and the unknown
    are zero.
    """
    import torch

    with open_store(store, task) as opened:
        words = opened.names("vocabulary")
    ids = {word: row for row, word in enumerate(words) if row > UNKNOWN_ID and counts(word)}
    return torch.from_numpy(read_vectors(path, ids, len(words)))


_FORMS = (
    'GloVe\'s text form (a line each: the word, then its numbers) or {"vocab": [...], '
    '"emba": [[...], ...]}, the JSON of LEAF\'s get_embs'
)


def _check(path: Path) -> None:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"embeddings: {path} {what}; give a file in {_FORMS}")


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Words and numbers of GloVe text. A word may have blanks in it, a number may not."""
    width: int | None = None
    number = 0
    with (
        reading(path, what=lambda: f"cannot be read after line {number}"),
        # Lines end at line feeds alone: GloVe has words such as U+0085.
        path.open(encoding="utf-8", newline="\n") as file,
    ):
        for number, line in enumerate(file, 1):
            parts = line.rstrip("\r\n").split(" ")
            width = len(parts) - 1 if width is None else width
            if width < 1 or len(parts) - 1 < width:
                raise DataError(
                    f"{path}, line {number}: {len(parts) - 1} numbers, but the first line has "
                    f"{width}; every line is a word and equally many numbers: is the file cut "
                    "short, or not GloVe's text form?"
                )
            yield " ".join(parts[: len(parts) - width]), parts[len(parts) - width :]


def _json_words(path: Path) -> Iterator[str]:
    for word in _json_items(path, "vocab.item"):
        if not isinstance(word, str):
            raise DataError(f'{path}: "vocab" holds {word!r}, which is not a word')
        yield word


def _json_vectors(path: Path) -> Iterator[tuple[str, list[Any]]]:
    vectors = _json_items(path, "emba.item")
    width: int | None = None
    for word in _json_words(path):
        vector = next(vectors, None)
        width = len(vector) if width is None and isinstance(vector, list) else width
        if not isinstance(vector, list) or len(vector) != width or not width:
            raise DataError(
                f'{path}: "emba" has no vector of {width or "some"} numbers for {word!r} of '
                '"vocab"; the file is cut short or not LEAF\'s'
            )
        yield word, vector


def _json_items(path: Path, prefix: str) -> Iterator[Any]:
    import ijson

    with open_json(path) as file:
        yield from ijson.items(file, prefix, use_float=True)
