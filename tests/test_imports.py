"""The direction of imports between packages, read from the source."""

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
TASKS_MAY_IMPORT = ("pfl_bench.types", "pfl_bench.data", "pfl_bench.metrics", "tasks.common")
# Each sub-package imports those below it alone.
DIRECTION = {
    "pfl_bench": (
        "cli", "report", "runs", "trainers", "federated", "evaluation", "simulation", "client",
        "data", "metrics", "config", "the loose modules", "types",
    ),
    "privacy": (
        "audit", "reference", "empirical", "plan", "statement", "recording", "mechanisms", "noise",
        "schemes", "the loose modules", "accountants", "errors",
    ),
}  # fmt: skip
STARTS = ("__init__.py", "__main__.py", "api.py")
LOOSE = {
    "pfl_bench": {
        "__init__", "__main__", "_shadowing", "api", "files", "plugins", "profiling", "rng",
    },
    # What plug-ins import, and what a guarantee rests on.
    "privacy": {
        "__init__", "accountant", "aggregate", "amplification", "calibration", "clipping",
        "description", "errors", "json_text", "ledger", "mechanism", "sampling_scheme", "search",
        "tuning",
    },
}  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((REPOSITORY / package).rglob("*.py"))


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
    assert all(len(modules(package)) > 5 for package in (*OURS, "pfl_bench/types"))


@pytest.mark.parametrize("path", modules("privacy"), ids=lambda p: p.name)
def test_privacy_imports_neither_other_package(path: Path) -> None:
    assert all(within(name, "privacy") for name in ours(path))


@pytest.mark.parametrize("path", modules("tasks"), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_task_imports_itself_what_tasks_share_and_three_packages(path: Path) -> None:
    task = path.relative_to(REPOSITORY / "tasks").parts[0]
    allowed = TASKS_MAY_IMPORT if task == "common" else (*TASKS_MAY_IMPORT, f"tasks.{task}")
    for name in ours(path) - {"pfl_bench", "tasks"}:
        assert any(within(name, one) for one in allowed), name


@pytest.mark.parametrize("path", modules("pfl_bench"), ids=lambda p: p.name)
def test_the_core_names_no_task(path: Path) -> None:
    assert not [name for name in ours(path) if within(name, "tasks")]


@pytest.mark.parametrize("package", LOOSE)
def test_a_package_has_few_loose_modules(package: str) -> None:
    assert {path.stem for path in (REPOSITORY / package).glob("*.py")} == LOOSE[package]


@pytest.mark.parametrize("package", DIRECTION)
def test_imports_point_one_way(package: str) -> None:
    ranks = {f"{package}.{name}": rank for rank, name in enumerate(DIRECTION[package])}
    loose = DIRECTION[package].index("the loose modules")
    folders = {path.parent.name for path in (REPOSITORY / package).glob("*/__init__.py")}
    assert folders == set(DIRECTION[package]) - {"the loose modules", "errors"}
    upward = [
        f"{path.relative_to(REPOSITORY)} imports {name}"
        for path in modules(package)
        for name in ours(path)
        if ranks.get(_box(name), loose) < ranks.get(_box(_module(path)), loose)
        # What users start with is no part of any package.
        and path.relative_to(REPOSITORY / package).as_posix() not in STARTS
    ]
    assert not upward


@pytest.mark.parametrize("package", OURS)
def test_no_two_modules_import_each_other(package: str) -> None:
    """Imports for types alone count too: what needs them is one module in two."""
    imports = {_module(path): ours(path) for path in modules(package)}
    for module, names in imports.items():
        for name in names & set(imports):
            assert name == module or module not in imports[name], f"{module} and {name}"


def _module(path: Path) -> str:
    """The dotted name of a file, a package's for its ``__init__``."""
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def _box(name: str) -> str:
    """The sub-package of a dotted name."""
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("path", modules("pfl_bench/types"), ids=lambda p: p.name)
def test_types_import_nothing_else_of_ours(path: Path) -> None:
    assert all(within(name, "pfl_bench.types") for name in ours(path))


def test_only_plugins_loads_by_name() -> None:
    loaders = {
        path.relative_to(REPOSITORY).as_posix()
        for package in OURS
        for path in modules(package)
        if "importlib.import_module" in path.read_text(encoding="utf-8")
    }
    # The command line imports its own subcommands, to keep --help quick. privacy imports nothing of
    # pfl_bench, and so finds its sampling schemes itself.
    own = {"pfl_bench/cli/main.py", "privacy/sampling_scheme.py"}
    assert loaders == {"pfl_bench/plugins.py", *own}


@pytest.mark.parametrize("package", ["privacy", "tasks"])
def test_a_foreign_package_of_the_same_name_is_named(package: str, tmp_path: Path) -> None:
    foreign = tmp_path / package
    foreign.mkdir()
    (foreign / "__init__.py").write_text("", encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]; import pfl_bench"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"own package '{package}' is shadowed by {foreign}" in done.stderr


@pytest.mark.parametrize("start", ["console script", "-m"])
@pytest.mark.parametrize("package", ["privacy", "tasks"])
def test_a_user_s_own_folder_on_the_path_ends_in_a_message(
    package: str, start: str, tmp_path: Path
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "pfl_bench"]
    if start != "-m":
        # As pip writes it.
        script = tmp_path / "bin" / "pfl-bench"
        script.parent.mkdir()
        script.write_text("import sys\nfrom pfl_bench.cli.main import main\nsys.exit(main())\n")
        command = [sys.executable, str(script)]
    path = os.pathsep.join([".", str(REPOSITORY)])
    done = subprocess.run(
        [*command, "run", "demo/central.yaml"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"own package '{package}' is shadowed by {tmp_path / package}" in done.stderr
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
