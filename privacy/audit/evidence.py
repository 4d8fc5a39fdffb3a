"""Contents of a ledger, gathered line by line into arrays, and why a check cannot use them.

Guarantee: none of its own. Memory grows by some 900 bytes a round, and 150 a step of DP-SGD,
whatever else a line holds; nothing is corrected or left out, and a value of the wrong kind is
refused with its round.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privacy.audit import values
from privacy.audit.inputs import as_number
from privacy.description import Description
from privacy.errors import LedgerError
from privacy.recording.central_record import COORDINATES, PROJECTIONS
from privacy.recording.observation import SEGMENTS
from privacy.recording.shard_observation import REPORT_KEYS
from privacy.recording.step_observation import BLOCKS, DIGEST_LENGTH, VECTORS

HEAD = 8

_PLAIN = (
    "clip_norm", "update_noise_stddev", "count_noise_stddev", "noisy_fraction_unclipped",
    "realised_cohort", "distinct_users", "returning", "smallest_gap", "largest_count",
    "num_canaries", "num_contributions", "num_nonfinite", "num_clipped", "total_weight",
    "largest_norm", "largest_clipped_norm", "sum_norm", "unseen", "watched", "steps",
)  # fmt: skip
# SHA-256 of the central parameters before the step, of the users drawn, of those whose updates came
# in, and of the release, which every version records.
_DIGESTS = ("central", "users", "trained", "release")
# What older versions did not record.
_NEW = ("watched", "reports", "central", "release")
_SKETCH = {"norm": 0, "projections": PROJECTIONS, "coordinates": COORDINATES}
_NOISE = ("count", "sum", "sum_squares", "dot_sum", "lag_correlation", "rounding", "count_draw")
# What lines have, by the part that it is in: of a list, how many numbers there are at most; 0 of a
# number.
_PARTS: dict[str, dict[str, int]] = {
    "": dict.fromkeys(_PLAIN, 0),
    "probe": dict.fromkeys(("norm", "moved", "bit"), 0),
    "reports": dict.fromkeys(REPORT_KEYS, 0),
    "noise": {**dict.fromkeys(_NOISE, 0), "head": HEAD, "segments": SEGMENTS},
    "central": _SKETCH,
    "release": _SKETCH,
}
_WIDTHS = {
    f"{part}.{key}".lstrip("."): width
    for part, keys in _PARTS.items()
    for key, width in keys.items()
}
# What must be the same in every line, where lines have it.
CONSTANT = (
    "unit", "mechanism", "mechanism_options", "mechanism_description", "sampling", "separation",
    "max_participations", "adjacency", "accountant", "weighting", "uploads", "batchnorm_layers",
    "seed_policy", "simulated", "actual", "num_parameters", "denominator", "data",
    "plugins", "statistics",
)  # fmt: skip
# Of them and of the columns, what each run has; parameters and releases are ``need_digests``'s.
RECORDED = {
    "user": {*CONSTANT, *_PLAIN, *_PARTS} - {"", "statistics", "steps", "central", "release"},
    "example": {
        "unit", "mechanism", "mechanism_description", "sampling", "adjacency", "simulated",
        "actual", "data", "plugins", "clip_norm", "num_nonfinite", "steps", "observed",
    },
}  # fmt: skip
STRIPPED = (
    ": it was written by another version (audit it by that one), or lines were stripped of what "
    "would be checked"
)
_OBJECTS = (
    "simulated", "actual", "mechanism_options", "mechanism_description", "plugins", "statistics",
)  # fmt: skip
_KINDS = {**dict.fromkeys(_OBJECTS, dict), "uploads": list, "batchnorm_layers": list}
_STEP_WIDTH = 1 + BLOCKS
_LISTS = ("batch_sizes", "batch_digests", *VECTORS)
_SIDE = dict.fromkeys(
    ("population_size", "cohort_size", "sampling_probability", "noise_multiplier", "delta")
)
_RELEASED = dict.fromkeys(("count", "sum_squares"))
# All that a run writes into a line; options and plug-ins are compared elsewhere.
_FORM: dict[str, Any] = {
    **dict.fromkeys(("round", "previous", *CONSTANT)),
    **dict.fromkeys(("users_sha256", "trained_sha256", "release_sha256")),
    **dict.fromkeys(("simulated", "actual"), _SIDE),
    "mechanism_description": dict.fromkeys(each.name for each in fields(Description)),
    **dict.fromkeys(_PLAIN),
    **{part: dict.fromkeys(keys) for part, keys in _PARTS.items() if part},
    "central": dict.fromkeys(("sha256", *_SKETCH)),
    "statistics": {"release_sha256": None, "mean": _RELEASED, "square": _RELEASED},
    "observed": dict.fromkeys(_LISTS),
}


class SkippedError(Exception):
    """Nothing is looked at, for a reason; ``numbers`` as of ``Check``."""

    outcome: Literal["skipped", "incomplete"] = "skipped"

    def __init__(self, reason: str, **numbers: Any) -> None:
        super().__init__(reason)
        self.numbers = numbers


class IncompleteError(SkippedError):
    """The check cannot be made because the folder, or what a plug-in states, lacks something."""

    outcome = "incomplete"


class StepColumns:
    """Steps, in order, as far as the lines have them.

    ``sizes`` are the realised batches, ``counts`` the steps of each line that has them; ``missing``
    is the lines that have none.
    """

    def __init__(self) -> None:
        self.missing, self.counts = 0, list[int]()
        self.sizes, self._sketches, self._digests = array("q"), array("d"), bytearray()

    def take(self, entry: Mapping[str, Any], where: str) -> None:
        """Take in a line; a value of the wrong kind is a ``LedgerError``."""
        if "observed" not in entry:
            self.missing += 1
            return
        where = f"{where}: 'observed"
        record = values.member(entry, "observed", f"{where}'")
        rows: list[Any] = [record.get(name) for name in _LISTS]
        steps = {len(row) if isinstance(row, list) else -1 for row in rows}
        if len(steps) != 1 or -1 in steps:
            raise LedgerError(f"{where}' must have lists of one length, an element a step")
        sizes, digests, *vectors = rows
        self.sizes.extend(values.counts(sizes, f"{where}.batch_sizes'"))
        for step, digest in enumerate(digests):
            self._digests += values.digest(digest, f"{where}.batch_digests'", DIGEST_LENGTH)
            for name, vector in zip(VECTORS, vectors, strict=True):
                self._sketches.extend(values.numbers(vector[step], _STEP_WIDTH, f"{where}.{name}'"))
        self.counts.append(len(sizes))

    def __len__(self) -> int:
        return len(self.sizes)

    def sketches(self, name: str) -> NDArray[np.float64]:
        """Shape (S, 1 + BLOCKS): norm and blocks of "sum", "noise" or "parameters"; or NaN."""
        whole = np.asarray(self._sketches).reshape(-1, len(VECTORS), _STEP_WIDTH)
        return whole[:, VECTORS.index(name)]

    def digest(self, index: int) -> str:
        """The batch's digest of a step, counted from 0, in hexadecimal."""
        width = DIGEST_LENGTH // 2
        return self._digests[width * index : width * (index + 1)].hex()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A ledger's content."""

    rounds: int  # number of lines, T
    # Shape (T,), float64 each, by name ("clip_norm", "probe.moved", "noise.sum"), or (T, k) of a
    # list ("noise.head"); NaN where the line has null or nothing.
    columns: Mapping[str, NDArray[np.float64]]
    lacking: frozenset[str]  # names that no line has at all ("probe", "clip_norm")
    partly: Mapping[str, int]  # of names that some lines have and others not: how many have not
    constants: Mapping[str, Any]  # those of ``CONSTANT`` that the first line has
    # Rounds whose constants are not those of the round before, and what changed; none in any run.
    changes: tuple[tuple[int, str], ...]
    digests: Mapping[str, bytes]  # shape (T,) each: 32 bytes of each round, by ``digest``'s keys
    has_noise: NDArray[np.bool_]  # shape (T,), bool: whether the line has an observation of noise
    has_digests: bool  # whether some line has all digests
    steps: StepColumns  # what the lines have of the steps of DP-SGD
    foreign: tuple[str, ...]  # dotted names of members of lines that no run writes

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """The column of that name, shape (T,) or (T, k)."""
        return self.columns[name]

    def constant(self, key: str, side: str | None = None, default: Any = None) -> float:
        """A number among the constants, or those of a side; NaN if it is none.

        ``default`` is what it is where the ledger does not say.
        """
        within = self.constants if side is None else self.constants.get(side) or {}
        return as_number(within.get(key, default))

    @property
    def sent(self) -> NDArray[np.float64]:
        """Updates (where clients noise them: reports) of each round, not finite ones too; (T,)."""
        return np.asarray(self["num_contributions"] + self["num_nonfinite"])

    def digest(self, key: str, number: int) -> str:
        """A SHA-256 of a round, from 1, in hexadecimal; zeros for none, and of round 0.

        Keys: "line", "central" (parameters before the step), "users" (drawn), "trained" (whose
        updates came in) and "release".
        """
        return self.digests[key][32 * (number - 1) : 32 * number].hex() if number else "0" * 64

    def all_digests(self, key: str) -> NDArray[np.bytes_]:
        """Shape (T,): those of ``digest``, to be compared with one another."""
        return np.frombuffer(self.digests[key], "S32")

    def has(self, *names: str) -> bool:
        """Whether some line has each of these keys."""
        return not self.lacking.intersection(names)

    def need(self, *names: str) -> tuple[NDArray[np.float64], ...]:
        """The columns of these names, shape (T,) or (T, k); none for that of a whole part.

        ``IncompleteError``: no line has one of them. ``SkippedError``: there is no line.
        """
        self.need_lines()
        whole = {name.split(".")[0] for name in names}
        missing = sorted(self.lacking & {*names, *whole})
        if missing:
            raise IncompleteError(f"the ledger does not record {', '.join(missing)}{STRIPPED}")
        return tuple(self.columns[name] for name in names if name in self.columns)

    def unrecorded(self, unit: str) -> list[str]:
        """Names that each run of this unit, "user" or "example", records, and no line has."""
        recorded = {*self.constants, *_PLAIN, *_PARTS} - self.lacking
        if self.steps.counts:
            recorded.add("observed")
        return sorted(RECORDED[unit] - recorded)

    def need_digests(self) -> None:
        """Leave a check incomplete that needs parameters, releases and users; none has no line."""
        self.need_lines()
        if not self.has_digests:
            raise IncompleteError(
                "the ledger does not record the central parameters, the releases and who took "
                "part: it was written by another version, or lines were stripped, and that the "
                "model moved along the releases alone is unknown"
            )

    def need_lines(self) -> None:
        """Skip a check that needs a line where there is none."""
        if not self.rounds:
            raise SkippedError("the ledger has no line yet")


def gather(lines: Iterable[tuple[Mapping[str, Any], str]]) -> Evidence:
    """Read a ledger once, each line and its SHA-256 as ``privacy.ledger.iterate_ledger`` has them.

    A line is let go before the next is asked for. A value of the wrong kind is a ``LedgerError``.
    """
    columns = {name: array("d") for name in _WIDTHS}
    digests = {key: bytearray() for key in ("line", *_DIGESTS)}
    has_noise, has_digests, missing = array("b"), False, Counter[str]()
    steps, foreign = StepColumns(), set[str]()
    first: dict[str, Any] = {}
    last: dict[str, Any] | None = None
    changes: list[tuple[int, str]] = []
    for number, (entry, digest) in enumerate(lines, start=1):
        digests["line"] += bytes.fromhex(digest)
        where = f"round {number}"
        foreign.update(values.unnamed(entry, _FORM))
        for part, keys in _PARTS.items():
            record = values.member(entry, part, f"{where}: '{part}'") if part else entry
            for key, width in keys.items():
                name = f"{part}.{key}".lstrip(".")
                named = f"{where}: '{name}'"
                if width:
                    # A sketch is whole; older versions did not record all of the noise.
                    found = record.get(key, None if record and part != "noise" else [])
                    columns[name].extend(values.numbers(found, width, named))
                else:
                    columns[name].append(values.number(record.get(key), named))
        missing.update(name for name in (*_PLAIN, *_PARTS) if name and name not in entry)
        recorded = {key: entry.get(f"{key}_sha256") for key in _DIGESTS}
        recorded["central"] = (entry.get("central") or {}).get("sha256")
        has_digests |= None not in recorded.values()
        for key, value in recorded.items():
            is_none = value is None and key != "release"
            name = f"{where}: '{key}_sha256'"
            digests[key] += bytes(32) if is_none else values.digest(value, name)
        steps.take(entry, where)
        has_noise.append(entry.get("noise") is not None)
        constants = {key: entry[key] for key in CONSTANT if key in entry}
        if constants != last:
            _check_kinds(constants, where)
            if last is None:
                first = constants
            else:
                changed = (key for key in CONSTANT if last.get(key) != constants.get(key))
                changes.append((number, ", ".join(sorted(changed))))
            last = constants
    rounds = len(has_noise)
    return Evidence(
        rounds=rounds,
        columns={
            name: np.asarray(columns[name]).reshape((-1, width) if width else -1)
            for name, width in _WIDTHS.items()
        },
        lacking=frozenset(name for name in missing if missing[name] == rounds),
        partly={
            name: count for name, count in missing.items() if count < rounds and name not in _NEW
        },
        constants=first,
        changes=tuple(changes),
        digests={key: bytes(found) for key, found in digests.items()},
        has_noise=np.asarray(has_noise).astype(np.bool_),
        has_digests=has_digests,
        steps=steps,
        foreign=tuple(sorted(foreign)),
    )


def _check_kinds(constants: Mapping[str, Any], where: str) -> None:
    for key, kind in _KINDS.items():
        if key in constants and not isinstance(constants[key], kind):
            what = "an object" if kind is dict else "a list"
            raise LedgerError(f"{where}: '{key}' is {constants[key]!r}, but must be {what}")
