"""Bugs that were planted blind: each is really there, and comes out as it is noted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sabotage.blind_bugs import BLIND_BUGS
from tests.sabotage.blind_planting import MARK, WITNESSED, Blind, witnessed
from tests.sabotage.planting import Patch
from tests.sabotage.running import remembering, run_planted


@pytest.fixture(autouse=True, scope="module")
def _remembering() -> Iterator[None]:
    with remembering():
        yield


@pytest.mark.parametrize("blind", BLIND_BUGS, ids=lambda blind: blind.bug.name)
def test_a_blind_bug_is_planted_and_caught(
    blind: Blind, tmp_path: Path, monkeypatch: Patch
) -> None:
    WITNESSED.clear()
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    caught = run_planted(blind.bug, tmp_path / "run")
    assert witnessed(tmp_path / "mark") >= blind.at_least
    if "BLIND_RESULTS" in os.environ:
        with Path(os.environ["BLIND_RESULTS"]).open("a", encoding="utf-8") as file:
            outcome = caught.refused or ", ".join(sorted(caught.failed)) or "PASSES"
            file.write(f"{blind.bug.name}\t{witnessed(tmp_path / 'mark'):.4g}\t{outcome}\n")
    if blind.bug.words:
        assert caught.refused is not None
        assert blind.bug.words in caught.refused
    else:
        assert caught.refused is None
        assert set(blind.bug.expects) <= caught.failed
