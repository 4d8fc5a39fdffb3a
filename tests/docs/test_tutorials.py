"""The pages that show code: each is followed from an empty folder, and prints what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.docs.following import compare, documentation, follow, own_plugins, without_numbers
from tests.helpers import REPOSITORY

TUTORIALS = documentation("tutorials")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
PAGES = TUTORIALS.tutorials(REPOSITORY)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with own_plugins(monkeypatch):
        done = follow(read(page))
        # As by "run all" of a notebook that has run before.
        follow(read(page))
    assert len(done) >= 3
    shown = [block for block in TUTORIALS.blocks(read(page)) if block.language == "text"]
    assert len(shown) >= 2, "a tutorial shows what its code prints"
    if page.stem == "first_table":
        board = (tmp_path / "epsilon.html").read_text(encoding="utf-8")
        assert "<svg" in board, "accuracy against epsilon is drawn"
    if page.stem == "notebook":
        assert "<h1>my-digits: 2 rows</h1>" in (tmp_path / "report.html").read_text(
            encoding="utf-8"
        )


def test_there_are_the_five_tutorials() -> None:
    assert [page.stem for page in PAGES] == [
        "first_table", "notebook", "own_method", "own_task", "statement",
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_a_notebook_too(page: Path) -> None:
    text = TUTORIALS.as_notebook(read(page))
    nbformat.validate(nbformat.reads(text, as_version=4))
    notebook = json.loads(text)
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    written = [block for block in TUTORIALS.blocks(read(page)) if block.path is not None]
    ran = [block for block in TUTORIALS.blocks(read(page)) if block.language in ("python", "bash")]
    assert cells[0].splitlines()[0] == TUTORIALS.INSTALL
    folders = {str(Path(block.path).parent) for block in written}
    assert {f'os.makedirs("{name}", exist_ok=True)' for name in folders} <= set(
        cells[0].splitlines()
    )
    assert len(cells) == len({*written, *ran}) + 1
    saved = [cell for cell in cells if cell.startswith("%%writefile ")]
    assert saved == [f"%%writefile {one.path}\n{one.text.rstrip()}" for one in written]
    assert all("outputs" not in cell or not cell["outputs"] for cell in notebook["cells"])
    assert TUTORIALS.as_notebook(read(page)) == text


def unnamed_files(page: str) -> list[str]:
    """Files that a page has its reader save without naming them: a code host shows no title."""
    parts = re.split(r"^```(\w+(?: [^\n]+)?)\n.*?^```$", page, flags=re.MULTILINE | re.DOTALL)
    said, missing = "", []
    for prose, info in zip(parts[::2], [*parts[1::2], ""], strict=True):
        said += prose
        _, _, path = info.partition(" ")
        if info.startswith(("python ", "yaml ")) and f"`{path}`" not in said:
            missing.append(path)
    return missing


@pytest.mark.parametrize(
    "page", sorted((REPOSITORY / "docs").rglob("*.md")), ids=lambda page: page.stem
)
def test_a_page_says_as_what_its_blocks_are_saved(page: Path) -> None:
    assert unnamed_files("```yaml a.yaml\n```\n`a.yaml`\n") == ["a.yaml"]
    assert unnamed_files("`a.yaml`\n```yaml a.yaml\n```\n") == []
    assert unnamed_files(read(page)) == []


def test_what_a_page_shows_wrongly_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = '```python\nprint("a", 1.5)\n```\n\n```text {}\n{}\n```\n'
    follow(page.format("output", "a 1.5"))
    follow(page.format("output (numbers vary)", "a 27"))
    for title, text in [
        ("output", "a 1.6"),
        ("output (numbers vary)", "b 1.5"),
        ("output (numbers vary)", "a 1.5 2"),
        ("another title", "a 1.5"),
    ]:
        with pytest.raises(AssertionError):
            follow(page.format(title, text))
    with pytest.raises(AssertionError, match="may run pfl-bench and mkdir"):
        follow("```bash\nls\n```\n")
    with pytest.raises(AssertionError, match="cannot vary"):
        compare(SimpleNamespace(title="output (numbers vary)", text="a"), "a")
    assert without_numbers("| 0.9 ± 1e-05 | -----: |") == ["|", "#", "±", "#", "|", "--:", "|"]
