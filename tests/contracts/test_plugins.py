"""What every plug-in must keep, found by scanning: a new one is tested without an edit here."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel, ValidationError

from pfl_bench import plugins
from pfl_bench.types import PluginError

KINDS = [kind for kind in plugins.KINDS if kind.has_options]
FOUND = [(kind, name) for kind in KINDS for name in plugins.available(kind)]
IDS = [f"{kind.package}.{name}" for kind, name in FOUND]


def test_the_shipped_plugins_are_found() -> None:
    assert {"digits", "femnist"} <= set(plugins.available(plugins.TASK))
    assert {"fedavg", "fedprox"} <= set(plugins.available(plugins.ALGORITHM))
    assert {"none", "gaussian", "adaptive_gaussian"} <= set(plugins.available(plugins.MECHANISM))


@pytest.mark.parametrize(("kind", "name"), FOUND, ids=IDS)
def test_options_are_typed_strict_and_frozen(kind: plugins.PluginKind, name: str) -> None:
    options = plugins.options_type(kind, name)
    assert issubclass(options, BaseModel)
    assert options.model_config.get("extra") == "forbid"
    assert options.model_config.get("strict") is True
    assert options.model_config.get("frozen") is True
    with pytest.raises(ValidationError):
        options.model_validate({"no_such_option": 1})


@pytest.mark.parametrize(("kind", "name"), FOUND, ids=IDS)
def test_modules_and_what_they_build_are_documented(kind: plugins.PluginKind, name: str) -> None:
    module = plugins.load(kind, name)
    assert inspect.getdoc(module)
    assert inspect.getdoc(module.Options)
    assert inspect.getdoc(getattr(module, kind.function))


@pytest.mark.parametrize("name", plugins.available(plugins.MECHANISM))
def test_mechanisms_describe_themselves(name: str) -> None:
    module = plugins.load(plugins.MECHANISM, name)
    words: str = module.DESCRIPTION.words
    assert words
    assert not words.endswith(".")


@pytest.mark.parametrize("kind", plugins.KINDS, ids=lambda kind: kind.word)
def test_an_unknown_name_is_refused_with_all_names(kind: plugins.PluginKind) -> None:
    with pytest.raises(PluginError) as caught:
        plugins.load(kind, "no_such_thing")
    assert all(name in str(caught.value) for name in plugins.available(kind))


def test_a_near_miss_is_answered_with_the_right_name() -> None:
    with pytest.raises(PluginError, match="did you mean 'fedprox'"):
        plugins.load(plugins.ALGORITHM, "fedprx")
