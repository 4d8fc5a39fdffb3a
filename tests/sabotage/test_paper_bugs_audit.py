"""The audit says of blind bugs what ``docs/blind_bugs.md`` says: of a few of each kind."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests import warm
from tests.sabotage import paper_table
from tests.sabotage.paper_bugs import BUGS
from tests.sabotage.paper_planting import PaperBug

OUTCOMES = json.loads(paper_table.OUTCOMES.read_text(encoding="utf-8"))
# One for each mechanism, scheme, engine and step of a round, the quietest ones.
CHOSEN = (
    "clip_carries_residual_to_next_client",
    "adaptive_count_not_paid",
    "slot_keeps_bias",
    "data_of_next_user",
    "sum_of_worker_is_stale",
    "noise_half_on_bias",
    "laplace_noise_is_gaussian",
    "local_noise_same_in_all_reports",
    "privunit_without_coin",
    "banded_forgets_draws_on_resume",
    "tree_never_restarts",
    "sampling_keeps_some",
    "sampling_fills_cohort_of_group",
    "ledger_hides_lenient_clip",
    "resume_loses_momentum",
    "step_partly_bare",
    "dp_sgd_half_noise_on_bias",
    "dp_sgd_same_batches_in_each_epoch",
)

# They passed when they were planted.
MENDED = (
    "statistics_saved_bare",
    "best_model_saved_bare",
    "own_transform_mixes_batch",
    "own_transform_remembers_batch",
    "own_compression_adds_client_before",
)


@pytest.fixture(autouse=True)
def _server_of_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork asks the server of its parent for workers; it could not see whether that is alive."""
    warm.ensure_running()
    monkeypatch.setattr(forkserver._forkserver, "ensure_running", lambda: None)


def test_every_bug_has_an_outcome() -> None:
    # A bug that was planted since waits for the next measurement.
    assert set(OUTCOMES) == {bug.name for bug in BUGS}
    assert set(CHOSEN) <= set(OUTCOMES)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="bugs are planted in a fork"
)
@pytest.mark.parametrize("bug", [b for b in BUGS if b.name in CHOSEN], ids=lambda b: b.name)
def test_is_caught_as_the_page_says(bug: PaperBug, tmp_path: Path) -> None:
    found = paper_table.outcome_of(bug, tmp_path / "run")
    assert found["status"] == "failed"
    # How many rounds a sample has depends on the machine.
    assert ("records" in OUTCOMES[bug.name]) <= ("records" in paper_table.caught_by(found))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="bugs are planted in a fork"
)
@pytest.mark.parametrize("bug", [b for b in BUGS if b.name in MENDED], ids=lambda b: b.name)
def test_is_caught_since_the_audit_was_mended(bug: PaperBug, tmp_path: Path) -> None:
    # The sound one first: the fork finds what its accounting has found.
    assert paper_table.outcome_of(bug, tmp_path / "sound", planted=False)["status"] == "passed"
    assert paper_table.outcome_of(bug, tmp_path / "run")["status"] == "failed"


def test_a_sound_run_passes(tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == "slot_keeps_bias")
    found = paper_table.outcome_of(bug, tmp_path / "run", planted=False)
    assert found["status"] == "passed"
    assert found["words"].startswith("passed: recomputed")
