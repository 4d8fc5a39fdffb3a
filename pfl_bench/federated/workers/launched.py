"""Whether ``torchrun`` has started this process; told without loading torch."""

from __future__ import annotations

import os

from pfl_bench.types import ConfigError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MEND = f"start the run by torchrun, or have one process alone: unset {' '.join(_VARIABLES)}"


def is_launched() -> bool:
    """Whether torchrun has started this process as one of several, by its variables."""
    if not all(name in os.environ for name in _VARIABLES):
        return False
    size = _number("WORLD_SIZE")
    if size < 2:
        return False
    if _number("RANK") >= size:
        raise ConfigError(f"{_said('RANK')}: ranks of WORLD_SIZE={size} end at {size - 1}; {_MEND}")
    _number("MASTER_PORT")
    return True


def is_restarted() -> bool:
    """Whether torchrun has started the run anew after one of its processes died."""
    return is_launched() and _number("TORCHELASTIC_RESTART_COUNT", "0") > 0


def _said(name: str) -> str:
    return f"the environment variable {name}={os.environ[name]!r}"


def _number(name: str, default: str | None = None) -> int:
    text = os.environ.get(name, default)
    if text is None or not text.isdecimal():
        raise ConfigError(f"{_said(name)} is not a number of torchrun's; {_MEND}")
    return int(text)
