"""The lists by others: each bug can be planted, and a few of the fifth come out as listed."""

from __future__ import annotations

import multiprocessing

import pytest

from tests.sabotage import fifth_table, sixth_bugs
from tests.sabotage.fifth_bugs import BUGS, RUNS
from tests.sabotage.fifth_planting import FifthBug, Patch

PAGES = {
    name: fifth_table.listed(path.read_text(encoding="utf-8"))
    for name, path in fifth_table.PAGES.items()
}
LISTED = PAGES["fifth"]
# Of DP-SGD, and of a checkpoint, which passed at first sight.
CHOSEN = ("dpsgd_realised_batch", "checkpoint_algorithm_holds_updates")


@pytest.mark.parametrize("bug", [*RUNS, *sixth_bugs.RUNS], ids=lambda bug: bug.name)
def test_can_be_planted(bug: FifthBug) -> None:
    # A patch raises an error if what it changes is gone.
    with Patch.context() as patch:
        bug.plant(patch)


def test_the_list_is_whole_and_measured() -> None:
    assert len(BUGS) == 87
    assert sum(bug.shared for bug in BUGS) == 47
    assert set(LISTED) == {bug.name for bug in RUNS}
    assert set(PAGES["sixth"]) == {bug.name for bug in sixth_bugs.RUNS}
    every = [*RUNS, *sixth_bugs.RUNS]
    assert all(bug.description.endswith(".") and "|" not in bug.description for bug in every)
    assert len({bug.name for bug in every}) == len(every)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="bugs are planted in a fork"
)
@pytest.mark.parametrize("name", CHOSEN)
def test_fails_as_the_page_says(name: str) -> None:
    row = fifth_table.row_of(name)
    assert row.outcome.verdict == LISTED[name] == "failed", row.outcome.words


def test_a_run_that_does_not_end_is_no_finding() -> None:
    wrong = FifthBug("wrong", "No such row.", lambda patch: None, ("federated.cohort_size=0",))
    rows = [
        fifth_table.Row(wrong, fifth_table.Outcome("not run", "exit status 2")),
        fifth_table.Row(BUGS[0], fifth_table.Outcome("failed", "failed", ("clip_probe",))),
    ]
    assert fifth_table.counts(rows)["failed"] == 1
    page = fifth_table.table(rows)
    assert fifth_table.listed(page) == {"wrong": "exit status 2", BUGS[0].name: "failed"}
