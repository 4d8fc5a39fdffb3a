from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfl_bench.data import FieldSpec, Store
from pfl_bench.types import DataError
from tasks.common.fedscale import layout
from tasks.common.fedscale.generating import Options as GenerateOptions
from tasks.common.fedscale.generating import client_sizes
from tasks.common.fedscale.layout import Labels, Survey
from tasks.common.fedscale.streaming import (
    Counts,
    Options,
    SampleError,
    Source,
    open_layout,
    table5,
    write_store,
)

HEADER = "client_id,sample_path,label_name,label_id\n"
# Clients out of order, a name with a comma, one label of which train has no sample.
TRAIN = [
    "9,b/1.txt,Tree,0",
    "10,2.txt,Cat,1",
    '9,3.txt,"Dog, small",3',
    "10,4.txt,Tree,0",
    "10,5.txt,Cat,1",
]
TEST = ["11,1.txt,Cat,1"]


def silent(what: str, done: int, total: int | None) -> None:
    """Take progress and show none."""


def write_mapping(source: Path, split: str, rows: list[str], files: bool = True) -> Path:
    folder = source / layout.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    (source / split).mkdir(exist_ok=True)
    for row in rows if files else ():
        file = source / split / row.split(",")[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"{split} {row.split(',')[1]}".encode())
    return path


def read_text(content: bytes) -> np.ndarray:
    if content.startswith(b"bad"):
        raise SampleError("it begins with 'bad'")
    return np.frombuffer(content, dtype=np.uint8)


def make(source: Path, out: Path, labels: Labels | None = None, **options: object) -> dict:
    given = Options.model_validate(options)
    found = open_layout(source, labels or Labels(), given, silent)
    return write_store(
        out,
        found,
        Counts(clients=1, samples=1, rounding=1),
        read_text,
        given,
        silent,
        value=("text", FieldSpec("uint8", ragged=True)),
        task="texts",
        variant="made",
        origin="made for a test",
        made_up="made up for a test",
        input_shape=(1,),
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    write_mapping(folder, "train", TRAIN)
    write_mapping(folder, "test", TEST)
    return folder


def test_rows_come_with_their_lines(source: Path) -> None:
    path = source / layout.FOLDER / "train.csv"
    path.write_text(path.read_text().replace("Cat,1\n", "Cat,1\n\n", 1), encoding="utf-8")
    rows = list(layout.read_mapping(path))
    assert rows[0] == layout.Row("9", "b/1.txt", "Tree", 0, 2)
    # A blank line is passed over and counted.
    assert rows[2] == layout.Row("9", "3.txt", "Dog, small", 3, 5)
    assert len(rows) == len(TRAIN)


def test_other_spellings_of_the_published_files_are_read(tmp_path: Path) -> None:
    write_mapping(tmp_path, "train", TRAIN)
    path = write_mapping(tmp_path, "validation", TEST)
    text = path.read_text().replace("sample_path", "data_path").replace(",1\n", ",\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert layout.find_mappings(tmp_path) == {
        "train": tmp_path / layout.FOLDER / "train.csv",
        "val": path,
    }
    assert [row.label_id for row in layout.read_mapping(path)] == [layout.NO_LABEL]
    assert layout.sample_folder(tmp_path, "val").name == "validation"


def test_a_store_has_the_samples_of_each_client(source: Path, tmp_path: Path) -> None:
    facts = make(source, tmp_path / "s.h5")
    assert facts["splits"] == {
        "train": {"users": 2, "examples": 5},
        "test": {"users": 1, "examples": 1},
    }
    assert facts["split_by"] == "user"
    with Store(tmp_path / "s.h5") as store:
        train = store.split("train")
        assert train.client_ids() == ["10", "9"]
        texts = [text.tobytes().decode() for text in train.read("text", 0, 5)]
        assert texts == [f"train {n}.txt" for n in ("2", "4", "5", "b/1", "3")]
        assert train.read("targets", 0, 5).tolist() == [1, 0, 1, 0, 3]
        assert store.names("targets") == ["Tree", "Cat", "label_2", "Dog, small"]
        assert store.facts.num_classes == 4


def test_small_clients_of_train_are_dropped(source: Path, tmp_path: Path) -> None:
    facts = make(source, tmp_path / "s.h5", min_examples=3)
    assert facts["splits"]["train"] == {"users": 1, "examples": 3}
    assert facts["splits"]["test"] == {"users": 1, "examples": 1}
    assert (facts["dropped_clients"], facts["dropped_samples"]) == (1, 2)
    with pytest.raises(DataError, match=r"all 2 clients of train have fewer.*largest has 3"):
        make(source, tmp_path / "t.h5", min_examples=4)
    assert not (tmp_path / "t.h5").exists()


def test_a_client_of_two_splits_makes_them_splits_of_examples(tmp_path: Path) -> None:
    write_mapping(tmp_path / "raw", "train", TRAIN)
    write_mapping(tmp_path / "raw", "test", ["9,1.txt,Cat,1"])
    assert make(tmp_path / "raw", tmp_path / "s.h5")["split_by"] == "example"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*TRAIN, "9,6.txt,Tree"], r"train.csv, line 7: 3 fields instead of 4"),
        ([*TRAIN, "9,6.txt,Tree,x"], r"line 7: label_id is 'x'; it must be a whole number"),
        ([*TRAIN, "9,6.txt,Tree,1.0"], r"line 7: label_id is '1.0'"),
        ([*TRAIN, "9,6.txt,Tree,70000"], r"line 7: label_id is '70000'.*0 to 65535"),
        ([*TRAIN, "9,6.txt,Tree,-2"], r"line 7: label_id is '-2'"),
        ([*TRAIN, "9,6.txt,Tree,-1"], r"line 7: sample '6.txt' has no label"),
        ([*TRAIN, "9,6.txt,Bush,0"], r"line 7: label_id 0 is 'Bush', but 'Tree' in .*line 2"),
        (
            [*TRAIN, "9,6.txt,Tree,2"],
            r"line 7: label_name 'Tree' has label_id 2, but 0 in .*line 2",
        ),
        ([*TRAIN, "8,2.txt,Cat,1"], r"line 7: sample '2.txt' of client '8' is already in line 3"),
        ([*TRAIN, ",6.txt,Tree,0"], r"line 7: client_id is empty"),
        ([*TRAIN, "7,,,"], r"line 7: sample_path is empty"),
        ([*TRAIN, '9,"6.txt,Tree,0'], r"line 7: not CSV"),
        ([*TRAIN, "9,../6.txt,Tree,0"], r"line 7: sample_path '../6.txt' leads out of"),
        ([], r"train.csv has a header and no row"),
    ],
)
def test_a_wrong_row_is_named(rows: list[str], message: str, tmp_path: Path) -> None:
    write_mapping(tmp_path / "raw", "train", rows, files=False)
    for row in TRAIN:
        write_mapping(tmp_path / "raw", "test", TEST)
        file = tmp_path / "raw" / "train" / row.split(",")[1]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    with pytest.raises(DataError, match=message):
        make(tmp_path / "raw", tmp_path / "s.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"line 1: the header is 'an empty file'; it must be client_id,sample_path"),
        (b"client_id,path,label_name,label_id\n", r"line 1: the header is 'client_id,path"),
        (HEADER.encode() + b"9,\xff.txt,Tree,0\n", r"cannot be read \(not text in UTF-8"),
    ],
)
def test_a_wrong_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(layout.read_mapping(path))


def test_a_missing_or_damaged_sample_is_named(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    (source / "train" / "4.txt").write_bytes(b"bad")
    with pytest.raises(
        DataError, match=r"train.csv, line 5: the sample .*4.txt cannot be read \(it"
    ):
        make(source, out)
    (source / "train" / "4.txt").unlink()
    with pytest.raises(DataError, match=r"train.csv, line 5: sample '4.txt' is not in"):
        make(source, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]
    facts = make(source, out, bad_samples="leave_out")
    assert facts["splits"]["train"] == {"users": 2, "examples": 4}
    assert facts["bad_samples"]["left_out"] == 1
    assert "line 5" in facts["bad_samples"]["first"][0]


def test_what_is_no_layout_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder client_data_mapping/"):
        layout.find_mappings(tmp_path)
    path = write_mapping(tmp_path, "test", TEST)
    with pytest.raises(DataError, match=r"no train.csv.*it has: test.csv"):
        layout.find_mappings(tmp_path)
    path.rename(path.with_name("train.csv"))
    with pytest.raises(DataError, match="no folder train/"):
        make(tmp_path, tmp_path / "s.h5")
    for name in ("val", "validation"):
        write_mapping(tmp_path, name, TEST)
    with pytest.raises(DataError, match=r"has both val.csv and validation.csv, .* of split 'val'"):
        layout.find_mappings(tmp_path)


def test_known_words_decide_over_numbers(source: Path, tmp_path: Path) -> None:
    words = ("Cat", "Dog, small", "Tree")
    make(source, tmp_path / "s.h5", Labels(words))
    with Store(tmp_path / "s.h5") as store:
        assert store.split("train").read("targets", 0, 5).tolist() == [0, 2, 0, 2, 1]
        assert store.names("targets") == list(words)
    with pytest.raises(DataError, match=r"label_name 'Tree' .*did you mean 'Trees'\?"):
        make(source, tmp_path / "t.h5", Labels(("Cat", "Dog, small", "Trees")))


def test_either_of_the_counts_may_agree_with_the_paper() -> None:
    surveys = {"train": Survey(95, {"a": 95}), "test": Survey(10, {"b": 10})}
    found = Source(Path(), surveys, list, ["x"])
    assert table5(found, Counts(2, 100, 10))["differs_from_published"] == []
    assert table5(found, Counts(1, 110, 10))["differs_from_published"] == []
    (told,) = table5(found, Counts(3, 100, 10))["differs_from_published"]
    assert told == "clients: 1 in train and 2 in all here, 3 published"
    assert table5(found, Counts(2, 1000, 10))["differs_from_published"] is None


def test_generated_clients_have_a_heavy_tail() -> None:
    sizes = client_sizes(GenerateOptions(num_users=4000, examples_per_user=20))
    assert sizes.min() >= 1
    assert np.mean(sizes) == pytest.approx(20, rel=0.1)
    # Log-normal with a spread of 1.2: the median is exp(-0.72) of the mean.
    assert np.median(sizes) == pytest.approx(20 * np.exp(-0.72), rel=0.15)
    assert 0.01 < np.mean(sizes > 10 * np.median(sizes)) < 0.05
