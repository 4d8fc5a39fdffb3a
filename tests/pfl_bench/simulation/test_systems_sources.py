"""Traces: the generator against what it is to be like, files of each kind, and what is refused."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pfl_bench import plugins
from pfl_bench.cli.main import main
from pfl_bench.config.loading import resolve
from pfl_bench.config.sections import PERIOD_S, SystemsOptions
from pfl_bench.simulation.device_sources import generated as generated_source
from pfl_bench.simulation.device_sources.csv import read_csv
from pfl_bench.simulation.device_sources.fedscale import LeftOut, read_fedscale
from pfl_bench.simulation.device_sources.generated import generate_devices
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.simulation.devices.trace_file import read_trace_file, write_trace_file
from pfl_bench.types import ConfigError, DataError
from tests.helpers import REPOSITORY, make_tree

STATUS = Path("/proc/self/status")


def philox(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@pytest.fixture(scope="module")
def generated() -> Devices:
    return generate_devices(20_000, philox(0), "seed 0")


def same(left: Devices, right: Devices) -> bool:
    pairs = [
        (left.latency_ms, right.latency_ms),
        (left.bandwidth_kbps, right.bandwidth_kbps),
        (left.availability.offsets, right.availability.offsets),
        (left.availability.start, right.availability.start),
        (left.availability.end, right.availability.end),
    ]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def test_capacities_spread_over_orders_of_magnitude(generated: Devices) -> None:
    low, median, high = np.percentile(generated.latency_ms, [5, 50, 95])
    assert 145 < median < 155
    assert 13 < high / low < 15
    low, median, high = np.percentile(generated.bandwidth_kbps, [5, 50, 95])
    assert 5_900 < median < 6_300
    assert 34 < high / low < 40
    assert 0.25 < (generated.bandwidth_kbps < 3_000).mean() < 0.27
    together = np.corrcoef(np.log(generated.latency_ms), np.log(generated.bandwidth_kbps))[0, 1]
    assert abs(together) < 0.03


def test_availability_swings_by_day_and_night(generated: Devices) -> None:
    slots = generated.availability
    share = slots.count(1800) / len(slots)
    by_day = share.reshape(6, 48)
    # A sixth of all around midnight, a third of that at noon, each day alike.
    assert 0.14 < by_day.max(axis=1).min() <= by_day.max() < 0.19
    assert 2.5 < by_day.mean(axis=0).max() / by_day.mean(axis=0).min() < 4.0
    assert set(by_day.argmax(axis=1).tolist()) <= {46, 47, 0, 1, 2, 3, 4, 5, 6}
    assert np.abs(by_day - by_day.mean(axis=0)).max() < 0.02


def test_slots_are_short_with_nights_among_them(generated: Devices) -> None:
    slots = generated.availability
    minutes = (slots.end - slots.start) / 60
    assert 4.5 < np.median(minutes) < 5.5
    assert 0.12 < (minutes > 60).mean() < 0.2
    assert 17 < len(minutes) / len(slots) < 19
    per_trace = np.diff(slots.offsets)
    # Clients differ in habits by more than chance: Poisson would have the mean as variance.
    assert per_trace.var() > 3 * per_trace.mean()


def test_generated_slots_are_in_order(generated: Devices) -> None:
    slots = generated.availability
    assert slots.period_s == PERIOD_S == slots.end.max()
    assert slots.start.min() == 0
    assert (slots.start < slots.end).all()
    inner = np.setdiff1d(np.arange(1, len(slots.start)), slots.offsets)
    assert (slots.start[inner] > slots.end[inner - 1]).all()


def test_the_seed_decides_all() -> None:
    first, again = generate_devices(300, philox(1), "a"), generate_devices(300, philox(1), "a")
    assert same(first, again)
    assert not same(first, generate_devices(300, philox(2), "a"))
    opened = generated_source.build(generated_source.Options(seed=1), 300)
    assert same(first, opened)
    assert (opened.source, opened.is_generated) == ("generated, seed 1", True)
    chosen = generated_source.Options(num_devices=7)
    assert len(generated_source.build(chosen, 300).latency_ms) == 7


def test_a_written_file_is_read_back(generated: Devices, tmp_path: Path) -> None:
    path = tmp_path / "devices.npz"
    write_trace_file(path, generated)
    again = read_trace_file(path)
    assert same(generated, again)
    assert again.facts() == generated.facts()
    assert [file.name for file in tmp_path.iterdir()] == ["devices.npz"]


def damage(path: Path, **changes: Any) -> None:
    with np.load(path) as file:
        columns = dict(file) | changes
    np.savez(path, **columns)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"about": np.array("{}")}, "format"),
        ({"about": np.array("[1]")}, "indices"),
        ({"about": np.array('{"format": "other"}')}, "its format is 'other'"),
        ({"latency_ms": np.ones(2)}, "'latency_ms' is float64"),
        ({"latency_ms": np.ones(2, np.float32)}, "2 latencies and 3 bandwidths"),
        ({"latency_ms": np.array([1, 0, 1], np.float32)}, "not a finite number above 0"),
        ({"slot_offsets": np.array([0, 2, 1, 4])}, "do not ascend"),
        ({"slot_offsets": np.array([0, 1, 2, 3])}, "4 starts and 4 ends of 3 slots"),
        ({"slot_start": np.array([0, 20, 0, 60], np.int32)}, "overlap or run backwards"),
        ({"slot_start": np.array([0, 0, 0, 19], np.int32)}, "overlap or run backwards"),
        ({"slot_end": np.array([10, 20, 30, 101], np.int32)}, "do not fit the period"),
        ({"slot_start": np.array([-1, 0, 0, 60], np.int32)}, "do not fit the period"),
    ],
)
def test_a_damaged_file_is_named(
    changes: dict[str, Any], message: str, three: Devices, tmp_path: Path
) -> None:
    path = tmp_path / "devices.npz"
    write_trace_file(path, three)
    damage(path, slot_end=three.availability.end)
    assert same(read_trace_file(path), three)
    damage(path, **changes)
    with pytest.raises(DataError, match=rf"devices\.npz.*{message}"):
        read_trace_file(path)


def test_a_cut_or_foreign_file_is_named(three: Devices, tmp_path: Path) -> None:
    path = tmp_path / "devices.npz"
    write_trace_file(path, three)
    whole = path.read_bytes()
    for data in (b"", whole[: len(whole) // 2], whole[:-3], b"text", pickle.dumps({})):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"devices\.npz: no file of devices"):
            read_trace_file(path)
    np.savez_compressed(path, about=np.zeros(1 << 24))  # a hundredth of a bomb
    with pytest.raises(DataError, match=r"devices\.npz: .*members are compressed"):
        read_trace_file(path)
    np.savez(path, about=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(DataError, match=r"devices\.npz: no file of devices"):
        read_trace_file(path)
    with pytest.raises(DataError, match="no such file"):
        read_trace_file(tmp_path / "absent.npz")


CAPACITY = {
    7: {"computation": 162.0, "communication": 5648.109619499134},
    3: {"computation": 41, "communication": 900.5},
}
BEHAVIOUR = {
    "a": {
        "duration": 53_093 + 33_530,
        "inactive": [65_881, 133_574],
        "finish_time": 518_400,
        "active": [12_788, 100_044],
        "model": "CPH1801",
    },
    "b": {"duration": 0, "inactive": [], "finish_time": 518_400, "active": [], "model": "x"},
    "c": {
        "duration": 30,
        "inactive": [5, 40, 60],
        "finish_time": 518_400,
        "active": [5, 20, 40],
        "model": "x",
    },
}


def pickled(path: Path, value: Any) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=3))
    return path


def test_published_files_are_read(tmp_path: Path) -> None:
    capacity = pickled(tmp_path / "client_device_capacity", CAPACITY)
    behaviour = pickled(tmp_path / "client_behave_trace", BEHAVIOUR)
    devices = read_fedscale(capacity, behaviour)
    assert devices.latency_ms.tolist() == [162.0, 41.0]
    assert devices.bandwidth_kbps.tolist() == pytest.approx([5648.1096, 900.5])
    slots = devices.availability
    assert (slots.period_s, slots.offsets.tolist()) == (518_400, [0, 2, 2, 3])
    assert slots.start.tolist() == [12_788, 100_044, 20]
    assert slots.end.tolist() == [65_881, 133_574, 60]
    assert devices.source == (
        "client_device_capacity and client_behave_trace (without 1 slots of no length)"
    )
    assert not devices.is_generated
    alone = read_fedscale(capacity, None)
    assert alone.availability.slot_end(np.array([0]), 1e6).tolist() == [np.inf]


@pytest.mark.skipif(not STATUS.exists(), reason="asks Linux for the memory of a process")
def test_reading_needs_little_more_memory_than_the_pickle_s_own_values(tmp_path: Path) -> None:
    """For the published file they are some 200 MB, and all of it is to stay within 300."""
    begins = 10_000 * np.arange(18) + philox(0).integers(0, 9_000, (20_000, 18))
    traces = {
        client: {
            "active": begin.tolist(),
            "inactive": (begin + 500).tolist(),
            "finish_time": PERIOD_S,
        }
        for client, begin in enumerate(begins)
    }
    path = pickled(tmp_path / "client_behave_trace", traces)
    code = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "import pfl_bench.simulation.device_sources.fedscale as reader\n"
        "def most(): return int(re.search('VmHWM:\\s*(\\d+)', STATUS.read_text())[1])\n"
        f"STATUS = Path({str(STATUS)!r})\n"
        "before, path = most(), Path(sys.argv[1])\n"
        "reader.load_builtin_pickle(path)\n"
        "values = most()\n"
        "reader._read_availability(path)\n"
        "print((most() - before) / (values - before))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert float(done.stdout) < 1.4


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"computation": 1.0}, "client 9 has no 'communication'"),
        (None, "client 9 has no 'computation', 'communication'"),
        ({"computation": 0.0, "communication": 1.0}, "client 9: its latency is 0"),
        ({"computation": 1.0, "communication": -5}, "client 9: its bandwidth is -5"),
        ({"computation": float("nan"), "communication": 1.0}, "client 9: its latency is nan"),
        ({"computation": "12", "communication": 1.0}, "client 9: its 'computation' is '12'"),
        ({"computation": True, "communication": 1.0}, "client 9: its 'computation' is True"),
        ({"computation": 10**400, "communication": 1.0}, "client 9: its 'computation' is 10000"),
        ({"computation": -(10**400), "communication": 1.0}, "client 9: its 'computation' is -1000"),
        ({"computation": 1e200, "communication": 1.0}, "client 9: its latency is 1e.200"),
    ],
)
def test_clients_without_capacity_are_named(entry: Any, message: str, tmp_path: Path) -> None:
    path = pickled(tmp_path / "capacity", {**CAPACITY, 9: entry})
    with pytest.raises(DataError, match=f"capacity: {message}"):
        read_fedscale(path, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"active": [10, 40], "inactive": [50, 60]}, "from 40 to 60 seconds overlaps the one from"),
        ({"active": [90], "inactive": [50]}, "from 90 to 50 seconds runs backwards"),
        ({"active": [10], "inactive": [518_401]}, "does not fit the period of 0 to 518400"),
        ({"active": [-1], "inactive": [5]}, "does not fit the period"),
        ({"active": [1, 2], "inactive": [3]}, "two lists of the same length"),
        ({"active": (1,), "inactive": (3,)}, "two lists of the same length"),
        ({"active": [1.5], "inactive": [3]}, "'active' holds 1.5"),
        ({"active": [1], "inactive": ["x"]}, "'inactive' holds 'x'"),
        ({"active": [1], "inactive": ["9"]}, "'inactive' holds '9'"),
        ({"active": [1.0], "inactive": ["9"]}, "'inactive' holds '9'"),
        ({"active": [True], "inactive": [9]}, "'active' holds True"),
        ({"active": [False], "inactive": [9.0]}, "'active' holds False"),
        ({"active": [1], "inactive": [2**31]}, "'inactive' holds 2147483648"),
        ({"active": [1.0], "inactive": [float("inf")]}, "'inactive' holds inf"),
        ({"active": [1], "inactive": [None]}, "'inactive' holds None"),
        ({"active": [1], "inactive": [10**400]}, "'inactive' holds 1000"),
        ({"active": [1], "inactive": [float("nan")]}, "'inactive' holds nan"),
        ({"finish_time": 604_800}, "'finish_time' is 604800, but 518400 of client 'a'"),
        ({"finish_time": 0}, "'finish_time' is 0"),
        ({"finish_time": None}, "'finish_time' is None"),
    ],
)
def test_slots_that_cannot_be_are_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    capacity = pickled(tmp_path / "capacity", CAPACITY)
    entries = {**BEHAVIOUR, "bad": {**BEHAVIOUR["c"], **change}}
    with pytest.raises(DataError, match=f"behaviour: client 'bad': .*{message}"):
        read_fedscale(capacity, pickled(tmp_path / "behaviour", entries))


def test_seconds_may_be_floats_of_whole_value(tmp_path: Path) -> None:
    capacity = pickled(tmp_path / "capacity", CAPACITY)
    entry = {**BEHAVIOUR["a"], "active": [12_788.0, 100_044], "inactive": [65_881, 133_574.0]}
    floats = read_fedscale(capacity, pickled(tmp_path / "floats", {**BEHAVIOUR, "a": entry}))
    assert same(floats, read_fedscale(capacity, pickled(tmp_path / "whole", BEHAVIOUR)))


BAD_BEHAVIOUR = {
    "b0": {**BEHAVIOUR["c"], "finish_time": 604_800},
    **BEHAVIOUR,
    "b1": {**BEHAVIOUR["c"], "active": [True, 20, 40]},
    "b2": {**BEHAVIOUR["c"], "active": [90], "inactive": [50]},
    "b3": None,
    "d": {**BEHAVIOUR["a"], "model": "y"},
    "b4": {**BEHAVIOUR["c"], "active": [10, 40], "inactive": [50, 60]},
}


def test_bad_clients_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {7: CAPACITY[7], 8: {"computation": "1"}, 3: CAPACITY[3], 9: {"computation": 0.0}}
    capacity = pickled(tmp_path / "capacity", bad)
    behaviour = pickled(tmp_path / "behaviour", BAD_BEHAVIOUR)
    given = ["data", "traces", "fedscale", f"capacity={capacity}", f"availability={behaviour}"]
    out = tmp_path / "devices.npz"
    assert main([*given, "--out", str(out)]) == 2
    assert "--leave-out-bad" in capsys.readouterr().err
    assert not out.exists()
    assert main([*given, "--leave-out-bad", "--json", "--out", str(out)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["left_out"] == {str(capacity): 2, str(behaviour): 5}
    assert facts["first_left_out"] == [
        f"{capacity}: client 8 has no 'communication'; expected {{id: {{'computation', "
        "'communication'}}",
        f"{behaviour}: client 'b0': 'finish_time' is 604800, but 518400 of most; all clients of a "
        "file share one period",
    ]
    devices = read_trace_file(out)
    assert devices.source == (
        "capacity (without 2 bad clients) and behaviour (without 5 bad clients) "
        "(without 1 slots of no length)"
    )
    good = {name: BAD_BEHAVIOUR[name] for name in ("a", "b", "c", "d")}
    others = read_fedscale(pickled(tmp_path / "good", CAPACITY), pickled(tmp_path / "slots", good))
    assert same(devices, others)


def test_nobody_is_left_out_of_good_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capacity = pickled(tmp_path / "capacity", CAPACITY)
    behaviour = pickled(tmp_path / "behaviour", BEHAVIOUR)
    left_out = LeftOut()
    assert same(read_fedscale(capacity, behaviour, left_out), read_fedscale(capacity, behaviour))
    assert (left_out.counts, left_out.first) == ({}, [])
    assert main(["data", "traces", "generated", "num_devices=3", "--leave-out-bad"]) == 2
    assert "source fedscale alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    "entries", [{1: None, 2: {}}, {1: {**BEHAVIOUR["a"], "finish_time": 0}, "x": [1]}]
)
def test_files_of_bad_clients_alone_are_refused(entries: Any, tmp_path: Path) -> None:
    capacity = pickled(tmp_path / "capacity", CAPACITY)
    with pytest.raises(DataError, match=r"all 2 clients are bad; .*client 1"):
        read_fedscale(capacity, pickled(tmp_path / "behaviour", entries), LeftOut())


@pytest.mark.parametrize("value", [[], {}, [CAPACITY], "text", {1: [1.0, 2.0]}])
def test_other_forms_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected \{id: \{'computation', 'communication'\}\}"):
        read_fedscale(pickled(tmp_path / "capacity", value), None)


CAPACITY_CSV = "client_id,latency_ms,bandwidth_kbps\nu,162,5648.1\nv,40.5,900\nw,1,1\n"
SLOTS_CSV = "client_id,start_s,end_s\nv,50,60\nu,0,10\nv,10,20\nu,10.0,30\n"


@pytest.fixture
def write_csv(tmp_path: Path) -> Callable[[str, str], tuple[Path, Path]]:
    def write(capacity: str, slots: str) -> tuple[Path, Path]:
        paths = tmp_path / "capacity.csv", tmp_path / "slots.csv"
        for path, text in zip(paths, (capacity, slots), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths

    return write


@pytest.fixture
def three(write_csv: Callable[[str, str], tuple[Path, Path]]) -> Devices:
    slots = "client_id,start_s,end_s\nu,0,10\nv,0,20\nw,0,30\nw,60,90\n"
    return read_csv(*write_csv(CAPACITY_CSV, slots), 100)


def test_csv_is_read(write_csv: Callable[[str, str], tuple[Path, Path]]) -> None:
    capacity, slots = write_csv("\ufeff" + CAPACITY_CSV, SLOTS_CSV)
    devices = read_csv(capacity, slots, 100)
    assert devices.latency_ms.tolist() == [162.0, 40.5, 1.0]
    assert devices.availability.offsets.tolist() == [0, 1, 3, 3]
    assert devices.availability.start.tolist() == [0, 10, 50]
    assert devices.availability.end.tolist() == [30, 20, 60]
    assert devices.facts()["traces_without_slots"] == 1
    alone = read_csv(capacity, None, 100)
    assert alone.availability.available(np.arange(3), 77.0).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,1,2", r"slots.csv:6: client 'x' has no capacity"),
        ("w,5", r"slots.csv:6: 2 columns"),
        ("w,5,abc", r"slots.csv:6: end_s is 'abc', not a number"),
        ("w,5,1_0", r"slots.csv:6: end_s is '1_0', not a number"),
        ("w,5,True", r"slots.csv:6: end_s is 'True', not a number"),
        ("w,5,nan", r"slots.csv:6: end_s is 'nan'; it must be whole seconds"),
        ("w,5.5,6", r"slots.csv:6: start_s is '5.5'; it must be whole seconds"),
        ("w,5,1e300", r"slots.csv:6: end_s is '1e300'; it must be whole seconds"),
        ("w,6,5", r"slots.csv:6: the slot from 6 to 5 seconds runs backwards"),
        ("w,6,6", r"slots.csv:6: the slot from 6 to 6 seconds has no length"),
        ("w,99,101", r"slots.csv:6: .* does not fit the period of 0 to 100"),
        ("v,15,25", r"slots.csv:6: the slot from 15 to 25 seconds overlaps the one from 10 to 20"),
        ("v,5,15", r"slots.csv:4: the slot from 10 to 20 seconds overlaps the one from 5 to 15"),
    ],
)
def test_bad_slots_are_named_by_line(
    line: str, message: str, write_csv: Callable[[str, str], tuple[Path, Path]]
) -> None:
    with pytest.raises(DataError, match=message):
        read_csv(*write_csv(CAPACITY_CSV, f"{SLOTS_CSV}{line}\n"), 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"capacity.csv:1: the header is ''"),
        ("id,latency,bandwidth\n", r"capacity.csv:1: the header is 'id,latency,bandwidth'"),
        ("client_id,latency_ms,bandwidth_kbps\n", r"capacity.csv:2: there are no devices"),
        (CAPACITY_CSV + "u,1,1\n", r"capacity.csv:5: client 'u' has a capacity already, in line 2"),
        (CAPACITY_CSV + "z,0,1\n", r"capacity.csv:5: its latency is 0"),
        (CAPACITY_CSV + "z,1,inf\n", r"capacity.csv:5: its bandwidth is inf"),
        (CAPACITY_CSV + "z,1\n", r"capacity.csv:5: 2 columns"),
        (CAPACITY_CSV + "z,,1\n", r"capacity.csv:5: latency_ms is '', not a number"),
    ],
)
def test_bad_capacities_are_named_by_line(
    text: str, message: str, write_csv: Callable[[str, str], tuple[Path, Path]]
) -> None:
    with pytest.raises(DataError, match=message):
        read_csv(*write_csv(text, SLOTS_CSV), 100)


def test_csv_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "capacity.csv"
    path.write_bytes(b"client_id,latency_ms,bandwidth_kbps\n\xff,1,1\n")
    with pytest.raises(DataError, match=r"capacity\.csv: 'utf-8' codec"):
        read_csv(path, None, 100)
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path / "absent.csv", None, 100)


def test_the_section_is_strict() -> None:
    def systems(tree: dict[str, Any]) -> SystemsOptions | None:
        row = make_tree("federated", federated__sampling="selected", systems=tree)
        return resolve(row, Path("row.yaml"), ()).config.systems

    options = systems({"source": {"name": "generated"}})
    assert options is not None
    assert (options.overcommitment, options.deadline_s) == (1.3, None)
    assert options.source == {"name": "generated", "seed": 0, "num_devices": None}
    for tree, message in (
        ({}, "systems.source: required, but missing"),
        ({"source": {}}, "give the name of a device source: csv, fedscale, file, generated"),
        ({"source": {"name": "genrated"}}, "no device source named 'genrated'; did you mean 'gen"),
        ({"source": {"name": "generated", "path": "x"}}, "systems.source.path"),
        ({"source": {"name": "generated"}, "overcommitment": 0.9}, "systems.overcommitment"),
        ({"source": {"name": "generated"}, "deadline_s": 0.0}, "systems.deadline_s"),
        ({"source": {"name": "generated"}, "sped": 1}, "systems.sped"),
        ({"source": {"name": "csv", "capacity": "c", "period_s": 2**31}}, "source.period_s"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            systems(tree)


OWN_SOURCE = """
import numpy as np
from pfl_bench.config.training import Strict
from pfl_bench.simulation.devices.availability import always_available
from pfl_bench.simulation.devices.devices import Devices


class Options(Strict):
    latency_ms: float = 50.0


def build(options, num_users):
    latency = np.full(num_users, options.latency_ms, np.float32)
    slots = always_available(60, num_users)
    return Devices(latency, np.full(num_users, 9e3, np.float32), slots, "mine", is_generated=True)
"""


def test_devices_may_be_of_a_plugin_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "__path__", [])
    monkeypatch.setenv(plugins.FOLDERS, "")
    (tmp_path / "own" / "devices").mkdir(parents=True)
    (tmp_path / "own" / "devices" / "bench_lab.py").write_text(OWN_SOURCE)
    row = make_tree("federated", systems__source={"name": "bench_lab", "latency_ms": 7.0})
    row["federated"] |= {"num_rounds": 2, "sampling": "selected"}
    (tmp_path / "row.yaml").write_text(yaml.safe_dump({**row, "plugins": ["own"]}))
    given = ["run", str(tmp_path / "row.yaml"), "--out"]
    assert main([*given, str(tmp_path / "run")]) == 0
    assert read_trace_file(tmp_path / "run" / "devices.npz").latency_ms[0] == 7.0
    capsys.readouterr()
    assert main([*given, str(tmp_path / "bad"), "systems.source.latency_ms=-1"]) == 2
    told = "the device source 'bench_lab': a capacity is not a finite number above 0"
    assert told in capsys.readouterr().err


def test_reading_a_configuration_needs_no_numpy() -> None:
    code = "import pfl_bench.config.sections, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_the_command_converts_and_describes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capacity = pickled(tmp_path / "capacity", CAPACITY)
    behaviour = pickled(tmp_path / "behaviour", BEHAVIOUR)
    out = tmp_path / "devices.npz"
    given = [f"capacity={capacity}", f"availability={behaviour}", "--out", str(out), "--json"]
    assert main(["data", "traces", "fedscale", *given]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["devices"], facts["slots"], facts["generated"]) == (2, 3, False)
    assert same(read_trace_file(out), read_fedscale(capacity, behaviour))
    assert main(["data", "traces", "file", f"path={out}"]) == 0
    assert "percent_available" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generated"], "num_devices"),
        (["generated", "num_devices=0"], "num_devices"),
        (["generated", "num_devices=5", "sede=1"], "did you mean 'seed'"),
        (["fedscale"], "capacity: required"),
        (["generated", "num_devices=5", "--out", "absent/x.npz"], "absent does not exist"),
        (["file", "path=absent.npz"], "no such file"),
    ],
)
def test_bad_commands_end_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "traces", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_foreign_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("dear", encoding="utf-8")
    assert main(["data", "traces", "generated", "num_devices=5", "--out", str(path)]) == 2
    assert path.read_text(encoding="utf-8") == "dear"
    assert "another file of that name" in capsys.readouterr().err
