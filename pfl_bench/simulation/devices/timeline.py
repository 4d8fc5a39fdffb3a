"""One round in simulated time: how long it would take the devices of those who were selected.

A participant downloads the model, trains, and uploads its update: download and upload take their
bytes over the device's bandwidth, training takes three times the latency of inference for each
example that is processed. One whose slot of availability ends before its upload does is lost. The
round ends when as many as are wanted have finished, at the deadline, or when nobody is left who
could finish. Those who are then still under way are stragglers, and stop; their update is not used.

All of this is arithmetic on simulated seconds: nothing is waited for, and the same arguments give
the same round on every machine.

Source: Lai et al. 2022 (FedScale), sections 4.2 and 5; its published code for the factor of three.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.simulation.devices.availability import Ids, Times
from pfl_bench.simulation.devices.devices import Fleet

# Where a run keeps those of its first rounds.
TIMELINES = "timelines.jsonl"
# A backward pass takes about twice a forward pass.
TRAINING_FACTOR = 3.0
_BYTES_PER_KBIT, _MS_PER_S = 125.0, 1000.0


_COLUMNS: dict[str, Any] = {
    "users": np.int64,
    **dict.fromkeys(("download_s", "compute_s", "upload_s", "finish", "stop"), np.float64),
    "outcome": np.int8,
    **dict.fromkeys(("bytes_down", "bytes_up"), np.float64),
}


class Outcome(IntEnum):
    """Outcome of a participant."""

    COUNTED = 0
    STRAGGLER = 1
    LOST = 2


@dataclass(frozen=True, slots=True, eq=False)
class RoundTimeline:
    """One round on the clock, with n participants.

    Attributes:
        start: Simulated seconds at which it began.
        end: Simulated seconds at which it ended.
        users: Shape (n,), the participants, in the order in which they were given.
        download_s: Shape (n,), seconds that the download takes.
        compute_s: Shape (n,), seconds that training takes.
        upload_s: Shape (n,), seconds that the upload takes.
        finish: Shape (n,), when the upload would be through; infinite for those who are lost.
        stop: Shape (n,), when the participant stopped: it finished, was lost, or the round ended.
        outcome: Shape (n,), of ``Outcome``.
        bytes_down: Shape (n,), bytes that it had received when it stopped.
        bytes_up: Shape (n,), bytes that it had sent when it stopped.
    """

    start: float
    end: float
    users: Ids
    download_s: Times
    compute_s: Times
    upload_s: Times
    finish: Times
    stop: Times
    outcome: NDArray[np.int8]
    bytes_down: Times
    bytes_up: Times

    @property
    def counted(self) -> Ids:
        """The users whose updates are used, in the order of ``users``."""
        counted: Ids = self.users[self.outcome == Outcome.COUNTED]
        return counted

    def num(self, outcome: Outcome) -> int:
        """Number of participants with an outcome."""
        return int(np.count_nonzero(self.outcome == outcome))

    def to_json_dict(self, most: int) -> dict[str, Any]:
        """The round as plain data, with the first ``most`` participants; infinity is None."""
        columns = {
            name: [
                None if value == np.inf else value for value in getattr(self, name)[:most].tolist()
            ]
            for name in _COLUMNS
        }
        return {"start": self.start, "end": self.end, **columns}

    @classmethod
    def from_json_dict(cls, value: dict[str, Any]) -> RoundTimeline:
        """Restore what ``to_json_dict`` gave."""
        columns = {
            name: np.array([np.inf if item is None else item for item in value[name]], kind)
            for name, kind in _COLUMNS.items()
        }
        return cls(start=value["start"], end=value["end"], **columns)


# Eight parameters: what a round is, each a number or a column of its own.
def play_round(
    fleet: Fleet,
    users: Ids,
    examples: NDArray[np.float64],
    down_bytes: float,
    up_bytes: float,
    wanted: int,
    start: float,
    deadline_s: float | None = None,
) -> RoundTimeline:
    """Play a round on the devices of its n participants.

    Args:
        fleet: The devices of all users.
        users: Shape (n,), who was selected; may be empty. One who is not available at the start
            is lost there and then.
        examples: Shape (n,), examples that each processes, again in each epoch.
        down_bytes: Bytes that each receives.
        up_bytes: Bytes that each sends.
        wanted: How many are to finish; of those who finish at the same moment the first in
            ``users`` count.
        start: Simulated seconds at which the round begins.
        deadline_s: Seconds after which it ends at the latest; None for no deadline.
    """
    bytes_per_s = fleet.bandwidth_kbps[users].astype(np.float64) * _BYTES_PER_KBIT
    download_s = down_bytes / bytes_per_s
    upload_s = up_bytes / bytes_per_s
    compute_s = TRAINING_FACTOR * examples * fleet.latency_ms[users] / _MS_PER_S
    finish = start + download_s + compute_s + upload_s
    slot_end = fleet.slot_end(users, start)
    is_lost = (finish > slot_end) | (slot_end <= start)
    finish[is_lost] = np.inf
    gone = np.minimum(finish, slot_end)
    end = start + np.inf if deadline_s is None else start + deadline_s
    order = np.argsort(finish, kind="stable")[:wanted]
    if len(order) == wanted:
        end = min(end, float(np.max(finish[order], initial=start)))
    # With nobody left who could finish there is nothing to wait for.
    end = min(end, float(np.max(gone, initial=start)))
    outcome = np.full(len(users), Outcome.STRAGGLER, np.int8)
    outcome[is_lost & (slot_end <= end)] = Outcome.LOST
    outcome[order[finish[order] <= end]] = Outcome.COUNTED
    stop = np.minimum(gone, end)
    elapsed = stop - start
    return RoundTimeline(
        start=start,
        end=end,
        users=users,
        download_s=download_s,
        compute_s=compute_s,
        upload_s=upload_s,
        finish=finish,
        stop=stop,
        outcome=outcome,
        bytes_down=down_bytes * np.where(finish <= end, 1.0, _share(elapsed, download_s)),
        bytes_up=up_bytes
        * np.where(finish <= end, 1.0, _share(elapsed - download_s - compute_s, upload_s)),
    )


def _share(elapsed: Times, whole: Times) -> Times:
    """The part of a transfer that is done after some seconds, 0 to 1."""
    # One of no bytes takes no time; its part does not matter.
    return np.clip(elapsed / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
