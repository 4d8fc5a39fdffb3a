"""Turn a text file a client, as FedScale publishes Reddit, into a store of blocks of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pfl_bench.data import FieldSpec, regular
from pfl_bench.types import DataError, Progress
from tasks.common.fedscale.layout import SPELLINGS
from tasks.common.leaf.gathering import UNSPLIT, Gathering, PartitionOptions, write_partition
from tasks.common.options import refuse
from tasks.common.sources import (
    GENERATED_FACTS,
    GENERATED_MARK,
    is_generated,
    need_package,
    reading,
    reason,
)
from tasks.common.text.words import choose_vocabulary, import_transformers, split_words
from tasks.reddit_albert.models import MOST_POSITIONS
from tasks.reddit_albert.task import END_ID, FIRST_WORD, PAD_ID, SPECIAL, START_ID, UNKNOWN_ID

_FILES = ("tokenizer.json", "spiece.model")


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


class Pieces:
    """ALBERT's own tokenizer, of a folder with one of ``_FILES``, as albert-base-v2 is published.

    ``transformers``, or ``sentencepiece`` for its model, that is not installed is a ConfigError;
    files that are missing, damaged, or of another model are a DataError.
    """

    def __init__(self, folder: Path) -> None:
        if not any((folder / name).is_file() for name in _FILES):
            raise DataError(
                f"tokenizer={folder}: must be a folder with {' or '.join(_FILES)}, such as a copy "
                "of albert-base-v2; nothing is downloaded"
            )
        transformers = import_transformers("reddit_albert", "albert")
        if not (folder / _FILES[0]).is_file():
            # Without it, transformers takes the model for one of another library.
            mend = f"`pip install 'pfl-bench[albert]'`, or put {_FILES[0]} beside it"
            need_package("sentencepiece", f"tokenizer: {_FILES[1]}", mend)
        try:
            self._tokenizer = transformers.AlbertTokenizer.from_pretrained(
                folder, local_files_only=True
            )
        # What a damaged file raises is the choice of whichever library reads it.
        except Exception as error:
            raise DataError(f"tokenizer={folder}: cannot be loaded ({reason(error)})") from error
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


SOURCE = "Reddit comments, a text file a client as FedScale has them"
GENERATED = "made-up comments in FedScale's form, not Reddit"
# The store keeps tokens in 16 bits.
MOST_TOKENS = 1 << 16


class Options(PartitionOptions):
    """Options of preparing Reddit for ALBERT, beside those of partitioning.

    Attributes:
        tokenizer: Folder with ALBERT's ``tokenizer.json`` or ``spiece.model``; None takes the
            commonest words of train.
        vocabulary_size: Tokens of the latter, five special ones among them.
        block_size: Tokens of a block, the ones that begin and end it among them.
    """

    tokenizer: str | None = None
    vocabulary_size: int = Field(default=30_000, ge=6, le=MOST_TOKENS)
    block_size: int = Field(default=64, ge=3, le=MOST_POSITIONS)


class _Text(NamedTuple):
    """A client's text of a split."""

    split: str
    client_id: str
    path: Path


def prepare(source: Path, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Read a folder of text files and write a store; see ``tasks``.

    A client's text is cut into blocks of ``[CLS]``, ``block_size`` - 2 tokens and ``[SEP]``; what
    is left at its end is dropped, as in FedScale. Memory grows with the clients, the different
    words, and the largest client's text.

    ``source`` is a folder with ``train/`` (and ``val/``, ``test/``) of text files, each a client's
    and named like the client; or one with the files themselves, which are then split here.
    """
    texts = _find(source)
    tokenizer = _choose(texts, options)
    if len(tokenizer.vocabulary) > MOST_TOKENS:
        raise DataError(
            f"tokenizer={options.tokenizer}: {len(tokenizer.vocabulary)} tokens, and the store has "
            f"room for the numbers of {MOST_TOKENS}; ALBERT's has 30,000"
        )
    fields = {"tokens": FieldSpec("uint16", (options.block_size,)), "block": FieldSpec("uint32")}
    with Gathering(out, fields) as gathering:
        counts = _gather(texts, tokenizer, options.block_size, gathering, progress)
        if not gathering.splits:
            raise DataError(
                f"{source}: no client has the {options.block_size - 2} tokens of a block; give "
                "longer texts or a smaller block_size"
            )
        partition = gathering.partition(options, published_as=gathering.published_as())
        generated = is_generated(source)
        extra: dict[str, Any] = {
            "pad_id": PAD_ID,
            "unk_id": UNKNOWN_ID,
            "block_size": options.block_size,
            "vocabulary_size": len(tokenizer.vocabulary),
            "counts": counts,
            **tokenizer.facts,
            **(GENERATED_FACTS if generated else {}),
        }
        return write_partition(
            out,
            partition,
            progress,
            task="reddit_albert",
            variant="generated" if generated else "fedscale-text",
            source=GENERATED if generated else SOURCE,
            num_classes=len(tokenizer.vocabulary),
            input_shape=(options.block_size,),
            fields=fields,
            extra=extra,
            names={"vocabulary": tokenizer.vocabulary},
        )


def _gather(
    texts: list[_Text],
    tokenizer: Tokenizer,
    block_size: int,
    gathering: Gathering,
    progress: Progress,
) -> dict[str, int]:
    """Gather the clients' blocks; returns counts of tokens and of what was left out."""
    counts = {"tokens": 0, "unknown": 0, "dropped_at_ends": 0, "clients_without_a_block": 0}
    for done, text in enumerate(texts, 1):
        numbers = np.array(tokenizer(_read(text.path)), dtype=np.int64)
        blocks = cut(numbers, block_size)
        counts["tokens"] += len(numbers)
        counts["unknown"] += int((numbers == UNKNOWN_ID).sum())
        counts["dropped_at_ends"] += len(numbers) - len(blocks) * (block_size - 2)
        counts["clients_without_a_block"] += not len(blocks)
        if len(blocks):
            places = np.arange(len(blocks), dtype=np.uint32)
            gathering.append(text.split, text.client_id, tokens=blocks, block=places)
        progress("reading clients", done, len(texts))
    return counts


def cut(numbers: NDArray[np.int64], block_size: int) -> NDArray[np.uint16]:
    """Cut a client's tokens, shape (t,), into full blocks, without what is left at the end.

    Their shape is (t // (L - 2), L), each row from ``[CLS]`` to ``[SEP]``; L is at least 3.
    """
    inside = block_size - 2
    full = len(numbers) // inside
    blocks = np.empty((full, block_size), dtype=np.uint16)
    blocks[:, 0], blocks[:, -1] = START_ID, END_ID
    blocks[:, 1:-1] = numbers[: full * inside].reshape(full, inside)
    return blocks


def _find(source: Path) -> list[_Text]:
    """The text files of all splits, by split and name; hidden files are passed over."""
    folders = {
        split: source / name
        for split, names in SPELLINGS.items()
        for name in names
        if (source / name).is_dir()
    }
    if folders and "train" not in folders:
        raise DataError(f"{source} has {', '.join(folders)} but no folder train/; add it")
    found = [
        _Text(split, path.stem, path)
        for split, folder in (folders or {UNSPLIT: source}).items()
        for path in sorted(folder.iterdir())
        if not path.is_dir() and not path.name.startswith(".") and path.name != GENERATED_MARK
    ]
    if not any(text.split in ("train", UNSPLIT) for text in found):
        raise DataError(
            f"{source} has no text file a client, in train/ (and val/, test/) as FedScale has "
            "Reddit, or in the folder itself; --source takes the folder that holds them"
        )
    return found


def _choose(texts: list[_Text], options: Options) -> Tokenizer:
    if options.tokenizer is not None:
        why = "is for the commonest words, and tokenizer has a vocabulary of its own"
        refuse(options.given("vocabulary_size"), f"{why}; give one of them")
        return Pieces(Path(options.tokenizer))
    counts: Counter[str] = Counter()
    for text in texts:
        if text.split in ("train", UNSPLIT):
            counts.update(split_words(_read(text.path), lowercase=True))
    words = Words(counts, options.vocabulary_size)
    if len(words.vocabulary) == FIRST_WORD:
        raise DataError("the texts of train have no word; give texts that do")
    return words


def _read(path: Path) -> str:
    with reading(path, mend="convert it, or remove what is no client's text"):
        return regular(path).read_text(encoding="utf-8")
