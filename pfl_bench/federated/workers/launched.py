"""Whether ``torchrun`` has started this process; told without loading torch."""

from __future__ import annotations

import os

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Whether torchrun has started this process as one of several."""
    return all(name in os.environ for name in _VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def is_restarted() -> bool:
    """Whether torchrun has started the run anew after one of its processes died."""
    return is_launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
