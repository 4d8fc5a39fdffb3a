"""Small edits of a module's source, as a slip of the hand makes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

_PAIRS: tuple[tuple[Any, Any], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)),
    *((ast.Is, ast.IsNot), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
)
_OPERATORS: dict[Any, Any] = {
    **dict(_PAIRS),
    **{new: old for old, new in _PAIRS},
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.USub: ast.UAdd,
}
_FUNCTIONS = {"min": "max", "floor": "ceil", "any": "all"}
_FUNCTIONS |= {new: old for old, new in _FUNCTIONS.items()}
# Messages, and what a type checker reads.
_LEFT_ALONE = (ast.Raise, ast.JoinedStr, ast.Assert, ast.arg)


class Edit(NamedTuple):
    """One edit: the expression before and after it, and the edited module."""

    words: str
    source: str


def lines_of_edits(source: str) -> list[int]:
    """The line of each edit that a module can have.

    An edit replaces one comparison, operator, number, truth value, condition or function by its
    neighbour, or leaves out one call.
    """
    return [node.lineno for node, _, _ in _edits(ast.parse(source))]


def edited(source: str, number: int) -> Edit:
    """Make one edit of a module, by its place in ``lines_of_edits``."""
    tree = ast.parse(source)
    node, field, new = list(_edits(tree))[number]
    before = _line(node)
    setattr(node, field, new)
    return Edit(f"{before} -> {_line(node)}", f"{ast.unparse(ast.fix_missing_locations(tree))}\n")


def _edits(tree: ast.Module) -> Iterator[tuple[Any, str, Any]]:
    """Nodes of a module, a field of each, and what else it may be."""
    for node in _places(tree):
        for field, new in _changes(node):
            yield node, field, new


def _places(node: ast.AST) -> Iterator[Any]:
    """Nodes that can be edited."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, _LEFT_ALONE):
                continue
            is_read_by_nobody = field in ("annotation", "returns", "decorator_list")
            if is_read_by_nobody or (isinstance(child, ast.keyword) and child.arg == "strict"):
                continue
            if hasattr(child, "lineno"):
                yield child
            yield from _places(child)


def _changes(node: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a node, and what else they may be."""
    match node:
        case ast.Compare():
            for place, old in enumerate(node.ops):
                new = _OPERATORS[type(old)]()
                yield "ops", [*node.ops[:place], new, *node.ops[place + 1 :]]
        case ast.BinOp(left=ast.Constant(value=str())):
            pass
        case ast.UnaryOp(op=ast.Not()):
            yield "operand", ast.UnaryOp(ast.Not(), node.operand)
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() | ast.UnaryOp():
            if type(node.op) in _OPERATORS:
                yield "op", _OPERATORS[type(node.op)]()
        case ast.Constant(value=bool()):
            yield "value", not node.value
        case ast.Constant(value=int() as number):
            yield "value", number + 1
        case ast.Constant(value=float() as number):
            yield "value", number * 1.5 or 0.5
        case ast.If() | ast.IfExp() | ast.While():
            if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield "test", ast.UnaryOp(ast.Not(), node.test)
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield "func", ast.Name(_FUNCTIONS[name], ast.Load())
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _FUNCTIONS:
            yield "func", ast.Attribute(owner, _FUNCTIONS[name], ast.Load())
        case ast.Expr(value=ast.Call()):
            yield "value", ast.Constant(...)


def _line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:120]
