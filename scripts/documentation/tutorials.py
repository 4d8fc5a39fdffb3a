"""Tutorials: Markdown whose code runs, in a test as in a notebook.

A block is written in one of four ways. ```` ```python ```` is code, whose variables stay for the
blocks that follow. ```` ```python PATH ```` (or ``yaml``) is a file that the reader saves.
```` ```bash ```` has commands. ```` ```text output ```` is what the block before it prints;
``output (numbers vary)`` says that its numbers differ from machine to machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = "docs/tutorials"
OUTPUT = "output"
VARIES = "output (numbers vary)"
INSTALL = "%pip install -q pfl-bench  # or a wheel: pfl_bench-0.1.0-py3-none-any.whl"
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: Such as "python".
        title: What stands after the language: a path, or ``OUTPUT``; empty for nothing.
        text: What is inside.
    """

    language: str
    title: str
    text: str

    @property
    def path(self) -> str | None:
        """The file that the reader saves the block as; None for a block that runs."""
        return self.title if self.language in ("python", "yaml") and self.title else None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(*parts) for parts in _BLOCK.findall(page)]


def commands(block: Block) -> list[str]:
    """The commands of a ``bash`` block, one a line; a line that ends in a backslash goes on."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def as_script(page: str) -> str:
    """Shell script of what a page has the reader save and run; Python blocks are left out."""
    lines = ["set -euo pipefail"]
    for block in blocks(page):
        if block.path is not None:
            lines.append(f"mkdir -p {Path(block.path).parent}")
            lines.append(f"cat >{block.path} <<'END_OF_FILE'\n{block.text}END_OF_FILE")
        elif block.language == "bash":
            lines.append(block.text)
    return "\n".join(lines)


def as_notebook(page: str) -> str:
    """A tutorial as a notebook (nbformat 4), which installs, and saves files by ``%%writefile``."""
    import jupytext
    from nbformat.v4 import new_code_cell

    def written(match: re.Match[str]) -> str:
        block = Block(*match.groups(default=""))
        if block.path is None:
            return match[0]
        return f"```python\n%%writefile {block.path}\n{block.text}```"

    notebook = jupytext.reads(_BLOCK.sub(written, page), fmt="md")
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    first = [INSTALL]
    if folders := {str(Path(block.path).parent): None for block in blocks(page) if block.path}:
        first += ["import os", *(f'os.makedirs("{name}", exist_ok=True)' for name in folders)]
    notebook.cells.insert(0, new_code_cell("\n".join(first)))
    for index, cell in enumerate(notebook.cells):
        # Random otherwise: two builds would differ.
        cell["id"] = f"cell-{index}"
    return str(jupytext.writes(notebook, fmt="ipynb"))


def tutorials(checkout: Path) -> list[Path]:
    """The pages that are tutorials."""
    return sorted((checkout / FOLDER).glob("*.md"))
