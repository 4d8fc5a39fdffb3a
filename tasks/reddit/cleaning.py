"""LEAF's cleaning of comments: which are a bot's, and what becomes of the text of the others.

Source:
    LEAF (Caldas et al. 2018), data/reddit/source: ``get_raw_users.py`` (authors, subreddits),
    ``reddit_utils.py`` (text) and ``clean_raw.py`` (phrases); nothing is corrected here, also
    where LEAF's rules catch more than they mean: "bot" in "both", "mod" in "modernart".
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.common.leaf.gathering import PartitionOptions
from tasks.common.options import StrictOptions
from tasks.common.sources import need_package
from tasks.reddit.sequences import MAX_LENGTH
from tasks.reddit.vocabulary import Rule

URL, USER, SUBREDDIT = "<URL>", "<USER>", "<SUBREDDIT>"
_SPACE = re.compile(r"\s+")
_URL = re.compile(r"http\S+")
_USER = re.compile(r"(?:\/?u\/\w+)")
_SUBREDDIT = re.compile(r"(?:\/?r\/\w+)")

# "authors" and "subreddits", compared without regard to case, and those that have one of
# "words_in_names" anywhere in their names; comments that have one of "phrases" in the cleaned text.
LEFT_OUT = json.loads(Path(__file__).with_name("left_out.json").read_text(encoding="utf-8"))
SUBREDDITS_LEFT_OUT = frozenset(LEFT_OUT["subreddits"])
AUTHORS_LEFT_OUT = frozenset(name.casefold() for name in LEFT_OUT["authors"])
# What stands for an author or a text that is gone, whatever else is kept.
GONE = frozenset(("[deleted]", "[removed]", ""))


class Cleaning(StrictOptions):
    """Options of the cleaning: its steps, in their order.

    Attributes:
        remove_bots: Leave out authors and subreddits on LEAF's lists or with its words in their
            names; deleted authors are left out in any case.
        unescape_html: ``&amp;`` and the like become characters.
        collapse_whitespace: Every run of whitespace becomes one blank.
        ascii_only: Other characters are removed.
        mark_links: What begins with ``http`` becomes ``<URL>``.
        mark_names: ``/u/name`` becomes ``<USER>`` and ``/r/name`` ``<SUBREDDIT>``, with or without
            the first stroke, and also within words, as LEAF does.
        lower_case: Upper case becomes lower case, that of the special tokens too.
        tokenizer: "tweet" is NLTK's TweetTokenizer; "whitespace" only divides at blanks.
        remove_phrases: Leave out comments that have one of LEAF's phrases in them.
        min_tokens: Leave out comments with fewer tokens.
    """

    remove_bots: bool = True
    unescape_html: bool = True
    collapse_whitespace: bool = True
    ascii_only: bool = True
    mark_links: bool = True
    mark_names: bool = True
    lower_case: bool = True
    tokenizer: Literal["tweet", "whitespace"] = "tweet"
    remove_phrases: bool = True
    min_tokens: int = 5


# Options of dumps, which LEAF's JSON has behind it.
DUMP_OPTIONS = (*Cleaning.model_fields, "files", "max_comments")


class Options(PartitionOptions, Cleaning):
    """Options of preparing Reddit, besides those of ``PartitionOptions`` and ``Cleaning``.

    Attributes:
        form: Which form to read; None takes the one that is there.
        files: Which of the folder's files are dumps, such as ``RC_2017-*.zst``; None finds them.
        train_fraction: As in ``PartitionOptions``; 0.6 here. Inside each user the split is in time.
        val_fraction: As in ``PartitionOptions``; 0.2 here.
        min_examples: Users with fewer comments are dropped; 5 for dumps, 0 for LEAF's JSON.
        max_comments: Users with more comments are dropped; None for no limit.
        sequence_length: Tokens of a sequence.
        count_final_padding: Whether the padding after ``<EOS>`` is a target that counts, as LEAF
            has it; it can never be right, as predicted padding is wrong.
        vocabulary: A file with the vocabulary; None makes it of the training comments.
        vocabulary_size: Tokens of one that is made, padding and the unknown among them.
        vocabulary_rule: "paper" fills it, "leaf-code" leaves the last place empty.
    """

    form: Literal["leaf-json", "dump"] | None = None
    files: str | None = None
    train_fraction: float = Field(default=0.6, gt=0, le=1)
    val_fraction: float = Field(default=0.2, ge=0, lt=1)
    min_examples: int = Field(default=5, ge=0)
    max_comments: int | None = Field(default=1000, ge=1)
    min_tokens: int = Field(default=5, ge=1)
    sequence_length: int = Field(default=10, ge=2, le=MAX_LENGTH)
    count_final_padding: bool = True
    vocabulary: str | None = None
    vocabulary_size: int = Field(default=10_000, ge=4, le=1 << 16)
    vocabulary_rule: Rule = "paper"


class Cleaner:
    """Applies the steps; refuses to begin where NLTK is needed and is not installed."""

    def __init__(self, steps: Cleaning) -> None:
        self.steps = steps
        self._tokenize: Callable[[str], list[str]] = str.split
        if steps.tokenizer == "tweet":
            mend = "`pip install nltk`, or choose tokenizer=whitespace, which is not LEAF's"
            casual = need_package("nltk.tokenize.casual", "tokenizer=tweet", mend)
            self._tokenize = casual.TweetTokenizer().tokenize

    def is_left_out(self, author: str, subreddit: str) -> bool:
        """Whether all comments of an author, or all in a subreddit, are left out."""
        if author in GONE:
            return True
        if not self.steps.remove_bots:
            return False
        author, subreddit = author.casefold(), subreddit.casefold()
        return (
            author in AUTHORS_LEFT_OUT
            or subreddit in SUBREDDITS_LEFT_OUT
            or any(word in author or word in subreddit for word in LEFT_OUT["words_in_names"])
        )

    def clean(self, body: str) -> list[str]:
        """Tokens of a cleaned comment, none with whitespace in it; [] if it is to be left out."""
        if body.strip() in GONE:
            return []
        steps = self.steps
        text = html.unescape(body) if steps.unescape_html else body
        if steps.collapse_whitespace:
            text = _SPACE.sub(" ", text).strip()
        if steps.ascii_only:
            text = text.encode("ascii", errors="ignore").decode()
        else:
            # Half a pair of surrogates, which JSON can hold, is no character.
            text = text.encode(errors="ignore").decode()
        if steps.mark_links:
            text = _URL.sub(URL, text)
        if steps.mark_names:
            text = _SUBREDDIT.sub(SUBREDDIT, _USER.sub(USER, text))
        if steps.lower_case:
            text = text.casefold()
        # Some tokens of the tokenizer have blanks in them (phone numbers): LEAF joins all and
        # divides at blanks again.
        text = " ".join(self._tokenize(text))
        if steps.remove_phrases and any(phrase in text for phrase in LEFT_OUT["phrases"]):
            return []
        tokens = text.split()
        return tokens if len(tokens) >= max(1, steps.min_tokens) else []


def tokenizer_name(steps: Cleaning) -> str:
    """Name and version of the tokenizer, for the store's facts."""
    if steps.tokenizer == "whitespace":
        return "whitespace"
    import nltk

    return f"nltk {nltk.__version__} TweetTokenizer"
