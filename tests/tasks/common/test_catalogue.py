from __future__ import annotations

import json

import pytest

from pfl_bench import plugins
from pfl_bench.cli.main import main
from tasks.common.fedscale.catalogue import DATA_SETS
from tests.helpers import REPOSITORY


def test_the_catalogue_has_table_5_s_data_sets_and_counts() -> None:
    paper = REPOSITORY.parent / "shared" / "papers" / "fedscale.txt"
    if not paper.is_file():
        pytest.skip("the paper's text is not here")
    scale = {"K": 1_000, "M": 1_000_000}
    rows = [line.split("\t") for line in paper.read_text(encoding="utf-8").splitlines()]
    published = {
        row[1].split(" (")[0]: (row[3], row[4])
        for row in rows
        if len(row) == 6 and row[4][-1:] in scale
    }
    assert len(DATA_SETS) == len(published) == 20
    for found in DATA_SETS:
        clients, samples = published[found.name]
        assert found.clients == int(clients.replace(",", ""))
        assert found.samples == round(float(samples[:-1]) * scale[samples[-1]])


def test_the_tasks_that_it_names_exist() -> None:
    tasks = set(plugins.available(plugins.TASK))
    named = {name for found in DATA_SETS for name in found.tasks}
    assert named <= tasks
    assert {"femnist", "amazon_review", "reddit_albert"} <= named


def test_the_command_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 21
    assert main(["data", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["data_sets"]
    assert [entry["name"] for entry in listed] == [found.name for found in DATA_SETS]
    assert listed[1]["tasks"] == ["femnist"]
