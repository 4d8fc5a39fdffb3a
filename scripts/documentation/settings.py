"""The settings reference: every key of a row, from the schema and the docstrings beside it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import griffe
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pfl_bench import plugins
from pfl_bench.config.schema import RunConfig

# Where in a row a plug-in's name and options stand, or which command takes them.
PLACES = {
    plugins.TASK: "task",
    plugins.MODEL: "model",
    plugins.ALGORITHM: "federated.algorithm",
    plugins.AGGREGATION: "federated.aggregation",
    plugins.COMPRESSION: "federated.compression",
    plugins.SELECTION: "federated.selection",
    plugins.DEVICES: "systems.source",
    plugins.MECHANISM: "privacy.mechanism",
    plugins.PREPARE: "pfl-bench data prepare",
    plugins.GENERATE: "pfl-bench data generate",
    plugins.STATISTICS: "pfl-bench data stats",
}
# Settings that take the name of a plug-in alone.
_NAMES = {"federated.engine": ("auto", *plugins.available(plugins.ENGINE))}
_UNITS = {"_s": "seconds", "_ms": "milliseconds", "_kbps": "kbit/s"}
_ROLE = re.compile(r"``([^`]*)``")


def settings_reference() -> str:
    """Markdown of all sections of a row, then of all plug-ins' options."""
    return "\n".join([*_sections(), *_plugins()])


def descriptions(options: type[BaseModel]) -> dict[str, str]:
    """Descriptions of each field, from the docstrings of a class and of its bases.

    Raises:
        ValueError: A field is not described.
    """
    found: dict[str, str] = {}
    for base in reversed(options.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        for section in griffe.Docstring(text, parser="google").parse(warnings=False):
            if section.kind is griffe.DocstringSectionKind.attributes:
                found |= {one.name: " ".join(one.description.split()) for one in section.value}
    missing = sorted(set(options.model_fields) - set(found))
    if missing:
        name = f"{options.__module__}.{options.__qualname__}"
        raise ValueError(f"the docstring of {name} has no line for {', '.join(missing)}")
    return {name: _ROLE.sub(r"`\1`", found[name]) for name in options.model_fields}


def allowed(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(allowed(one, definitions) for one in schema["anyOf"]))
    if "$ref" in schema or "discriminator" in schema:
        return "a section"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{_as_text(value)}`" for value in values)
    kind = schema.get("type")
    if kind == "array":
        item = allowed(schema.get("items", {}), definitions)
        bounds = [schema.get("minItems"), schema.get("maxItems")]
        if bounds[0] is not None and bounds[0] == bounds[1]:
            return f"a list of {bounds[0]}, each {item}"
        return f"a list{'' if not bounds[0] else f' of at least {bounds[0]}'}, each {item}"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "`true` or `false`",
        "object": "a mapping",
        "null": "`null`",
    }
    return ", ".join([words.get(str(kind), "any value"), *_bounds(schema)])


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    for key, words in limits.items():
        if key in schema:
            value = schema[key]
            yield f"{words} {'2^63' if value == 2**63 else format(value, ',')}"
    if "pattern" in schema:
        yield "of letters, digits, `.`, `_` and `-`"


def _sections() -> Iterator[str]:
    """The sections of a row, each with the settings below it."""
    yield from _section("", RunConfig, "The whole row")


def _section(prefix: str, options: type[BaseModel], title: str) -> Iterator[str]:
    yield f"\n### {title}\n"
    yield f"{_first_sentence(options)}\n"
    yield from _fields(prefix, options, level=4)
    for name, field in options.model_fields.items():
        for nested in _nested(field.annotation):
            yield from _section(f"{prefix}{name}.", nested, _title(prefix + name, nested))


def _title(place: str, options: type[BaseModel]) -> str:
    """The heading of a section; one of several that a key may hold has its name beside it."""
    named = options.model_fields.get("name") or options.model_fields.get("kind")
    chosen = () if named is None else get_args(named.annotation)
    return f"`{place}`" + (f", {chosen[0]}" if len(chosen) == 1 else "")


def _nested(annotation: Any) -> list[type[BaseModel]]:
    """The sections inside a field's type."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _nested(part)]


def _fields(prefix: str, options: type[BaseModel], level: int) -> Iterator[str]:
    """A heading and two paragraphs for each field: default and range, then what it means."""
    schema = options.model_json_schema()
    said = descriptions(options)
    for name, field in options.model_fields.items():
        shown = schema["properties"][name]
        default = _default(field)
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        values = _plugin_names(prefix + name) or allowed(shown, schema.get("$defs", {}))
        facts = [f"**{default}**", values]
        facts += [f"unit: {unit}"] if unit else []
        yield f"{'#' * level} `{prefix}{name}`\n"
        yield f"{' · '.join(facts)}\n\n{_sentence(said[name])}\n"


def _plugin_names(place: str) -> str:
    """Names for a setting that chooses a plug-in; empty for any other setting."""
    if place in _NAMES:
        return ", ".join(f"`{name}`" for name in _NAMES[place])
    if place not in PLACES.values():
        return ""
    anchor = f"options-of-plug-ins-{place.replace('.', '')}"
    return f"name and options of [a plug-in](#{anchor})"


def _plugins() -> Iterator[str]:
    shown: set[type[BaseModel]] = set()
    for kind, place in PLACES.items():
        names = plugins.available(kind)
        yield f"\n## Options of plug-ins: `{place}`\n"
        yield f"{len(names)} bundled: {', '.join(f'`{name}`' for name in names)}.\n"
        for name in names:
            options = plugins.options_type(kind, name)
            if options.model_fields:
                yield f"\n### `{place}`: {name}\n"
                yield f"{_first_sentence(options)}\n"
                prefix = "" if place.startswith("pfl-bench ") else f"{place}."
                yield from _fields(prefix, options, level=4)
            for field, info in options.model_fields.items():
                # Sections that several plug-ins have stand where the first of them is.
                for nested in _nested(info.annotation):
                    if nested not in shown:
                        shown.add(nested)
                        title = _title(prefix + field, nested)
                        yield from _section(f"{prefix}{field}.", nested, title)


def _default(field: Any) -> str:
    if field.default_factory is not None:
        return f"default: `{_as_text(field.default_factory())}`"
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        return "default: as its settings"
    return f"default: `{_as_text(field.default)}`"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_sentence(options: type[BaseModel]) -> str:
    text = inspect.cleandoc(options.__doc__ or "").partition("\n\n")[0]
    return _ROLE.sub(r"`\1`", " ".join(text.split()))


def _sentence(text: str) -> str:
    """A description as a sentence: a capital first unless code, a full stop last."""
    first = text[:1].upper() + text[1:]
    return first if first.endswith((".", "!", "?")) else f"{first}."
