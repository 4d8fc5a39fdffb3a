from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.amazon_review import generate, models, prepare, task

HEAD = "client_id,data_path,label_name,label_id\n"
REVIEWS = [
    ("ann", "Great book, great story", 5),
    ("ann", "Bad bad lamp", 1.0),
    ("bob", "great", 4),
    ("bob", "so so", 3),
]


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def write_mapping(folder: Path, **splits: str) -> Path:
    (folder / "client_data_mapping").mkdir(parents=True)
    for split, rows in splits.items():
        path = folder / "client_data_mapping" / f"{split}.csv"
        path.write_text(HEAD + rows, encoding="utf-8")
    return folder


def write_json(path: Path, lines: list[Any]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def published(user: str, text: str, stars: object) -> dict[str, Any]:
    return {"reviewerID": user, "asin": "B0", "reviewText": text, "overall": stars}


def prepared(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    return prepare.prepare(source, out, prepare.Options(**options), silent)


def open_task(store: Path, **options: Any) -> task.AmazonReviewTask:
    return task.build(task.Options(data=str(store), **options))


def test_fedscale_s_mapping_becomes_numbered_words_and_stars(tmp_path: Path) -> None:
    train = '0,"Great book, great story",5,4\n0,Bad lamp!,1.0,0\n1,great,4,3\n'
    source = write_mapping(tmp_path / "raw", train=train, test="2,great zebra,2,1\n")
    facts = prepared(source, tmp_path / "a.h5")
    assert facts["split"] == {"by": "user", "as": "published"}
    opened = open_task(tmp_path / "a.h5")
    with Store(tmp_path / "a.h5") as store:
        words = store.names("vocabulary")
    assert list(words[:3]) == ["<PAD>", "<UNK>", "great"]
    examples = opened.split("train").read_user(0, np.random.default_rng(0))
    assert examples.targets.tolist() == [4, 0]
    # A comma is a word, as in LEAF; the longest review has five.
    spelled = [[words[number] for number in row if number] for row in examples.inputs.tolist()]
    assert spelled == [["great", "book", ",", "great", "story"], ["bad", "lamp", "!"]]
    (row,) = opened.split("test").read_range(0, 1).inputs.tolist()
    assert [words[number] for number in row[:2]] == ["great", "<UNK>"]
    assert opened.facts.class_names[4] == "5 stars"


def test_the_publisher_s_lines_are_split_here(tmp_path: Path) -> None:
    for number in range(2):
        rows = [published(*review) for review in REVIEWS[2 * number : 2 * number + 2]]
        write_json(tmp_path / f"reviews_{number}.json.gz", rows)
    facts = prepared(tmp_path, tmp_path / "a.h5", train_fraction=0.5, val_fraction=0)
    assert facts["splits"] == {name: {"users": 2, "examples": 2} for name in ("train", "test")}
    assert facts["variant"] == "amazon-review-json"
    stars = {
        int(label)
        for name in ("train", "test")
        for label in open_task(tmp_path / "a.h5").split(name).read_range(0, 2).targets
    }
    assert stars == {0, 2, 3, 4}


def test_long_reviews_are_cut_and_counted(tmp_path: Path) -> None:
    source = write_mapping(tmp_path / "raw", train="0,one two three four,5,4\n0,one,5,4\n")
    facts = prepared(source, tmp_path / "a.h5", max_words=2)
    assert facts["cut_reviews"]["reviews"] == {"train": 1}
    assert open_task(tmp_path / "a.h5").facts.input_shape == (2,)
    assert facts["vocabulary"]["words_of_train"] == 3


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("0,fine,6,5\n", r"train\.csv, line 2: '6' stars"),
        ("0,fine,good,5\n", "line 2: 'good' stars"),
        ("0,fine,4.5,5\n", "line 2: '4.5' stars"),
        ("0,fine,nan,5\n", "line 2: 'nan' stars"),
    ],
)
def test_a_row_without_stars_is_named(tmp_path: Path, rows: str, told: str) -> None:
    source = write_mapping(tmp_path / "raw", train=rows)
    with pytest.raises(DataError, match=told):
        prepared(source, tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{'reviewerID': 'a'}\n", "line 1: not a JSON object"),
        (b'{"overall": 5}\n', "line 1: no reviewerID"),
        (b'{"reviewerID": "a", "reviewText": 7, "overall": 5}\n', "reviewText is no text"),
        (b'{"reviewerID": "a", "overall": true}\n', "True stars"),
        (b'{"reviewerID": "a", "reviewText": "x"}\n', "None stars"),
    ],
)
def test_a_line_that_is_no_review_is_named(tmp_path: Path, line: bytes, told: str) -> None:
    (tmp_path / "r.jsonl").write_bytes(line)
    with pytest.raises(DataError, match=told):
        prepared(tmp_path, tmp_path / "a.h5")


def test_a_cut_archive_is_told(tmp_path: Path) -> None:
    write_json(tmp_path / "r.json.gz", [published(*review) for review in REVIEWS])
    data = (tmp_path / "r.json.gz").read_bytes()
    (tmp_path / "r.json.gz").write_bytes(data[:-12])
    with pytest.raises(DataError, match="damaged or cut"):
        prepared(tmp_path, tmp_path / "a.h5")


def test_a_folder_without_reviews_is_told_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="client_data_mapping"):
        prepared(tmp_path, tmp_path / "a.h5")


def test_word_vectors_are_summed_and_scaled(tmp_path: Path) -> None:
    source = write_mapping(tmp_path / "raw", train="0,Great great lamp x2,5,4\n0,zebra,1,0\n")
    prepared(source, tmp_path / "a.h5")
    vectors = tmp_path / "glove.txt"
    vectors.write_text("great 1 2\nlamp 0 -1\nx2 9 9\n", encoding="utf-8")
    opened = open_task(tmp_path / "a.h5")
    torch.manual_seed(0)
    options = models.Options(name="vector_log_reg", embeddings=str(vectors))
    model = models.build(options, opened.facts)
    inputs = opened.split("train").read_range(0, 2).inputs
    assert isinstance(model, models.SummedVectors)
    # "x2" is not made of letters, "zebra" has no vector.
    summed = torch.tensor([[2.0, 3.0], [0.0, 0.0]])
    summed[0] /= summed[0].norm()
    assert torch.allclose(model(inputs), functional.linear(summed, *model.logits.parameters()))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["logits.weight", "logits.bias"]


@pytest.mark.parametrize(
    "options", [{"name": "vector_log_reg"}, {"name": "bag_log_reg", "embeddings": "x"}]
)
def test_embeddings_belong_to_one_of_the_models(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="vector_log_reg needs embeddings"):
        models.Options(**options)


def test_generated_reviews_say_so_and_a_bag_of_words_learns_them(tmp_path: Path) -> None:
    options = generate.Options(users=20, mean_reviews=20)
    facts = generate.generate(tmp_path / "raw", options, silent)
    assert facts["prepare_options"] == []
    found = prepared(tmp_path / "raw", tmp_path / "a.h5")
    assert found["variant"] == "generated"
    opened = open_task(tmp_path / "a.h5", partition="iid")
    assert opened.facts.artificial_users
    sizes = np.diff(opened.split("train").offsets)
    assert sizes.max() - sizes.min() <= 1
    model = models.build(models.Options(name="bag_log_reg"), opened.facts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pooled = opened.split("train").read_range(0, opened.split("train").num_examples)
    for _ in range(15):
        optimizer.zero_grad()
        opened.loss(model(pooled.inputs), pooled.targets).backward()
        optimizer.step()
    test = opened.split("test").read_range(0, opened.split("test").num_examples)
    right = (model(test.inputs).argmax(dim=1) == test.targets).float().mean()
    commonest = (test.targets == test.targets.mode().values).float().mean()
    assert right > commonest


def test_the_same_seed_generates_the_same_reviews(tmp_path: Path) -> None:
    options = generate.Options(users=3, mean_reviews=6)
    for name in ("a", "b"):
        generate.generate(tmp_path / name, options, silent)
    first, second = (
        (tmp_path / name / "client_data_mapping" / "train.csv").read_bytes() for name in "ab"
    )
    assert first == second
