"""The vocabulary: exact counts in bounded memory, ties, and files that are given."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pfl_bench.types import DataError
from tasks.reddit.vocabulary import TokenCounter, counted_vocabulary, read_vocabulary
from tests.helpers import REPOSITORY

LEAF = REPOSITORY.parent / "shared" / "data" / "reddit" / "leaf_vocab.json"


def test_spilled_counts_are_those_of_one_counter(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = [f"t{number}" for number in np.minimum(rng.zipf(1.3, 20_000), 4000)]
    everything = Counter(tokens)
    # 500 distinct tokens at most in memory: over 64 runs, so runs are merged on the way too.
    with TokenCounter(tmp_path, most_in_memory=25) as counter:
        for start in range(0, len(tokens), 10):
            counter.update(tokens[start : start + 10])
        words, facts = counter.most_common(100)
    expected = sorted(everything.items(), key=lambda pair: (-pair[1], pair[0]))
    assert words == [token for token, _ in expected[:100]]
    assert facts["distinct_tokens"] == len(everything)
    assert facts["counted_tokens"] == len(tokens)
    assert facts["tokens_in_vocabulary"] == sum(count for _, count in expected[:100])
    assert not list(tmp_path.iterdir())


def test_ties_go_by_the_order_of_characters_however_they_came(tmp_path: Path) -> None:
    for order in (["b", "a", "c", "Z"], ["Z", "c", "a", "b"]):
        with TokenCounter(tmp_path) as counter:
            counter.update([*order, "the", "the", "<PAD>", "<UNK>"])
            vocabulary = counted_vocabulary(counter, 5, "paper")
        assert vocabulary.tokens == ["<PAD>", "<UNK>", "the", "Z", "a"]


def test_leafs_rule_leaves_the_last_place_empty(tmp_path: Path) -> None:
    with TokenCounter(tmp_path) as counter:
        counter.update(["a", "a", "b", "c"])
        assert counted_vocabulary(counter, 4, "paper").tokens[2:] == ["a", "b"]
        assert counted_vocabulary(counter, 4, "leaf-code").tokens[2:] == ["a", "<UNUSED 3>"]
        assert counted_vocabulary(counter, 50, "paper").tokens[2:] == ["a", "b", "c"]


def test_leafs_own_vocabulary_is_read() -> None:
    if not LEAF.is_file():
        pytest.skip(f"{LEAF} is not here")
    vocabulary = read_vocabulary(LEAF)
    assert len(vocabulary.tokens) == 10_000
    assert vocabulary.tokens[:8] == ["<PAD>", "<UNK>", ".", "the", ",", "<BOS>", "<EOS>", "to"]
    assert vocabulary.tokens[9999] == "<UNUSED 9999>"
    assert len(set(vocabulary.tokens)) == 10_000


@pytest.mark.parametrize("name", ["v.txt", "v.json"])
def test_a_list_of_tokens_is_read(tmp_path: Path, name: str) -> None:
    tokens = ["<PAD>", "the", "[", "{"]
    text = json.dumps(tokens) if name == "v.json" else "\n".join(tokens) + "\n"
    (tmp_path / name).write_text(text)
    assert read_vocabulary(tmp_path / name).tokens == ["<PAD>", "<UNK>", "the", "[", "{"]


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    for name in ("reddit_vocab.pck", "vocab.json"):
        (tmp_path / name).write_bytes(pickle.dumps({"vocab": {}}))
        with pytest.raises(DataError, match=r"is a pickle, and reading one runs.*json\.dump"):
            read_vocabulary(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("v.txt", b"\xe9\n"),
        ("v.json", b'["a"'),
        ("v.json", b'["\\ud800"]'),
        ("v.json", b"[" * 99),
    ],
)
def test_what_is_neither_json_nor_text_is_told(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: is neither JSON .* nor text in UTF-8"):
        read_vocabulary(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"vocab": {"<PAD>": 0, "<UNK>": 1, "a": 1}}, "clash"),
        ({"vocab": {"<PAD>": 3, "<UNK>": 1}}, "<PAD> has the number 3; it must be 0"),
        ({"vocab": {"<PAD>": 0, "<UNK>": 1, "a": 7}, "size": 5}, "'size' is 5"),
        ({"words": []}, "no object 'vocab'"),
        ({"vocab": {"<PAD>": 0, "<UNK>": 1}}, "has no token"),
        (["<UNK>", " "], "has no token"),
        (["a", "a"], "clash"),
        (["a", 3], "list of tokens"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, content: object, says: str) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=says):
        read_vocabulary(path)
    with pytest.raises(DataError, match="no such file"):
        read_vocabulary(tmp_path / "absent.json")
