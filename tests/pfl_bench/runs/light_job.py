"""A job whose process loads no more than it needs."""

from __future__ import annotations

import os
import time
from pathlib import Path


class WriteGpu:
    """Writes the GPUs that a job sees, and waits until it may end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> None:
        (self._folder / "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"], encoding="utf-8")
        while not (self._folder / "end").exists():
            time.sleep(0.05)
