"""Participants of simulated devices: selected, played on the virtual clock, trained if in time.

How long a client takes follows from its device, its examples and the bytes that it moves, which
are known before anybody is trained. So those alone are trained whose updates are used. Nothing
changes until a round has ended: one that is cut off is selected and played again, alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench import plugins
from pfl_bench.client.batches import examples_processed
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.files import drop_after
from pfl_bench.rng import Purpose, stream
from pfl_bench.simulation.devices.availability import Ids, take_traces
from pfl_bench.simulation.devices.clock import VirtualClock
from pfl_bench.simulation.devices.devices import Devices
from pfl_bench.simulation.devices.limits import Limits
from pfl_bench.simulation.devices.timeline import TIMELINES, Outcome, RoundTimeline, play_round
from pfl_bench.simulation.devices.trace_file import DEVICES, write_trace_file
from pfl_bench.simulation.selectors import Feedback, Selector, Users
from pfl_bench.types import (
    ConfigError,
    FederatedSplit,
    LocalTraining,
    Participants,
    PluginError,
    RoundStatistics,
)

# What a run keeps for its report: of the first rounds the first participants, and some devices.
_KEPT_ROUNDS, _KEPT_PARTICIPANTS, _KEPT_DEVICES = 20, 40, 1000


def open_devices(resolved: ResolvedConfig, num_users: int) -> Devices:
    """Read the devices of the section ``systems``, or make up ``num_users`` of them.

    Raises:
        DataError: Their files are not sound.
        PluginError: A user's source gives what no devices are.
    """
    name = resolved.tree["systems"]["source"]["name"]
    built = plugins.build(plugins.DEVICES, name, resolved.federated_options["source"], num_users)
    devices = plugins.checked(built, Devices, plugins.DEVICES, name)
    try:
        devices.check()
    except ValueError as error:
        raise PluginError(f"the {plugins.DEVICES.word} '{name}': {error}") from None
    return devices


class SimulatedParticipants(Participants):
    """Participants that are selected among devices, and finish in time.

    A client receives ``down_bytes`` and sends ``up_bytes``.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        devices: Devices,
        split: FederatedSplit,
        local: LocalTraining,
        down_bytes: float,
        up_bytes: float,
        folder: Path,
    ) -> None:
        systems, options = resolved.config.systems, resolved.config.federated
        assert systems is not None
        assert options is not None
        self._folder, self._devices = folder, devices
        self._digest = digest_of(devices)
        self._limits = Limits(
            split.num_users,
            options.cohort_size,
            options.num_rounds,
            options.separation,
            options.max_participations,
        )
        # By the seed of the configuration: runs that differ in their training share devices.
        rng = stream(resolved.config.seed, Purpose.DEVICES)
        self._fleet = devices.assign(split.num_users, rng)
        self._clock = VirtualClock(self._fleet, systems.overcommitment)
        self._deadline_s = systems.deadline_s
        self._wanted = options.cohort_size
        self._sizes = np.diff(split.offsets)
        self._work = examples_processed(self._sizes, local)
        self._bytes_down, self._bytes_up = down_bytes, up_bytes
        self._name = resolved.tree["federated"]["selection"]["name"]
        seconds = self._expected_seconds()
        _check_deadline(systems.deadline_s, seconds)
        users = Users(self._sizes, seconds)
        selection = resolved.federated_options["selection"]
        built = plugins.build(plugins.SELECTION, self._name, selection, users)
        self.selector: Selector = plugins.checked(built, Selector, plugins.SELECTION, self._name)
        self.uses_data = self.selector.uses_data
        self._timeline: RoundTimeline | None = None
        self.rests_on = (
            f"federated.selection '{self._name}'",
            "the speed and availability of devices",
            *(["over-commitment"] if systems.overcommitment > 1 else []),
            *(["a deadline"] if systems.deadline_s is not None else []),
        )

    def begin(self, done: int) -> None:
        """Keep some devices for the report, and drop timelines of rounds that are done again."""
        drop_after(self._folder / TIMELINES, done)
        if not (self._folder / DEVICES).exists():
            some = slice(0, _KEPT_DEVICES)
            kept = Devices(
                self._fleet.latency_ms[some],
                self._fleet.bandwidth_kbps[some],
                take_traces(self._fleet.availability, self._fleet.trace[some]),
                self._devices.source,
                self._devices.is_generated,
            )
            write_trace_file(self._folder / DEVICES, kept)

    def draw(self, index: int, rng: np.random.Generator) -> Ids:
        """Select, play the round, and give those who finish in time."""
        allowed = self._limits.allowed(index)
        start = self._clock.now
        there = self._fleet.available(allowed, start)
        if not there.any():
            start = self._clock.next_start(allowed)
            there = self._fleet.available(allowed, start)
        if self.selector.only_available:
            allowed = allowed[there]
        number = self._clock.num_selected(self._wanted)
        users = self._checked(self.selector.select(allowed, number, index, rng), allowed, number)
        self._timeline = self._play(users, self._wanted, start, self._deadline_s)
        return self._timeline.counted

    def _play(
        self, users: Ids, wanted: int, start: float, deadline_s: float | None = None
    ) -> RoundTimeline:
        costs = (self._work[users], self._bytes_down, self._bytes_up)
        return play_round(self._fleet, users, *costs, wanted, start, deadline_s)

    def finish(self, index: int, users: Ids, counted: RoundStatistics) -> dict[str, float]:
        """Move the clock on, tell the selection, and keep the timeline of a first round."""
        timeline = self._timeline
        assert timeline is not None
        self._clock.advance(timeline)
        self._limits.note(users, index)
        self.selector.report(self._feedback(index, timeline, counted))
        if index <= _KEPT_ROUNDS:
            line = {"round": index, **timeline.to_json_dict(_KEPT_PARTICIPANTS)}
            with (self._folder / TIMELINES).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        # Of those who counted, what they really sent.
        unused = timeline.outcome != Outcome.COUNTED
        sent = counted.bytes_up + float(timeline.bytes_up[unused].sum())
        return self._clock.scalars(timeline) | {"systems/bytes_up": sent}

    def state_dict(self) -> dict[str, Any]:
        """All that changes from round to round."""
        return {
            "devices": self._digest,
            "clock": self._clock.state_dict(),
            "limits": self._limits.state_dict(),
            "selection": self.selector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave, of the same devices."""
        if state["devices"] != self._digest:
            raise ValueError("the devices of 'systems.source' are others than those it began with")
        self._clock.load_state_dict(state["clock"])
        self._limits.load_state_dict(state["limits"])
        self.selector.load_state_dict(state["selection"])

    def _expected_seconds(self) -> NDArray[np.float64]:
        times = self._play(np.arange(len(self._fleet)), wanted=0, start=0.0)
        return times.download_s + times.compute_s + times.upload_s

    def _checked(self, selected: object, candidates: Ids, number: int) -> Ids:
        """Hold a selection, which may be anybody's code, to what it may do; ascending users."""
        what, users = "", candidates[:0]
        try:
            given = np.asarray(selected)
        except ValueError:  # lists of several lengths in a list
            given = np.asarray(None)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            what = f"an array of shape {given.shape} and type {given.dtype}, not user numbers"
        else:
            users = np.sort(given.astype(np.int64))
        if len(users) > number:
            what = f"{len(users)} users where {number} were wanted"
        elif (users[1:] == users[:-1]).any():
            what = "a user twice"
        elif not np.array_equal(np.intersect1d(users, candidates, assume_unique=True), users):
            what = "users who are not among the candidates"
        if what:
            raise PluginError(
                f"federated.selection: '{self._name}' has selected {what}; select() gives at most "
                "'number' of the candidates, none twice"
            )
        return users

    def _feedback(self, index: int, timeline: RoundTimeline, counted: RoundStatistics) -> Feedback:
        losses = np.full(len(timeline.users), np.nan)
        if self.selector.uses_data and counted.clients:
            trained = np.array([user for user, _, _ in counted.clients])
            place = np.searchsorted(timeline.users, trained)
            losses[place] = [loss for _, loss, _ in counted.clients]
        return Feedback(
            index=index,
            users=timeline.users,
            outcomes=timeline.outcome,
            seconds=timeline.stop - timeline.start,
            losses=losses,
            num_examples=self._sizes[timeline.users],
        )


def _check_deadline(deadline_s: float | None, seconds: NDArray[np.float64]) -> None:
    if deadline_s is not None and deadline_s < seconds.min():
        raise ConfigError(
            f"systems.deadline_s: {deadline_s:g} seconds, but even the quickest of the "
            f"{len(seconds)} users needs {seconds.min():.4g} for download, training and upload "
            f"(the median user {np.median(seconds):.4g}), so every round would be empty; raise it"
        )


def digest_of(devices: Devices) -> str:
    """SHA-256 of devices' content."""
    digest, period = hashlib.sha256(), np.array([devices.availability.period_s])
    for column in [*devices.columns.values(), period]:
        digest.update(np.ascontiguousarray(column).data)
    return f"sha256:{digest.hexdigest()}"
