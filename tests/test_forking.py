"""A test that forks must not fail because the machine is busy."""

from __future__ import annotations

import errno
import os

import pytest

from tests.forking import fork


def refuse(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Refuse to fork so many times, then give a process number."""
    left = [errno.EAGAIN] * times

    def forked() -> int:
        if left:
            raise BlockingIOError(left.pop(), "Resource temporarily unavailable")
        return 1234

    monkeypatch.setattr(os, "fork", forked)


def test_a_fork_that_is_refused_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, times=2)
    assert fork() == 1234


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, times=10)
    with pytest.raises(BlockingIOError):
        fork(patience=0.0)
