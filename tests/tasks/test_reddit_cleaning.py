"""LEAF's cleaning: golden cases, each worked out by hand from LEAF's rules."""

from __future__ import annotations

import sys

import pytest

from pfl_bench.types import ConfigError
from tasks.reddit.cleaning import AUTHORS_LEFT_OUT, Cleaner, Cleaning

SPACES = Cleaning(tokenizer="whitespace", min_tokens=1)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ("Tom &amp; Jerry &gt; all", "tom & jerry > all"),
        ("one\n\n two\tthree   four ", "one two three four"),
        ("caf\u00e9 na\u00efve \U0001f600 x", "caf nave x"),
        ("see http://a.example/b?c=1 and https://d.example now", "see <url> and <url> now"),
        ("thanks /u/Some_One and u/other", "thanks <user> and <user>"),
        ("go to /r/Python or r/rust", "go to <subreddit> or <subreddit>"),
        # LEAF's patterns have no word boundary: these are its own results, not wishes.
        ("you/me and her/him", "yo<user> and he<subreddit>"),
        ("LOUD Words", "loud words"),
        ("half \ud83d a pair", "half a pair"),
    ],
)
def test_text_is_cleaned_as_leaf_does(body: str, tokens: str) -> None:
    assert " ".join(Cleaner(SPACES).clean(body)) == tokens


@pytest.mark.parametrize(
    "body",
    [
        "[deleted]",
        " [removed] ",
        "",
        "\u65e5\u672c",
        "i am a bot and did this",
        "both of them",  # LEAF's phrase "bot" is looked for anywhere
        "Thank you for your submission to us",
    ],
)
def test_comments_that_are_gone_or_a_bots_are_left_out(body: str) -> None:
    assert Cleaner(SPACES).clean(body) == []


def test_each_step_can_be_left_out() -> None:
    body = "Both &amp; caf\u00e9 /u/Me http://x.example"

    def cleaned(**changes: object) -> str:
        steps = SPACES.model_copy(update={"remove_phrases": False, **changes})
        return " ".join(Cleaner(steps).clean(body))

    assert cleaned() == "both & caf <user> <url>"
    assert cleaned(unescape_html=False) == "both &amp; caf <user> <url>"
    assert cleaned(ascii_only=False) == "both & caf\u00e9 <user> <url>"
    assert cleaned(mark_names=False) == "both & caf /u/me <url>"
    assert cleaned(mark_links=False) == "both & caf <user> http://x.example"
    assert cleaned(lower_case=False) == "Both & caf <USER> <URL>"
    assert Cleaner(SPACES).clean(body) == []
    assert cleaned(min_tokens=6) == ""


@pytest.mark.parametrize(
    ("author", "subreddit", "left_out"),
    [
        ("someone", "python", False),
        ("[deleted]", "python", True),
        ("AutoModerator", "python", True),
        ("helpful_Bot_7", "python", True),
        ("someone", "AskReddit", True),
        ("someone", "askscience", False),
        ("someone", "ModernArt", True),  # "mod" is looked for anywhere
        ("dj_spam", "python", True),
    ],
)
def test_authors_and_subreddits(author: str, subreddit: str, left_out: bool) -> None:
    assert Cleaner(SPACES).is_left_out(author, subreddit) is left_out
    kept = Cleaner(SPACES.model_copy(update={"remove_bots": False}))
    assert kept.is_left_out(author, subreddit) is (author == "[deleted]")


def test_leafs_list_has_its_45_authors() -> None:
    assert len(AUTHORS_LEFT_OUT) == 45


def test_the_tweet_tokenizer_keeps_contractions_faces_and_special_tokens() -> None:
    pytest.importorskip("nltk")
    tokens = Cleaner(Cleaning()).clean("I don't think so :-) see /r/Python, (really)!")
    expected = "i don't think so :-) see <subreddit> , ( really ) !"
    assert tokens == expected.split()


def test_without_nltk_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.tokenize.casual", None)
    with pytest.raises(ConfigError, match=r"needs the package nltk.*tokenizer=whitespace"):
        Cleaner(Cleaning())
