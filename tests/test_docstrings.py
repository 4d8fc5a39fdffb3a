"""Docstrings name the thing, and of tensors the shape."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARRAY = re.compile(r"\bTensor\b|\bNDArray\b|\bndarray\b")
# "Shape (n,)", "(L, outputs)", "a scalar tensor", "[step, slot]".
SHAPE = re.compile(
    r"shape|scalar|\[[a-z_]+(, |\])|\([a-z_]+,\)|\([a-z_]+, [a-z_.]+", flags=re.IGNORECASE
)
# "What a run is made of" is a riddle where "Parts of a run" says it.
RIDDLE = re.compile(r"(What|Who|Whose|How|Which|Where|When|Why)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A function whose signature has an array or tensor."""

    place: str
    name: str
    owner: str | None
    is_public: bool
    says_shape: bool


def _annotations(function: Function) -> str:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    given = [a.annotation for a in every] + [function.returns]
    return " ".join(ast.unparse(a) for a in given if a is not None)


def _functions(node: ast.Module | ast.ClassDef, place: str, public: bool = True) -> Iterator[Found]:
    owner = node.name if isinstance(node, ast.ClassDef) else None
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, place, public and not child.name.startswith("_"))
        elif (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            and not child.name.startswith("_")
            and ARRAY.search(_annotations(child))
        ):
            says = bool(SHAPE.search(ast.get_docstring(child) or ""))
            where = f"{place}:{child.lineno} {child.name}"
            yield Found(where, child.name, owner, public, says)


def _every() -> list[Found]:
    return [
        found
        for package in ("pfl_bench", "privacy", "tasks")
        for path in sorted((ROOT / package).rglob("*.py"))
        for found in _functions(
            ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
        )
    ]


def test_shapes_are_said() -> None:
    every = _every()
    assert len(every) > 300
    # A method says it where it is defined, in the base class or protocol; others refer to it.
    said = {found.name for found in every if found.owner and found.says_shape}
    silent = [
        found.place
        for found in every
        if found.is_public and not found.says_shape and not (found.owner and found.name in said)
    ]
    assert silent == []


def test_docstrings_begin_with_the_thing() -> None:
    riddles = [
        f"{path.relative_to(ROOT)}: {docstring.splitlines()[0]}"
        for package in ("pfl_bench", "privacy", "tasks", "scripts")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | Function)
        and (docstring := ast.get_docstring(node))
        and RIDDLE.match(docstring)
    ]
    assert riddles == []
