"""What a ledger says, gathered line by line into arrays.

Guarantee: none of its own. Memory grows by some 900 bytes a round, whatever else a line holds;
nothing is corrected or left out, and a value of the wrong kind is refused with its round.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit.central_columns import CentralColumns
from privacy.errors import LedgerError
from privacy.noise_record import NEAR_ZERO, PEAKS, SEGMENTS, TAILS
from privacy.sum_watch import REPORT_KEYS

BINS = 34
HEAD = 8

_PLAIN = (
    "clip_norm",
    "update_noise_stddev",
    "count_noise_stddev",
    "noisy_fraction_unclipped",
    "realised_cohort",
    "distinct_users",
    "returning",
    "smallest_gap",
    "largest_count",
    "num_canaries",
    "num_contributions",
    "num_nonfinite",
    "num_clipped",
    "total_weight",
    "largest_norm",
    "largest_clipped_norm",
    "sum_norm",
    "unseen",
    "watched",
    "steps",
)
_NESTED = {
    "probe": ("norm", "moved", "bit"),
    "reports": REPORT_KEYS,
    "noise": (
        "count",
        "sum",
        "sum_squares",
        "dot_sum",
        "lag_correlation",
        "lag_product",
        "rounding",
        "count_draw",
        "largest",
        "windows",
        "repeats",
        "self_lag",
        "self_product",
        "twins",
        "count_distance",
    ),
}
# Lists of numbers of the noise, and how many there are at most.
_LISTS = {
    "tails": len(TAILS),
    "near_zero": len(NEAR_ZERO),
    "segments": SEGMENTS,
    "peaks": 3 * PEAKS,
}
# What older versions did not record; of the noise, a line without it lacks "noise.tails".
_NEW = ("watched", "reports")
_YOUNGER = (
    "largest",
    "windows",
    "repeats",
    "self_lag",
    "self_product",
    "twins",
    "count_distance",
    *_LISTS,
)
# What must be the same in every line, where lines have it.
CONSTANT = (
    "unit",
    "mechanism",
    "mechanism_options",
    "mechanism_description",
    "sampling",
    "separation",
    "max_participations",
    "adjacency",
    "accountant",
    "weighting",
    "uploads",
    "batchnorm_layers",
    "seed_policy",
    "simulated",
    "actual",
    "num_parameters",
    "denominator",
    "data",
)
_OBJECTS = ("simulated", "actual", "mechanism_options", "mechanism_description")


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rounds whose constants are equal.

    Attributes:
        first_round: From 1.
        rounds: How many.
        constants: Those of ``CONSTANT`` that the lines have.
    """

    first_round: int
    rounds: int
    constants: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A ledger's content.

    Attributes:
        rounds: Number of lines, T.
        columns: Shape (T,), float64 each, by name ("clip_norm", "probe.moved", "noise.sum");
            NaN where the line has null or nothing.
        lacking: Names that no line has at all ("probe", "clip_norm").
        partly: Of names that some lines have and others not: how many have not.
        segments: The constants, run-length encoded.
        histograms: Shape (T, 34), int64: elements of the noise by size; 0 without an observation.
        heads: Shape (T, 8), float64: first elements of the noise; NaN where there is none.
        lists: Shape (T, k), float64 each, by name ("tails"): see ``privacy.noise_record``; NaN
            where there is none.
        releases: Shape (T,), uint64: the first 64 bits of each release's digest.
        digests: Shape (T,), the SHA-256 of each line, 32 bytes each.
        has_noise: Shape (T,), bool: whether the line has an observation of noise.
        central: Central parameters, releases and cohorts as the lines have them.
    """

    rounds: int
    columns: Mapping[str, NDArray[np.float64]]
    lacking: frozenset[str]
    partly: Mapping[str, int]
    segments: tuple[Segment, ...]
    histograms: NDArray[np.int64]
    heads: NDArray[np.float64]
    lists: Mapping[str, NDArray[np.float64]]
    releases: NDArray[np.uint64]
    digests: bytes
    has_noise: NDArray[np.bool_]
    central: CentralColumns

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """The column of that name, shape (T,)."""
        return self.columns[name]

    @property
    def constants(self) -> Mapping[str, Any]:
        """Those of the first line; empty if there is none."""
        return self.segments[0].constants if self.segments else {}

    def digest(self, rounds: int) -> str:
        """What names the line of that round, in hexadecimal: what the next line begins with.

        Args:
            rounds: From 0 (what the first line begins with) to T.
        """
        return self.digests[32 * (rounds - 1) : 32 * rounds].hex() if rounds else "0" * 64

    def lacks(self, *names: str) -> str | None:
        """Why a check cannot be made that needs these keys in each line; None if it can."""
        missing = sorted(set(names) & self.lacking)
        if not missing:
            return None
        return (
            f"the ledger does not record {', '.join(missing)}: it was written by another version, "
            "or by a trainer that does not observe it"
        )


def gather(lines: Iterable[tuple[Mapping[str, Any], str]]) -> Evidence:
    """Read a ledger once, from the first line to the last.

    Args:
        lines: In order, each with its SHA-256 in hexadecimal, as ``privacy.ledger.iterate_ledger``
            has them; each is let go before the next is asked for.

    Raises:
        LedgerError: A value is of the wrong kind; or whatever ``lines`` raises.
    """
    names = [*_PLAIN, *(f"{part}.{key}" for part, keys in _NESTED.items() for key in keys)]
    columns = {name: array("d") for name in names}
    histograms, heads, releases = array("q"), array("d"), array("Q")
    lists = {name: array("d") for name in _LISTS}
    has_noise, digests = array("b"), bytearray()
    central = CentralColumns()
    missing: Counter[str] = Counter()
    segments: list[tuple[int, dict[str, Any]]] = []
    number = 0
    for number, (entry, digest) in enumerate(lines, start=1):
        digests += bytes.fromhex(digest)
        for name in _PLAIN:
            if name not in entry:
                missing[name] += 1
            columns[name].append(_number(entry.get(name), name, number))
        for part, keys in _NESTED.items():
            if part not in entry:
                missing[part] += 1
            record = entry.get(part)
            if not (record is None or isinstance(record, Mapping)):
                raise LedgerError(f"round {number}: '{part}' is {record!r}, but must be an object")
            for key in keys:
                value = None if record is None else record.get(key)
                columns[f"{part}.{key}"].append(_number(value, f"{part}.{key}", number))
        central.take(entry, number)
        noise = entry.get("noise")
        has_noise.append(noise is not None)
        histograms.extend(_counts(noise, number))
        heads.extend(_list(noise, "head", HEAD, number))
        for name, length in _LISTS.items():
            lists[name].extend(_list(noise, name, length, number))
        if noise is not None:
            missing.update(f"noise.{name}" for name in _YOUNGER if name not in noise)
        releases.append(_digest_bits(entry.get("release_sha256"), number))
        constants = {key: entry[key] for key in CONSTANT if key in entry}
        if not segments or segments[-1][1] != constants:
            _check_kinds(constants, number)
            segments.append((number, constants))
    ends = [first for first, _ in segments[1:]] + [number + 1]
    return Evidence(
        rounds=number,
        columns={name: np.asarray(column) for name, column in columns.items()},
        lacking=frozenset(
            name
            for name, count in missing.items()
            if count == (sum(has_noise) if name.startswith("noise.") else number)
        ),
        partly={
            name: count
            for name, count in missing.items()
            if count < number and name not in _NEW and not name.startswith("noise.")
        },
        segments=tuple(
            Segment(first, end - first, constants)
            for (first, constants), end in zip(segments, ends, strict=False)
        ),
        histograms=np.asarray(histograms, np.int64).reshape(-1, BINS),
        heads=np.asarray(heads).reshape(-1, HEAD),
        lists={name: np.asarray(lists[name]).reshape(-1, _LISTS[name]) for name in _LISTS},
        releases=np.asarray(releases, np.uint64),
        digests=bytes(digests),
        has_noise=np.asarray(has_noise).astype(np.bool_),
        central=central,
    )


def _check_kinds(constants: Mapping[str, Any], number: int) -> None:
    kinds: dict[str, type] = dict.fromkeys(_OBJECTS, dict)
    kinds |= dict.fromkeys(("uploads", "batchnorm_layers"), list)
    for key, kind in kinds.items():
        if key in constants and not isinstance(constants[key], kind):
            what = "an object" if kind is dict else "a list"
            raise LedgerError(f"round {number}: '{key}' is {constants[key]!r}, but must be {what}")


def _number(value: Any, name: str, number: int) -> float:
    if value is None:
        return math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return float(value)
        except OverflowError:
            pass
    raise LedgerError(f"round {number}: '{name}' is {value!r}, but must be a finite number or null")


def _counts(noise: Mapping[str, Any] | None, number: int) -> list[int]:
    if noise is None:
        return [0] * BINS
    counts = noise.get("histogram")
    if isinstance(counts, list) and len(counts) == BINS:
        sound = [count for count in counts if type(count) is int and 0 <= count < 2**62]
        if len(sound) == BINS:
            return sound
    raise LedgerError(f"round {number}: 'noise.histogram' is {counts!r}, but must be {BINS} counts")


def _list(noise: Mapping[str, Any] | None, name: str, length: int, number: int) -> list[float]:
    values = [] if noise is None else noise.get(name, [])
    if not isinstance(values, list) or len(values) > length:
        raise LedgerError(
            f"round {number}: 'noise.{name}' is {values!r}, but must be a list of at most {length}"
        )
    numbers = [_number(value, f"noise.{name}", number) for value in values]
    return numbers + [math.nan] * (length - len(numbers))


def _digest_bits(digest: Any, number: int) -> int:
    try:
        return int(digest[:16], 16)
    except (TypeError, ValueError):
        raise LedgerError(
            f"round {number}: 'release_sha256' is {digest!r}, but must be a SHA-256 in hexadecimal"
        ) from None
