"""Gathers the pages of the site: those of the checkout, and those that are generated from code.

Pages keep the places that they have in the checkout, so that a link which works on a code host
works on the site.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from documentation import interface, settings, tutorials

_PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Dockerfile",
    "docs/**/*",
    "tasks/**/*.md",
)
_TITLED = re.compile(r"^```(\w+) ([^\n]+)$", re.MULTILINE)
# What a page asks for by a comment, which a code host does not show.
_GENERATED = {
    "<!-- generated: settings -->": settings.settings_reference,
    "<!-- generated: interface -->": interface.interface_reference,
}


def stage(checkout: Path, target: Path) -> None:
    """Write all pages of the site below a folder, which is replaced.

    Args:
        checkout: The root of the checkout.
        target: Folder for the pages.
    """
    shutil.rmtree(target, ignore_errors=True)
    files = {path for pattern in _PAGES for path in checkout.glob(pattern) if path.is_file()}
    for path in sorted(files):
        place = target / path.relative_to(checkout)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(as_page(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copy(path, place)
    for path in tutorials.tutorials(checkout):
        page = target / path.relative_to(checkout)
        text = tutorials.as_notebook(path.read_text(encoding="utf-8"))
        page.with_suffix(".ipynb").write_text(text, encoding="utf-8")
        title, rest = page.read_text(encoding="utf-8").split("\n", 1)
        offer = f"[This page as a notebook]({path.stem}.ipynb)"
        page.write_text(f"{title}\n\n{offer}\n{rest}", encoding="utf-8")


def as_page(text: str) -> str:
    """A document as the site shows it: generated parts filled in, titles of blocks marked."""
    for marker, generate in _GENERATED.items():
        if marker in text:
            text = text.replace(marker, generate())
    return _TITLED.sub(r'```\1 title="\2"', text)
