"""Choice of the tests that ``scripts/test.sh --fast [PATH ...]`` runs: those that mirror the paths.

Printed one to a line; what is left out is said on standard error. Without paths, those of the files
that differ from the last commit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.test_times import REPOSITORY, SLOW, left_out

# Cheap, and about all sources.
ALWAYS = ("tests/test_imports.py", "tests/test_docstrings.py")


def changed() -> list[str]:
    """The files that differ from the last commit, new ones included."""
    commands = (
        ("git", "diff", "--name-only", "HEAD"),
        ("git", "ls-files", "--others", "--exclude-standard"),
    )
    texts = [subprocess.check_output(c, cwd=REPOSITORY, text=True) for c in commands]
    return sorted({line for text in texts for line in text.splitlines()})


def tests_of(path: str) -> list[str]:
    """The test files or folders that mirror a file or folder of the project.

    Args:
        path: Relative to the repository; "." is everything.

    Returns:
        Of a test file, itself; of what only tests share, its folder; of a package, or of a module
        in it, the package's mirror; of a task, its test files; of other files, the test file of
        their name. None where nothing mirrors it.
    """
    parts = Path(path).parts
    if not parts or parts == ("tests",):
        return ["tests"]
    place = REPOSITORY / path
    folder = Path(*parts) if place.is_dir() else Path(*parts[:-1])
    if parts[0] == "tests":
        is_test = Path(path).name.startswith("test_")
        return [path if is_test and place.exists() else str(folder)]
    if parts[0] == "tasks" and len(folder.parts) > 1 and parts[1] != "common":
        return _named(f"tests/tasks/test_{parts[1]}*.py") or ["tests/tasks"]
    if parts[0] in ("pfl_bench", "privacy", "tasks"):
        mirror = Path("tests") / folder
        while not (REPOSITORY / mirror).is_dir():
            mirror = mirror.parent
        return [str(mirror)]
    if parts[0] == "configs":
        return ["tests/contracts/test_configs.py"]
    if parts[0] == "docs":
        return ["tests/docs", "tests/test_docs.py"]
    return _named(f"tests/**/test_{Path(path).stem.lower()}.py")


def _named(pattern: str) -> list[str]:
    return sorted(str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob(pattern))


def main(paths: list[str]) -> int:
    """Print the tests of the paths."""
    missing = [path for path in paths if not (REPOSITORY / path).exists()]
    if missing:
        print(f"no such file or folder in the repository: {', '.join(missing)}", file=sys.stderr)
        return 2
    asked = paths or changed()
    if not asked:
        print("nothing differs from the last commit; name paths, or . for all", file=sys.stderr)
        return 2
    found = {path: tests_of(path) for path in asked}
    alone = [path for path, tests in found.items() if not tests]
    if alone:
        print(f"no tests mirror {', '.join(alone)}", file=sys.stderr)
    chosen = sorted({*ALWAYS, *(test for tests in found.values() for test in tests)})
    _say_left_out(chosen)
    print("\n".join(chosen))
    return 0


def _say_left_out(chosen: Iterable[str]) -> None:
    places = tuple(chosen)
    slow = {
        name: seconds
        for name, seconds in left_out().items()
        if any(name.startswith((f"{p}/", f"{p}::")) for p in places)
    }
    print(
        f"left out: {len(slow)} tests of {SLOW:g} processor seconds or more (tests/times.json, "
        f"{sum(slow.values()):.0f} in all), those marked slow, the documentation site and the "
        "wheel; scripts/test.sh runs them",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
