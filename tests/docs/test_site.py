"""The build of the site ends where a link leads nowhere."""

from __future__ import annotations

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
