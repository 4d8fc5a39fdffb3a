"""The vocabulary: counted in the training comments, or given by a file."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Literal

from pfl_bench.data import parse_json
from pfl_bench.types import DataError
from tasks.reddit.sequences import PAD, PAD_ID, UNK, UNK_ID

Rule = Literal["paper", "leaf-code"]
_PICKLES = (".pck", ".pkl", ".pickle", ".p")
# Runs that are merged into one when there are so many: each holds a file open.
_MOST_RUNS = 64


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by number (0 is padding, 1 the unknown), and facts of where they come from."""

    tokens: Sequence[str]
    facts: Mapping[str, Any]

    def ids(self) -> dict[str, int]:
        """Number of each token."""
        return {token: number for number, token in enumerate(self.tokens)}


def cannot_write(folder: Path, error: OSError) -> DataError:
    """The refusal where temporary data cannot be written."""
    return DataError(
        f"cannot write temporary data into {folder} ({error.strerror}): the output's folder must "
        "exist, be writable and have room for about the size of the unpacked comments' text, three "
        "times; free space or choose another one by --out"
    )


class TokenCounter:
    """Counts tokens exactly, in bounded memory; a context manager.

    When ``most_in_memory`` distinct tokens have come (two million take about 250 MB), they are
    written, sorted, to a temporary file without a name in ``folder``, and counting begins anew; the
    sorted runs are merged at the end.
    """

    def __init__(self, folder: Path, most_in_memory: int = 2_000_000) -> None:
        self._folder = folder
        self._most = most_in_memory
        self._counts: Counter[str] = Counter()
        self._runs: list[IO[str]] = []

    def __enter__(self) -> TokenCounter:
        return self

    def __exit__(self, *exception: object) -> None:
        for run in self._runs:
            run.close()

    def update(self, tokens: Sequence[str]) -> None:
        """Count tokens, none with a line feed in it; padding and the unknown are left out."""
        self._counts.update(tokens)
        for special in (PAD, UNK):
            self._counts.pop(special, None)
        if len(self._counts) >= self._most:
            self._spill(sorted(self._counts.items()))
            self._counts.clear()
            if len(self._runs) >= _MOST_RUNS:
                runs, self._runs = self._runs, []
                self._spill(_merged([_read(run) for run in runs]))
                for run in runs:
                    run.close()

    def _spill(self, pairs: Iterable[tuple[str, int]]) -> None:
        try:
            run = tempfile.TemporaryFile("w+", dir=self._folder, encoding="utf-8", newline="\n")  # noqa: SIM115
            self._runs.append(run)
            run.writelines(f"{count} {token}\n" for token, count in pairs)
            run.flush()
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def most_common(self, number: int) -> tuple[list[str], dict[str, int]]:
        """The ``number`` commonest tokens at most (ties by characters), and counts as facts."""
        sources = [*(_read(run) for run in self._runs), iter(sorted(self._counts.items()))]
        distinct = total = 0

        def ranked() -> Iterator[tuple[int, str]]:
            nonlocal distinct, total
            for token, count in _merged(sources):
                distinct += 1
                total += count
                yield -count, token

        best = heapq.nsmallest(number, ranked())
        facts = {
            "distinct_tokens": distinct,
            "counted_tokens": total,
            "tokens_in_vocabulary": -sum(count for count, _ in best),
        }
        return [token for _, token in best], facts


def _read(run: IO[str]) -> Iterator[tuple[str, int]]:
    run.seek(0)
    for line in run:
        count, _, token = line.rstrip("\n").partition(" ")
        yield token, int(count)


def _merged(sources: Sequence[Iterator[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    for token, pairs in groupby(heapq.merge(*sources), key=lambda pair: pair[0]):
        yield token, sum(count for _, count in pairs)


def counted_vocabulary(counter: TokenCounter, size: int, rule: Rule) -> Vocabulary:
    """Take the commonest tokens of the training comments, at most ``size`` with the special ones.

    The rule "paper" fills all places; "leaf-code" leaves the last one empty, as LEAF's code does,
    which spends one place on padding twice. ``<BOS>`` and ``<EOS>`` are counted among the inputs.

    Source: LEAF's data/reddit/build_vocab.py, for the order too.
    """
    words, facts = counter.most_common(size - (3 if rule == "leaf-code" else 2))
    if not words:
        raise DataError(
            f"the training comments have no token but {PAD} and {UNK}, so there is no vocabulary; "
            "get the files anew, or give a vocabulary by vocabulary=FILE"
        )
    tokens = [PAD, UNK, *words]
    if rule == "leaf-code" and len(tokens) == size - 1:
        tokens.append(_unused(size - 1))
    return Vocabulary(tokens, {"from": "train", "size": len(tokens), "rule": rule, **facts})


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary from a file; a pickle, or anything else than what follows, is refused.

    ``*.json`` has LEAF's object, ``{"vocab": {token: number}, "size", "pad_symbol",
    "unk_symbol"}``, or a list of tokens; a text file has one token a line. In the two latter,
    padding and the unknown are put first and may be left out.
    """
    if not path.is_file():
        raise DataError(f"vocabulary={path}: there is no such file; give a .json or text file")
    with path.open("rb") as file:
        first = file.read(1)
    if first == b"\x80" or path.suffix in _PICKLES:
        raise DataError(
            f"vocabulary={path}: is a pickle, and reading one runs whatever code is in it. If you "
            'trust where it comes from, convert it once: python -c "import json, pickle, sys; '
            f"json.dump(pickle.load(open(sys.argv[1], 'rb')), open('vocabulary.json', 'w'))\" "
            f"{path}, and give vocabulary=vocabulary.json"
        )
    try:
        text = path.read_text(encoding="utf-8")
        content = parse_json(text) if path.suffix == ".json" else text.split("\n")
    except ValueError as error:
        raise DataError(
            f"vocabulary={path}: is neither JSON (a name that ends in .json) nor text in UTF-8, "
            f"one token a line ({error})"
        ) from error
    tokens = _leaf_tokens(content, path) if isinstance(content, dict) else _listed(content, path)
    if set(tokens) <= {PAD, UNK}:
        raise DataError(f"vocabulary={path}: has no token; give a file with one or more")
    return Vocabulary(tokens, {"from": path.name, "size": len(tokens)})


def _listed(content: Any, path: Path) -> list[str]:
    if not isinstance(content, list) or not all(isinstance(token, str) for token in content):
        raise DataError(f"vocabulary={path}: must be LEAF's JSON object or a list of tokens")
    words = [token.strip() for token in content]
    words = [word for word in words if word not in ("", PAD, UNK)]
    _check([(word, number) for number, word in enumerate(words)], path)
    return [PAD, UNK, *words]


def _leaf_tokens(content: dict[str, Any], path: Path) -> list[str]:
    numbers = content.get("vocab")
    if not isinstance(numbers, dict) or not all(type(n) is int for n in numbers.values()):
        raise DataError(
            f"vocabulary={path}: has no object 'vocab' of tokens and their numbers, as LEAF's has"
        )
    size = content.get("size", max(numbers.values(), default=0) + 1)
    for token, key, expected in ((PAD, "pad_symbol", PAD_ID), (UNK, "unk_symbol", UNK_ID)):
        found = numbers.get(token, content.get(key))
        if found != expected or content.get(key, expected) != expected:
            raise DataError(
                f"vocabulary={path}: {token} has the number {found}; it must be {expected}, as in "
                "LEAF's vocabulary"
            )
    numbers = {PAD: PAD_ID, UNK: UNK_ID, **numbers}
    _check(list(numbers.items()), path)
    if type(size) is not int or max(numbers.values()) >= size or min(numbers.values()) < 0:
        raise DataError(
            f"vocabulary={path}: 'size' is {size}, but its numbers reach from "
            f"{min(numbers.values())} to {max(numbers.values())}; they must be 0 to size - 1"
        )
    tokens = [_unused(number) for number in range(size)]
    for token, number in numbers.items():
        tokens[number] = token
    return tokens


def _check(pairs: list[tuple[str, int]], path: Path) -> None:
    words: dict[str, int] = {}
    tokens: dict[int, str] = {}
    for token, number in pairs:
        if token in words or number in tokens:
            other = tokens.get(number, token)
            raise DataError(
                f"vocabulary={path}: {token!r} (number {number}) and {other!r} clash: a token has "
                "one number, and a number one token"
            )
        words[token] = number
        tokens[number] = token


def _unused(number: int) -> str:
    # A name of its own for a place that no token has: no text can contain it, it has a blank.
    return f"<UNUSED {number}>"
