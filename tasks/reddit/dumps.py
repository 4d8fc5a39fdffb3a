"""Raw comment dumps, a JSON object a line, as it is or compressed: read, cleaned, counted, split.

Users and their comments come out as LEAF makes them, split in time.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pfl_bench.data import parse_json, regular
from pfl_bench.types import ConfigError, DataError, Progress
from tasks.common.leaf.gathering import UNSPLIT, Gathering
from tasks.common.leaf.json_files import find_files
from tasks.common.sources import need_package, reading
from tasks.reddit.buckets import AuthorBuckets, Cleaned
from tasks.reddit.cleaning import Cleaner, Cleaning, Options, tokenizer_name
from tasks.reddit.sequences import Waiting, comment_columns, cut, pack_tokens

SUFFIXES = (".json", ".jsonl", ".ndjson")
# Of any content; that of .gz must have a suffix of its own.
PACKED = (".bz2", ".xz", ".zst")
LOOKED_FOR = (
    "raw comment dumps, a JSON object a line: RC_* (such as RC_2017-12.xz), *.json, *.jsonl or "
    "*.ndjson, as they are or with .gz, .bz2, .xz or .zst; or *.zst, *.bz2, *.xz"
)
# Of published dumps the newer ones need this much to be unpacked.
_WINDOW = 1 << 31
_CHUNK = 1 << 20
# A comment has at most 10,000 characters; a line this long is no comment.
_LONGEST_LINE = 16 << 20
_KEYS = ("author", "body", "subreddit", "created_utc")


@dataclass(frozen=True, slots=True)
class Comment:
    """Needed parts of one comment; ``created`` is in seconds since 1970, UTC."""

    author: str
    body: str
    subreddit: str
    created: int
    identifier: str | None


def find_dumps(source: Path, pattern: str | None) -> list[Path]:
    """Find the dumps of a folder, sorted by name; [] if there are none.

    The ``pattern`` says which (``RC_2017-*.zst``); None takes those with a dump's name (``RC_*``),
    or without any such all with a fitting suffix. Where LEAF's JSON is, ``.json`` is not one:
    LEAF's own files end so, and those that lie beside them.
    """
    files = sorted(path for path in source.glob(pattern or "*") if not path.is_dir())
    if pattern is not None:
        return files
    named = [path for path in files if path.name.startswith("RC_")]
    plain = SUFFIXES[1:] if find_files(source) else SUFFIXES
    ends = (*PACKED, *plain, *(f"{suffix}.gz" for suffix in SUFFIXES))
    return named or [path for path in files if path.name.endswith(ends)]


def read_comments(
    path: Path, tell_position: Callable[[int], None] = lambda position: None
) -> Iterator[Comment | str]:
    """Read a dump, a line in memory at a time; now and then tell the bytes that were read.

    Of an object that is no whole comment a text says what it lacks and in which line. A file that
    is cut or damaged, or a line that is not JSON, is a DataError that names file and line.
    """
    with regular(path).open("rb") as file:
        for number, line in _lines(path, file):
            if number % 1000 == 0:
                tell_position(file.tell())
            try:
                found = parse_json(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise DataError(
                    f"{path}, line {number}: not JSON ({str(error)[:100]}); a dump has a comment a "
                    "line, a JSON object each. If this is the last line, the file is cut: get it "
                    "anew"
                ) from error
            except ValueError as error:  # JSON, but of values that nobody can use
                yield f"line {number}: {error}"
                continue
            yield _comment(found, number)
        tell_position(file.tell())


def _comment(found: Any, number: int) -> Comment | str:
    if not isinstance(found, dict):
        return f"line {number}: no JSON object"
    lacking = [key for key in _KEYS if found.get(key) is None]
    if lacking:
        return f"line {number}: lacks {', '.join(lacking)}"
    author, body, subreddit, created = (found[key] for key in _KEYS)
    for key, value in (("author", author), ("body", body), ("subreddit", subreddit)):
        if not isinstance(value, str):
            return f"line {number}: {key} is no text"
    if not (_is_name(author) and _is_name(subreddit)):
        return f"line {number}: author or subreddit is empty or not valid Unicode"
    try:
        seconds = to_seconds(created)
    except ValueError:
        return f"line {number}: created_utc is {str(created)[:40]!r}, no whole number of seconds"
    identifier = found.get("id")
    return Comment(
        author, body, subreddit, seconds, None if identifier is None else str(identifier)
    )


def to_seconds(value: Any) -> int:
    """Whole seconds since 1970 of ``created_utc``, a number or text, or a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not whole")
    seconds = int(value)
    if abs(seconds) >= 1 << 62:
        raise ValueError("too large")
    return seconds


def _is_name(text: str) -> bool:
    try:
        return bool(text.encode()) and "\0" not in text
    except UnicodeEncodeError:
        return False


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers from 1."""
    number = held = 0
    pieces: list[bytes] = []  # of the line that has no end yet
    with reading(path, what=lambda: f"cannot be read after line {number}"):
        for chunk in _content(path, file):
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*pieces, lines[0]])
                pieces, held = [], 0
            pieces.append(rest)
            held += len(rest)
            for line in lines:
                number += 1
                if line.strip():
                    yield number, line
            if held > _LONGEST_LINE:
                raise DataError(
                    f"{path}, line {number + 1}: longer than {_LONGEST_LINE >> 20} MiB, so no "
                    f"comment. Looked for: {LOOKED_FOR}"
                )
    rest = b"".join(pieces)
    if rest.strip():
        yield number + 1, rest


def _content(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """The unpacked content, piece by piece."""
    if path.suffix == ".zst":
        yield from _unzstd(path, file)
        return
    unpack: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    stream: Any = unpack[path.suffix](file) if path.suffix in unpack else file
    # One read at a time: what a cut file holds before its end is given before the error.
    while chunk := stream.read1(_CHUNK):
        yield chunk


def _unzstd(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    mend = "`pip install zstandard`, or unpack the file by `zstd -d --long=31` and give that"
    zstandard = need_package("zstandard", f"{path}: reading .zst", mend)
    # The stream reader of the package takes a cut file for a whole one; this tells them apart.
    frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    frame: Any = None
    try:
        while chunk := file.read(_CHUNK >> 3):
            while chunk:
                frame = frame or frames.decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data
                if frame.eof:
                    frame = None
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error
    if frame is not None:
        raise EOFError("the last zstd frame has no end")


_SHOWN = 3


def gather(
    paths: Sequence[Path],
    options: Options,
    gathering: Gathering,
    subreddits: dict[str, int],
    progress: Progress,
) -> dict[str, Any]:
    """Clean dumps and gather their comments by author; without the authors who have too many.

    A comment that is in two dumps (by its "id") is taken once. ``subreddits``, the number of each,
    grows. Returns facts for the store: what was read, and what became of it.
    """
    if options.max_comments is not None and options.max_comments < options.min_examples:
        raise ConfigError(
            f"max_comments {options.max_comments} is below min_examples {options.min_examples}, so "
            "that no user could be kept; raise max_comments or lower min_examples"
        )
    cleaner = Cleaner(options)
    facts: Counter[str] = Counter()
    incomplete: list[str] = []
    total, done = sum(path.stat().st_size for path in paths), 0
    with AuthorBuckets(gathering.path.absolute().parent) as buckets:
        numbers: dict[str, int] = {}
        for path in paths:

            def tell(position: int, before: int = done) -> None:
                progress("reading dumps (bytes)", before + position, total)

            incomplete += _clean_dump(path, cleaner, buckets, numbers, facts, tell)
            done += path.stat().st_size
        _keep(buckets, list(numbers), options, gathering, subreddits, facts)
    if not gathering.splits:
        counts = ", ".join(f"{name}: {count}" for name, count in facts.items())
        raise DataError(
            f"{paths[0].parent}: no comment is left ({counts}); lower min_tokens, raise "
            "max_comments, or give more dumps"
        )
    return {
        "files": [path.name for path in paths],
        **facts,
        "incomplete_comments": {"count": facts["incomplete_comments"], "first": incomplete},
        "max_comments": options.max_comments,
        "cleaning": {name: getattr(options, name) for name in Cleaning.model_fields},
        "tokenizer": tokenizer_name(options),
    }


def _clean_dump(
    path: Path,
    cleaner: Cleaner,
    buckets: AuthorBuckets,
    numbers: dict[str, int],
    facts: Counter[str],
    tell: Callable[[int], None],
) -> list[str]:
    """Clean a dump's comments; returns the first of those that lack something."""
    incomplete: list[str] = []
    whole = 0
    for comment in read_comments(path, tell):
        if isinstance(comment, str):
            facts["incomplete_comments"] += 1
            incomplete.append(f"{path.name}, {comment}")
            del incomplete[_SHOWN:]
            continue
        whole += 1
        if cleaner.is_left_out(comment.author, comment.subreddit):
            facts["comments_of_left_out_authors_or_subreddits"] += 1
            continue
        tokens = cleaner.clean(comment.body)
        if not tokens:
            facts["comments_left_out_by_text"] += 1
            continue
        number = numbers.setdefault(comment.subreddit, len(numbers))
        text = " ".join(tokens)
        buckets.add(comment.author, Cleaned(comment.created, number, comment.identifier, text))
    facts["comments_read"] += whole
    if not whole:
        what = f"no comment; the first thing in it: {incomplete[0]}" if incomplete else "empty"
        raise DataError(f"{path}: {what}. Looked for: {LOOKED_FOR}")
    return incomplete


def _keep(
    buckets: AuthorBuckets,
    names: Sequence[str],
    options: Options,
    gathering: Gathering,
    subreddits: dict[str, int],
    facts: Counter[str],
) -> None:
    """Gather the comments of the authors who have not too many."""
    for author, comments, repeated in buckets.authors():
        facts["repeated_comments"] += repeated
        if options.max_comments is not None and len(comments) > options.max_comments:
            facts["users_with_too_many_comments"] += 1
            continue
        for split, part in _split(comments, options):
            waiting: list[Waiting] = []
            for comment in part:
                tokens, mask = cut(comment.text.split(" "), options.sequence_length)
                text = pack_tokens(tokens, f"author {author!r}")
                number = subreddits.setdefault(names[comment.subreddit], len(subreddits))
                waiting.append((text, mask, comment.created, number))
            gathering.append(split, author, **comment_columns(waiting))


def _split(comments: list[Cleaned], options: Options) -> Iterator[tuple[str, list[Cleaned]]]:
    """Divide a user's comments in time, at the places where LEAF does; no part is empty."""
    if options.split_by == "user":
        yield UNSPLIT, comments
        return
    first = max(1, int(options.train_fraction * len(comments)))
    # A hair above the product: 0.6 + 0.3 is a little less than 0.9 in binary.
    second = int((options.train_fraction + options.val_fraction) * len(comments) + 1e-9)
    second = max(first, second)
    parts = {"train": comments[:first], "val": comments[first:second], "test": comments[second:]}
    yield from ((name, part) for name, part in parts.items() if part)
