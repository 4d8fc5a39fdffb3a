"""Rows of a folder differ in the keys that its ``_differences.yaml`` declares, and in no others.

``between_rows`` holds for any two rows. A folder with rows of several kinds groups them by the
keys ``group_by``; ``within_groups`` holds for two rows of one group. A key stands for one
difference, such as a section that one row has and another has not; "task.*" stands for all below
it. Rows are compared with all defaults filled in. Their names and what is expected of them may
always differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from pfl_bench.cli.main import main
from pfl_bench.config.loading import load_config
from pfl_bench.config.row_differences import tree_differences
from pfl_bench.config.row_files import DIFFERENCES_NAME, kind_of, rows_below
from pfl_bench.config.training import Strict
from pfl_bench.config.yaml_text import read_yaml
from tests.contracts.small_rows import CONFIGS, FILES, ROWS

FOLDERS = sorted({row.parent for row in ROWS if len(list(row.parent.glob("*.yaml"))) > 1})
ALWAYS = ("name", "expected")


class Declared(Strict):
    """What a folder's file says."""

    between_rows: list[str]
    group_by: list[str] = Field(default_factory=list)
    within_groups: list[str] = Field(default_factory=list)


def covered_by(key: str, declared: Iterable[str]) -> set[str]:
    """The declared keys that allow a difference."""
    return {
        one
        for one in declared
        if key == one or (one.endswith(".*") and key.startswith(one.removesuffix("*")))
    }


def value_of(tree: Mapping[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node


def faults_of(trees: Mapping[str, Mapping[str, Any]], declared: Declared) -> list[str]:
    """What rows differ in that is not declared, and what is declared that they do not differ in."""
    faults = []
    unused = {name: set(getattr(declared, name)) for name in ("between_rows", "within_groups")}
    for (first, one), (second, other) in combinations(trees.items(), 2):
        alike = all(value_of(one, key) == value_of(other, key) for key in declared.group_by)
        lists = [*unused] if declared.group_by and alike else ["between_rows"]
        for key, *_ in tree_differences(one, other, ALWAYS):
            for name in lists:
                covered = covered_by(key, getattr(declared, name))
                unused[name] -= covered
                if not covered:
                    faults.append(f"{first} and {second} differ in {key}, not in {name}")
    faults += [f"no rows differ in {key} of {name}" for name in unused for key in unused[name]]
    return faults


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_rows_of_a_folder_differ_as_it_declares(folder: Path) -> None:
    rows = [path for path in ROWS if path.parent == folder]
    path = folder / DIFFERENCES_NAME
    if len(rows) == 1:
        assert not path.exists()
        return
    declared = Declared.model_validate(read_yaml(path))
    assert bool(declared.group_by) == bool(declared.within_groups)
    assert faults_of({row.stem: load_config(row).tree for row in rows}, declared) == []


def test_every_declaration_is_of_a_folder_of_rows() -> None:
    declarations = [path.parent for path in FILES if kind_of(path) == "declaration"]
    assert declarations
    assert set(declarations) <= set(FOLDERS)
    assert not [name for name in rows_below(CONFIGS) if "_differences" in name]


TREES = {
    "a": {"name": "a", "task": {"name": "t", "size": 1}, "rate": 1},
    "b": {"name": "b", "task": {"name": "t", "size": 1}, "rate": 2},
    "c": {"name": "c", "task": {"name": "u", "size": 2}, "rate": 1, "privacy": {"z": 1}},
}


@pytest.mark.parametrize(
    ("declared", "faults"),
    [
        ({"between_rows": ["rate", "task.*", "privacy"]}, 0),
        ({"between_rows": ["rate", "task.name", "task.size", "privacy"]}, 0),
        # A section that some rows lack is one difference, whatever is in it.
        ({"between_rows": ["rate", "task.*", "privacy.z"]}, 3),
        ({"between_rows": ["rate", "task.*", "privacy", "seed"]}, 1),
        ({"between_rows": ["task.*", "privacy"]}, 2),
        (
            {
                "between_rows": ["rate", "task.*", "privacy"],
                "group_by": ["task.name"],
                "within_groups": ["rate"],
            },
            0,
        ),
        (
            {
                "between_rows": ["rate", "task.*", "privacy"],
                "group_by": ["task.name"],
                "within_groups": ["privacy"],
            },
            2,
        ),
    ],
)
def test_what_is_not_declared_and_what_is_not_so_are_found(declared: Any, faults: int) -> None:
    assert len(faults_of(TREES, Declared.model_validate(declared))) == faults


def test_a_declaration_is_neither_run_nor_offered(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "demo" / DIFFERENCES_NAME
    assert main(["run", str(path)]) == 2
    assert f"is a declaration, not a row; run it by `pfl-bench table {path.parent}`" in (
        capsys.readouterr().err
    )
    assert main(["run", "demo/centrul.yaml"]) == 2
    assert "_differences" not in capsys.readouterr().err
