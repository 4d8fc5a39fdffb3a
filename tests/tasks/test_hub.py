"""Data sets in the form of the Hugging Face Hub, as files that are written here."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import csv, parquet

from pfl_bench.cli.main import main
from pfl_bench.config.loading import validate_options
from pfl_bench.data import Store
from pfl_bench.types import ConfigError, DataError
from tasks.hub import models, prepare, task
from tests.docs.following import follow, own_plugins
from tests.helpers import REPOSITORY
from tests.tasks.femnist_files import silent

COLUMNS = ("input=x", "label=y")
USERS = [f"person {number % 10}" for number in range(60)]


def picture(value: int, size: tuple[int, int] = (16, 16), mode: str = "L") -> dict[str, Any]:
    file = io.BytesIO()
    Image.new(mode, size, (value, 0, 0) if mode == "RGB" else value).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": f"{value}.png"}


def write(path: Path, names: list[str] | None = None, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if names is not None:
        features = {"y": {"names": names, "_type": "ClassLabel"}}
        entry = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": entry})
    parquet.write_table(table, path, row_group_size=25)
    return path


def prepared(source: Path, *given: str) -> dict[str, Any]:
    options = validate_options(prepare.Options, [*COLUMNS, *given], "test")
    return prepare.prepare(source, source.parent / "my.h5", options, silent)


def opened(folder: Path, **options: Any) -> Any:
    return task.build(task.Options.model_validate({"data": str(folder / "my.h5"), **options}))


def test_images_with_users_keep_pixels_classes_and_names(tmp_path: Path) -> None:
    source = tmp_path / "raw"
    for shard in range(2):
        rows = range(30 * shard, 30 * shard + 30)
        columns = {"x": [picture(row) for row in rows], "y": [row % 3 for row in rows]}
        place = source / f"data/train-0000{shard}-of-00002.parquet"
        write(place, ["ant", "bee", "cat", "dog"], u=USERS[: len(rows)], **columns)
    facts = prepared(source, "user=u")
    assert facts["variant"] == "hub-images"
    assert facts["split"]["by"] == "user"
    made = opened(tmp_path)
    assert made.facts.class_names == ("ant", "bee", "cat", "dog")
    assert made.facts.input_shape == (1, 16, 16)
    assert not made.facts.artificial_users
    held = {name: set(made.split(name).client_ids()) for name in ("train", "val", "test")}
    assert {name: len(users) for name, users in held.items()} == {"train": 8, "val": 1, "test": 1}
    assert set.union(*held.values()) == set(USERS)
    for split in map(made.split, held):
        for number, user in enumerate(split.client_ids()):
            examples = split.read_user(number, np.random.default_rng(0))
            values = examples.inputs[:, 0, 0, 0].tolist()
            # A picture's grey is the number of its row.
            assert all(USERS[value] == user for value in values)
            assert examples.targets.tolist() == [value % 3 for value in values]
            scaled = made.transform(examples.inputs, None)[:, 0, 0, 0]
            assert torch.equal(scaled, torch.tensor(values) / 255)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        ("train.parquet", "validation.parquet", "test.parquet"),
        ("data/training-0-of-1.parquet", "data/dev-0-of-1.parquet", "data/eval_0.parquet"),
        ("train/part.parquet", "valid/part.parquet", "testing/part.parquet"),
        ("latest/contrained.parquet", "my_val.parquet", "train/test.parquet"),
    ],
)
def test_splits_are_known_by_the_hub_s_names(
    train: str, val: str, test: str, tmp_path: Path
) -> None:
    for label, name in enumerate((train, val, test)):
        write(tmp_path / "raw" / name, x=[[1.0, 2.0]] * 5, y=[label] * 5)
    prepared(tmp_path / "raw")
    for label, name in enumerate(("train", "val", "test")):
        with Store(tmp_path / "my.h5") as store:
            assert store.split(name).read("targets", 0, 5).tolist() == [label] * 5
            assert store.facts.extra["artificial_users"]


def test_the_files_of_splits_can_be_named(tmp_path: Path) -> None:
    for name in ("good/a.parquet", "bad/test-1.parquet", "good/b.parquet"):
        write(tmp_path / "raw" / name, x=[[1.0]] * 5, y=[-1 if "bad" in name else 3] * 5)
    facts = prepared(tmp_path / "raw", "train=good/a*", "val=good/b*")
    assert {name: split["examples"] for name, split in facts["splits"].items()} == {
        "train": 5,
        "val": 5,
    }
    with pytest.raises(ConfigError, match=r"test=worse: .* has no such file; it has bad/test-1"):
        prepared(tmp_path / "raw", "train=good/a*", "test=worse")


def test_users_in_several_published_splits_are_split_by_example(tmp_path: Path) -> None:
    for split, users in (("train", [7, 8, 9]), ("test", [9, 10, 11])):
        write(tmp_path / f"raw/{split}.parquet", x=[[1.0], [2.0], [3.0]], y=[1, 2, 3], u=users)
    assert prepared(tmp_path / "raw", "user=u")["split"] == {"by": "example", "as": "published"}
    assert opened(tmp_path).split("test").client_ids() == ["10", "11", "9"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_text_becomes_hashed_words_and_labels_are_sorted(ending: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    texts, labels = (
        ["Good,\ngood.", "bad", "ugly", "good bad ugly film"],
        ["pos", "neg", "neg", "pos"],
    )
    path = tmp_path / "raw" / f"train.{ending}"
    if ending == "csv":
        csv.write_csv(pa.table({"x": texts, "y": labels, "u": [1, 1, 1, 1]}), path)
    else:
        rows = [{"x": x, "y": y, "u": 1} for x, y in zip(texts, labels, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = ("split_by=example", "train_fraction=1", "val_fraction=0", "max_words=3")
    prepared(tmp_path / "raw", "user=u", *given)
    made = opened(tmp_path)
    assert made.facts.class_names == ("neg", "pos")
    examples = made.split("train").read_range(0, 4)

    def number(word: str) -> int:
        return 2 + zlib.crc32(word.encode()) % 10_000

    words = {("good", ",", "good"): 1, ("bad",): 0, ("ugly",): 0, ("good", "bad", "ugly"): 1}
    numbers = {tuple(map(number, text)) + (0,) * (3 - len(text)): n for text, n in words.items()}
    rows = map(tuple, examples.inputs.tolist())
    assert dict(zip(rows, examples.targets.tolist(), strict=True)) == numbers
    for options in ({"name": "bag_log_reg"}, {"name": "stacked_lstm", "hidden": 5}):
        module = models.build(models.Options.model_validate(options), made.facts)
        assert module(examples.inputs).shape == (4, 2)


PARTITIONS = [
    {"kind": "iid", "num_clients": 5},
    {"kind": "dirichlet", "num_clients": 2, "alpha": 5.0},
    {"kind": "labels", "num_clients": 5, "labels_per_client": 1},
    {"kind": "quantity", "num_clients": 2, "alpha": 5.0},
    {"kind": "feature_noise", "num_clients": 5, "level": 0.1},
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda partition: str(partition["kind"]))
@pytest.mark.parametrize("user", ["", "user=u"])
def test_a_partition_makes_artificial_clients(
    user: str, partition: dict[str, Any], tmp_path: Path
) -> None:
    labels = [row % 3 for row in range(60)]
    columns = {"x": [picture(row) for row in range(60)], "y": labels, "u": USERS}
    write(tmp_path / "raw/a.parquet", **columns)
    prepared(tmp_path / "raw", *filter(None, [user]))
    made = opened(tmp_path, partition=partition)
    train = made.split("train")
    assert made.facts.artificial_users
    assert made.facts.variant == f"hub-images-{partition['kind']}"
    assert train.num_users == partition["num_clients"]
    assert train.num_examples == 48 == int(train.offsets[-1])
    examples = train.read_range(0, 48)
    if partition["kind"] != "feature_noise":
        assert (examples.inputs[:, 0, 0, 0] % 3).tolist() == examples.targets.tolist()
    assert made.transform(examples.inputs, None).dtype == torch.float32
    assert opened(tmp_path).facts.artificial_users == (not user)
    if user:
        assert not opened(tmp_path, partition={"kind": "writers"}).facts.artificial_users
        return
    with pytest.raises(ConfigError, match=r"kind 'writers'.*user=COLUMN"):
        opened(tmp_path, partition={"kind": "writers"})


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_models_are_those_of_the_kind(tmp_path: Path) -> None:
    write(tmp_path / "raw/a.parquet", x=[[1, 2, 3]] * 20, y=["a", "b"] * 10)
    prepared(tmp_path / "raw")
    facts = opened(tmp_path).facts
    assert models.build(models.Options(name="mlp", hidden=7), facts)[1].out_features == 7
    assert models.build(models.Options(name="softmax"), facts)[1].in_features == 3
    with pytest.raises(ConfigError, match=r"'lenet' does not take the vectors.*mlp, softmax"):
        models.build(models.Options(name="lenet"), facts)
    with pytest.raises(ConfigError, match="feature_noise': of images alone, not of vectors"):
        opened(tmp_path, partition=PARTITIONS[-1])
    with pytest.raises(ValueError, match="hidden: no option of softmax"):
        models.Options(name="softmax", hidden=7)
    with pytest.raises(ValueError, match="max_examples_per_user: of a store's users"):
        opened(tmp_path, partition=PARTITIONS[0], max_examples_per_user=3)
    write(tmp_path / "raw/a.parquet", x=[picture(1, (8, 8))] * 20, y=["a", "b"] * 10)
    prepared(tmp_path / "raw", "size=12")
    facts = opened(tmp_path).facts
    with pytest.raises(ConfigError, match=r"lenet does not take images of shape \(1, 12, 12\)"):
        models.build(models.Options(name="lenet"), facts)


GOOD: dict[str, Any] = {"x": [[1.0, 2.0]] * 3, "y": [0, 1, 2], "u": ["a", "b", "c"]}
PICTURES = [picture(1), picture(2), picture(3)]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"x": [[1.0, 2.0], [1.0], [1.0, 2.0]]}, "row 2, column 'x': has 1 numbers, the first row 2"),
    ({"x": [[], [1.0], [1.0]]}, "row 1, column 'x': has 0 numbers"),
    ({"x": pa.array([[], [], []], pa.list_(pa.int8()))}, "row 1, column 'x': has 0 numbers"),
    ({"x": [[1.0, 2.0], [1.0, None], [1.0, 2.0]]}, "row 2, column 'x': has a number that is miss"),
    ({"x": [[1.0, 2.0], [1.0, np.inf], [1.0, 2.0]]}, "row 2, column 'x': has a number that is"),
    ({"x": [[1.0, 2.0], [1e300, 2.0], [1.0, 2.0]]}, "row 2, column 'x': .* not finite"),
    ({"x": [[1.0, 2.0], None, [1.0, 2.0]]}, "row 2, column 'x': has no value"),
    ({"x": [1.0, 2.0, 3.0]}, "column 'x': holds double, and cannot be the input"),
    ({"x": [[[1.0]], [[1.0]], [[1.0]]]}, "column 'x': holds list<.*list.*cannot be the input"),
    (
        {"x": [*PICTURES[:2], picture(3, (16, 17))]},
        "row 3.*has 16 x 17 pixels; all must be",
    ),
    ({"x": [picture(3, (16, 17))] * 3}, "row 1.*16 x 17 pixels; all must be squares.*size=32"),
    ({"x": [*PICTURES[:2], picture(3, mode="RGB")]}, "row 3.*it has colours.*set channels=3"),
    ({"x": [*PICTURES[:2], {"bytes": b"GIF", "path": ""}]}, "row 3.*cannot be used: it is no pic"),
    ({"x": [picture(0, mode="I;16")] * 3}, r"row 1.*not 8 bits \(Pillow's mode I;16\); convert it"),
    ({"x": [*PICTURES[:2], {"bytes": None, "path": "a.png"}]}, "row 3, column 'x': has no bytes"),
    ({"y": [0, None, 2]}, "row 2, column 'y': has no value; each row needs its label"),
    ({"y": [0, 1, -1]}, "row 3, column 'y': is -1, no class"),
    ({"y": ["a", "", "b"]}, "row 2, column 'y': is '', no class"),
    ({"y": [0.0, 1.0, 2.0]}, "column 'y': holds double, and cannot be the label.*are x, y, u"),
    ({"y": [0, 1, 2], "names": ["a", "b"]}, "row 3, column 'y': is 2, but has 2 classes"),
    (
        {"x": ["a", "", " "]},
        r"row 2, column 'x': has no word \(it is one of 2 in 3 rows from row 1",
    ),
    ({"u": ["a", "", "c"]}, "column 'u'.*is empty"),
    ({"u": ["a", None, "c"]}, "row 2, column 'u': has no value; each row needs its user"),
    ({"u": [[1], [2], [3]]}, "column 'u': holds list.*cannot be the user"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_row_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "raw/train.parquet", **{**GOOD, **changes})
    with pytest.raises(DataError, match=f"{path}.*{message}"):
        prepared(tmp_path / "raw", "user=u")
    assert [entry.name for entry in tmp_path.iterdir()] == ["raw"]


def test_more_classes_than_a_store_can_number_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "MOST_CLASSES", 2)
    write(tmp_path / "raw/train.parquet", **GOOD)
    told = "row 3, column 'y': is one of more than 2 classes, .* by label=COLUMN"
    with pytest.raises(DataError, match=told):
        prepared(tmp_path / "raw")


def test_metadata_that_are_nested_too_deeply_name_no_class(tmp_path: Path) -> None:
    path = write(tmp_path / "raw/train.parquet", **GOOD)
    metadata = {"huggingface": "[" * 100_000}
    parquet.write_table(parquet.read_table(path).replace_schema_metadata(metadata), path)
    assert prepared(tmp_path / "raw")["classes"] == 3


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    (source / "README.md").touch()
    with pytest.raises(DataError, match=r"has no file \*.parquet, .*; it has README.md"):
        prepared(source)
    (source / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"a.parquet: cannot be read \(.*get it anew"):
        prepared(source)
    write(source / "a.parquet", **{name: column[:0] for name, column in GOOD.items()} | {"y": []})
    with pytest.raises(DataError, match=r"cannot be the|hold no row"):
        prepared(source)
    write(source / "a.parquet", **GOOD)
    for changes in ({"y": ["a", "b", "c"]}, {"x": PICTURES}, {"names": ["a", "b", "c"]}):
        write(source / "b.parquet", **{**GOOD, **changes})
        with pytest.raises(DataError, match=r"b.parquet: its columns are not those of .*a.parquet"):
            prepared(source)
    with pytest.raises(DataError, match=r"a.parquet: has no column 'z'\. Its columns are x, y, u"):
        prepared(source, "user=z")
    with pytest.raises(ConfigError, match=r"split_by: is about users; name their column"):
        prepared(source, "split_by=example")


def test_forms_that_are_not_read_come_with_the_line_that_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rows = pandas.DataFrame({"x": ["a", "b"], "y": ["cat", "dog"]})
    for name in ("json", "csv", "images"):
        Path(name).mkdir()
    rows.to_json("json/a.json")
    rows.to_csv("csv/a.csv.gz")
    for row, label in enumerate(rows["y"]):
        Path("images", label).mkdir()
        Path("images", label, "1.png").write_bytes(PICTURES[row]["bytes"])
    for folder, column in (("json", "x"), ("csv", "x"), ("images", "image")):
        given = (f"input={column}", f"label={'label' if column == 'image' else 'y'}")
        with pytest.raises(DataError, match=r"no file \*.parquet, \*.csv, \*.jsonl;") as refused:
            prepared(tmp_path / folder, *given)
        setup, *lines = re.findall("`([^`]+)`", str(refused.value))[1:]
        monkeypatch.chdir(tmp_path / folder)
        exec(f"{setup}\n{lines[('json', 'csv', 'images').index(folder)]}", {})
        prepared(tmp_path / folder, *given)
        assert opened(tmp_path).facts.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b'{"x": "caf\xe9", "y": 1}'], "UTF8.*CSV and JSON are UTF-8"),
        ([b'{"x": "a", "y": 1}', b'{"x": "b", "y": "1"}'], "/y.*number to string.*one type"),
        ([b'{"x": "a", "y": 1}', b'{"x": "%s", "y": 1}' % (b"a" * 2**21)], "block.*1 MiB"),
    ],
)
def test_json_lines_that_arrow_does_not_read_are_refused(
    lines: list[bytes], message: str, tmp_path: Path
) -> None:
    source = tmp_path / ("a-long-name" * 10) / "train.jsonl"
    source.parent.mkdir()
    source.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DataError, match=message):
        prepared(source.parent)


def test_comma_separated_text_in_latin_1_is_not_taken_for_images(tmp_path: Path) -> None:
    source = tmp_path / "raw" / "train.csv"
    source.parent.mkdir()
    source.write_bytes(b"x,y\ncaf\xe9,1\n")
    with pytest.raises(DataError, match=r"UTF8.*CSV and JSON are UTF-8"):
        prepared(source.parent)


def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.parquet").symlink_to("/dev/zero")
    given = ["--source", str(tmp_path), "--out", str(tmp_path / "my.h5"), *COLUMNS]
    assert main(["data", "prepare", "hub", *given]) == 2
    assert "a.parquet cannot be read: it is no regular file" in capsys.readouterr().err


def test_a_folder_that_cannot_be_listed_is_not_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, source, scandir = tmp_path / "raw" / "b", tmp_path / "raw", os.scandir
    write(source / "a.parquet", **GOOD)
    write(closed / "b.parquet", **GOOD)

    def refuse(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read anything
    given = ["--source", str(source), "--out", str(tmp_path / "my.h5"), *COLUMNS]
    assert main(["data", "prepare", "hub", *given]) == 2
    assert f"{closed}: permission is denied" in capsys.readouterr().err
    assert not (tmp_path / "my.h5").exists()


@pytest.mark.slow
def test_the_page_leads_to_an_audited_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs/how_to/hub.md").read_text(encoding="utf-8")
    # What is before and after these needs a network.
    page = page.split("needs no network. It writes")[1].split("## Text")[0]
    monkeypatch.chdir(tmp_path)
    with own_plugins(monkeypatch):
        follow(page)
    audit = json.loads((tmp_path / "runs/hub-digits/seed-0/audit.json").read_text())
    assert audit["verdict"] == "passed"
    statement = (tmp_path / "runs/dirichlet/privacy.json").read_text()
    assert "artificial" in statement
