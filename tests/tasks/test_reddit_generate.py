"""Generated comments: JSON and a store hold the same; numbers are those asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from pfl_bench.cli.main import main
from pfl_bench.data import Store
from pfl_bench.types import DataError
from tasks.common.text.drawing import comment_counts
from tasks.reddit.cleaning import Options as PrepareOptions
from tasks.reddit.generate import Options, generate
from tasks.reddit.prepare import prepare
from tasks.reddit.statistics import Options as StatisticsOptions
from tasks.reddit.statistics import statistics
from tasks.reddit.task import RedditTask

SMALL = {"users": 40, "comments": 400, "vocabulary_size": 300, "subreddits": 5, "mean_tokens": 12.0}


def quiet(what: str, done: int, total: int | None) -> None:
    assert total is None or done <= total


def test_both_forms_hold_the_same_comments(tmp_path: Path) -> None:
    generate(tmp_path / "json", Options(**SMALL), quiet)
    facts = generate(tmp_path / "store", Options(**SMALL, form="store"), quiet)
    prepare(tmp_path / "json", tmp_path / "r.h5", PrepareOptions(vocabulary_size=300), quiet)
    with Store(tmp_path / "r.h5") as ours, Store(tmp_path / "store" / "reddit.h5") as theirs:
        for made_up in (ours, theirs):
            assert made_up.facts.variant == "generated"
            assert RedditTask(made_up).facts.artificial_users
        ours_words, theirs_words = (np.array(s.names("vocabulary")) for s in (ours, theirs))
        for name in ("train", "val", "test"):
            a, b = ours.split(name), theirs.split(name)
            assert a.num_examples == facts["sequences"][name]
            assert a.offsets.tolist() == b.offsets.tolist()
            assert a.client_ids() == b.client_ids()
            for field in ("counted", "first", "subreddit"):
                same = a.read(field, 0, a.num_examples) == b.read(field, 0, b.num_examples)
                assert same.all()
            for field in ("tokens", "targets"):
                x = ours_words[a.read(field, 0, a.num_examples)]
                y = theirs_words[b.read(field, 0, b.num_examples)]
                known = x != "<UNK>"
                assert known.mean() > 0.95
                assert (x == y)[known].all()
        found = statistics(theirs, StatisticsOptions(), quiet)
    assert found["comments_per_user"]["users"] == 40
    assert found["comments_per_user"]["comments"] == 400
    assert found["notice"] == "made-up comments, not Reddit"
    assert "not Reddit's" in (tmp_path / "store" / "GENERATED.txt").read_text()


def test_the_same_options_give_the_same_store(tmp_path: Path) -> None:
    checksums = []
    for place, seed in enumerate((0, 0, 1)):
        generate(tmp_path / str(place), Options(**SMALL, form="store", seed=seed), quiet)
        with Store(tmp_path / str(place) / "reddit.h5") as store:
            checksums.append(store.facts.checksum)
    assert checksums[0] == checksums[1] != checksums[2]


@pytest.mark.parametrize(("users", "comments"), [(1, 5), (10, 50), (7, 7000), (1000, 34_070)])
def test_counts_add_up(users: int, comments: int) -> None:
    counts = comment_counts(users, comments)
    assert counts.sum() == comments
    assert counts.min() >= 5
    assert counts.max() <= 1000


def test_counts_are_as_skewed_as_published() -> None:
    counts = comment_counts(20_000, 681_400)
    assert counts.mean() == 34.07
    # LEAF's 62.95, less what the limit of 1,000 takes away.
    assert 55 < counts.std() < 65


def test_from_the_command_line_to_statistics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    folder, store = str(tmp_path / "drawn"), str(tmp_path / "r.h5")
    assert main(["data", "generate", "reddit", "--out", folder, *settings]) == 0
    assert main(["data", "prepare", "reddit", "--source", folder, "--out", store]) == 0
    capsys.readouterr()
    assert main(["data", "stats", store, "--plots", str(tmp_path / "plots")]) == 0
    assert "LEAF, table 1" in capsys.readouterr().out
    assert (tmp_path / "plots" / "comments_per_user.png").is_file()


def test_impossible_numbers_and_a_folder_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give 50 to 10000"):
        Options(users=10, comments=49)
    (tmp_path / "in_use").touch()
    with pytest.raises(DataError, match="is not empty"):
        generate(tmp_path, Options(**SMALL), quiet)
    with pytest.raises(DataError, match="is a file"):
        generate(tmp_path / "in_use", Options(**SMALL), quiet)
