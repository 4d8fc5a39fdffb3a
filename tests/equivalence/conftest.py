"""Small stores of every task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts import small_stores


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("stores")

    def find(task: str) -> Path:
        path = folder / f"{task}.h5"
        if not path.exists():
            getattr(small_stores, f"write_{task}")(path)
        return path

    return find
