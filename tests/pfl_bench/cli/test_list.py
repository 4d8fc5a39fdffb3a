"""``pfl-bench list`` and ``pfl-bench copy``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from pfl_bench import plugins
from pfl_bench.cli.list import LISTED
from pfl_bench.cli.main import main
from pfl_bench.config.row_files import rows_below
from tests.helpers import REPOSITORY

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("what", LISTED)
def test_each_plug_in_has_a_line_with_its_own_summary(what: str, capsys: Capture) -> None:
    lines = shown(capsys, "list", what).splitlines()
    assert [line.split()[0] for line in lines] == plugins.available(LISTED[what])
    for line in lines:
        name, _, text = line.partition(" ")
        assert text.strip() == (plugins.load(LISTED[what], name).__doc__ or "").partition("\n")[0]


def test_rows_come_with_their_published_numbers(capsys: Capture) -> None:
    listed = json.loads(shown(capsys, "list", "rows", "--json"))["rows"]
    assert sorted(entry["name"] for entry in listed) == sorted(
        f"{name}.yaml" for name in rows_below(REPOSITORY / "configs")
    )
    (demo,) = [entry for entry in listed if entry["name"] == "demo/central.yaml"]
    assert demo["task"] == "digits"
    assert demo["published"][0]["metric"] == "test/accuracy"
    assert f"test/accuracy {demo['published'][0]['value']:g}" in shown(
        capsys, "list", "rows", "demo"
    )


def test_tables_are_folders_that_the_command_table_takes(capsys: Capture) -> None:
    lines = [line.split() for line in shown(capsys, "list", "tables").splitlines()]
    assert ["demo", "4", "rows"] in lines
    assert all((REPOSITORY / "configs" / name).is_dir() for name, *_ in lines)
    everything = shown(capsys, "list")
    assert all(what in everything for what in (*LISTED, "rows", "tables"))


def test_a_copied_row_runs_and_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(capsys, "copy", "demo/federated.yaml", "mine.yaml") == "pfl-bench run mine.yaml\n"
    text = (tmp_path / "mine.yaml").read_text()
    original = (REPOSITORY / "configs/demo/federated.yaml").read_text()
    assert text.splitlines()[0] == "# pfl-bench run mine.yaml"
    assert text.splitlines()[1:] == original.splitlines()[1:]
    assert main(["run", "mine.yaml", "federated.num_rounds=1"]) == 0
    assert main(["copy", "demo/central.yaml", "mine.yaml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_text() == text
    assert main(["copy", "demo/central.yaml", "mine.yaml", "--force"]) == 0
    assert (tmp_path / "mine.yaml").read_text() != text


def test_what_copy_prints_is_a_command_for_a_path_with_spaces_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = shown(capsys, "copy", "demo/federated.yaml", "my own row.yaml")
    assert shlex.split(printed) == ["pfl-bench", "run", "my own row.yaml"]
    assert (tmp_path / "my own row.yaml").read_text().startswith(f"# {printed}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.yaml", "mine.yaml"], "no such row file"),
        (["leaf/quick/view.yaml", "mine.yaml"], "is a view"),
        (["demo/central.yaml", "mine.txt"], "ends in .yaml"),
        (["demo/central.yaml", "none/mine.yaml"], "there is no folder none"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["copy", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
