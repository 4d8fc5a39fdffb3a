"""Follows a page as its reader would: saves its files, runs its code, compares what it prints."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pfl_bench import plugins
from pfl_bench.cli.main import main
from tests.helpers import REPOSITORY

_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")
_SCRIPTS = REPOSITORY / "scripts"


def documentation(module: str) -> ModuleType:
    """A module that the site is built by, from the folder scripts/documentation."""
    return script(f"documentation.{module}")


def script(module: str) -> ModuleType:
    """A module below scripts/; tests are skipped where a package that it needs is missing."""
    sys.path.insert(0, str(_SCRIPTS))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("documentation", "pfl_bench", "privacy", "tasks"):
            raise
        pytest.skip(f"{error.name} is not installed", allow_module_level=True)
    finally:
        sys.path.remove(str(_SCRIPTS))


@contextlib.contextmanager
def own_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folders of plug-ins but those that a page names, which are forgotten afterwards."""
    monkeypatch.setattr(plugins, "__path__", [])
    # Set, so that what a page's commands set is taken back.
    monkeypatch.setenv(plugins.FOLDERS, "")
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.startswith("pfl_bench.plugins.")]:
            del sys.modules[name]


def without_numbers(text: str) -> list[str]:
    """The words of a text with # for each number; rules of a table have one length."""
    return re.sub(r"-{2,}", "--", _NUMBER.sub("#", text)).split()


def run_command(line: str) -> None:
    """Run one line of a bash block in this process: pfl-bench, or mkdir -p."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "pfl-bench":
        # What a command adds is gone with its process.
        folders, named = list(plugins.__path__), os.environ.get(plugins.FOLDERS, "")
        assert main(arguments) == 0, line
        plugins.__path__[:], os.environ[plugins.FOLDERS] = folders, named
    elif program == "mkdir":
        assert arguments[0] == "-p", line
        for folder in arguments[1:]:
            Path(folder).mkdir(parents=True, exist_ok=True)
    else:
        raise AssertionError(f"a page may run pfl-bench and mkdir, not {line!r}")


def follow(page: str) -> list[tuple[Any, str]]:
    """Do what a page says, in the current folder.

    Returns:
        Each block that runs, and what it printed.
    """
    tutorials = documentation("tutorials")
    variables: dict[str, Any] = {"__name__": "__main__"}
    done: list[tuple[Any, str]] = []
    for block in tutorials.blocks(page):
        if block.path is not None:
            Path(block.path).parent.mkdir(parents=True, exist_ok=True)
            Path(block.path).write_text(block.text, encoding="utf-8")
        elif block.language == "text":
            compare(block, done[-1][1])
        else:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                if block.language == "python":
                    exec(compile(block.text, "<page>", "exec"), variables)
                else:
                    assert block.language == "bash", block
                    for line in tutorials.commands(block):
                        run_command(line)
            done.append((block, printed.getvalue()))
    return done


def compare(shown: Any, printed: str) -> None:
    """Hold what a page shows against what was printed; rows of a long table may be left out."""
    tutorials = documentation("tutorials")
    if shown.title == tutorials.OUTPUT:
        assert printed.rstrip() == shown.text.rstrip()
        return
    assert shown.title == tutorials.VARIES, shown.title
    assert without_numbers(printed) == without_numbers(shown.text)
    assert _NUMBER.search(shown.text), "a block without numbers cannot vary in them"
