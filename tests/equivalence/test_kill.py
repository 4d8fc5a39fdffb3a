"""kill -9 at any moment, then resume: the same weights, metrics and ledger, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.helpers import REPOSITORY

LOOP = REPOSITORY / "tests" / "equivalence" / "kill_loop.py"


CASES = [
    ("private_federated", 3, 12),
    # A checkpoint each round: most kills fall into the writing of ledger or checkpoint.
    ("private_federated", 1, 6),
    ("central_dp", 2, 3),
]


def test_kills_change_nothing(tmp_path: Path) -> None:
    # One program for all cases: importing takes longer than some of them.
    done = subprocess.run(
        [sys.executable, str(LOOP), str(tmp_path), json.dumps(CASES)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, _, kills), result in zip(CASES, results, strict=True):
        assert result["killed"] == kills
        assert result["differing"] == []
