"""A sampling scheme of one's own: one file, and a run is drawn, accounted and audited by it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privacy import schemes
from privacy.amplification import Participation, sampled_gaussian
from privacy.calibration import calibrate_noise_multiplier, epsilon_of_rounds
from privacy.errors import PrivacyError
from privacy.sampling_scheme import scheme_names
from tests import warm

# Users take turns by their numbers, all of a turn together: nothing is drawn or amplified.
SCHEME = '''
"""Public turns, without chance: a user is in every b-th round, for certain."""

from dataclasses import dataclass

import numpy as np

from privacy.sampling_scheme import SamplingScheme


@dataclass(frozen=True, slots=True)
class InTurn(SamplingScheme):
    """User u is in the rounds u + 1, u + 1 + b, ..."""

    name = "in_turn"
    title = "public turns"
    keeps_distance = True
    pattern = "groups"
    phrase = "users take {b} public turns"
    noted = "Users take {b} public turns."
    assumed = "none. Each {unit} is in every {b}th {step}."

    def draw(self, users, rng, round_index, groups):
        first = (round_index - 1) % self.min_separation
        return np.arange(first, users.population_size, self.min_separation)

    def sampling_probability(self, users):
        return 1.0


Scheme = InTurn
'''
# As in a fresh process: what a configuration may name is read when it is first needed.
COMMAND = """
import sys
import privacy.schemes
privacy.schemes.__path__.append(sys.argv.pop(1))
from pfl_bench.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the scheme's one file."""
    path = tmp_path / "own_schemes"
    path.mkdir()
    (path / "in_turn.py").write_text(SCHEME, encoding="utf-8")
    return path


@pytest.fixture
def in_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Participation]:
    """Participations by the scheme, in this process."""
    monkeypatch.setattr(schemes, "__path__", [*schemes.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "privacy.schemes.in_turn", raising=False)
    return lambda *arguments: Participation.named("in_turn", *arguments)


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.python("-c", COMMAND, str(folder), *arguments)


def test_it_draws_and_is_accounted(in_turn: Callable[..., Participation]) -> None:
    users = in_turn(60, 15, 4)
    rng = np.random.default_rng(0)
    rounds = [users.scheme.draw(users, rng, index, None) for index in range(1, 9)]
    assert np.array_equal(rounds[1], np.arange(1, 60, 4))
    assert np.array_equal(np.bincount(np.concatenate(rounds)), np.full(60, 2))
    full = Participation.named("full", 60, 60)
    assert sampled_gaussian(users, 2.0, 8) == sampled_gaussian(full, 2.0, 2)
    for accountant in ("rdp", "pld", "prv"):
        noise = calibrate_noise_multiplier(2.0, 1e-5, users, 8, accountant)
        assert noise == calibrate_noise_multiplier(2.0, 1e-5, full, 2, accountant)
    with pytest.raises(PrivacyError, match="separation to 3 or less"):
        in_turn(60, 16, 4)
    with pytest.raises(PrivacyError, match="in_turn sampling, which does not keep"):
        in_turn(60, 15, 4, 3)
    assert scheme_names()[-1] == "in_turn"


@pytest.mark.slow
def test_it_trains_and_is_audited(
    folder: Path, tmp_path: Path, config_file: Callable[..., Path]
) -> None:
    row = config_file(
        "private_federated",
        federated__sampling="in_turn",
        federated__separation=4,
        federated__cohort_size=15,
        federated__num_rounds=8,
        federated__workers=1,
        privacy__noise_cohort_size=None,
        privacy__epsilon=None,
        privacy__noise_multiplier=2.0,
        privacy__mechanism={"name": "gaussian", "clip_norm": 0.5},
        privacy__audit={"kind": "one_run", "count": 20},
    )
    done = command(folder, "run", str(row), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (statement,) = (tmp_path / "runs").rglob("privacy.json")
    document: dict[str, Any] = json.loads(statement.read_text(encoding="utf-8"))
    actual, full = document["actual"], Participation.named("full", 60, 60)
    assert (actual["sampling"], actual["separation"]) == ("in_turn", 4)
    assert actual["epsilon"] == epsilon_of_rounds(full, 2.0, 2, actual["delta"], "rdp")
    assert "Users take 4 public turns." in document["notes"]
    ledger = (statement.parent / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) for line in ledger]
    assert [line["realised_cohort"] for line in lines] == [15] * 8
    # By canaries, which ask the scheme alone when they may take part.
    canaries = json.loads((statement.parent / "canaries.json").read_text(encoding="utf-8"))
    assert canaries["sampling"] == "in_turn"
    assert 0.0 <= canaries["lower_bound"] <= actual["epsilon"]
    explained = command(folder, "privacy", "explain", str(statement.parent))
    assert "Each user is in every 4th round." in " ".join(explained.stdout.split())
    # By the record: the auditor, which does not describe this scheme, asks it.
    audited = command(folder, "audit", str(statement.parent), "--json")
    document = json.loads(audited.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert document["verdict"] == "passed", [
        check for check in checks.values() if check["outcome"] in ("failed", "incomplete")
    ]
    by_itself = ("epsilon_actual", "referee_actual", "cohort_replay", "participation")
    assert {checks[name]["outcome"] for name in by_itself} == {"passed"}
