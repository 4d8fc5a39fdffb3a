"""The generated pages: every setting with what is allowed, every name of the Python interface."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import pfl_bench
from pfl_bench import plugins
from pfl_bench.config.schema import RunConfig
from tests.docs.following import documentation
from tests.helpers import REPOSITORY

SETTINGS = documentation("settings")
INTERFACE = documentation("interface")
STAGING = documentation("staging")


def entry(reference: str, title: str) -> list[str]:
    """The paragraphs below the first such heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n\n(.*?)\n(?=\n?#|\Z)", reference, re.M | re.S)
    assert found is not None, title
    return [" ".join(part.split()) for part in found[1].split("\n\n")]


@pytest.fixture(scope="module")
def reference() -> str:
    return str(SETTINGS.settings_reference())


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("seed", "**default: `0`** · a whole number, at least 0, below 2^63"),
        ("federated.num_rounds", "**required** · a whole number, at least 1"),
        ("federated.local_momentum", "**default: `0.0`** · a number, at least 0, below 1"),
        (
            "federated.algorithm",
            '**default: `{"name": "fedavg"}`** · name and options of [a plug-in]'
            "(#options-of-plug-ins-federatedalgorithm)",
        ),
        (
            "federated.workers",
            "**default: `auto`** · a whole number, at least 1, at most 64 or `auto`",
        ),
        ("privacy.mechanism.quantile", "**required** · a number, above 0.0, below 1.0"),
        ("federated.engine", "**default: `auto`** · `auto`, `sequential`, `vectorized`"),
        ("privacy.accountant", "**default: `rdp`** · `rdp`, `pld`, `prv`"),
        ("privacy.delta", "**default: `null`** · a number, above 0, below 1 or `null`"),
        ("channels_last", "**default: `false`** · `true` or `false`"),
        (
            "systems.deadline_s",
            "**default: `null`** · a number, above 0 or `null` · unit: seconds",
        ),
        ("evaluation.final_splits", '**default: `["test"]`** · a list, each text'),
    ],
)
def test_a_setting_has_its_default_and_range(reference: str, name: str, facts: str) -> None:
    first, second = entry(reference, f"`{name}`")
    assert first == facts
    assert second.endswith(".")
    assert "``" not in second


def test_every_setting_of_every_section_is_there(reference: str) -> None:
    def names(prefix: str, options: type[BaseModel]) -> list[str]:
        own = [prefix + name for name in options.model_fields]
        for name, field in options.model_fields.items():
            for nested in SETTINGS._nested(field.annotation):
                own += names(f"{prefix}{name}.", nested)
        return own

    wanted = set(names("", RunConfig))
    assert len(wanted) > 100
    assert {name for name in wanted if f"\n#### `{name}`\n" not in reference} == set()
    assert "privacy.audit.count" in wanted
    assert "systems.source" in wanted


def test_every_plug_in_is_there(reference: str) -> None:
    for kind in (
        plugins.ALGORITHM,
        plugins.MECHANISM,
        plugins.DEVICES,
        plugins.TASK,
        plugins.PREPARE,
    ):
        for name in plugins.available(kind):
            assert f"`{name}`" in reference
    assert "\n### `privacy.mechanism`: adaptive_gaussian\n" in reference


def test_a_field_without_a_line_in_the_docstring_is_named() -> None:
    class Base(BaseModel):
        """Settings.

        Attributes:
            said: A setting,
                described on two lines of ``code``.
        """

        said: int

    class Derived(Base):
        """More settings."""

        unsaid: Annotated[float, Field(gt=0)]
        mode: Literal["a", "b"] = "a"

    assert SETTINGS.descriptions(Base) == {"said": "A setting, described on two lines of `code`."}
    with pytest.raises(ValueError, match=r"Derived has no line for mode, unsaid"):
        SETTINGS.descriptions(Derived)


def test_all_names_of_the_package_and_the_bases_of_plug_ins_are_in_the_reference() -> None:
    text = INTERFACE.interface_reference()
    for name in pfl_bench.__all__:
        assert f"\n::: pfl_bench.{name}\n" in text
    for names in INTERFACE.PLUGIN_TYPES.values():
        for name in names:
            module, _, attribute = name.rpartition(".")
            assert hasattr(__import__(module, fromlist=[attribute]), attribute), name


def test_pages_ask_for_what_is_generated_and_name_the_files_of_blocks() -> None:
    for marker in STAGING._GENERATED:
        pages = [path for path in (REPOSITORY / "docs").glob("*.md") if marker in path.read_text()]
        assert len(pages) == 1, marker
    page = STAGING.as_page("```python a/b.py\nx = 1\n```\n\n<!-- generated: interface -->\n")
    assert page.startswith('```python title="a/b.py"\n')
    assert "::: pfl_bench.load_row" in page
