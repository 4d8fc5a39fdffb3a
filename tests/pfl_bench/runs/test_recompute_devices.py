"""The reference's devices are the simulation's: slots, local work, and who takes part."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.client.batches import examples_processed
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.audit import audit_run
from pfl_bench.runs.runner import run
from pfl_bench.simulation.device_sources.generated import generate_devices
from pfl_bench.simulation.devices.limits import Limits
from pfl_bench.types import LocalTraining
from privacy.recording.observation import ParticipationHistory
from privacy.reference.devices import Devices, processed
from tests.helpers import change_checkpoint, make_config
from tests.pfl_bench.runs.test_edited_runs import ledger_edit
from tests.pfl_bench.runs.test_recompute import SETTINGS, again, make
from tests.sabotage.planting import DEVICES
from tests.sabotage.running import interrupt

NUM = 60
SELECTED: dict[str, Any] = {
    "federated__sampling": "selected",
    "federated__cohort_size": 8,
    "federated__num_rounds": 8,
    "federated__separation": 2,
    "federated__max_participations": 6,
    "privacy__noise_cohort_size": None,
    "checkpoint__every": 5,
}
LATE = {"systems": {**DEVICES["systems"], "deadline_s": 60.0, "overcommitment": 2.0}}


def reference() -> Devices:
    traces = generate_devices(NUM // 2, np.random.default_rng(1), "1")
    sizes, options = np.full(NUM, 10), SimpleNamespace(separation=1, max_participations=None)
    return Devices(traces, None, options, None, "uniform", 3, sizes, (1.0, 1.0))


def test_slots_are_the_fleets() -> None:
    devices = reference()
    fleet = devices.traces.assign(NUM, stream(3, Purpose.DEVICES))
    everybody, rng = np.arange(NUM), np.random.default_rng(0)
    bounds = devices.traces.availability
    edges = [*bounds.start[:40].tolist(), *bounds.end[:40].tolist(), 0, bounds.period_s]
    inside = 0
    for time in [*edges, *rng.uniform(0.0, 3.0 * bounds.period_s, 40).tolist()]:
        found = [devices._slot(devices._slots[user], float(time)) for user in range(NUM)]
        there = np.array([begin <= time for begin, _ in found])
        np.testing.assert_array_equal(there, fleet.available(everybody, time))
        begins = np.array([begin for begin, _ in found])
        np.testing.assert_array_equal(begins, fleet.next_available(everybody, time))
        np.testing.assert_array_equal(begins, devices._begins(everybody, float(time)))
        ends = np.array([end for _, end in found])
        np.testing.assert_array_equal(ends[there], fleet.slot_end(everybody, time)[there])
        inside += int(there.sum())
    assert inside > 0


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(3, 8, 0.1),
        LocalTraining(3, 8, 0.1, max_steps=5),
        LocalTraining(3, 8, 0.1, max_steps=5, batches_across_epochs=True),
        LocalTraining(3, 8, 0.1, batch_fraction=0.3),
    ],
)
def test_the_work_is_that_of_the_steps(local: LocalTraining) -> None:
    counts = np.arange(1, 40)
    ours = [processed(int(count), local) for count in counts]
    np.testing.assert_array_equal(ours, examples_processed(counts, local))


@pytest.mark.parametrize("selection", ["uniform", "available"])
@pytest.mark.parametrize("systems", [DEVICES, LATE], ids=["no deadline", "deadline"])
def test_a_sound_run_comes_to_the_same(
    tmp_path: Path, selection: str, systems: dict[str, Any]
) -> None:
    changes = {**SELECTED, **systems, "federated__selection": {"name": selection}}
    done = again(make(tmp_path / "run", **changes))
    assert (done.problems, done.reasons) == ([], [])
    assert sorted(done.rounds) == list(range(1, 9))
    assert done.compared == [5, 8]


def test_canaries_keep_to_the_limits(tmp_path: Path) -> None:
    limits = {**SELECTED, **DEVICES, "federated__max_participations": 2}
    changes = {**limits, "privacy__audit": {"kind": "one_run", "count": 20}}
    done = again(make(tmp_path / "run", **changes))
    assert (done.problems, sorted(done.rounds)) == ([], list(range(1, 9)))


def test_rounds_of_nobody_release_the_same_zeros(tmp_path: Path) -> None:
    changes = {
        **SELECTED,
        **DEVICES,
        "federated__cohort_size": 2,
        "federated__selection": {"name": "uniform"},
        "privacy__mechanism": {"name": "local_gaussian", "clip_norm": 0.5},
        "evaluation__final_splits": ["val"],
    }
    folder = make(tmp_path / "run", **changes)
    lines = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
    assert [line["realised_cohort"] for line in lines].count(0) >= 2
    done = audit_run(folder, recompute="all")
    assert [check.name for check in done.checks if check.outcome == "failed"] == []
    assert done.words == "passed: recomputed 8 of 8 rounds"


def test_users_beyond_their_limits_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**SELECTED, **DEVICES, "federated__selection": {"name": "available"}}
    with monkeypatch.context() as patch:
        patch.setattr(Limits, "allowed", lambda self, index: self._everybody)
        folder = make(tmp_path / "run", **changes)
    assert again(folder).problems[0].startswith("round 2: cohort: the users who were drawn")


def test_other_devices_are_not_those_of_the_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", **SELECTED, **DEVICES)
    path = folder / "config.yaml"
    before, after = path.read_text().split("name: generated", 1)
    path.write_text(before + "name: generated" + after.replace("seed: 0", "seed: 9", 1))
    done = again(folder)
    assert (done.rounds, done.problems) == ([], [])
    assert "the devices are not those that the run began with" in done.reasons[0]


def test_another_clock_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", **SELECTED, **DEVICES)
    path, name = folder / "metrics.jsonl", "systems/total_simulated_seconds"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1][name] += 1.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (problem,) = again(folder).problems
    assert problem.startswith(f"round 2: total simulated seconds: {rows[1][name]} is recorded, but")


def test_limits_that_a_checkpoint_forgets_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**SELECTED, **DEVICES, "federated__max_participations": 2}
    changes |= {"federated__num_rounds": 10, "federated__selection": {"name": "available"}}
    nobody = torch.zeros(NUM, dtype=torch.int64)
    with monkeypatch.context() as patch:
        # The history that the ledger's lines are written from has forgotten them, too.
        patch.setattr(Limits, "state_dict", lambda self: {"counts": nobody, "last": nobody})
        patch.setattr(ParticipationHistory, "load_state_dict", lambda self, state: None)
        config = make_config("private_federated", **{**SETTINGS, **changes})
        interrupt(config, tmp_path / "run", after=5)
        run(config, tmp_path / "run", resume=True)
    done = audit_run(tmp_path / "run", recompute="all")
    failed = {check.name: check.evidence for check in done.checks if check.outcome == "failed"}
    assert list(failed) == ["recomputation"]
    assert (
        "round 5: the checkpoint's trainer.clients.participants.limits.counts is off"
        in failed["recomputation"]
    )


@pytest.mark.parametrize("name", ["simulated_seconds", "selected", "counted", "stragglers", "lost"])
def test_other_outcomes_of_devices_are_named(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "run", **SELECTED, **LATE)
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1][f"systems/{name}"] += 1.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (problem,) = again(folder).problems
    assert problem.startswith(f"round 2: {name.replace('_', ' ')}: {rows[1][f'systems/{name}']} is")


def test_totals_of_stragglers_are_the_sums_of_the_rounds(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", **SELECTED, **LATE)
    path, name = folder / "metrics.jsonl", "systems/total_stragglers"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[-1][name] > 0.0
    for row in rows[:-1]:
        row[name] = 0.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checks = {check.name: check for check in audit_run(folder, recompute="none").checks}
    assert checks["outcome"].outcome == "failed"
    assert f"{name} is 0.0, not" in checks["outcome"].evidence


@pytest.mark.parametrize("name", ["lost", "stragglers", "waited_seconds"])
def test_other_totals_of_devices_are_named(name: str, tmp_path: Path) -> None:
    """In the metrics, and in a checkpoint, from which a run goes on."""
    folder = make(tmp_path / "run", **SELECTED, **LATE)
    path, place = max((folder / "checkpoints").glob("step-*.pt")), folder / "metrics.jsonl"
    kept, text = path.read_bytes(), place.read_text()

    def change(state: dict[str, Any]) -> None:
        state["trainer"]["clients"]["participants"]["clock"]["totals"][name] += 1.0

    change_checkpoint(path, change)
    (problem,) = again(folder).problems
    assert f": the checkpoint's trainer.clients.participants.clock.totals.{name} is off" in problem
    path.write_bytes(kept)
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows[2:]:
        row[f"systems/total_{name}"] += 1.0
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problem, *_ = again(folder).problems
    assert problem.startswith(f"round 3: total {name.replace('_', ' ')}: ")


@pytest.mark.parametrize("name", ["returning", "smallest_gap", "largest_count"])
def test_other_participations_on_record_are_named(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "run", **SELECTED, **DEVICES)

    def change(lines: list[dict[str, Any]]) -> None:
        lines[4][name] += 1

    ledger_edit(change)(folder)
    (problem,) = again(folder).problems
    assert problem.startswith(f"round 5: {name.replace('_', ' ')}: ")
