"""kill -9 at any moment, then resume: the same weights, metrics and ledger, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

from tests import warm
from tests.helpers import REPOSITORY

CASES = [
    ("private_federated", 3, 12),
    # A checkpoint each round: most kills fall into the writing of ledger or checkpoint.
    ("private_federated", 1, 6),
    ("central_dp", 2, 3),
]


def test_kills_change_nothing(tmp_path: Path) -> None:
    # One program for all cases: importing takes longer than some of them.
    done = warm.python(
        "-m", "tests.equivalence.kill_loop", str(tmp_path), json.dumps(CASES), cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, _, kills), result in zip(CASES, results, strict=True):
        assert result["killed"] == kills
        assert result["differing"] == []
