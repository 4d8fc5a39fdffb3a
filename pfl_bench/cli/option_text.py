"""Typed options of plug-ins as text: name, what is allowed, default, and what they mean."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from typing import Any

from pydantic import BaseModel

_ATTRIBUTE = re.compile(r"^(\w+): ", re.MULTILINE)
_WIDTH = 80


def option_lines(options: type[BaseModel]) -> list[str]:
    """The options of a plug-in, a paragraph each; docstrings of the type and its bases explain."""
    schema = options.model_json_schema()
    meanings = _meanings(options)
    lines = []
    for name, property_ in schema.get("properties", {}).items():
        head = f"{name}={_allowed(property_, schema)}"
        if options.model_fields[name].is_required():
            head += " (required)"
        else:
            head += f" (default {json.dumps(property_.get('default'))})"
        text = f"{head}: {meanings.get(name, '')}".rstrip(": ")
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
    return lines or ["  none"]


def _meanings(options: type[BaseModel]) -> dict[str, str]:
    """Descriptions of attributes, read from docstrings; those of a derived class win."""
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        text = inspect.cleandoc(kind.__doc__ or "")
        _, _, rest = text.partition("Attributes:\n")
        section = textwrap.dedent(re.split(r"\n(?=\S)", rest)[0])
        parts = _ATTRIBUTE.split(section)[1:]
        found |= {
            name: " ".join(meaning.split())
            for name, meaning in zip(parts[::2], parts[1::2], strict=True)
        }
    return found


def _allowed(property_: dict[str, Any], schema: dict[str, Any]) -> str:
    """The values that an option takes, in the words of YAML."""
    if "$ref" in property_:
        name = str(property_["$ref"]).rpartition("/")[2]
        return _allowed(schema["$defs"][name], schema)
    if "enum" in property_ or "const" in property_:
        values = property_.get("enum") or [property_["const"]]
        return "|".join(str(value) for value in values)
    if "anyOf" in property_:
        return "|".join(dict.fromkeys(_allowed(one, schema) for one in property_["anyOf"]))
    if property_.get("type") == "array":
        return f"[{_allowed(property_.get('items', {}), schema)}, ...]"
    words = {"integer": "INT", "number": "NUMBER", "string": "TEXT", "boolean": "true|false"}
    kind = str(property_.get("type", "VALUE"))
    return words.get(kind, kind)
