"""The package ``transformers``, which is an extra."""

from __future__ import annotations

from typing import Any

from pfl_bench.types import ConfigError


def import_transformers(task: str, extra: str) -> Any:
    """Import ``transformers`` for a task, or say by which extra it is installed."""
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"task {task} needs the package transformers, which is not there ({error}); "
            f"`pip install 'pfl-bench[{extra}]'`"
        ) from error
    return transformers
