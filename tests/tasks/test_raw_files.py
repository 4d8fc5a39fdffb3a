"""Files of a source folder that are pipes or devices, whose reading may never end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pfl_bench.cli.main import main

MAPPING = "client_data_mapping/train.csv"
# Files by which a task knows a form of its data; the last is none.
CASES = [
    ("amazon_review", [MAPPING]),
    ("amazon_review", ["reviews.json"]),
    ("amazon_review", ["reviews.json.gz"]),
    ("cifar10", ["jpegs.tar"]),
    ("cifar10", ["train/cat/1.jpg"]),
    ("femnist", ["all_data_0.json"]),
    ("femnist", ["test/a.json", "train/a.json"]),
    ("femnist", ["train.parquet"]),
    ("femnist", ["by_write/hsf_0/f0/d0/1.png", "by_class/30/hsf_0/30_1.png"]),
    ("google_speech", ["train/1.wav", MAPPING]),
    ("openimage", ["train/1.jpg", MAPPING]),
    ("reddit", ["RC_2017-12.zst"]),
    ("reddit_albert", ["train/1.txt"]),
    ("sent140", ["test.csv", "training.csv"]),
    ("shakespeare", ["all_data.json"]),
    ("shakespeare", ["text.txt"]),
    ("shakespeare", ["text.txt.gz"]),
    ("shakespeare", ["text.zip"]),
]


@pytest.mark.parametrize(("task", "names"), CASES, ids=lambda value: str(value[-1]))
def test_a_pipe_or_device_among_raw_files_is_refused_and_not_waited_for(
    task: str, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "raw", tmp_path / "out.h5"
    paths = [source / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        paths[-1].unlink()
        make(paths[-1])
        assert main(["data", "prepare", task, "--source", str(source), "--out", str(out)]) == 2
        refused = f"pfl-bench: {paths[-1]} cannot be read: it is no regular file"
        assert refused in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["raw"]
