from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError
from tasks.common.leaf.table1 import SENT140, compare
from tasks.common.text import numbered
from tasks.common.text.words import choose_vocabulary, read_vectors, read_words, split_words, to_ids
from tasks.sent140.prepare import Options, prepare
from tests.helpers import REPOSITORY

REAL = REPOSITORY.parent / "shared" / "data" / "sent140"
TRAINING, MANUAL = "training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"
Row = tuple[str, str, str, str, str, str]
WORDS = ("sad", "good", "Good", "day", "rain", "sun", "caf\xe9", "can't", "lt")


def make_rows(users: int = 12) -> list[Row]:
    """User u wrote u + 1 tweets."""
    rows: list[Row] = []
    for user in range(users):
        for place in range(user + 1):
            number = 100 * user + place
            words = [WORDS[(number + step) % len(WORDS)] for step in range(place % 5)]
            text = f'@you "{" ".join(words)}", ok!'
            polarity = "4" if number % 3 else "0"
            rows.append((polarity, str(number), "Mon", "NO_QUERY", f"user{user:02d}", text))
    return rows


ROWS = make_rows()
MANUAL_ROWS: list[Row] = [
    ("4", "5", "Tue", "kindle", "user01", "so good"),
    ("2", "6", "Tue", "kindle", "reader", "a thing"),
    ("0", "7", "Tue", "kindle", "reader", "so bad"),
]


def as_csv(rows: list[Row]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode("latin-1")


def write_source(folder: Path, rows: list[Row], manual: list[Row] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRAINING).write_bytes(as_csv(rows))
    if manual is not None:
        (folder / MANUAL).write_bytes(as_csv(manual))
    return folder


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def prepared(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    return prepare(source, out, Options(**options), silent)


def contents(path: Path) -> dict[tuple[str, str], list[tuple[tuple[str, ...], int]]]:
    """Words (as the vocabulary spells them) and label of each tweet, by split and user."""
    found = {}
    with Store(path) as store:
        words = store.names("vocabulary")
        for name in store.split_names:
            split = store.split(name)
            for user, client in enumerate(split.client_ids()):
                start, stop = split.offsets[user], split.offsets[user + 1]
                tokens = split.read("tokens", start, stop)
                labels = split.read("targets", start, stop)
                found[name, client] = [
                    (tuple(words[number] for number in row), int(label))
                    for row, label in zip(tokens, labels, strict=True)
                ]
    return found


def expected(rows: list[Row], known: set[str], lowercase: bool = False) -> Counter[Any]:
    """The same of rows, over all splits."""
    tweets: Counter[Any] = Counter()
    for polarity, _, _, _, user, text in rows:
        words = split_words(text, lowercase)
        spelt = tuple(word if word in known else "<UNK>" for word in words)
        tweets[user, spelt, int(polarity == "4")] += 1
    return tweets


def pooled(path: Path) -> Counter[Any]:
    return Counter(
        (user, *tweet) for (_, user), tweets in contents(path).items() for tweet in tweets
    )


def checksum(path: Path) -> str:
    with Store(path) as store:
        return store.facts.checksum


def test_texts_are_cut_as_leaf_cuts_them() -> None:
    text = "@switchfoot http://twitpic.com/2y1zl - Awww, that's a bummer. &lt;3 \xe9t\xe9_1 ;D"
    assert split_words(text, lowercase=False) == [
        *("switchfoot", "http", "twitpic", ".", "com", "2y1zl", "Awww", ",", "that's", "a"),
        *("bummer", ".", "lt", ";", "3", "\xe9t\xe9_1", ";", "D"),
    ]
    assert split_words("Oh NO", lowercase=True) == ["oh", "no"]
    assert split_words(" -:() ", lowercase=False) == []


def test_the_commonest_words_are_known_and_ties_go_by_code_points() -> None:
    counts = {"b": 2, "a": 2, "c": 5, "d": 1, "e": 0}
    assert choose_vocabulary(counts, 5) == ["<PAD>", "<UNK>", "c", "a", "b"]
    assert choose_vocabulary(counts, 100) == ["<PAD>", "<UNK>", "c", "a", "b", "d"]


@given(st.text(max_size=60))
def test_every_word_has_a_number_that_is_not_padding(text: str) -> None:
    words = split_words(text, lowercase=False)
    ids = to_ids(words, {"a": 2})
    assert len(ids) == len(words)
    assert all(number == (2 if word == "a" else 1) for number, word in zip(ids, words, strict=True))


def test_all_tweets_come_through_and_the_vocabulary_is_that_of_train(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    facts = prepared(write_source(tmp_path / "raw", ROWS), out, vocabulary_size=9)
    with Store(out) as store:
        words = store.names("vocabulary")
        assert store.facts.input_shape == (max(len(split_words(r[5], False)) for r in ROWS),)
    assert len(words) == 9
    assert pooled(out) == expected(ROWS, set(words))
    # Recount by tweet: those of train are told by the splits of a store that knows every word.
    prepared(tmp_path / "raw", tmp_path / "all.h5")
    counts: Counter[str] = Counter()
    for (split, _), tweets in contents(tmp_path / "all.h5").items():
        for spelt, _ in tweets if split == "train" else ():
            counts.update(word for word in spelt if word != "<UNK>")
    assert words == choose_vocabulary(counts, 9)
    known = sum(counts[word] for word in words)
    assert facts["vocabulary"]["words_of_train"] == counts.total()
    assert facts["vocabulary"]["unknown_share_of_train"] == round(1 - known / counts.total(), 4)
    assert facts["variant"] == "sent140-csv-partial"
    assert facts["differs_from_published"] is None


def test_a_word_that_only_test_has_is_unknown(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ROWS, MANUAL_ROWS)
    prepared(source, tmp_path / "out.h5", manual="test")
    found = contents(tmp_path / "out.h5")
    # "so" and "bad" are in the test file alone; "good" is in both.
    assert found["test", "user01"] == [(("<UNK>", "good"), 1)]
    assert found["test", "reader"] == [(("<UNK>", "<UNK>"), 0)]
    assert {split for split, _ in found} == {"train", "test"}


@pytest.mark.parametrize(
    ("options", "tweets", "neutral"),
    [
        ({}, 80, 1),
        ({"neutral": "negative"}, 81, 1),
        ({"manual": "leave_out"}, 78, 0),
    ],
)
def test_manual_and_neutral_tweets(
    tmp_path: Path, options: dict[str, Any], tweets: int, neutral: int
) -> None:
    source = write_source(tmp_path / "raw", ROWS, MANUAL_ROWS)
    facts = prepared(source, tmp_path / "out.h5", **options)
    assert sum(split["examples"] for split in facts["splits"].values()) == tweets
    assert facts["neutral"]["samples"] == neutral
    # LEAF's table counts neutral tweets, whatever becomes of them here.
    assert facts["table1"]["samples"] == (78 if "manual" in options else 81)
    assert ("without those" in facts["table1"]["counted"]) == ("manual" in options)


def test_figure_3_takes_users_with_enough_tweets(tmp_path: Path) -> None:
    facts = prepared(write_source(tmp_path / "raw", ROWS), tmp_path / "out.h5", min_examples=10)
    users = {user for _, user in contents(tmp_path / "out.h5")}
    assert users == {"user09", "user10", "user11"}
    assert facts["users_dropped"] == 9


@pytest.mark.parametrize("split_by", ["example", "user"])
def test_the_result_depends_on_neither_order_nor_files_nor_blocks(
    tmp_path: Path, split_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(write_source(tmp_path / "a", ROWS), tmp_path / "a.h5", split_by=split_by)
    write_source(tmp_path / "b", ROWS[40:][::-1])
    (tmp_path / "b" / "training.csv").write_bytes(as_csv(ROWS[:40]))
    monkeypatch.setattr(numbered, "TEXTS_AT_ONCE", 7)
    prepared(tmp_path / "b", tmp_path / "b.h5", split_by=split_by)
    # Inside a user examples may stand in the order in which they came.
    found = [
        {key: Counter(tweets) for key, tweets in contents(tmp_path / f"{name}.h5").items()}
        for name in "ab"
    ]
    assert found[0] == found[1]


def test_leafs_json_gives_what_the_csv_gives(tmp_path: Path) -> None:
    prepared(write_source(tmp_path / "csv", ROWS), tmp_path / "csv.h5")
    data: dict[str, dict[str, list[Any]]] = {}
    for polarity, *rest in sorted(ROWS, key=lambda row: row[4]):
        user = data.setdefault(rest[3], {"x": [], "y": []})
        user["x"].append([*rest, "training"])
        user["y"].append(int(polarity == "4"))
    document = {
        "users": list(data),
        "num_samples": [len(user["y"]) for user in data.values()],
        "user_data": data,
    }
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "all_data.json").write_text(json.dumps(document))
    facts = prepared(tmp_path / "json", tmp_path / "json.h5")
    assert facts["variant"] == "sent140-leaf-json-partial"
    assert "cannot be told apart" in facts["neutral"]["why"]
    assert checksum(tmp_path / "csv.h5") == checksum(tmp_path / "json.h5")


@pytest.mark.parametrize(
    ("row", "label", "words"),
    [
        (["1", "Mon", "q", "a"], 0, "not a list of 5 or 6 texts"),
        ([0.5] * 6, 0, "not a list of 5 or 6 texts"),
        ("text", 0, "not a list of 5 or 6 texts"),
        (["1", "Mon", "q", "a", "text"], 4, "y is 4"),
        (["1", "Mon", "q", "a", "text"], True, "y is True"),
        (["one", "Mon", "q", "a", "text"], 1, "id is 'one'"),
        (["1", "Mon", "q", "b", "text"], 1, "the tweet is by 'b'"),
    ],
)
def test_foreign_json_is_refused_with_file_user_and_sample(
    tmp_path: Path, row: Any, label: Any, words: str
) -> None:
    good = ["1", "Mon", "q", "a", "text"]
    document = {
        "users": ["a"],
        "num_samples": [2],
        "user_data": {"a": {"x": [good, row], "y": [0, label]}},
    }
    (tmp_path / "all_data.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"all_data\.json, user 'a', sample 1: ") as caught:
        prepared(tmp_path, tmp_path / "out.h5")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'"4","1","Mon","q","a"', "5 columns, but Sent140 has 6"),
        (b'"4","1","Mon","q","a","text","more"', "7 columns"),
        (b"", "0 columns"),
        (b'"1","1","Mon","q","a","text"', "polarity is '1'"),
        (b'"target","ids","date","flag","user","text"', "polarity is 'target'"),
        (b'"4","one","Mon","q","a","text"', "id is 'one'"),
        (b'"4","1","Mon","q","","text"', "no name"),
        (b'"4","1","Mon","q","a","te\0xt"', "NUL character"),
        ('"4","1","Mon","q","a","text"'.encode("utf-16"), "in Latin-1"),
        (b'"4","1","Mon","q","a","' + b"x" * 200_000, "field larger than field limit"),
    ],
)
def test_damaged_rows_are_refused_with_file_and_line(
    tmp_path: Path, line: bytes, words: str
) -> None:
    (tmp_path / TRAINING).write_bytes(as_csv(ROWS[:3]) + line + b"\n" + as_csv(ROWS[3:5]))
    with pytest.raises(DataError, match=r"training\.1600000.*\.csv, line [456]") as caught:
        prepared(tmp_path, tmp_path / "out.h5")
    assert words in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_file_that_is_cut_within_its_last_row_is_refused(tmp_path: Path, end: str) -> None:
    content = as_csv(ROWS[:3]) + b'"4","1","Mon","q","a","half a te' + end.encode()
    (tmp_path / TRAINING).write_bytes(content)
    with pytest.raises(DataError, match=r"\.csv, line 4: an unclosed quotation mark"):
        prepared(tmp_path, tmp_path / "out.h5")


def test_options_that_leafs_json_cannot_honour_are_refused(tmp_path: Path) -> None:
    data = {name: {"x": [["1", "Mon", "q", name, f"by {name}"]], "y": [0]} for name in "ab"}
    for split, user in (("train", "a"), ("test", "b")):
        (tmp_path / split).mkdir()
        document = {"users": [user], "num_samples": [1], "user_data": {user: data[user]}}
        (tmp_path / split / "part.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="manual=test: the source is split by its publisher"):
        prepared(tmp_path, tmp_path / "out.h5", manual="test")
    with pytest.raises(ConfigError, match=r"neutral=drop: .* cannot be told apart"):
        prepared(tmp_path, tmp_path / "out.h5", neutral="drop")
    facts = prepared(tmp_path, tmp_path / "out.h5", neutral="negative")
    assert facts["split"] == {"by": "user", "as": "published"}
    whole = tmp_path / "whole"
    whole.mkdir()
    document = {"users": ["a", "b"], "num_samples": [1, 1], "user_data": data}
    (whole / "all_data.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="manual=test, but no tweet of the test file"):
        prepared(whole, tmp_path / "out.h5", manual="test")


def test_a_byte_order_mark_shows_in_the_message(tmp_path: Path) -> None:
    (tmp_path / TRAINING).write_bytes(b"\xef\xbb\xbf" + as_csv(ROWS))
    with pytest.raises(DataError, match=r"line 1: polarity is .*Latin-1"):
        prepared(tmp_path, tmp_path / "out.h5")


def test_folders_without_or_with_two_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)no public form .*training\*\.csv.*all_data"):
        prepared(tmp_path, tmp_path / "out.h5")
    write_source(tmp_path, ROWS)
    (tmp_path / "all_data.json").write_text("{}")
    with pytest.raises(DataError, match="several forms: csv, leaf-json; say which by form=NAME"):
        prepared(tmp_path, tmp_path / "out.h5")
    facts = prepared(tmp_path, tmp_path / "out.h5", form="csv")
    assert prepared(tmp_path, tmp_path / "old.h5", variant="csv") == facts
    with pytest.raises(DataError, match="manual = 'test' needs the test file"):
        prepared(tmp_path, tmp_path / "out.h5", form="csv", manual="test")
    with pytest.raises(DataError, match="does not exist; --source takes"):
        prepared(tmp_path / "none", tmp_path / "out.h5")


def test_split_options_are_refused_where_the_test_file_is_the_test_split(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ROWS, MANUAL_ROWS)
    with pytest.raises(ConfigError, match="train_fraction"):
        prepared(source, tmp_path / "out.h5", manual="test", train_fraction=0.5)


def write_glove(path: Path) -> Path:
    # A word with a blank and U+0085 are in GloVe's larger files; "good" comes twice.
    lines = ["good 1 2", "day 3 4", ". . 5 6", "\x85 7 8", "good 9 9"]
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return path


def write_embs(path: Path) -> Path:
    path.write_text(json.dumps({"vocab": ["good", "day"], "emba": [[1.0, 2.0], [3, 4], [0, 0]]}))
    return path


def test_a_vocabulary_can_be_given_by_a_file_of_vectors(tmp_path: Path) -> None:
    glove, embs = write_glove(tmp_path / "glove.txt"), write_embs(tmp_path / "embs.json")
    assert read_words(glove) == ["good", "day", ". .", "\x85"]
    assert read_words(embs) == ["good", "day"]
    source = write_source(tmp_path / "raw", ROWS)
    prepared(source, tmp_path / "out.h5", vocabulary=str(embs), lowercase=True)
    with Store(tmp_path / "out.h5") as store:
        assert store.names("vocabulary") == ["<PAD>", "<UNK>", "good", "day"]
    assert pooled(tmp_path / "out.h5") == expected(ROWS, {"good", "day"}, lowercase=True)
    facts = prepared(source, tmp_path / "out.h5", vocabulary=str(glove), vocabulary_size=3)
    assert facts["vocabulary"]["size"] == 3
    assert facts["vocabulary"]["from"] == "glove.txt"


def test_texts_or_a_file_without_words_are_told(tmp_path: Path) -> None:
    row = ("4", "1", "Mon", "q", "a", ":-)")
    source = write_source(tmp_path / "raw", [row])
    options = {"train_fraction": 1.0, "val_fraction": 0.0}
    with pytest.raises(DataError, match=f"{source}: the texts of train have no word"):
        prepared(source, tmp_path / "out.h5", **options)
    vectors = tmp_path / "glove.txt"
    for content, told in (("", "holds no word; give"), ("<UNK> 1\n", "no word but <PAD>, <UNK>")):
        vectors.write_text(content)
        with pytest.raises(DataError, match=f"{vectors}: .*{told}"):
            prepared(source, tmp_path / "out.h5", vocabulary=str(vectors), **options)


def test_vectors_are_found_by_word(tmp_path: Path) -> None:
    for path in (write_glove(tmp_path / "glove.txt"), write_embs(tmp_path / "embs.json")):
        vectors = read_vectors(path, {"day": 2, "good": 4, "night": 3}, 5)
        assert vectors.tolist() == [[0, 0], [0, 0], [3, 4], [0, 0], [1, 2]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "does not exist"),
        ("g.txt", b"", "vector for none"),
        ("g.txt", b"good 1 2\nday 3\n", "line 2: 1 numbers, but the first line has 2"),
        ("g.txt", b"good\n", "line 1: 0 numbers"),
        ("g.txt", b"good 1 x\n", "'good' is not made of numbers"),
        ("g.txt", b"good 1 nan\n", "'good' has numbers that are not finite"),
        ("g.txt", b"other 1 2\n", "none of the vocabulary's words"),
        ("g.txt", b"good 1 2\n\xff\xfe 1 2\n", "not text in UTF-8"),
        (
            "e.json",
            b'{"vocab": ["good", "day"], "emba": [[1]]}',
            "no vector of 1 numbers for 'day'",
        ),
        ("e.json", b'{"vocab": ["good"', "not valid JSON"),
        ("e.json", b'{"vocab": [3], "emba": [[1]]}', "3, which is not a word"),
        ("e.json", b'{"vocab": ["good"], "emba": [["a"]]}', "not made of numbers"),
    ],
)
def test_damaged_vectors_are_refused(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_vectors(tmp_path / name, {"good": 2, "day": 3}, 4)
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_counts_of_the_whole_data_are_compared_with_the_published_ones() -> None:
    part = compare([3, 1], SENT140, "tweets")["table1"]
    counts = {key: part[key] for key in ("users", "samples", "mean", "sd")}
    assert counts == {"users": 2, "samples": 4, "mean": 2.0, "sd": 1.0}
    users = Counter({f"user{number}": 2 for number in range(SENT140.users - 1)})
    users["heavy"] = SENT140.samples - 2 * (SENT140.users - 1)
    whole = compare(users.values(), SENT140, "tweets")
    # Users, samples and their mean are right, the spread is not.
    assert [line.partition(":")[0] for line in whole["differs_from_published"]] == ["sd"]
    assert round(whole["table1"]["mean"], 2) == SENT140.mean
    assert round(whole["table1"]["sd"], 2) != SENT140.sd


@pytest.mark.skipif(not REAL.is_dir(), reason="the real rows (shared/data/sent140) are not here")
def test_real_rows(tmp_path: Path) -> None:
    facts = prepared(REAL, tmp_path / "out.h5")
    assert facts["table1"]["users"] == 18_584
    assert facts["table1"]["samples"] == 20_000 + 498
    assert facts["neutral"]["samples"] == 139
    assert sum(split["examples"] for split in facts["splits"].values()) == 20_498 - 139
    assert facts["vocabulary"]["size"] == 10_000
    assert facts["longest_tweet_words"] == 68
