"""Start-up check that the packages ``privacy`` and ``tasks`` are this distribution's own.

Both are generic names: a folder ``tasks/`` in the working directory, or another distribution, can
shadow ours, and code that is not ours would then do the accounting.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("privacy", "tasks")


def check_packages() -> None:
    """Check where ``privacy`` and ``tasks`` would be imported from, without importing them.

    Raises:
        ImportError: A foreign package shadows one of them; the message names its folder.
        SystemExit: Likewise, with the message printed, where this is the start of the command.
    """
    problem = _problem()
    if problem is None:
        return
    if Path(sys.argv[0]).stem == "pfl-bench" or _is_run_as_module():
        # The package is imported before its command line could catch anything.
        print(f"pfl-bench: {problem}", file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(problem)


def _is_run_as_module() -> bool:
    """Whether this is ``python -m pfl_bench``, whose module has not been found yet."""
    return sys.argv[0] == "-m" and "pfl_bench" in sys.orig_argv


def _problem() -> str | None:
    home = Path(__file__).resolve().parent.parent
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        expected = home / package / "__init__.py"
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if found == expected:
            continue
        if found is None and spec is not None and spec.submodule_search_locations:
            found = Path(next(iter(spec.submodule_search_locations))).resolve()
        where = f"is shadowed by {found}" if found else "is not installed"
        return (
            f"pfl-bench's own package '{package}' {where}; it should be {expected.parent}. "
            f"Run from another folder, take that folder out of PYTHONPATH, rename the foreign "
            f"'{package}', or use a virtual environment of its own for pfl-bench."
        )
    return None
