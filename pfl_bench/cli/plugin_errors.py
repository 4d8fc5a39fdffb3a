"""Finds the line of a user's plug-in that an error comes from."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any

from pfl_bench.plugins import user_files
from pfl_bench.types import PluginError


def error_place(error: BaseException) -> str | None:
    """One line: the user's file and line that an error comes from, and what it says.

    None where no plug-in of the user's took part.
    """
    try:
        own = {os.path.realpath(file) for files in user_files().values() for _, file in files}
    except PluginError:  # of another plug-in
        return None
    places = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 1))
    elif isinstance(error, TypeError):
        # A call that does not fit has no line in the file of what was called, but its name.
        called = str(error).partition("()")[0]
        places += [(code.co_filename, code.co_firstlineno) for code in _codes_named(called, own)]
    file, line = next((p for p in reversed(places) if os.path.realpath(p[0]) in own), ("", 0))
    if not file:
        return None
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{file}, line {line}: {type(error).__name__}: {said}".partition("\n")[0]


def _codes_named(name: str, files: Collection[str]) -> Iterator[CodeType]:
    """Functions and methods of a qualified name in loaded modules of some files."""
    for module in list(sys.modules.values()):
        if os.path.realpath(getattr(module, "__file__", None) or "") in files:
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if isinstance(code := getattr(found, "__code__", None), CodeType):
                yield code
