"""``pfl-bench data stats --plots``: the command and what the pictures say."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from pfl_bench.cli.main import main
from pfl_bench.data import FieldSpec
from pfl_bench.report.canvas import picture_style
from pfl_bench.report.statistics.figures import store_figures, write_pictures
from tests.pfl_bench.report.test_stats import statistics_of, write


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    users = [rng.integers(0, 10, size) for size in rng.zipf(1.6, 60).clip(max=300)]
    write(tmp_path / "s.h5", {"train": users, "test": [[0, 3], [4]]})
    return tmp_path / "s.h5"


def test_the_command_draws_and_lists_whole_pictures(store, tmp_path, capsys):
    folder = tmp_path / "new" / "plots"
    assert main(["data", "stats", str(store), "--json", "--plots", str(folder)]) == 0
    printed = capsys.readouterr()
    names = ["examples_per_user", "quantity_skew", "labels"]
    paths = [str(folder / f"{name}.png") for name in names]
    assert json.loads(printed.out)["plots"] == paths
    assert printed.err.splitlines() == [f"plot: {path}" for path in paths]
    assert sorted(map(str, folder.iterdir())) == sorted(paths)
    for path in paths:
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) > 500
            # Something is drawn: a blank sheet has one grey level.
            assert len(np.unique(np.asarray(picture.convert("L")))) > 20
            assert picture.text["Title"] == "toy (toy-small): made by a test"


def test_without_plots_nothing_is_written(store, tmp_path, capsys):
    assert main(["data", "stats", str(store)]) == 0
    printed = capsys.readouterr()
    assert "quantity skew" in printed.out
    assert printed.err == ""
    assert list(tmp_path.iterdir()) == [store]


def test_other_content_than_the_store_announces_is_exit_2_when_asked(store, capsys):
    assert main(["data", "stats", str(store), "--verify"]) == 0
    assert "verified: the content has SHA-256" in capsys.readouterr().err
    with h5py.File(store, "r+") as file:
        file["train/targets"][0] = 9 - file["train/targets"][0]
    assert main(["data", "stats", str(store)]) == 0
    capsys.readouterr()
    assert main(["data", "stats", str(store), "--verify"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{store}: the store is damaged: its content has SHA-256" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["emd=false"], "task 'toy' has no statistics of its own"),
        (["--plots", "{store}"], "there is a file of that name"),
        (["--plots", "{store}/below"], "there is a file of that name"),
    ],
)
def test_wrong_arguments_are_exit_2(store, arguments, words, capsys):
    filled = [argument.format(store=store) for argument in arguments]
    assert main(["data", "stats", str(store), *filled]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_folder_that_the_system_refuses_is_exit_2(store, capsys):
    assert main(["data", "stats", str(store), "--plots", "/proc/x/plots"]) == 2
    error = capsys.readouterr().err
    assert "--plots /proc/x/plots: the folder cannot be made (No such file or directory)" in error
    assert "Traceback" not in error


def test_a_name_too_long_for_a_folder_is_exit_2(store, capsys):
    assert main(["data", "stats", str(store), "--plots", str(store.parent / ("x" * 300))]) == 2
    error = capsys.readouterr().err
    assert "the folder cannot be made (File name too long)" in error
    assert "Traceback" not in error


def test_a_missing_store_leaves_no_folder(tmp_path, capsys):
    plots = tmp_path / "plots"
    assert main(["data", "stats", str(tmp_path / "no.h5"), "--plots", str(plots)]) == 2
    assert "no.h5" in capsys.readouterr().err
    assert not plots.exists()


def test_heading_and_notice_stand_on_every_picture(tmp_path):
    with picture_style():
        figure = Figure()
        figure.add_subplot().plot([0, 1], [0, 1])
    heading = "task (variant): " + "a long source " * 20
    (path,) = write_pictures({"one": figure}, tmp_path, heading.strip(), "drawn, not real")
    assert path == tmp_path / "one.png"
    assert figure.get_supxlabel() == "drawn, not real"
    assert figure.get_suptitle().replace("\n", " ") == heading.strip()
    with Image.open(path) as picture:
        assert picture.text["Description"] == "drawn, not real"


def test_the_pictures_show_the_numbers(store):
    statistics = statistics_of(store)
    figures = store_figures(statistics)
    (axes,) = figures["quantity_skew"].axes
    lines = {line.get_label().split(":")[0]: line for line in axes.lines}
    assert set(lines) == {"train", "test", "all splits", "no skew"}
    curve = statistics["all_splits"]["quantity_skew"]["curve"]
    assert list(lines["all splits"].get_ydata()) == curve["examples"]
    counts, shares = figures["labels"].axes
    labels = statistics["all_splits"]["labels"]
    heights = [bar.get_height() for bar in counts.patches]
    assert heights == [labels["counts"].get(str(label), 0) for label in range(10)]
    heights = [bar.get_height() for bar in shares.patches]
    assert heights == [labels["share_of_users"].get(str(label), 0) for label in range(10)]


def test_stores_without_labels_and_with_many_classes_are_drawn(tmp_path):
    write(tmp_path / "real.h5", {"train": [[0.5, 0.25]]}, FieldSpec("float32"))
    assert "labels" not in store_figures(statistics_of(tmp_path / "real.h5"))
    users = [list(range(first, 500)) for first in range(0, 500, 100)]
    write(tmp_path / "many.h5", {"train": users}, FieldSpec("uint16"), num_classes=500)
    top, bottom = store_figures(statistics_of(tmp_path / "many.h5"))["labels"].axes
    assert (
        list(top.lines[0].get_ydata()) == [5] * 100 + [4] * 100 + [3] * 100 + [2] * 100 + [1] * 100
    )
    assert bottom.lines[0].get_ydata()[-1] == pytest.approx(0.2)
