"""Preparing Reddit: LEAF's JSON and raw dumps, against the sequences that LEAF's script makes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError
from tasks.reddit import dumps, sequences
from tasks.reddit.cleaning import Options
from tasks.reddit.prepare import prepare
from tasks.reddit.statistics import Options as StatisticsOptions
from tasks.reddit.statistics import statistics
from tests.helpers import REPOSITORY

REAL = REPOSITORY.parent / "shared" / "data" / "reddit"
LENGTH = 10
Sequences = list[tuple[list[str], list[str], list[int]]]


def quiet(what: str, done: int, total: int | None) -> None:
    assert total is None or done <= total


def leaf_comment(text: str) -> tuple[list[list[str]], list[list[str]], list[list[float]]]:
    """A comment's inputs, targets and counts, written out as LEAF's script does."""
    x, y = ["<BOS>", *text.split(), "<EOS>"], [*text.split(), "<EOS>", "<PAD>"]
    counts = [1.0] * len(x)
    while len(x) % LENGTH:
        x.append("<PAD>")
        y.append("<PAD>")
        counts.append(0.0)

    def rows(values: list[Any]) -> list[list[Any]]:
        return [values[start : start + LENGTH] for start in range(0, len(values), LENGTH)]

    return rows(x), rows(y), rows(counts)


def leaf_user(texts: list[str], first_time: int, subreddit: str = "pics") -> dict[str, Any]:
    data: dict[str, Any] = {"x": [], "y": []}
    for place, text in enumerate(texts):
        x, targets, counts = leaf_comment(text)
        created = first_time + place
        data["x"].append(x)
        data["y"].append(
            {
                "target_tokens": targets,
                "count_tokens": counts,
                "subreddit": subreddit,
                "created_utc": created if place % 2 else str(created),
                "score": 1,
            }
        )
    return data


def write_leaf(folder: Path, splits: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Split files as LEAF's: each announces the comments of all splits together."""
    totals: dict[str, int] = {}
    for users in splits.values():
        for user, data in users.items():
            totals[user] = totals.get(user, 0) + len(data["x"])
    for split, users in splits.items():
        (folder / split).mkdir(parents=True)
        content = {
            "users": list(users),
            "num_samples": [totals[user] for user in users],
            "user_data": users,
        }
        (folder / split / f"reddit_0_{split}.json").write_text(json.dumps(content))


def small_leaf() -> dict[str, dict[str, dict[str, Any]]]:
    nine = " ".join(f"n{number}" for number in range(8))
    long = " ".join(f"l{number}" for number in range(23))
    return {
        "train": {
            "1": leaf_user(["b b a c d", long, "a b"], 100),
            "2": leaf_user([nine], 100, "news"),
        },
        "val": {"1": leaf_user(["a new one"], 200), "2": leaf_user(["b"], 200, "news")},
        "test": {"1": leaf_user(["a last one", "b"], 300), "2": leaf_user(["c c"], 300, "art")},
    }


def spelled(store: Store, split: str, user: int) -> Sequences:
    """A user's sequences in words: inputs, targets, and which targets count."""
    part, words = store.split(split), store.names("vocabulary")
    start, stop = part.offsets[user : user + 2].tolist()
    rows = zip(
        part.read("tokens", start, stop).tolist(),
        part.read("targets", start, stop).tolist(),
        part.read("counted", start, stop).tolist(),
        strict=True,
    )
    return [
        (
            [words[token] for token in tokens],
            [words[token] for token in targets],
            [counted >> place & 1 for place in range(LENGTH)],
        )
        for tokens, targets, counted in rows
    ]


def expected(data: dict[str, Any], known: set[str]) -> Sequences:
    def words(row: list[str]) -> list[str]:
        return [token if token in known or token == "<PAD>" else "<UNK>" for token in row]

    return [
        (words(x), words(targets), [int(count) for count in counts])
        for xs, y in zip(data["x"], data["y"], strict=True)
        for x, targets, counts in zip(xs, y["target_tokens"], y["count_tokens"], strict=True)
    ]


def test_leafs_json_comes_through_unchanged(tmp_path: Path) -> None:
    splits = small_leaf()
    write_leaf(tmp_path / "leaf", splits)
    facts = prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(), quiet)
    assert facts["num_comments"] == {"train": 4, "val": 2, "test": 3}
    with Store(tmp_path / "r.h5") as store:
        assert store.task == "reddit"
        assert store.facts.split_by == "example"
        assert store.facts.input_shape == (LENGTH,)
        words = store.names("vocabulary")
        assert store.facts.num_classes == len(words)
        for split, users in splits.items():
            assert store.split(split).client_ids() == ["1", "2"]
            for place, data in enumerate(users.values()):
                assert spelled(store, split, place) == expected(data, set(words))
        train = store.split("train")
        assert train.read("first", 0, 6).tolist() == [True, True, False, False, True, True]
        assert store.names("subreddit") == ["art", "news", "pics"]
        assert train.read("subreddit", 0, 6).tolist() == [2, 2, 2, 2, 2, 1]
        assert store.split("test").read("subreddit", 2, 3).tolist() == [0]
    # LEAF's order: 4 comments in train; <BOS> and <EOS> four times each, b three times, a twice.
    assert words[:6] == ["<PAD>", "<UNK>", "<BOS>", "<EOS>", "b", "a"]
    assert "new" not in words
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_artificial_users_share_all_comments(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", small_leaf())
    options = Options(partition="iid", iid_users=2, split_seed=5)
    facts = prepare(tmp_path / "leaf", tmp_path / "r.h5", options, quiet)
    assert facts["num_comments"] == {"train": 4, "val": 2, "test": 3}
    with Store(tmp_path / "r.h5") as store:
        train = store.split("train")
        assert train.client_ids() == ["iid-0", "iid-1"]
        first = train.read("first", 0, train.num_examples)
        assert [int(part.sum()) for part in np.split(first, train.offsets[1:-1])] == [2, 2]


def test_the_vocabulary_is_of_train_and_of_the_size_asked_for(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", small_leaf())
    facts = prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(vocabulary_size=6), quiet)
    with Store(tmp_path / "r.h5") as store:
        assert store.names("vocabulary") == ["<PAD>", "<UNK>", "<BOS>", "<EOS>", "b", "a"]
    assert facts["unknown_tokens"] == 2 + 23 + 8 + 2 + 2 + 2
    (tmp_path / "v.txt").write_text("<BOS>\n<EOS>\nlast\n")
    given = Options(vocabulary=str(tmp_path / "v.txt"))
    prepare(tmp_path / "leaf", tmp_path / "r.h5", given, quiet)
    with Store(tmp_path / "r.h5") as store:
        assert spelled(store, "test", 0)[0][0][:5] == ["<BOS>", "<UNK>", "last", "<UNK>", "<EOS>"]
    both = Options(vocabulary=str(tmp_path / "v.txt"), vocabulary_size=10)
    with pytest.raises(ConfigError, match=r"vocabulary_size: vocabulary=.* is given"):
        prepare(tmp_path / "leaf", tmp_path / "r.h5", both, quiet)


def test_final_padding_may_be_left_out_of_what_counts(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", small_leaf())
    prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(count_final_padding=False), quiet)
    with Store(tmp_path / "r.h5") as store:
        for split in store.split_names:
            for user in range(2):
                for _, targets, counted in spelled(store, split, user):
                    assert counted == [int(target != "<PAD>") for target in targets]


def test_targets_that_are_not_the_shifted_inputs_are_kept_as_they_are(tmp_path: Path) -> None:
    splits = small_leaf()
    splits["train"]["1"]["y"][0]["target_tokens"][0][3] = "other"
    splits["train"]["1"]["y"][1]["count_tokens"][0][0] = 0.0
    write_leaf(tmp_path / "leaf", splits)
    prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(), quiet)
    with Store(tmp_path / "r.h5") as store:
        words = set(store.names("vocabulary"))
        assert spelled(store, "train", 0) == expected(splits["train"]["1"], words)


@pytest.mark.parametrize("partition", ["natural", "iid"])
@pytest.mark.parametrize("everything", [True, False])
def test_splits_that_share_a_comment_are_refused(
    tmp_path: Path, everything: bool, partition: str
) -> None:
    splits = small_leaf()
    if everything:
        splits["val"] = splits["test"] = splits["train"]
    else:
        splits["test"]["2"]["x"].append(splits["val"]["2"]["x"][0])
        splits["test"]["2"]["y"].append(splits["val"]["2"]["y"][0])
    write_leaf(tmp_path / "leaf", splits)
    options = Options.model_validate({"partition": partition})
    with pytest.raises(DataError, match="the splits are not disjoint") as caught:
        prepare(tmp_path / "leaf", tmp_path / "r.h5", options, quiet)
    if not everything:
        assert "1 comments, of 10 in all splits" in str(caught.value)
        assert "user '2' in val and test" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["leaf"]


def test_equal_texts_at_other_times_are_no_overlap(tmp_path: Path) -> None:
    splits = small_leaf()
    splits["test"]["1"] = leaf_user(["b b a c d"], 300)
    write_leaf(tmp_path / "leaf", splits)
    prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(), quiet)


def break_users(content: dict[str, Any], kind: str) -> None:
    data = content["user_data"]["1"]
    if kind == "short":
        data["x"][1][2].pop()
    elif kind == "targets":
        data["y"][0]["target_tokens"].append(["<PAD>"] * LENGTH)
    elif kind == "counts":
        data["y"][0]["count_tokens"][0][0] = 2
    elif kind == "label":
        data["y"][2] = 1
    elif kind == "time":
        data["y"][0]["created_utc"] = "noon"
    elif kind == "token":
        data["x"][0][0][1] = data["y"][0]["target_tokens"][0][0] = "two\nlines"
    elif kind == "no text":
        data["x"][0][0][1] = 7
    elif kind == "no sequence":
        data["x"][1] = []
    elif kind == "subreddit":
        data["y"][1]["subreddit"] = ["pics"]
    elif kind == "many":
        content["num_samples"][0] = 2
    elif kind == "stranger":
        content["user_data"]["9"] = data


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("short", "user '1', comment 1: sequence 2 of x has 9 tokens"),
        ("targets", "user '1', comment 0: 1 sequences of inputs, 2 of target_tokens"),
        ("counts", "user '1', comment 0: count_tokens must be 0 or 1"),
        ("label", "user '1', comment 2: 'y' must have target_tokens"),
        ("time", "user '1', comment 0: created_utc is 'noon'"),
        ("token", "user '1', comment 0: a token is empty or has a line feed"),
        ("no text", "user '1', comment 0: x has a token that is no text"),
        ("no sequence", "user '1', comment 1: x must be a list of sequences, at least one"),
        ("subreddit", r"user '1', comment 1: subreddit is \['pics'\]; it must be a name, as text"),
        ("many", "user '1': 'num_samples' says 2 examples, but there are 3 in 'x'"),
        ("stranger", "user '9': has data but is not in 'users'"),
    ],
)
def test_damaged_json_is_named_by_file_and_user(tmp_path: Path, kind: str, says: str) -> None:
    write_leaf(tmp_path / "leaf", small_leaf())
    path = tmp_path / "leaf" / "train" / "reddit_0_train.json"
    content = json.loads(path.read_text())
    break_users(content, kind)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=says) as caught:
        prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(), quiet)
    assert str(path) in str(caught.value)
    assert [found.name for found in tmp_path.iterdir()] == ["leaf"]


def test_comments_without_a_token_make_no_vocabulary(tmp_path: Path) -> None:
    splits = small_leaf()
    empty = [["<PAD>"] * LENGTH]
    for data in splits["train"].values():
        data["x"] = [empty] * len(data["x"])
        for y in data["y"]:
            y |= {"target_tokens": empty, "count_tokens": [[0.0] * LENGTH]}
    write_leaf(tmp_path / "leaf", splits)
    with pytest.raises(DataError, match=r"no token but <PAD> and <UNK>.*by vocabulary=FILE"):
        prepare(tmp_path / "leaf", tmp_path / "r.h5", Options(), quiet)


def test_a_token_of_another_parser_that_is_no_text_is_refused() -> None:
    # ijson's parser in C replaces it, the one in Python does not.
    with pytest.raises(DataError, match="comment 3: a token is not valid Unicode"):
        sequences.pack(["<BOS>", "\ud800"], ["\ud800", "<EOS>"], "comment 3")


def test_cut_json_is_named_and_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_leaf(tmp_path / "leaf", small_leaf())
    path = tmp_path / "leaf" / "val" / "reddit_0_val.json"
    path.write_bytes(path.read_bytes()[:-40])
    out = tmp_path / "r.h5"
    command = ["data", "prepare", "reddit", "--source", str(tmp_path / "leaf"), "--out", str(out)]
    assert main(command) == 2
    assert "reddit_0_val.json: not valid JSON" in capsys.readouterr().err
    assert not out.exists()


def test_options_without_effect_on_json_are_refused(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", small_leaf())
    for options, says in (
        (Options(max_comments=5), "max_comments: LEAF's JSON is cleaned already"),
        (Options(lower_case=False), "lower_case: LEAF's JSON is cleaned already"),
        (Options(train_fraction=0.5), "train_fraction: the source is split by its publisher"),
    ):
        with pytest.raises(ConfigError, match=says):
            prepare(tmp_path / "leaf", tmp_path / "r.h5", options, quiet)


def dump_row(author: str, number: int, **changes: Any) -> dict[str, Any]:
    return {
        "author": author,
        "body": f"comment number {number} of this author",
        "subreddit": "pics",
        "created_utc": 1000 - number,
        "id": f"{author}-{number}",
    } | changes


def write_dump(folder: Path, rows: list[dict[str, Any]], name: str = "RC_2017-12") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


WORDS = Options(tokenizer="whitespace")


def test_dumps_are_split_in_time_inside_each_author(tmp_path: Path) -> None:
    counts = {"ann": 5, "bob": 9, "eve": 4, "max": 13}
    rows = [dump_row(author, n) for author, count in counts.items() for n in range(count)]
    write_dump(tmp_path / "raw", rows)
    # The same comments once more, in another file: taken once.
    write_dump(tmp_path / "raw", rows[::-1], "RC_2018-01")
    options = WORDS.model_copy(update={"max_comments": 12})
    facts = prepare(tmp_path / "raw", tmp_path / "r.h5", options, quiet)
    # eve has fewer than 5, max more than 12.
    assert facts["users_dropped"] == 1
    assert facts["users_with_too_many_comments"] == 1
    assert facts["repeated_comments"] == len(rows)
    with Store(tmp_path / "r.h5") as store:
        found = {}
        for split in store.split_names:
            assert store.split(split).client_ids() == ["ann", "bob"]
            for user in (0, 1):
                found[split, user] = [x[3] for x, _, _ in spelled(store, split, user)]
        # The earliest are those with the largest numbers; 60, 80 and 100 % rounded down.
        assert found["train", 0] == ["4", "3", "2"]
        unknown = [found[split, 0] for split in ("val", "test")]
        assert [len(numbers) for numbers in unknown] == [1, 1]
        assert found["train", 1] == ["8", "7", "6", "5", "4"]
        assert [len(found[split, 1]) for split in ("val", "test")] == [2, 2]
        assert store.facts.extra["split"]["order_by"] == "created"


def test_dumps_are_cut_into_the_sequences_that_leaf_makes(tmp_path: Path) -> None:
    # With <BOS> and <EOS>: less than one sequence, one exactly, one more, two, and many.
    texts = [" ".join(f"t{n}" for n in range(size)) for size in (7, 8, 9, 18, 101)]
    rows = [dump_row("ann", n, body=text, created_utc=n) for n, text in enumerate(texts)]
    write_dump(tmp_path / "raw", rows)
    options = Options(tokenizer="whitespace", train_fraction=1.0, val_fraction=0.0)
    prepare(tmp_path / "raw", tmp_path / "r.h5", options, quiet)
    with Store(tmp_path / "r.h5") as store:
        words = set(store.names("vocabulary"))
        assert len(words) == 105
        assert spelled(store, "train", 0) == expected(leaf_user(texts, 0), words)


def test_dumps_can_be_split_otherwise(tmp_path: Path) -> None:
    rows = [dump_row(f"u{user}", n) for user in range(10) for n in range(6)]
    write_dump(tmp_path / "raw", rows)
    out = tmp_path / "r.h5"

    def users(**changes: Any) -> dict[str, int]:
        options = Options(tokenizer="whitespace", **changes)
        prepare(tmp_path / "raw", out, options, quiet)
        with Store(out) as store:
            return {name: store.split(name).num_users for name in store.split_names}

    assert users(split_by="user") == {"train": 6, "val": 2, "test": 2}
    assert users(train_fraction=1.0, val_fraction=0.0) == {"train": 10}
    assert users(num_users=4, split_seed=3) == {"train": 4, "val": 4, "test": 4}
    assert users(partition="iid", iid_users=3) == {"train": 3, "val": 3, "test": 3}
    with Store(out) as store:
        assert store.facts.extra["artificial_users"] is True
    with pytest.raises(ConfigError, match=r"split_seed: .*nothing depends on a seed"):
        users(split_seed=3)


def test_incomplete_comments_are_counted_and_the_first_named(tmp_path: Path) -> None:
    rows = [dump_row("ann", n) for n in range(6)]
    rows[2:2] = [{"author": "ann", "body": "no subreddit, no time"}] * 5
    write_dump(tmp_path / "raw", rows)
    facts = prepare(tmp_path / "raw", tmp_path / "r.h5", WORDS, quiet)
    assert facts["incomplete_comments"]["count"] == 5
    first = "RC_2017-12, line 3: lacks subreddit, created_utc"
    assert facts["incomplete_comments"]["first"][0] == first
    assert len(facts["incomplete_comments"]["first"]) == 3


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"title": "a submission"}], "no comment; the first thing in it: RC_2017-12, line 1"),
        ([], "RC_2017-12: empty"),
        ([dump_row("ann", 0, body="both")], "no comment is left"),
        ([dump_row("ann", 0, created_utc=True)], "line 1: created_utc is 'True', no whole number"),
        ([dump_row("ann", 0, created_utc=1 << 62)], "line 1: created_utc is '4611686018427387904'"),
        ([dump_row("ann", 0)], "min_examples = 5 drops all 1 users"),
    ],
)
def test_dumps_of_which_nothing_is_left(
    tmp_path: Path, rows: list[dict[str, Any]], says: str
) -> None:
    write_dump(tmp_path / "raw", rows)
    with pytest.raises(DataError, match=says):
        prepare(tmp_path / "raw", tmp_path / "r.h5", WORDS, quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_line_longer_than_any_comment_is_no_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumps, "_LONGEST_LINE", 1 << 20)
    write_dump(tmp_path / "raw", [dump_row("ann", 0), dump_row("ann", 1, body="x" * (5 << 20))])
    with pytest.raises(DataError, match=r"RC_2017-12, line 2: longer than 1 MiB, so no comment"):
        prepare(tmp_path / "raw", tmp_path / "r.h5", WORDS, quiet)


def test_more_comments_wanted_than_allowed_is_refused(tmp_path: Path) -> None:
    write_dump(tmp_path / "raw", [dump_row("ann", n) for n in range(6)])
    options = WORDS.model_copy(update={"max_comments": 4})
    with pytest.raises(ConfigError, match=r"max_comments 4 is below min_examples 5"):
        prepare(tmp_path / "raw", tmp_path / "r.h5", options, quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_folder_with_both_forms_or_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no public form of Reddit"):
        prepare(tmp_path, tmp_path / "r.h5", Options(), quiet)
    write_leaf(tmp_path, small_leaf())
    write_dump(tmp_path, [dump_row("ann", n) for n in range(6)])
    with pytest.raises(DataError, match="several forms: leaf-json, dump; say which by form=NAME"):
        prepare(tmp_path, tmp_path / "r.h5", Options(), quiet)
    choice = WORDS.model_copy(update={"form": "dump"})
    assert prepare(tmp_path, tmp_path / "r.h5", choice, quiet)["variant"] == "dump"
    choice = Options(form="leaf-json")
    assert prepare(tmp_path, tmp_path / "r.h5", choice, quiet)["variant"] == "leaf-json"


def unsplit_leaf() -> dict[str, Any]:
    users = {name: leaf_user([f"w{n} a b c" for n in range(6)], 100) for name in ("1", "2")}
    return {"users": list(users), "num_samples": [6, 6], "user_data": users}


def test_leafs_unsplit_file_alone_is_one_form(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "all_data.json").write_text(json.dumps(unsplit_leaf()))
    facts = prepare(tmp_path / "raw", tmp_path / "r.h5", Options(), quiet)
    assert facts["variant"] == "leaf-json"
    assert sum(facts["num_comments"].values()) == 12
    # A vocabulary beside it is no dump either; a packed file is one.
    (tmp_path / "raw" / "vocabulary.json").write_text('["a", "b"]')
    assert prepare(tmp_path / "raw", tmp_path / "r.h5", Options(), quiet) == facts
    (tmp_path / "raw" / "comments.jsonl").write_text(json.dumps(dump_row("ann", 1)))
    with pytest.raises(DataError, match="several forms: leaf-json, dump"):
        prepare(tmp_path / "raw", tmp_path / "r.h5", Options(), quiet)


def test_a_json_file_without_leafs_beside_it_is_a_dump(tmp_path: Path) -> None:
    write_dump(tmp_path / "raw", [dump_row("ann", n) for n in range(6)], "comments.json")
    assert prepare(tmp_path / "raw", tmp_path / "r.h5", WORDS, quiet)["variant"] == "dump"


def test_subreddits_of_dropped_users_are_not_counted(tmp_path: Path) -> None:
    """The real comments of 2005 are of one subreddit: each is given one by its thread."""
    source = REAL / "RC_2005-12.json.gz"
    if not source.is_file():
        pytest.skip(f"{source} is not here")
    with gzip.open(source) as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        row["subreddit"] = f"s{int(row['link_id'][3:], 36) % 60}"
    write_dump(tmp_path / "raw", rows)
    facts = prepare(tmp_path / "raw", tmp_path / "r.h5", WORDS, quiet)
    times = {(row["author"], row["created_utc"]): row["subreddit"] for row in rows}
    with Store(tmp_path / "r.h5") as store:
        kept = {user for name in store.split_names for user in store.split(name).client_ids()}
        found = statistics(store, StatisticsOptions(subreddits=60), quiet)
        names = store.names("subreddit")
    assert len(times) > 900
    assert len(kept) < 100
    assert sum(found["subreddits"]["largest"].values()) == found["comments_per_user"]["comments"]
    assert len(names) == facts["num_subreddits"] == found["subreddits"]["number"] < 60
    assert found["subreddits"]["largest"].keys() == set(names)
    assert set(names) <= {name for (user, _), name in times.items() if user in kept}


def test_the_order_of_files_and_lines_does_not_matter(tmp_path: Path) -> None:
    rows = [
        dump_row(author, n, subreddit=f"s{n % 3}") for author in ("ann", "bob") for n in range(8)
    ]
    write_dump(tmp_path / "one", rows)
    write_dump(tmp_path / "two", rows[9:], "RC_a")
    write_dump(tmp_path / "two", rows[8::-1], "RC_b")
    digests = []
    for name in ("one", "two"):
        prepare(tmp_path / name, tmp_path / f"{name}.h5", WORDS, quiet)
        with Store(tmp_path / f"{name}.h5") as store:
            digests.append(store.facts.checksum)
    assert digests[0] == digests[1]


def test_the_real_dump_of_december_2005(tmp_path: Path) -> None:
    if not (REAL / "RC_2005-12.zst").is_file():
        pytest.skip(f"{REAL} is not here")
    pytest.importorskip("zstandard")
    pytest.importorskip("nltk")
    options = Options(vocabulary=str(REAL / "leaf_vocab.json"), files="RC_2005-12.*")
    facts = prepare(REAL, tmp_path / "r.h5", options, quiet)
    assert facts["comments_read"] == 2 * 1075
    with Store(tmp_path / "r.h5") as store:
        assert store.facts.num_classes == 10_000
        assert store.split("train").num_users == 39
        comments = sum(
            int(np.count_nonzero(part.read("first", 0, part.num_examples)))
            for part in map(store.split, store.split_names)
        )
        assert comments == sum(facts["num_comments"].values()) == 314
    # LEAF's vocabulary, made of another month twelve years later, knows nine tokens of ten.
    assert 0.05 < facts["unknown_tokens"] / facts["tokens"] < 0.1
