"""The short test command: what mirrors a path, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import fast_tests, test_times
from tests.conftest import pytest_collection_modifyitems


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        (".", ["tests"]),
        ("privacy", ["tests/privacy"]),
        ("privacy/ledger.py", ["tests/privacy"]),
        ("privacy/audit/check.py", ["tests/privacy/audit"]),
        ("privacy/schemes/base.py", ["tests/privacy"]),
        ("pfl_bench/federated/workers/slots.py", ["tests/pfl_bench/federated/workers"]),
        ("tasks/digits/task.py", ["tests/tasks/test_digits.py"]),
        ("tasks/common/fedscale/store.py", ["tests/tasks/common"]),
        ("tasks/nothing_here/task.py", ["tests/tasks"]),
        ("configs/demo/private.yaml", ["tests/contracts/test_configs.py"]),
        ("docs/results.md", ["tests/docs", "tests/test_docs.py"]),
        ("CONTRIBUTING.md", ["tests/test_contributing.py"]),
        ("scripts/bench.py", ["tests/pfl_bench/test_bench.py"]),
        ("tests/privacy/test_ledger.py", ["tests/privacy/test_ledger.py"]),
        ("tests/privacy/scheme_settings.py", ["tests/privacy"]),
        ("tests/helpers.py", ["tests"]),
        ("LICENSE", []),
    ],
)
def test_tests_mirror_the_path(path: str, tests: list[str]) -> None:
    assert fast_tests.tests_of(path) == tests


def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert fast_tests.main(["configs", "LICENSE"]) == 0
    said = capsys.readouterr()
    assert "tests/contracts/test_configs.py" in said.out.splitlines()
    assert "no tests mirror LICENSE" in said.err
    assert "left out: " in said.err


def test_an_unknown_path_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fast_tests.main(["privacy/nowhere"]) == 2
    assert "privacy/nowhere" in capsys.readouterr().err


def test_slow_tests_and_those_of_the_table_are_left_out() -> None:
    name = next(iter(test_times.left_out()))
    marker = pytest.mark.slow.mark

    def item(node: str, slow: bool = False) -> SimpleNamespace:
        return SimpleNamespace(nodeid=node, get_closest_marker=lambda _: marker if slow else None)

    marked, listed, parameter = item("tests/a.py::test_b", True), item(name), item(f"{name}[x]")
    quick, longer = item("tests/a.py::test_c"), item(f"{name}_more")
    gone: list[SimpleNamespace] = []
    for fast, kept in ((False, 5), (True, 2)):
        items = [quick, longer, listed, parameter, marked]
        config = SimpleNamespace(
            getoption=lambda _, fast=fast: fast,
            hook=SimpleNamespace(pytest_deselected=lambda items: gone.extend(items)),
        )
        pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
        assert len(items) == kept
    assert items == [quick, longer]
    assert {id(one) for one in gone} == {id(one) for one in (listed, parameter, marked)}


def test_the_table_takes_what_was_measured_and_keeps_budgets() -> None:
    here = str(Path(__file__).relative_to(test_times.REPOSITORY))
    lines = [
        json.dumps([f"{here}::test_a[1]", {"setup": 0.5, "call": 1.0, "teardown": 0.0}]),
        json.dumps([f"{here}::test_a[2]", {"setup": 0.0, "call": 1.0, "teardown": 0.1}]),
        json.dumps([f"{here}::test_b", {"setup": 0.0, "call": 0.1}]),
    ]
    files, slow = test_times.measured(lines)
    assert files == {here: [3, 0.5, 2.1, 0.1]}
    assert slow == {f"{here}::test_a": 2.6}
    table = {
        "budgets": {"tests": 7},
        "files": {"tests/test_gone.py": [1, 0.0, 9.0, 0.0], here: [1, 0.0, 0.0, 0.0]},
        "slow": {f"{here}::test_old": 3.0, "tests/privacy/test_ledger.py::test_x": 2.0},
    }
    assert test_times.merged(table, files, slow) == {
        "budgets": {"tests": 7},
        "files": files,
        "slow": {f"{here}::test_a": 2.6, "tests/privacy/test_ledger.py::test_x": 2.0},
    }
