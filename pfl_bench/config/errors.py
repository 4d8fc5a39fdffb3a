"""Errors of a configuration in plain words: where, what is allowed, what was given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ErrorType

from pfl_bench.config.row_differences import is_harmless
from pfl_bench.config.schema import RunConfig
from pfl_bench.types import did_you_mean

# The types of an annotation, several of a union, each with the constraints that belong to it.
_Allowed = list[tuple[Any, tuple[Any, ...]]]
# Faults that another value may have caused than the one they are found at.
_BETWEEN_VALUES = frozenset(
    {"value_error", "missing", "extra_forbidden", "union_tag_invalid", "union_tag_not_found"}
)
# Of settings in other sections with the name that was given, so many are told.
_MOST_ELSEWHERE = 3
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


@dataclass(frozen=True)
class Given:
    """The file of a configuration and the ``key=value`` texts that won over it, for messages."""

    path: Path
    overrides: Sequence[str] = ()

    def explain(
        self, error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], where: str
    ) -> str:
        """Say all that is wrong with the data at a dotted key ("" for the whole), a line each."""
        lines: list[str] = []
        advice: list[str] = []
        for detail in error.errors():
            keys, allowed = _find(model, detail["loc"])
            dotted = ".".join([where, *keys] if where else keys)
            section = dotted.rpartition(".")[0]
            if not where and detail["type"] == "missing" and self._has_begun(section, detail):
                dotted = section
                own = [k for k, v in data.items() if isinstance(v, Mapping) and k != section]
                fields = _fields_at(model, detail["loc"][:-1])
                needed = ", ".join(key for key, field in fields.items() if field.is_required())
                text = (
                    f"this row has no section '{section}', so that no setting of it exists here. "
                    f"Sections of this row: {', '.join(own)}. Take a row that has it, or give the "
                    f"whole section, which needs {needed}"
                )
            else:
                text = _explain(detail, keys, allowed, model)
                advice += self._renamed(section, detail)
            lines.append(self.blame(dotted, detail["type"] in _BETWEEN_VALUES) + text)
        # Each type of a union has an error of its own, and they say the same here.
        return "\n".join(dict.fromkeys(lines + advice))

    def _has_begun(self, section: str, detail: Any) -> bool:
        """Whether a section, in which a key is missing, is of overrides alone."""
        start = f"{section}."
        below = [key.removeprefix(start) for key in self._keys() if key.startswith(start)]
        begun = {key.partition(".")[0] for key in below}
        return bool(section and begun) and set(detail["input"]) <= begun

    def _renamed(self, section: str, detail: Any) -> list[str]:
        """Advice where an override names another plug-in, whose options are not those given."""
        if not section or detail["type"] not in ("extra_forbidden", "missing"):
            return []
        return [
            f"To choose another {section}, give the whole section: "
            f"'{section}={{{key.rpartition('.')[2]}: {text.partition('=')[2].strip()}, ...}}'"
            for text, key in zip(self.overrides, self._keys(), strict=True)
            if key in (f"{section}.name", f"{section}.kind")
        ]

    def _keys(self) -> list[str]:
        return [text.partition("=")[0].strip() for text in self.overrides]

    def blame(self, dotted: str, is_cross: bool = False) -> str:
        """Begin a message with what gave the value of a key ("" for the whole): override or file.

        Where the fault may lie between values, overrides of those beside or below it are named too.
        """
        given = list(zip(self.overrides, self._keys(), strict=True))
        for text, key in reversed(given):
            if dotted == key:
                return f"override {text}: "
            if dotted.startswith(f"{key}."):
                return f"override {text}: {dotted}: "
        section = dotted.rpartition(".")[0] or dotted
        start = f"{section}." if section else ""
        near = [t for t, k in given if is_cross and k.startswith(start) and not is_harmless(k)]
        place = f"{self.path} with override {', '.join(near)}" if near else f"{self.path}"
        return f"{place}: {dotted}: " if dotted else f"{place}: "


def _explain(detail: Any, keys: Sequence[str], allowed: _Allowed, model: type[BaseModel]) -> str:
    kind, given = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        siblings = _fields_at(model, detail["loc"][:-1])
        elsewhere = settings_named(keys[-1])
        far = did_you_mean(keys[-1], siblings, ".", cutoff=0.5)
        near = " or ".join(f"'{name}'" for name in elsewhere[:_MOST_ELSEWHERE])
        far = f"; did you mean {near}?" if elsewhere else far
        # A key of the row itself is likelier meant than one of the section that looks like it.
        is_in_section = (model is not RunConfig or len(keys) > 1) and keys[-1] not in elsewhere
        hint = did_you_mean(keys[-1], siblings if is_in_section else (), far)
        return f"unknown key{hint} Allowed here: {', '.join(siblings) or 'none'}."
    if kind == "missing":
        return "required, but missing"
    shown = "" if not keys else f" (given: {_shown(given)})"
    if kind in ("value_error", "assertion_error"):
        is_plain = not isinstance(given, (Mapping, list, tuple))
        return str(detail["ctx"]["error"]) + (shown if is_plain else "")
    if kind not in get_args(ErrorType):
        return str(detail["msg"])  # a plug-in's own
    if not allowed:
        return f"is not allowed{shown}"
    literals = [get_args(kind) for kind, _ in allowed if _origin(kind) is Literal]
    choices = [value for values in literals for value in values if isinstance(value, str)]
    meant = "cuda" if given == "gpu" else given
    return f"must be {_words(allowed)}{shown}{did_you_mean(meant, choices)}"


def settings_named(name: str) -> list[str]:
    """Dotted keys of rows whose last part is a name, or all with underscores; privacy's first."""
    found = [
        path
        for path in all_paths(RunConfig)
        if f".{path}".endswith(f".{name}") or path.replace(".", "_") == name
    ]
    return sorted(found, key=lambda path: not path.startswith("privacy."))


def _shown(given: Any) -> str:
    if isinstance(given, Mapping):
        return "a section"
    if isinstance(given, (list, tuple)):
        return "a list" if given else "an empty list"
    return repr(given) if isinstance(given, (str, float)) else json.dumps(given)


def _find(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[str], _Allowed]:
    """Follow the place of an error: the keys up to a value, and what is allowed there.

    What pydantic appends for the parts of a union, and the tag of a chosen one, are no keys.
    """
    keys: list[str] = []
    here: _Allowed = [(model, ())]
    for part in loc:
        tagged: _Allowed = [(kind, ()) for kind, _ in here if _tag(kind) == part]
        if below := _below(here, part):
            keys.append(str(part))
            here = below
        elif tagged:
            here = tagged[:1]
        elif "[" not in str(part) or len(here) < 2:
            # An unknown key ends here too.
            return [*keys, str(part)] if _section(here) else keys, here
    return keys, here


def _origin(kind: Any) -> Any:
    """Result of ``get_origin``, whose type excludes the annotations used here."""
    return get_origin(kind)


def _is_model(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _below(here: _Allowed, part: int | str) -> _Allowed:
    """Types allowed below a key of a section, or of a list's items; none of another value."""
    for kind, _ in here:
        if isinstance(part, int) and _origin(kind) in (list, tuple):
            return _kinds(get_args(kind)[0])
        if _is_model(kind) and part in kind.model_fields:
            field = kind.model_fields[part]
            return _kinds(field.annotation, tuple(field.metadata))
        if _origin(kind) is dict:
            return _kinds(get_args(kind)[1])
    return []


def _kinds(annotation: Any, constraints: tuple[Any, ...] = ()) -> _Allowed:
    """The parts of a union, or the one type that there is, each with its constraints."""
    origin = _origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        # A Field(...) has its constraints in itself.
        flat = [one for item in more for one in getattr(item, "metadata", [item])]
        return _kinds(inner, (*constraints, *flat))
    if origin in (Union, UnionType):
        return [one for inner in get_args(annotation) for one in _kinds(inner, constraints)]
    return [(annotation, constraints)]


def _tag(kind: Any) -> Any:
    """The key that chooses a section among several, ``name`` or ``kind``, with its one value."""
    field = _tag_field(kind)
    return None if field is None else get_args(kind.model_fields[field].annotation)[0]


def _tag_field(kind: Any) -> str | None:
    """The key that has one value alone."""
    for name in ("name", "kind") if _is_model(kind) else ():
        field = kind.model_fields.get(name)
        if field is not None and len(get_args(field.annotation)) == 1:
            return name
    return None


def _words(parts: _Allowed) -> str:
    """Allowed values in words, such as "a whole number >= 1, or null"."""
    tags = {_tag(kind): _tag_field(kind) for kind, _ in parts if _tag(kind) is not None}
    if len(tags) > 1:
        (field,) = set(tags.values())
        null = ", or null" if any(kind is NoneType for kind, _ in parts) else ""
        return f"a section whose {field} is one of {', '.join(map(repr, tags))}{null}"
    texts = [_kind_in_words(kind, limits) for kind, limits in parts if kind is not NoneType]
    texts += ["null"] * (len(texts) < len(parts))
    return ", or ".join(dict.fromkeys(texts))


def _kind_in_words(kind: Any, constraints: tuple[Any, ...]) -> str:
    origin = _origin(kind)
    limits = {
        key: value
        for one in constraints
        for key in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "allow_inf_nan")
        if (value := getattr(one, key, None)) is not None
    }
    if origin is Literal:
        values = [_shown(value) for value in get_args(kind)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if kind in (int, float):
        bounds = [f"{sign} {_bound(limits[key])}" for key, sign in _BOUNDS if key in limits]
        finite = "finite " if limits.get("allow_inf_nan") is False else ""
        noun = "a whole number" if kind is int else f"a {finite}number"
        return " ".join([noun, " and ".join(bounds)]).strip()
    if kind is bool:
        return "true or false"
    if kind is str:
        pattern = f" of the pattern {limits['pattern']}" if "pattern" in limits else ""
        return f"text{pattern}" + (" that is not empty" if limits.get("min_length") else "")
    if origin in (list, tuple):
        return f"a list{_length(limits, 'items')}"
    if _is_model(kind):
        return f"a section with the keys {', '.join(kind.model_fields)}"
    if origin is dict or kind is dict:
        return f"a section{_length(limits, 'keys') or ' of keys'} and values"
    return "something else"


def _bound(value: float) -> str:
    if isinstance(value, int) and value >= 2**20 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _length(limits: Mapping[str, Any], what: str) -> str:
    least, most = limits.get("min_length"), limits.get("max_length")
    if least is None and most is None:
        return ""
    if least == most:
        return f" of {least} {what}"
    return f" of {least} or more {what}" if most is None else f" of {least or 0} to {most} {what}"


def _section(here: _Allowed) -> type[BaseModel] | None:
    return next((kind for kind, _ in here if _is_model(kind)), None)


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> Mapping[str, FieldInfo]:
    """The keys of a section; none for what is no section."""
    section = _section(_find(model, loc)[1])
    return {} if section is None else section.model_fields


def all_paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted keys of a configuration type, sections before what is in them."""
    paths = []
    for name, info in model.model_fields.items():
        paths.append(prefix + name)
        section = _section(_kinds(info.annotation))
        if section is not None:
            paths += all_paths(section, f"{prefix}{name}.")
    return paths
