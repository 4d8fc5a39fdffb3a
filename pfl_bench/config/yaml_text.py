"""YAML as rows are written in it, and ``key=value`` texts that change it."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.files import check_values, read_text
from pfl_bench.types import ConfigError, RunFolderError


class _Loader(yaml.SafeLoader):
    """YAML with the core schema's numbers and booleans, and without duplicate keys."""


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or key in seen:
            what = "stands twice" if isinstance(key, str) else "is not text"
            # A list of aliases of lists may stand for more than any message holds.
            shown = repr(key) if isinstance(key_node, yaml.ScalarNode) else f"(a {key_node.id})"
            mark = key_node.start_mark
            raise yaml.MarkedYAMLError(problem=f"key {shown} {what}", problem_mark=mark)
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


# YAML 1.1 reads 1e-3 as text, "no", "on" and "off" as booleans, 010 as 8, 1:30 as 90 and 2024-01-02
# as a date; readers expect none of these, and no tag for anything but JSON's kinds of values.
_OTHERWISE = (":bool", ":float", ":int", ":timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(_OTHERWISE)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.endswith(tuple(f":{kind}" for kind in _KINDS))
}
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_TAB = r"'\t' that cannot start any token"
_MOST_VALUES = 1_000_000  # a few lines of aliases of aliases stand for more than any machine holds


def parse_yaml(text: str) -> Any:
    """Parse YAML that anybody may have written; a ValueError says what is wrong with it."""
    return copy.deepcopy(_parsed(text))


# A command reads one row and one run's settings several times, and parsing takes its time.
@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> Any:
    try:
        value = yaml.load(text, Loader=_Loader)  # _Loader derives from SafeLoader
        check_values(value, _MOST_VALUES, allow_infinite=True)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except yaml.YAMLError as error:
        # The message around it names the file.
        text = str(error).replace('in "<unicode string>", line', "at line")
        raise ValueError(text.replace(_TAB, f"{_TAB}; indent with spaces, not tabs")) from None
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file that is a YAML mapping."""
    if not path.exists():
        raise ConfigError(f"{path}: no such configuration file")
    try:
        text = read_text(path)
    except RunFolderError as error:
        raise ConfigError(str(error)) from None
    try:
        tree = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else "a list" if isinstance(tree, list) else "one value"
        raise ConfigError(
            f"{path}: a configuration is a mapping of keys to values, but the file holds {found}; "
            "begin with a bundled row: pfl-bench copy demo/federated.yaml mine.yaml"
        )
    return tree


def with_overrides(tree: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of a configuration tree in which dotted keys are set by texts ``key=value``."""
    changed = copy.deepcopy(dict(tree))
    for text in overrides:
        apply_override(changed, text)
    return changed


def apply_override(tree: dict[str, Any], text: str) -> None:
    """Set one dotted key in a configuration tree by a text ``key=value``."""
    key, equals, value_text = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override '{text}': write key=value, such as federated.num_rounds=10")
    try:
        value = parse_yaml(value_text)
    except ValueError as error:
        raise ConfigError(f"override '{text}': the value is not valid YAML: {error}") from None
    node = tree
    for depth, part in enumerate(parts[:-1]):
        if node.get(part) is None:
            node[part] = {}
        node = node[part]
        if not isinstance(node, dict):
            where = ".".join(parts[: depth + 1])
            raise ConfigError(f"override '{text}': '{where}' is a value or list, not a section")
    node[parts[-1]] = value
