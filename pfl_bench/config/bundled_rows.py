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
    """Find a row file or a folder of rows.

    Args:
        name: A path; or one inside the bundled rows, such as "demo" or "demo/central.yaml".
        folder: Whether a folder is meant.

    Raises:
        ConfigError: There is none.
    """
    path = Path(name)
    inner = name.removeprefix("configs/")
    for candidate in (path, bundled_configs() / inner):
        if candidate.is_dir() if folder else candidate.is_file():
            return candidate
    root = bundled_configs()
    known = sorted(
        {
            str((path.parent if folder else path).relative_to(root))
            for path in root.rglob("*.yaml")
            if kind_of(path) != "declaration"
        }
    )
    hint = did_you_mean(inner, known, cutoff=0.4)
    kind = "folder of rows" if folder else "row file"
    raise ConfigError(f"{name}: no such {kind}{hint} Bundled: {', '.join(known)}")
