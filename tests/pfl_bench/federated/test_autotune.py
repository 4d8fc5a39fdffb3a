"""What "auto" comes to: the choice from times, the files of times, and runs that pick from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_bench.client.costs import StepFlops, measure_step
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated import autotune
from pfl_bench.federated.autotune import SEQUENTIAL, fastest, pick_workers, settle, workers_of
from pfl_bench.federated.engine_times import (
    Candidate,
    TimesFile,
    choose_sample,
    expected_client_seconds,
    time_engines,
    times_folder,
)
from pfl_bench.federated.parts import FederatedParts, build_task
from pfl_bench.federated.workers import cores
from pfl_bench.files import read_json
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.ledger import read_ledger
from tests.helpers import central_of, make_config, parts_of

CPU = torch.device("cpu")
ONE, MANY = Candidate("vectorized", 1), Candidate("vectorized", 24)
LONG = {"federated__num_rounds": 100_000, "federated__cohort_size": 60}


def test_descriptions_are_read_as_engines_write_them() -> None:
    for candidate in (SEQUENTIAL, ONE, MANY):
        assert Candidate.of(candidate.description) == candidate
    assert Candidate.of("vectorized, 24 slots, 2 worker processes") == MANY
    assert Candidate.of("vectorized, 24 slots, 4 ranks of torchrun") == MANY
    assert Candidate.of("") is None
    assert [workers_of(text) for text in ("", "12 worker processes", "2 ranks of torchrun")] == [
        1,
        12,
        None,
    ]


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({SEQUENTIAL: 4.0, ONE: 6.4, MANY: 3.4}, MANY),
        ({SEQUENTIAL: 4.0, ONE: 3.5}, ONE),
        ({SEQUENTIAL: 1.0, ONE: 1.2, MANY: 2.0}, SEQUENTIAL),
        # As fast, within the margin: what is simpler.
        ({SEQUENTIAL: 4.0, ONE: 3.95, MANY: 3.9}, SEQUENTIAL),
        ({SEQUENTIAL: 9.0, ONE: 3.0, MANY: 2.95}, ONE),
        ({MANY: 1.0}, MANY),
    ],
)
def test_the_fastest_is_taken(seconds: dict[Candidate, float], wanted: Candidate) -> None:
    picked = fastest(seconds)
    assert picked == wanted
    # Never more than a tenth from the best.
    assert seconds[picked] <= 1.1 * min(seconds.values())


@pytest.mark.parametrize(
    ("round_seconds", "num_rounds", "most", "wanted"),
    [
        (0.08, 1500, 2, 2),  # two minutes
        (0.08, 1500, 1, 1),
        (0.08, 100, 2, 1),  # eight seconds: workers would take as long to start
        (3.0, 1500, 16, 16),
        (3.0, 3, 16, 10),
        (3.0, 1, 16, 1),
        (0.001, 10**6, 16, 1),  # of a millisecond there is nothing to share
        (0.02, 10**5, 16, 7),
        (0.0, 10**6, 16, 1),
    ],
)
def test_workers_are_as_many_as_pay(
    round_seconds: float, num_rounds: int, most: int, wanted: int
) -> None:
    assert pick_workers(round_seconds, num_rounds, most) == wanted


def test_times_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "not" / "there"))
    said: list[str] = []
    file = TimesFile({"model": "a"}, [SEQUENTIAL, MANY], said.append)
    assert file.read() is None
    seconds = {SEQUENTIAL: 0.004, MANY: 0.001}
    file.write(seconds)
    assert file.read() == seconds
    assert TimesFile({"model": "b"}, [SEQUENTIAL, MANY], said.append).read() is None
    assert file.path is not None
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    assert said == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"format": 1, "seconds_a_client": {"sequential": 0.1',
        "[1]",
        '{"format": 2, "seconds_a_client": {"sequential": 0.1}}',
        '{"format": 1, "seconds_a_client": {"sequential": -1.0}}',
        '{"format": 1, "seconds_a_client": {"sequential": "inf"}}',
        '{"format": 1, "seconds_a_client": {}}',
        '{"format": 1, "seconds_a_client": {"../x": 0.1}}',
        '{"format": 1}',
        '{"format": 1, "seconds_a_client": 7}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_said_and_replaced(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path))
    said: list[str] = []
    file = TimesFile({}, [SEQUENTIAL], said.append)
    assert file.path is not None
    file.path.parent.mkdir()
    file.path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert file.read() is None
    assert len(said) == 1
    assert str(file.path) in said[0]
    assert "measured again" in said[0]
    file.write({SEQUENTIAL: 0.5})
    assert file.read() == {SEQUENTIAL: 0.5}


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "file"))
    said: list[str] = []
    TimesFile({}, [SEQUENTIAL], said.append).write({SEQUENTIAL: 0.5})
    assert len(said) == 1
    assert "cannot be kept" in said[0]


def test_the_users_variables_name_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", "/somewhere")
    assert times_folder() == Path("/somewhere/engines")
    monkeypatch.setenv("PFL_BENCH_CACHE", "off")
    assert times_folder() is None
    monkeypatch.delenv("PFL_BENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert times_folder() == Path("/elsewhere/pfl-bench/engines")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert times_folder() == Path("/home/somebody/.cache/pfl-bench/engines")


def settled(resolved: ResolvedConfig, folder: Path, said: list[str]) -> ResolvedConfig:
    parts = parts_of(resolved)
    step = measure_step(parts.forward, parts.model, parts.split)
    return settle(parts, step, folder, None, said.append).resolved


class Restless(nn.Module):
    """Dropout, a buffer that moves, and a part that is not in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout())
        self.frozen = nn.Identity().eval()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        calls = self.get_buffer("calls")
        calls += 1
        outputs: Tensor = self.layers(inputs)
        return outputs


def test_measuring_leaves_no_trace() -> None:
    resolved = make_config("federated")
    task = build_task(resolved, CPU)
    model = FlatModel(Restless(), CPU)
    parts = FederatedParts.build(resolved, task, model)
    sample = choose_sample(parts.split, parts.algorithm.local_training, StepFlops(0, 1000), 5)
    assert len(set(sample.users.tolist())) == len(sample.users) >= 5
    vector, generator = model.vector.clone(), torch.get_rng_state()
    modes = [module.training for module in model.module.modules()]
    seconds = time_engines([SEQUENTIAL], sample, parts, print)
    assert seconds.keys() == {SEQUENTIAL}
    assert 0 < seconds[SEQUENTIAL] < 10
    assert torch.equal(model.vector, vector)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.module.modules()] == modes
    assert float(model.module.get_buffer("calls")) == 0


def test_who_cannot_train_these_clients_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from pfl_bench.client.engines.vectorized import VectorizedEngine

    def refuse(*_: Any) -> Any:
        raise ConfigError("examples differ in shape")

    monkeypatch.setattr(VectorizedEngine, "train", refuse)
    parts = parts_of(make_config("federated"))
    step = measure_step(parts.forward, parts.model, parts.split)
    sample = choose_sample(parts.split, parts.algorithm.local_training, step, 2)
    said: list[str] = []
    found = time_engines([SEQUENTIAL, MANY], sample, parts, said.append)
    assert found.keys() == {SEQUENTIAL}
    assert said == ["engine: 'vectorized, 24 slots' is not taken: examples differ in shape"]
    with pytest.raises(ConfigError, match="differ in shape"):
        time_engines([MANY], sample, parts, said.append)


def test_long_clients_are_timed_on_their_first_steps() -> None:
    parts = parts_of(make_config("federated"))
    split, local = parts.split, parts.algorithm.local_training
    heavy = StepFlops(10**10, 10**9)
    sample = choose_sample(split, local, heavy, 1)
    assert (len(sample.users), sample.local.max_steps) == (1, 3)
    mean = expected_client_seconds(np.diff(split.offsets), local, heavy)
    assert sample.pass_seconds < mean
    # Time of the sample, scaled: that of the mean client.
    assert sample.pass_seconds * sample.scale == pytest.approx(mean, rel=0.3)
    # Never more of them than the run itself trains.
    one = choose_sample(split, replace(local, max_steps=1), heavy, 1)
    assert one.local.max_steps == 1


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, float]], None]:
    """A cache whose times can be planted, and runs that are worth measuring."""
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(autotune, "_SHARE", float("inf"))
    monkeypatch.setattr(autotune, "cores_of_this_run", lambda: 2)

    def plant(seconds: Mapping[str, float]) -> None:
        files = list((tmp_path / "cache" / "engines").iterdir())
        assert files
        for path in files:
            content = json.loads(path.read_text())
            content["seconds_a_client"] = seconds
            path.write_text(json.dumps(content))

    return plant


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_what_is_kept_is_picked_from_then_on(
    setting: str, kept: Callable[..., None], tmp_path: Path
) -> None:
    def picked(**changes: Any) -> tuple[Any, ...]:
        said: list[str] = []
        found = settled(make_config(setting, **changes), tmp_path / "run", said)
        federated = found.config.federated
        assert federated is not None
        tree = found.tree["federated"]
        assert tree["engine"] == federated.engine
        assert tree["workers"] == federated.workers
        return (federated.engine, federated.engine_lanes, federated.workers, said)

    assert "measured in" in picked()[3][0]
    kept({"sequential": 0.02, "vectorized, 1 slots": 0.03, "vectorized, 24 slots": 0.01})
    engine, slots, workers, said = picked()
    assert (engine, slots, workers) == ("vectorized", 24, 1)
    assert "24 slots 10, sequential 20" in said[0]
    assert "kept in" in said[0]
    # Of another learning rate, seed or number of rounds: the same work.
    assert picked(federated__local_learning_rate=0.2, seed=5)[:3] == (engine, slots, workers)
    assert picked(federated__num_rounds=1000)[2] == 2
    assert "measured in" in picked(federated__local_batch_size=5)[3][0]
    assert picked(federated__engine="sequential", federated__workers=1)[3] == []


def test_a_run_of_seconds_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    resolved = make_config("private_federated")
    said: list[str] = []
    found = settled(resolved, tmp_path, said)
    assert found.config.federated is not None
    assert (found.config.federated.engine, found.config.federated.workers) == ("sequential", 1)
    assert "too short" in said[0]
    assert not (tmp_path / "cache").exists()


def test_workers_are_bounded_by_cores_clients_memory_and_what_must_be_one(
    kept: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def workers(setting: str = "federated", **changes: Any) -> Any:
        config = make_config(setting, **{**LONG, **changes})
        found = settled(config, tmp_path, []).config.federated
        assert found is not None
        return found.workers

    monkeypatch.setattr(autotune, "cores_of_this_run", lambda: 12)
    monkeypatch.setattr(autotune, "most_by_memory", lambda more: None)
    workers()
    kept({"sequential": 1.0})
    assert workers() == 12
    # No more than there are shards of twelve clients.
    workers(federated__cohort_size=12)
    kept({"sequential": 1.0})
    assert workers(federated__cohort_size=12) == 8
    assert workers("private_federated") == 12
    # Named slots of a private run are no reason for one process.
    slots = {"federated__engine": "vectorized"}
    workers("private_federated", **slots)
    kept({"vectorized, 24 slots": 1.0})
    assert workers("private_federated", **slots) == 12
    krum = {"name": "krum", "num_attackers": 2}
    workers(federated__aggregation=krum)
    kept({"sequential": 1.0})
    assert workers(federated__aggregation=krum) == 1
    for fitting, wanted in ((1, 1), (3, 3), (None, 12)):
        monkeypatch.setattr(autotune, "most_by_memory", lambda more, n=fitting: n)
        assert workers() == wanted
    monkeypatch.undo()
    monkeypatch.setattr(cores, "_limit", None)
    monkeypatch.setattr(cores, "usable_cores", lambda: 12)
    assert cores.cores_of_this_run() == 12
    cores.limit_cores(5)  # As one of several runs on a machine has them.
    assert cores.cores_of_this_run() == 5


def test_settings_that_are_not_federated_and_gpus_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the section 'federated'"):
        parts_of(make_config("central"))
    said: list[str] = []
    named = parts_of(make_config("federated", federated__engine="sequential"))
    # Processes that torchrun has started are not for "auto" to choose.
    assert settle(named, StepFlops(1, 1), tmp_path, 4, said.append) is named
    assert said == []


def test_an_auto_run_is_the_named_one_bit_for_bit_and_resumes_without_the_kept_times(
    kept: Callable[..., None], tmp_path: Path
) -> None:
    """Private, in slots, with two workers: engine, slots and processes all decide last bits."""

    def digests(folder: str) -> list[str]:
        return [line["release_sha256"] for line in read_ledger(tmp_path / folder / "ledger.jsonl")]

    auto = make_config("private_federated")
    settled(auto, tmp_path / "none", [])
    # Of an hour: workers pay.
    kept({"sequential": 100.0, "vectorized, 24 slots": 50.0})
    run(auto, tmp_path / "auto")
    environment = read_json(tmp_path / "auto" / "environment.json")
    assert environment is not None
    assert environment["engine"]["name"] == "vectorized, 24 slots, 2 worker processes"
    slots = {"federated__engine_lanes": 24, "federated__workers": 2}
    run(make_config("private_federated", federated__engine="vectorized", **slots), tmp_path / "set")
    assert digests("auto") == digests("set")
    assert torch.equal(central_of(tmp_path / "auto"), central_of(tmp_path / "set"))
    config = (tmp_path / "auto" / "config.yaml").read_text()
    assert "engine: auto" in config
    assert "workers: auto" in config
    # Killed after round 4; the kept times are gone, and others would be measured.
    before, central = digests("auto"), central_of(tmp_path / "auto")
    (tmp_path / "auto" / "summary.json").unlink()
    (tmp_path / "auto" / "checkpoints" / "step-00000006.pt").unlink()
    kept({"sequential": 1e-6})
    run(auto, tmp_path / "auto", resume=True)
    assert "as the run began" in (tmp_path / "auto" / "run.log").read_text()
    assert digests("auto") == before
    assert torch.equal(central_of(tmp_path / "auto"), central)


def test_slots_of_an_engine_without_are_refused(tmp_path: Path) -> None:
    config = make_config("federated", federated__engine="sequential", federated__engine_lanes=4)
    with pytest.raises(ConfigError, match="engine_lanes: 4, but the engine 'sequential' has no"):
        run(config, tmp_path / "run")
