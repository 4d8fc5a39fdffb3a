"""Row files on disk or bundled with the package."""

from __future__ import annotations

from pathlib import Path

from pfl_bench.config.row_files import kind_of
from pfl_bench.types import ConfigError, did_you_mean

_HOME = Path(__file__).resolve().parent.parent


def bundled_configs() -> Path:
    """The folder of bundled rows: inside an installed package, or beside it in a checkout."""
    installed = _HOME / "bundled_configs"
    return installed if installed.is_dir() else _HOME.parent / "configs"


def locate(name: str, folder: bool) -> Path:
    """Find a row file or a folder of rows, by a path.

    It may be one inside the bundled rows, such as "demo", "demo/central.yaml" or "demo/central".
    """
    path = Path(name)
    inner = name.removeprefix("configs/")
    for candidate in (path, bundled_configs() / inner):
        # A pipe or device is found too, and refused by what reads it.
        if candidate.exists() and candidate.is_dir() is folder:
            return candidate
    # As ``--only`` and run folders call a row: by its name, without the suffix.
    whole = bundled_configs() / f"{inner}.yaml"
    if not folder and whole.is_file():
        return whole
    root = bundled_configs()
    known = sorted(
        {
            str((path.parent if folder else path).relative_to(root))
            for path in root.rglob("*.yaml")
            if kind_of(path) != "declaration"
        }
    )
    hint = did_you_mean(inner, known, ".", cutoff=0.4, most=5)
    kind, listed = ("folder of rows", "tables") if folder else ("row file", "rows")
    raise ConfigError(
        f"{name}: no such {kind}{hint} `pfl-bench list {listed}` shows all {len(known)} that are "
        "bundled"
    )


def locate_row(name: str) -> Path:
    """Find the file of one row, no sweep, view or declaration; see ``locate``."""
    path = locate(name, folder=False)
    kind = kind_of(path)
    if kind != "row":
        command = f"sweep {path}" if kind == "sweep" else f"table {path.parent}"
        raise ConfigError(f"{path} is a {kind}, not a row; run it by `pfl-bench {command}`")
    return path


def is_row(name: str) -> bool:
    """Tell whether a name is that of a row's file, on disk or bundled."""
    inner = bundled_configs() / name.removeprefix("configs/")
    return any(
        path.is_file() for path in (Path(name), inner, inner.with_name(f"{inner.name}.yaml"))
    )
