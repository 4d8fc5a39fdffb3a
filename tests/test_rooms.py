"""The direction of imports between rooms, read from the source."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

OURS = ("pfl_bench", "privacy", "tasks")
TASKS_MAY_IMPORT = ("pfl_bench.types", "pfl_bench.store", "pfl_bench.metrics", "tasks")


def modules(room: str) -> list[Path]:
    return sorted((REPOSITORY / room).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.partition(".")[0] in OURS}


def within(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(allowed + ".")


def test_there_are_modules_to_look_at() -> None:
    assert all(len(modules(room)) > 5 for room in (*OURS, "pfl_bench/types"))


@pytest.mark.parametrize("path", modules("privacy"), ids=lambda p: p.name)
def test_privacy_imports_neither_other_package(path: Path) -> None:
    assert all(within(name, "privacy") for name in ours(path))


@pytest.mark.parametrize("path", modules("tasks"), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_tasks_import_types_store_and_metrics_alone(path: Path) -> None:
    for name in ours(path) - {"pfl_bench"}:
        assert any(within(name, allowed) for allowed in TASKS_MAY_IMPORT), name


@pytest.mark.parametrize("path", modules("pfl_bench"), ids=lambda p: p.name)
def test_the_core_names_no_task(path: Path) -> None:
    assert not [name for name in ours(path) if within(name, "tasks")]


@pytest.mark.parametrize("path", modules("pfl_bench/types"), ids=lambda p: p.name)
def test_types_import_nothing_else_of_ours(path: Path) -> None:
    assert all(within(name, "pfl_bench.types") for name in ours(path))


def test_only_plugins_loads_by_name() -> None:
    loaders = {
        path.relative_to(REPOSITORY).as_posix()
        for room in OURS
        for path in modules(room)
        if "importlib.import_module" in path.read_text(encoding="utf-8")
    }
    # cli.py imports its own subcommand modules, to keep --help quick.
    assert loaders == {"pfl_bench/plugins.py", "pfl_bench/cli.py"}


@pytest.mark.parametrize("room", ["privacy", "tasks"])
def test_a_foreign_package_of_the_same_name_is_named(room: str, tmp_path: Path) -> None:
    foreign = tmp_path / room
    foreign.mkdir()
    (foreign / "__init__.py").write_text("", encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]; import pfl_bench"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"own package '{room}' is shadowed by {foreign}" in done.stderr


@pytest.mark.parametrize("start", ["console script", "-m"])
@pytest.mark.parametrize("room", ["privacy", "tasks"])
def test_a_user_s_own_folder_on_the_path_ends_in_a_message(
    room: str, start: str, tmp_path: Path
) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "pfl_bench"]
    if start != "-m":
        # As pip writes it.
        script = tmp_path / "bin" / "pfl-bench"
        script.parent.mkdir()
        script.write_text("import sys\nfrom pfl_bench.cli import main\nsys.exit(main())\n")
        command = [sys.executable, str(script)]
    path = os.pathsep.join([".", str(REPOSITORY)])
    done = subprocess.run(
        [*command, "run", "demo/central.yaml"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"own package '{room}' is shadowed by {tmp_path / room}" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


# It has its hidden tokens drawn by torch, and no data that fill the memory.
PREPARED = sorted(
    path.parent.name
    for path in (REPOSITORY / "tasks").glob("*/prepare.py")
    if path.parent.name != "reddit_albert"
)


def test_preparing_data_does_not_load_torch() -> None:
    assert "reddit" in PREPARED
    lines = [f"import tasks.{name}.prepare" for name in PREPARED]
    code = "; ".join(["import sys", *lines, "print('torch' in sys.modules)"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
