"""Names and texts of a stranger's run folder do nothing in what is made of them."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from pfl_bench.cli.main import main
from pfl_bench.report.page import write_report
from pfl_bench.report.table import Table
from tests.pfl_bench.report.test_report import write_run

HOSTILE = (
    "x<script>alert(1)</script>\"'onload=alert(1) [a](javascript:alert(1)) | \x1b[31m\u202e\r\n"
    "## head \\input{/etc/passwd} $x$ </td></svg>"
)


class Elements(HTMLParser):
    """Counts a page's elements, and gathers what would run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.handlers += [name for name, value in attrs if "javascript:" in (value or "")[:20]]


def table(name: str) -> Table:
    return Table.of(("row", "value"), [(name, "0.5"), ("b", "0.6")], notes=[name])


def test_markdown_stays_a_table_without_elements_or_links() -> None:
    text, tame = table(HOSTILE).to_markdown(), table("a").to_markdown()
    assert text.count("\n") == tame.count("\n")
    assert r"\<script>" in text
    assert "<script>" not in text.replace(r"\<", "")
    assert "](" not in text.replace(r"\](", "")
    assert not {"\x1b", "\u202e", "\r"} & set(text)


def test_a_terminal_is_not_steered() -> None:
    for text in (table(HOSTILE).to_terminal(60), table(HOSTILE).to_text()):
        assert not {"\x1b", "\u202e", "\r"} & set(text)
        assert r"\x1b" in text


def test_latex_runs_no_command_of_a_name() -> None:
    text = table(HOSTILE).to_latex()
    assert r"\input" not in text
    assert r"\$x\$" in text


@pytest.mark.parametrize("name", ["=1+1", "+cmd|' /C calc'!A0", "-2+cmd", "@SUM(A1)", "\t=1"])
def test_a_spreadsheet_runs_no_name(name: str) -> None:
    (_, first, _) = csv.reader(io.StringIO(table(name).to_csv()))
    assert first[0] == f"'{name}"


@pytest.mark.parametrize("text", ["-0.5", "-0.5, 0.25", "+1e-3; -inf", "-", "a=b"])
def test_numbers_and_plain_texts_stay_as_they_are(text: str) -> None:
    (_, first, _) = csv.reader(io.StringIO(table(text).to_csv()))
    assert first[0] == text


def forge(folder: Path, name: str) -> Path:
    """A run whose texts are all of this name."""
    write_run(folder, "a", "private_federated")
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"name": name, "variant": name, "departure": name}
    for entry in summary["expected"]:
        entry |= {"source": name, "why": name, "verdict": "not the row"}
    (folder / "summary.json").write_text(json.dumps(summary))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "name": name}))
    return folder


def test_a_report_has_no_element_that_a_tame_name_does_not_make(tmp_path: Path) -> None:
    pages = []
    for word, name in (("tame", "a"), ("hostile", HOSTILE)):
        page = write_report([forge(tmp_path / word, name)], tmp_path / f"{word}.html")
        pages.append(Elements(page.read_text()))
    assert pages[1].tags == pages[0].tags
    assert pages[1].handlers == pages[0].handlers == []


def test_a_leaderboard_writes_nowhere_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "deep" / "runs", tmp_path / "deep" / "out" / "board.html"
    out.parent.mkdir(parents=True)
    forge(runs / "a", "../../../escaped")
    forge(runs / "b", HOSTILE)
    assert main(["leaderboard", str(runs), "--out", str(out)]) == 0
    assert not {"\x1b", "\u202e"} & set("".join(capsys.readouterr()))
    assert Elements(out.read_text()).handlers == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep"]
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"runs", "out"}
