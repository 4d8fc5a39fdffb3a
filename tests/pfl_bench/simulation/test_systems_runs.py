"""Runs with simulated devices: the clock off, resumed, compressed, private, reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.federated import trainer as federated
from pfl_bench.federated.parts import build_task
from pfl_bench.files import read_metrics
from pfl_bench.report.page import write_report
from pfl_bench.runs.checkpoint import load_latest
from pfl_bench.runs.runner import run
from pfl_bench.simulation.devices.cohorts import SimulatedParticipants
from pfl_bench.simulation.devices.timeline import Outcome
from pfl_bench.simulation.selectors import Feedback
from pfl_bench.types import ConfigError, DataError, RunFolderError
from privacy.errors import PlanError
from tests.helpers import central_of, make_config, seed_of

GENERATED = {"source": {"name": "generated", "seed": 1, "num_devices": 200}}


def devices_of(folder: Path, count: int = 60, slots: str | None = None) -> dict[str, Any]:
    """Devices of as many speeds, of which user u's is not known; always available or by slots."""
    lines = [f"c{i},{100 + 10 * i},{1000 + 50 * i}" for i in range(count)]
    path = folder / "capacity.csv"
    path.write_text("\n".join(["client_id,latency_ms,bandwidth_kbps", *lines]) + "\n")
    source = {"name": "csv", "capacity": str(path), "period_s": 600}
    if slots is not None:
        other = folder / "slots.csv"
        other.write_text("client_id,start_s,end_s\n" + slots)
        source["availability"] = str(other)
    return source


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if not k.startswith("time/")}
        for line in read_metrics(folder / "metrics.jsonl")
    ]


def test_with_the_clock_off_nothing_changes(tmp_path: Path) -> None:
    systems = {"source": devices_of(tmp_path), "overcommitment": 1.0}
    selection = {"name": "uniform"}
    with_clock = make_config("federated", systems=systems, federated__selection=selection)
    run(with_clock, tmp_path / "clock")
    run(make_config("federated", federated__sampling="fixed_size"), tmp_path / "plain")
    assert torch.equal(central_of(tmp_path / "clock"), central_of(tmp_path / "plain"))
    pairs = zip(lines_of(tmp_path / "plain"), lines_of(tmp_path / "clock"), strict=True)
    for plain, clock in pairs:
        assert plain.items() <= clock.items()
        assert clock["systems/counted"] == clock["systems/selected"] == 12


def test_devices_name_a_private_run_s_seed_by_content(tmp_path: Path) -> None:
    seeds = set()
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        systems = {"source": devices_of(tmp_path / place)}
        config = make_config("private_federated", systems=systems, federated__sampling="selected")
        seeds.add(seed_of(config, traces="sha256:1"))
    assert len(seeds) == 1
    assert seed_of(config, traces="sha256:2") not in seeds


@pytest.mark.parametrize("selection", ["available", "oort"])
def test_a_resumed_run_goes_on_alike(
    selection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        "federated",
        systems={**GENERATED, "deadline_s": 60.0},
        federated__selection={"name": selection},
        federated__cohort_size=3,
        federated__separation=2,
        federated__max_participations=3,
        federated__num_rounds=7,
    )
    run(config, tmp_path / "whole")
    advance = federated.FederatedTrainer.advance

    def stop(self: federated.FederatedTrainer, index: int) -> dict[str, float]:
        if index == 6:
            raise KeyboardInterrupt
        return advance(self, index)

    monkeypatch.setattr(federated.FederatedTrainer, "advance", stop)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut")
    monkeypatch.undo()
    # Round 5 was done after the last checkpoint, and is done again.
    assert len((tmp_path / "cut/timelines.jsonl").read_text().splitlines()) == 5
    run(config, tmp_path / "cut", resume=True)
    assert torch.equal(central_of(tmp_path / "whole"), central_of(tmp_path / "cut"))
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "cut")
    for name in ("timelines.jsonl", "devices.npz"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_a_run_does_not_go_on_with_other_devices(tmp_path: Path) -> None:
    systems = {"source": devices_of(tmp_path)}
    config = make_config("federated", systems=systems)
    run(config, tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    devices_of(tmp_path, 59)
    with pytest.raises(RunFolderError, match=r"the devices of 'systems\.source' are others"):
        run(config, tmp_path / "run", resume=True)


def test_workers_change_nothing(tmp_path: Path) -> None:
    for workers in (1, 2):
        config = make_config(
            "federated",
            systems=GENERATED,
            federated__selection={"name": "oort"},
            federated__cohort_size=4,
            federated__num_rounds=4,
            federated__workers=workers,
        )
        run(config, tmp_path / str(workers))
    assert torch.equal(central_of(tmp_path / "1"), central_of(tmp_path / "2"))
    assert lines_of(tmp_path / "1") == lines_of(tmp_path / "2")


def test_a_round_is_of_those_who_finish_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Feedback] = []
    trained: list[list[int]] = []
    finish = SimulatedParticipants.finish

    def spy(self: SimulatedParticipants, index: int, users: Any, counted: Any) -> dict[str, float]:
        trained.append(sorted(user for user, _, _ in counted.clients))
        assert users.tolist() == trained[-1]
        monkeypatch.setattr(type(self.selector), "report", lambda _, given: told.append(given))
        return finish(self, index, users, counted)

    monkeypatch.setattr(SimulatedParticipants, "finish", spy)
    systems = {"source": devices_of(tmp_path), "overcommitment": 1.5}
    selection = {"name": "oort"}
    config = make_config("federated", systems=systems, federated__selection=selection)
    run(config, tmp_path / "run")
    sizes = np.diff(build_task(config, torch.device("cpu")).split("train").offsets)
    for line, feedback, users in zip(lines_of(tmp_path / "run"), told, trained, strict=True):
        counted = feedback.outcomes == Outcome.COUNTED
        assert feedback.users[counted].tolist() == users
        assert (len(feedback.users), len(users)) == (18, 12)
        assert line["train/cohort_size"] == line["systems/counted"] == 12
        assert line["systems/stragglers"] == 6
        assert feedback.seconds[counted].max() == line["systems/simulated_seconds"]
        assert (feedback.seconds[~counted] == line["systems/simulated_seconds"]).all()
        assert np.isfinite(feedback.losses[counted]).all()
        assert np.isnan(feedback.losses[~counted]).all()
        assert feedback.num_examples.tolist() == sizes[feedback.users].tolist()
        # Stragglers had the model, and sent at most a part of an update of 650 parameters.
        assert line["systems/bytes_down"] > 12 * 2600
        assert 12 * 2600 <= line["systems/bytes_up"] < 18 * 2600


def test_who_does_not_use_data_is_not_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfl_bench.simulation.selection.uniform import Uniform

    told: list[Feedback] = []
    monkeypatch.setattr(
        Uniform, "report", lambda self, feedback: told.append(feedback), raising=False
    )
    run(make_config("federated", systems=GENERATED), tmp_path / "run")
    assert len(told) == 6
    assert all(np.isnan(feedback.losses).all() for feedback in told)


def test_smaller_updates_make_shorter_rounds(tmp_path: Path) -> None:
    seconds = {}
    for compression in (None, {"name": "top_k", "k": 5}):
        config = make_config(
            "federated",
            systems={"source": devices_of(tmp_path), "overcommitment": 1.0},
            federated__compression=compression,
        )
        summary = run(config, tmp_path / str(compression is None))
        seconds[compression is None] = summary["systems"]["simulated_seconds"]
        assert (summary["systems"]["bytes_up"] < summary["systems"]["bytes_down"]) == (
            compression is not None
        )
    assert seconds[False] < seconds[True]


def test_the_clock_waits_and_rounds_can_be_of_nobody(tmp_path: Path) -> None:
    """One device, there for 10 seconds in 600 from second 300 on: too short for most users."""
    source = devices_of(tmp_path, 1, "c0,300,310\n")
    config = make_config("federated", systems={"source": source}, federated__num_rounds=3)
    summary = run(config, tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    assert lines[0]["systems/total_waited_seconds"] == 300.0
    assert lines[-1]["systems/total_simulated_seconds"] >= 300.0
    assert summary["systems"]["lost"] > 0


def test_rounds_of_nobody_are_said_once(tmp_path: Path) -> None:
    """Slots of a second are too short for everybody."""
    source = devices_of(tmp_path, 1, "c0,300,301\n")
    changes = {"federated__num_rounds": 3, "federated__local_epochs": 20}
    run(make_config("federated", systems={"source": source}, **changes), tmp_path / "run")
    assert [line["train/cohort_size"] for line in lines_of(tmp_path / "run")] == [0.0] * 3
    said = (tmp_path / "run" / "run.log").read_text(encoding="utf-8")
    assert said.count("round 1: no update came in time") == 1
    assert said.count("no update came in time") == 1


def test_a_run_says_what_its_devices_are(tmp_path: Path) -> None:
    config = make_config(
        "federated",
        name="simulated",
        systems=GENERATED,
        evaluation__budgets=[{"metric": "val/accuracy", "value": 0.2}],
    )
    summary = run(config, tmp_path / "run")
    assert "devices are generated, seed 1" in (tmp_path / "run/run.log").read_text()
    last = lines_of(tmp_path / "run")[-1]
    for name in ("simulated_seconds", "stragglers", "lost", "bytes_up", "bytes_down"):
        assert summary["systems"][name] == last[f"systems/total_{name}"]
    (budget,) = summary["budgets"]
    assert 0 < budget["simulated_seconds"] <= last["systems/total_simulated_seconds"]
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    for title in (
        "val/accuracy over simulated time (generated devices)",
        "simulated: round 1, some of its participants (generated devices)",
        "compute (generated), ms a sample",
        "Devices: generated, seed 1",
    ):
        assert f">{title}<" in page
    assert " simulated hours" in page
    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path / "run", damaged)
    (damaged / "timelines.jsonl").write_text(json.dumps({"round": 1}) + "\n")
    with pytest.raises(RunFolderError, match="a line is no round"):
        write_report([damaged], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"federated__selection": {"name": "oort"}}, "add the section 'systems'"),
        ({"federated__max_participations": 2}, "add the section 'systems'"),
        ({"federated__sampling": "selected"}, "nothing selects"),
        ({"systems": GENERATED, "federated__sampling": "fixed_size"}, "federated.selection"),
        ({"systems": GENERATED, "federated__selection": {"name": "ort"}}, "did you mean 'oort'"),
        (
            {"systems": GENERATED, "federated__selection": {"name": "oort", "cutoff": 1.0}},
            "did you mean 'cut_off'",
        ),
        ({"systems": {"source": {"name": "generatd"}}}, "generated"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config("federated", **changes)


def test_devices_need_clients() -> None:
    with pytest.raises(ConfigError, match="federated training alone"):
        make_config("central", systems=GENERATED)


def test_traces_that_are_not_there_are_named(tmp_path: Path) -> None:
    source = {"name": "csv", "capacity": str(tmp_path / "none.csv")}
    with pytest.raises(DataError, match=r"none\.csv"):
        run(make_config("federated", systems={"source": source}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


PRIVATE: dict[str, Any] = {
    "systems": GENERATED,
    "federated__cohort_size": 6,
    "privacy__noise_cohort_size": None,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
    "federated__max_participations": 2,
    "federated__separation": 2,
}


def test_a_deadline_that_nobody_meets_is_refused(tmp_path: Path) -> None:
    config = make_config("federated", systems={**GENERATED, "deadline_s": 0.001})
    with pytest.raises(ConfigError, match="even the quickest of the 60 users needs"):
        run(config, tmp_path / "run")


def test_a_private_run_has_to_say_that_it_selects(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"federated\.selection 'available', the speed and"):
        run(make_config("private_federated", **PRIVATE), tmp_path / "run")


def test_losses_must_not_select_in_a_private_run(tmp_path: Path) -> None:
    config = make_config(
        "private_federated",
        **PRIVATE,
        federated__sampling="selected",
        federated__selection={"name": "oort"},
    )
    with pytest.raises(PlanError, match="choose a selection that sees no losses"):
        run(config, tmp_path / "run")


def test_a_private_run_keeps_to_what_it_claims(tmp_path: Path) -> None:
    config = make_config("private_federated", **PRIVATE, federated__sampling="selected")
    summary = run(config, tmp_path / "run")
    actual = summary["privacy"]["actual"]
    assert (actual["sampling"], actual["max_participations"]) == ("selected", 2)
    assert (actual["separation"], actual["sampling_probability"]) == (2, 1.0)
    state = load_latest(tmp_path / "run/checkpoints")
    assert state is not None
    participants = state["trainer"]["clients"]["participants"]
    assert participants["limits"]["counts"].max() == 2
    lines = ledger_of(tmp_path / "run")
    assert max(line["largest_count"] for line in lines) == 2
    assert min(line["smallest_gap"] for line in lines if line["smallest_gap"] is not None) == 2


def ledger_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_canaries_come_as_the_limits_allow_and_change_nobody_s_part(tmp_path: Path) -> None:
    """So the run with a canary and the one without it are zero-out neighbours, as is claimed."""
    timelines = {}
    for count in (0, 1, 40):
        audit = {"kind": "one_shot", "count": count + 1} if count else None
        config = make_config(
            "private_federated",
            **PRIVATE,
            federated__sampling="selected",
            privacy__audit=audit,
            # The audit is part of the configuration; the selection follows the seed.
            privacy__nonce="the same users",
        )
        folder = tmp_path / str(count)
        summary = run(config, folder)
        timelines[count] = (folder / "timelines.jsonl").read_text()
    assert timelines[0] == timelines[1] == timelines[40]
    came = [line["num_canaries"] for line in ledger_of(folder)]
    # 41 canaries in two groups that take turns, at most twice each, in six rounds.
    assert came[:2] == came[2:4]
    assert sum(came) == 2 * 41
    assert came[4:] == [0, 0]
    assert 0 <= summary["canaries"]["lower_bound"] <= summary["privacy"]["actual"]["epsilon"]
