"""Availability and the clock against slow references that walk through every second and event."""

from __future__ import annotations

import heapq
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_bench.simulation.devices.availability import (
    Availability,
    always_available,
    make_availability,
)
from pfl_bench.simulation.devices.clock import VirtualClock
from pfl_bench.simulation.devices.devices import Devices, Fleet
from pfl_bench.simulation.devices.timeline import Outcome, RoundTimeline, play_round
from pfl_bench.types import DataError

PERIOD = 40


def slots_of(flags: list[list[bool]]) -> Availability:
    """Availability from a flag for each second of the period."""
    owner, start, end = [], [], []
    for trace, row in enumerate(flags):
        for second, flag in enumerate(row):
            if flag:
                owner.append(trace)
                start.append(second)
                end.append(second + 1)
    return make_availability(
        np.array(owner, np.int64),
        np.array(start, np.int64),
        np.array(end, np.int64),
        len(flags),
        PERIOD,
        str,
    )


def walk(row: list[bool], time: float, flag: bool) -> float:
    """The first moment from ``time`` on at which a trace's flag is ``flag``."""
    if row[int(time) % PERIOD] is flag:
        return time
    for second in range(int(time) + 1, int(time) + 2 + PERIOD):
        if row[second % PERIOD] is flag:
            return float(second)
    return math.inf


# The bits of a number: hypothesis draws one much faster than as many flags.
traces = st.lists(st.integers(0, 2**PERIOD - 1), min_size=1, max_size=5).map(
    lambda numbers: [[bool(number >> second & 1) for second in range(PERIOD)] for number in numbers]
)


@settings(max_examples=150, deadline=None)
@given(
    flags=traces,
    time=st.floats(0, 5 * PERIOD) | st.integers(0, 5 * PERIOD).map(float),
)
def test_queries_agree_with_a_walk_through_the_seconds(
    flags: list[list[bool]], time: float
) -> None:
    availability = slots_of(flags)
    every = np.arange(len(flags))
    expected = [row[int(time) % PERIOD] for row in flags]
    assert availability.available(every, time).tolist() == expected
    ends = [walk(row, time, False) if row[int(time) % PERIOD] else time for row in flags]
    assert availability.slot_end(every, time).tolist() == ends
    begins = [walk(row, time, True) for row in flags]
    assert availability.next_available(every, time).tolist() == begins
    counts = [sum(row[second] for row in flags) for second in range(0, PERIOD, 7)]
    assert availability.count(7).tolist() == counts


def test_slots_that_touch_are_one() -> None:
    availability = slots_of([[5 <= second < 9 for second in range(PERIOD)]])
    assert (availability.start.tolist(), availability.end.tolist()) == ([5], [9])


def test_a_slot_goes_on_over_the_end_of_the_period() -> None:
    availability = slots_of([[second < 3 or second >= 38 for second in range(PERIOD)]])
    assert availability.slot_end(np.array([0]), 39.0).tolist() == [43.0]
    assert availability.slot_end(np.array([0]), 1000 * PERIOD + 1.5).tolist() == [40003.0]


def test_always_available_never_ends() -> None:
    availability = always_available(PERIOD, 2)
    assert availability.slot_end(np.array([1, 0, 1]), 1e9).tolist() == [math.inf] * 3


def make_fleet(
    latency_ms: list[float], bandwidth_kbps: list[float], availability: Availability | None = None
) -> Fleet:
    slots = availability or always_available(PERIOD, len(latency_ms))
    return Fleet(
        np.array(latency_ms, np.float32),
        np.array(bandwidth_kbps, np.float32),
        np.arange(len(latency_ms)),
        slots,
    )


def test_the_times_of_a_round_by_hand() -> None:
    # 162 ms a sample, 20 samples twice, trained at three times that; 1 MB each way at 8,000 kbit/s.
    fleet = make_fleet([162.0], [8000.0])
    timeline = play_round(fleet, np.array([0]), np.array([40.0]), 1e6, 2e6, 1, 100.0)
    assert timeline.download_s == pytest.approx([1.0])
    assert timeline.compute_s == pytest.approx([19.44])
    assert timeline.upload_s == pytest.approx([2.0])
    assert timeline.end == pytest.approx(122.44)
    assert timeline.outcome.tolist() == [Outcome.COUNTED]
    assert (timeline.bytes_down.tolist(), timeline.bytes_up.tolist()) == ([1e6], [2e6])


def reference(
    fleet: Fleet,
    flags: list[list[bool]],
    examples: list[float],
    sizes: tuple[float, float],
    wanted: int,
    start: float,
    deadline: float | None,
) -> tuple[float, list[Outcome]]:
    """The same round, event by event."""
    events: list[tuple[float, int, int]] = []
    outcomes = [Outcome.STRAGGLER] * len(examples)
    for user, count in enumerate(examples):
        rate = 125.0 * float(fleet.bandwidth_kbps[user])
        compute = 3.0 * count * float(fleet.latency_ms[user]) / 1000.0
        finish = start + sizes[0] / rate + compute + sizes[1] / rate
        gone = walk(flags[user], start, False)
        # At the same moment a finish comes before a loss, and the deadline is last.
        is_there = flags[user][int(start) % PERIOD]
        if is_there and finish <= gone:
            heapq.heappush(events, (finish, 0, user))
        else:
            heapq.heappush(events, (gone, 1, user))
    end, finished = start, 0
    while events and finished < wanted:
        now, kind, user = heapq.heappop(events)
        if deadline is not None and now > start + deadline:
            return start + deadline, outcomes
        end = now
        outcomes[user] = Outcome.COUNTED if kind == 0 else Outcome.LOST
        finished += kind == 0
    while events and events[0][0] <= end:
        _, kind, user = heapq.heappop(events)
        if kind == 1:
            outcomes[user] = Outcome.LOST
    return end, outcomes


@st.composite
def rounds(draw: st.DrawFn) -> dict[str, Any]:
    flags = draw(traces)
    count = len(flags)
    numbers = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0])
    return {
        "flags": flags,
        "latency": draw(st.lists(numbers, min_size=count, max_size=count)),
        "bandwidth": draw(st.lists(numbers, min_size=count, max_size=count)),
        "examples": [1000.0 * draw(numbers) for _ in range(count)],
        "wanted": draw(st.integers(1, count + 1)),
        "start": draw(st.sampled_from([0.0, 3.0, 41.5, 40_007.25])),
        "deadline": draw(st.one_of(st.none(), st.sampled_from([0.5, 6.0, 20.0, 500.0]))),
    }


@settings(max_examples=150, deadline=None)
@given(case=rounds())
def test_rounds_agree_with_a_simulation_of_events(case: dict[str, Any]) -> None:
    fleet = make_fleet(case["latency"], case["bandwidth"], slots_of(case["flags"]))
    # 250 bytes over 1 to 8 kbit/s take 2 to 0.25 seconds.
    sizes = (250.0, 500.0)
    examples = np.array(case["examples"]) / 3.0
    timeline = play_round(
        fleet,
        np.arange(len(fleet)),
        examples,
        *sizes,
        case["wanted"],
        case["start"],
        case["deadline"],
    )
    end, outcomes = reference(
        fleet,
        case["flags"],
        examples.tolist(),
        sizes,
        case["wanted"],
        case["start"],
        case["deadline"],
    )
    assert timeline.end == pytest.approx(end, abs=1e-6)
    assert [Outcome(value) for value in timeline.outcome.tolist()] == outcomes
    assert timeline.num(Outcome.COUNTED) <= case["wanted"]
    assert (timeline.stop <= timeline.end).all()
    assert (timeline.stop >= timeline.start).all()
    assert ((timeline.bytes_down >= 0) & (timeline.bytes_down <= sizes[0])).all()
    assert (timeline.bytes_up[timeline.outcome == Outcome.COUNTED] == sizes[1]).all()


def test_a_lost_client_has_moved_only_what_it_could() -> None:
    slots = slots_of([[second < 3 for second in range(PERIOD)]])
    # Downloads for 2 seconds, trains for 0, uploads for 4 and is cut after 1 of them.
    fleet = make_fleet([1.0], [1.0], slots)
    timeline = play_round(fleet, np.array([0]), np.array([0.0]), 250.0, 500.0, 1, 0.0)
    assert timeline.num(Outcome.LOST) == 1
    assert timeline.end == 3.0
    assert timeline.finish.tolist() == [math.inf]
    assert (timeline.bytes_down.tolist(), timeline.bytes_up.tolist()) == ([250.0], [125.0])


def test_who_finishes_as_the_slot_ends_counts() -> None:
    slots = slots_of([[second < 3 for second in range(PERIOD)]])
    fleet = make_fleet([1.0], [1.0], slots)
    timeline = play_round(fleet, np.array([0]), np.array([0.0]), 250.0, 125.0, 1, 0.0)
    assert (timeline.num(Outcome.COUNTED), timeline.end) == (1, 3.0)


def test_who_is_not_there_is_lost_even_with_nothing_to_do() -> None:
    fleet = make_fleet([1.0], [1.0], slots_of([[second < 3 for second in range(PERIOD)]]))
    timeline = play_round(fleet, np.array([0]), np.array([0.0]), 0.0, 0.0, 1, 5.0)
    assert (timeline.num(Outcome.LOST), timeline.end) == (1, 5.0)


def test_a_round_of_nobody_takes_no_time() -> None:
    nobody = np.zeros(0, np.int64)
    timeline = play_round(make_fleet([1.0], [1.0]), nobody, np.zeros(0), 1.0, 1.0, 3, 7.0)
    assert (timeline.end, len(timeline.counted)) == (7.0, 0)


def test_of_several_at_once_the_first_count() -> None:
    fleet = make_fleet([5.0] * 4, [8.0] * 4)
    timeline = play_round(fleet, np.array([3, 1, 2, 0]), np.full(4, 10.0), 10.0, 10.0, 2, 0.0)
    assert timeline.counted.tolist() == [3, 1]
    assert timeline.num(Outcome.STRAGGLER) == 2


def test_plain_data_restore_a_timeline() -> None:
    slots = slots_of([[second < 3 for second in range(PERIOD)], [True] * PERIOD])
    fleet = make_fleet([1.0, 1.0], [1.0, 1.0], slots)
    timeline = play_round(fleet, np.array([0, 1]), np.zeros(2), 250.0, 500.0, 2, 0.0)
    again = RoundTimeline.from_json_dict(json.loads(json.dumps(timeline.to_json_dict(5))))
    for name in RoundTimeline.__slots__:
        assert np.array_equal(getattr(again, name), getattr(timeline, name)), name
    assert len(timeline.to_json_dict(1)["users"]) == 1


@pytest.mark.parametrize(
    ("overcommitment", "wanted", "selected"), [(1.0, 10, 10), (1.1, 50, 55), (1.3, 100, 130)]
)
def test_the_ceiling_is_not_fooled_by_rounding(
    overcommitment: float, wanted: int, selected: int
) -> None:
    clock = VirtualClock(make_fleet([1.0] * 200, [1.0] * 200), overcommitment)
    assert clock.num_selected(wanted) == selected


def test_the_clock_moves_on_to_the_next_who_is_available() -> None:
    flags = [[second == 30 for second in range(PERIOD)], [second == 25 for second in range(PERIOD)]]
    fleet = make_fleet([1.0, 1.0], [1.0, 1.0], slots_of(flags))
    clock = VirtualClock(fleet, 1.3)
    clock.now = 32.0
    assert clock.next_start(np.array([0, 1])) == 65.0
    assert clock.next_start(np.array([0])) == 70.0
    assert clock.now == 32.0
    timeline = play_round(fleet, np.array([1]), np.zeros(1), 0.0, 0.0, 1, 65.0)
    clock.advance(timeline)
    assert clock.now == 65.0
    assert clock.scalars(timeline)["systems/total_waited_seconds"] == 33.0
    assert clock.next_start(np.array([0, 1])) == 65.0


def test_there_is_no_waiting_for_those_who_never_come() -> None:
    slots = slots_of([[False] * PERIOD, [True] * PERIOD])
    clock = VirtualClock(make_fleet([1.0, 1.0], [1.0, 1.0], slots), 1.3)
    assert clock.next_start(np.array([0])) == 0.0
    assert clock.next_start(np.zeros(0, np.int64)) == 0.0


def test_a_period_without_anybody_is_an_error() -> None:
    with pytest.raises(DataError, match="none of the 1 users is available"):
        VirtualClock(make_fleet([1.0], [1.0], slots_of([[False] * PERIOD])), 1.3)


def test_a_restored_clock_goes_on_alike() -> None:
    fleet = make_fleet([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])

    def advance(clock: VirtualClock, number: int) -> list[dict[str, float]]:
        scalars = []
        for index in range(number):
            users = np.sort(np.random.default_rng(index).permutation(3)[: clock.num_selected(2)])
            work = np.full(len(users), 100.0)
            timeline = play_round(fleet, users, work, 250.0, 250.0, 2, clock.now, 3.0)
            clock.advance(timeline)
            scalars.append(clock.scalars(timeline))
        return scalars

    whole, half = VirtualClock(fleet, 1.3), VirtualClock(fleet, 1.3)
    expected = advance(whole, 3) + advance(whole, 3)
    before = advance(half, 3)
    resumed = VirtualClock(fleet, 1.3)
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert before + advance(resumed, 3) == expected
    last = expected[-1]
    assert last["systems/total_simulated_seconds"] == pytest.approx(
        sum(scalars["systems/simulated_seconds"] for scalars in expected)
    )
    assert last["systems/total_stragglers"] == sum(s["systems/stragglers"] for s in expected) > 0


def test_devices_are_dealt_evenly_and_by_the_generator() -> None:
    devices = Devices(
        np.arange(1, 8, dtype=np.float32),
        np.arange(1, 8, dtype=np.float32),
        always_available(PERIOD, 3),
        "test",
        is_generated=False,
    )
    fleet = devices.assign(20, np.random.default_rng(1))
    assert sorted(np.bincount(fleet.latency_ms.astype(int), minlength=8)[1:]) == [2] + [3] * 6
    assert sorted(np.bincount(fleet.trace)) == [6, 7, 7]
    assert np.array_equal(fleet.latency_ms, fleet.bandwidth_kbps)
    again = devices.assign(20, np.random.default_rng(1))
    other = devices.assign(20, np.random.default_rng(2))
    assert np.array_equal(fleet.trace, again.trace)
    assert not np.array_equal(fleet.latency_ms, other.latency_ms)
