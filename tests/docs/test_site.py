"""The build of the site ends where a link leads nowhere."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.docs.following import script

SITE = script("docs")


@pytest.mark.parametrize(
    ("link", "code"), [("other.md#a-heading", 0), ("none.md", 1), ("other.md#no-heading", 1)]
)
def test_a_broken_link_ends_the_build(link: str, code: int, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text(f"# Home\n\n[A link]({link})\n", encoding="utf-8")
    (pages / "other.md").write_text("# Other\n\n## A heading\n", encoding="utf-8")
    lines = (SITE.CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
    start = lines.index("validation:")
    rules = lines[start : start + 3]
    config = tmp_path / "mkdocs.yml"
    head = ["site_name: small", "docs_dir: pages", "theme: {name: material, font: false}"]
    config.write_text("\n".join([*head, *rules]), encoding="utf-8")
    assert SITE.build(config, tmp_path / "site") == code
    text = "".join(path.read_text("utf-8") for path in (tmp_path / "site").rglob("*.html"))
    assert "A heading" in text
    assert "//fonts." not in text
    assert "unpkg.com" not in text


@pytest.mark.slow
def test_a_release_stands_beside_earlier_ones(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], cwd=tmp_path, text=True)

    (tmp_path / "docs").mkdir()
    config = tmp_path / "mkdocs.yml"
    config.write_text("site_name: small\ntheme: {name: material, font: false}\n", encoding="utf-8")
    git("init", "-q")
    git("config", "user.name", "t")
    git("config", "user.email", "t@t.invalid")
    for number in ("0.1.0", "0.2.0"):
        (tmp_path / "docs" / "index.md").write_text(f"# The {number}\n", encoding="utf-8")
        git("add", "-A")
        git("commit", "-qm", number)
        assert SITE.release(config, number) == 0
    versions = json.loads(git("show", "gh-pages:versions.json"))
    assert [(one["version"], one["aliases"]) for one in versions] == [
        ("0.2.0", ["latest"]), ("0.1.0", []),
    ]  # fmt: skip
    assert "The 0.1.0" in git("show", "gh-pages:0.1.0/index.html")
    assert "latest" in git("show", "gh-pages:index.html")
