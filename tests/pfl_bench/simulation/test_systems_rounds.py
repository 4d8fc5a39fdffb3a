"""The clock beside real training: what clients compute, what it costs, and how it is drawn."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from pfl_bench.client.batches import examples_processed
from pfl_bench.federated.parts import build_engine
from pfl_bench.report.run_folder import read_run
from pfl_bench.report.systems import clock_panel, device_panels, timeline_panel
from pfl_bench.simulation.device_sources import generated
from pfl_bench.simulation.devices.clock import VirtualClock
from pfl_bench.simulation.devices.devices import Devices, Fleet
from pfl_bench.simulation.devices.timeline import Outcome, play_round
from pfl_bench.simulation.devices.trace_file import read_trace_file, write_trace_file
from tests.helpers import make_config, parts_of

CPU = torch.device("cpu")


def play(
    clock: VirtualClock,
    fleet: Fleet,
    wanted: int,
    work: float,
    size: float,
    seed: int,
    deadline_s: float | None = None,
) -> Any:
    """A round of some of those who are available, without a selection."""
    there = np.flatnonzero(fleet.available(np.arange(len(fleet)), clock.now))
    users = np.random.default_rng(seed).permutation(there)[: clock.num_selected(wanted)]
    works = np.full(len(users), work)
    timeline = play_round(fleet, users, works, size, size, wanted, clock.now, deadline_s)
    clock.advance(timeline)
    return timeline


@pytest.fixture(scope="module")
def devices() -> Devices:
    return generated.build(generated.Options(), 3000)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local_epochs": 3},
        {"local_epochs": 3, "local_steps": 4},
        {"local_epochs": 2, "local_steps": 100},
        {"local_epochs": 3, "local_steps": 4, "local_batches": "across_epochs"},
        {"local_epochs": 3, "local_batches": "across_epochs"},
        {"algorithm": {"name": "minibatch_sgd", "fraction": 0.4}},
    ],
)
def test_work_is_what_clients_really_process(changes: dict[str, Any]) -> None:
    resolved = make_config("federated", **{f"federated__{k}": v for k, v in changes.items()})
    parts = parts_of(resolved)
    engine = build_engine(parts, lambda text: None)
    users = np.arange(parts.split.num_users)
    processed = np.zeros(len(users))
    for result in engine.train(users, 1, parts.model.vector.clone()):
        processed[result.user] = result.num_processed
    expected = examples_processed(np.diff(parts.split.offsets), parts.algorithm.local_training)
    assert expected.tolist() == processed.tolist()
    assert len(set(processed.tolist())) > 1 or "local_steps" in changes


def test_a_large_round_is_played_in_a_moment(devices: Devices) -> None:
    """See docs for the real sizes; here 60,000 users and 2,000 participants, generous limits."""
    fleet = devices.assign(60_000, np.random.default_rng(0))
    clock = VirtualClock(fleet, 1.3)
    started = time.perf_counter()
    for index in range(5):
        timeline = play(clock, fleet, 2000, 100.0, 1e5, index)
    assert time.perf_counter() - started < 2.0
    assert len(timeline.users) == 2600
    assert timeline.num(Outcome.COUNTED) == 2000
    assert timeline.num(Outcome.LOST) > 0
    assert clock.now > 100.0


def test_rounds_do_not_depend_on_the_process(devices: Devices, tmp_path: Path) -> None:
    path = tmp_path / "devices.npz"
    write_trace_file(path, devices)
    again = read_trace_file(path)

    def rounds(source: Devices) -> list[dict[str, float]]:
        fleet = source.assign(500, np.random.default_rng(3))
        clock = VirtualClock(fleet, 1.3)
        played = (play(clock, fleet, 10, 50.0, 1e6, index, 120.0) for index in range(4))
        return [clock.scalars(timeline) for timeline in played]

    assert rounds(devices) == rounds(again)


def colours(svg: str) -> set[str]:
    return set(re.findall(r"var\(--s\d\)", svg))


def test_pictures_of_devices_say_that_they_are_generated(devices: Devices) -> None:
    panels = device_panels("d", devices)
    assert [panel.title for panel in panels] == [
        "compute (generated), ms a sample",
        "network (generated), kbit/s",
        "available clients (generated), percent by hour",
        "available slots (generated), minutes",
    ]
    median = float(np.median(devices.latency_ms))
    assert f"median {median:.4g}" in panels[0].svg
    assert all(panel.svg.startswith("<svg") for panel in panels)
    measured = Devices(
        devices.latency_ms, devices.bandwidth_kbps, devices.availability, "x", is_generated=False
    )
    assert all("generated" not in panel.title for panel in device_panels("d", measured))


def test_a_timeline_shows_every_participant(devices: Devices) -> None:
    fleet = devices.assign(3000, np.random.default_rng(0))
    timeline = play(VirtualClock(fleet, 1.3), fleet, 20, 640.0, 9e6, 1)
    panel = timeline_panel("t", "round 1", timeline, is_generated=True)
    assert panel.title == "round 1 (generated devices)"
    words = re.findall(r">\s*(straggler|lost)\s*<", panel.svg)
    assert words.count("straggler") == timeline.num(Outcome.STRAGGLER) > 0
    assert words.count("lost") == timeline.num(Outcome.LOST) > 0
    assert all(f"client {user}" in panel.svg for user in timeline.users.tolist())
    assert colours(panel.svg) == {"var(--s0)", "var(--s2)", "var(--s4)"}


def test_a_metric_is_drawn_over_simulated_time(tmp_path: Path) -> None:
    for name, pace in (("fast", 1800.0), ("slow", 7200.0), ("without", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text(
            yaml.safe_dump({"name": name, "seed": 0, "federated": {"num_rounds": 4}})
        )
        lines = []
        for index in range(1, 5):
            line: dict[str, Any] = {"round": index}
            if pace is not None:
                line["systems/total_simulated_seconds"] = pace * index
            if index % 2 == 0:
                line["val/accuracy"] = 0.1 * index
            lines.append(json.dumps(line))
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rows = {name: [read_run(tmp_path / name)] for name in ("fast", "slow", "without")}
    panel = clock_panel("c", "val/accuracy", rows, is_generated=False)
    assert panel is not None
    assert "fast 0.4 after 2 h; slow 0.4 after 8 h" in panel.svg
    assert "without" not in panel.svg
    assert clock_panel("c", "val/accuracy", {"without": rows["without"]}, False) is None
