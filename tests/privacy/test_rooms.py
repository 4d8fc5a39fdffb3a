"""The privacy package stands alone, and its root stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import privacy

FOLDER = Path(privacy.__file__).parent
FORBIDDEN = {"pfl_bench", "tasks", "tests"}


def roots_imported(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            roots.add((node.module or "").split(".")[0])
    return roots


def test_privacy_imports_neither_other_package() -> None:
    modules = sorted(FOLDER.rglob("*.py"))
    assert len(modules) > 12
    offenders = {str(m): roots_imported(m) & FORBIDDEN for m in modules}
    assert not {m: roots for m, roots in offenders.items() if roots}


def test_importing_the_root_errors_and_plan_loads_nothing_heavy() -> None:
    code = (
        "import sys, privacy, privacy.errors, privacy.plan.plan, privacy.ledger;"
        "print([m for m in ('torch', 'opacus', 'dp_accounting', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.strip() == "[]"


def test_every_module_states_a_guarantee() -> None:
    # The reference's modules are definitions; their package states what they are good for.
    reference = FOLDER / "reference"
    without = {
        path
        for path in FOLDER.rglob("*.py")
        if "Guarantee:" not in (ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    assert reference / "__init__.py" not in without
    elsewhere = {path.name for path in without if path.parent != reference}
    assert sorted(elsewhere) == ["__init__.py", "errors.py"]
