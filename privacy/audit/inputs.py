"""Inputs of an audit beside the ledger: the claim, configuration, data and checkpoint.

Guarantee: none of its own. Whatever is None was not at hand, and the checks that need it are
skipped and say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privacy.description import Description
from privacy.errors import PrivacyError
from privacy.mechanism import ReplayedNoise

if TYPE_CHECKING:
    from privacy.amplification import Composition, Participation
    from privacy.empirical.canary_options import CanaryOptions

# The two settings that a statement has an epsilon of.
SIDES = ("simulated", "actual")
Compose = Callable[[str, Mapping[str, Any], "Participation", float, int], "Composition"]
DrawUsers = Callable[[int, int], NDArray[np.int64]]
Array = NDArray[np.float64]
# Relative, of equal numbers.
_NEAR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """Settings of the run, as it was configured."""

    unit: str  # whom it is to protect: "user" or "example"
    mechanism: str  # name of the mechanism, as the ledger writes it
    mechanism_options: Mapping[str, Any]  # its options, every default filled in
    sampling: str  # "poisson", "cyclic_poisson", "fixed_size", "full" or "selected"
    # Groups of "cyclic_poisson", distance that "selected" enforces; 1 under the other schemes.
    separation: int = 1
    population_size: int | None = None  # users of the simulated deployment; None for the data's
    hypothetical_population: bool = False  # whether it may differ from the data's users
    cohort_size: float  # configured expected users (examples) of a round (step)
    noise_cohort_size: float | None = None  # whose noise is simulated; None for ``cohort_size``
    num_rounds: int  # lines that the ledger has at most: planned rounds, or epochs
    weighting: str = "uniform"  # "uniform" or "examples"
    budget_epsilon: float | None  # bound of the simulated epsilon; None for none
    noise_multiplier: float | None  # z; None if it was calibrated to the budget
    delta: float | None  # None for the default, N ** -1.1 of each setting
    accountant: str  # "rdp", "pld" or "prv"
    # What the mechanism is: as the ledger records it, else as its module says.
    description: Description
    max_participations: int | None = None  # rounds of a user, under "selected"; None for no cap
    canaries: CanaryOptions | None = None  # None for a run without canaries


@dataclass(frozen=True, slots=True)
class DataAtHand:
    """Facts of the data and the model themselves, today."""

    # Users (examples) of the training split; None where the data are not at hand.
    num_units: int | None = None
    checksum: str | None = None  # digest of their content
    num_parameters: int | None = None  # trainable parameters of the model
    batchnorm_layers: tuple[str, ...] | None = None  # its layers that gather running statistics
    why_absent: str = "the data were not opened"  # why something is None
    # The parameters that the model is built with, as ``central_state`` records them; None where it
    # was built with others than the run's, or not at all.
    initial: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """Contents of a checkpoint."""

    rounds: int  # rounds (epochs) that are done
    # State of the mechanism, of the coming round; None where it has none.
    mechanism: Mapping[str, Any] | None
    # SHA-256 of the ledger's last line when it was saved; None where it has none.
    digest: str | None = None
    # The model that it holds, as ``central_state`` records it; None where it has none.
    central: Mapping[str, Any] | None = None
    # The model that it keeps as the best so far: its round, and itself as ``central_state`` records
    # it; None where it keeps none.
    best: tuple[int, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Scalars of a run's rounds (epochs)."""

    rows: Sequence[Mapping[str, Any]]  # lines of ``metrics.jsonl``, M, each with its "round"
    # The metric that selects the model, and the first round in which it is best; None without.
    best: tuple[str, int] | None = None

    def column(self, name: str) -> Array:
        """A scalar of each line, shape (M,); NaN where a line lacks it."""
        return np.array([as_number(row.get(name)) for row in self.rows], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class CentralOptimizer:
    """The central step as configured."""

    options: Any  # ``pfl_bench.config.training.OptimizerOptions``, of which fields are read
    rate: Callable[[int], float]  # the learning rate of a round, from 1
    # An algorithm's own function, from the coordinates of all releases, shape (T, k), to those of
    # the gradients; None for the releases with their sign changed.
    gradient: Callable[[Array], Array] | None = None

    def rates(self, rounds: int) -> Array:
        """Learning rates of the first rounds, shape (T,)."""
        return np.array([self.rate(number) for number in range(1, rounds + 1)])

    @property
    def is_linear(self) -> bool:
        """Whether a step is linear in parameters and releases, so that projections follow it."""
        return self.options.name == "sgd" and self.gradient is None


@dataclass(frozen=True, slots=True)
class Replay:
    """Draws of a run's streams, made anew."""

    # Users of a round (from 1), ascending, of so many users in all; in words, why they are not
    # drawn anew.
    cohort: DrawUsers | str
    # What the stream of noise of a round, with so many canaries, gives, called for ascending
    # rounds; in words, why it is not drawn anew.
    noise: Callable[[int, int], ReplayedNoise] | str
    noise_rounds: int  # the most rounds that noise is drawn of
    needs_every_round: bool = False  # whether a round's noise follows from the rounds before


@dataclass(frozen=True, slots=True)
class SeedRecord:
    """A run's private seed, and what it follows from."""

    # The seed as each file has it, and as its parts make it, by the place's name.
    values: Mapping[str, int] = field(default_factory=dict)
    # The seed of the configuration, which must not be the private one.
    configured: int | None = None
    # What pins the seed, which all runs of it share; None for a seed of the run's own.
    nonce: str | int | None = None
    recorded_nonce: str | int | None = None  # what the run has recorded as such, if it has
    # What the run has recorded that its seed was derived from; None where it has not.
    parts: Mapping[str, Any] | None = None
    engine: str = ""  # what the run has recorded that it was trained by
    # The same parts of the configuration, the data, the model, code and machine as they are now; in
    # words, why they are not known.
    today: Mapping[str, Any] | str = "no seed was given"
    covers_code: bool = True  # whether the digest of today's code is of all of its files

    @property
    def value(self) -> int | None:
        """The seed, as the first place that has it; None where none has."""
        return next(iter(self.values.values()), None)

    @property
    def is_of_this_machine(self) -> bool:
        """Whether code, versions and processor are known to be those of the run."""
        if self.parts is None or isinstance(self.today, str):
            return False
        parts, today = self.parts, self.today
        before, now = (
            place if isinstance(place := document.get("arithmetic"), Mapping) else {}
            for document in (parts, today)
        )
        # Threads and device of an audit need not be the run's: its claims do not depend on them.
        names = ("machine", "processor", "cpu_capability", "switches")
        is_same = all(before.get(name) == now.get(name) for name in names)
        return is_same and all(parts.get(name) == today.get(name) for name in ("code", "versions"))


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The privacy statement that configuration and data come to."""

    statement: Mapping[str, Any] | None = None  # as ``privacy.json`` has it; None if there is none
    refused: str = ""  # why the configuration has none
    unknown: str = ""  # why that is not known


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """Everything that an audit holds the ledger against."""

    statement: Mapping[str, Any]  # the privacy statement, as ``privacy.json`` has it
    configured: Configured  # what the run was configured to do
    # What rounds of a mechanism compose to: of its name, its options, how users are drawn, the
    # noise multiplier and the rounds.
    composition: Compose
    data: DataAtHand = DataAtHand()  # what the data say
    saved: Saved | None = None  # the newest checkpoint; None if there is none
    older: tuple[Saved, ...] = ()  # the other checkpoints, oldest first
    summary: Mapping[str, Any] | None = None  # ``summary.json``; None while the run is not finished
    canaries: Mapping[str, Any] | None = None  # ``canaries.json``; None for a run without canaries
    # Attacks on users by kind, of ``attack.json``; None without.
    attacks: Mapping[str, Any] | None = None
    metrics: Metrics | None = None  # ``metrics.jsonl``; None if it is missing
    # What takes the central steps; in words, why none is known.
    central_optimizer: CentralOptimizer | str = "the configuration's central step was not given"
    # What the recorded seed gives anew; in words, why nothing is drawn anew.
    replay: Replay | str = "no seed was given"
    seed: SeedRecord = SeedRecord()  # the recorded seed and its parts
    rebuilt: Rebuilt = Rebuilt(unknown="neither configuration nor data were given")
    # Files that the run's folder lacks, and what each would show.
    missing: Mapping[str, str] = field(default_factory=dict)
    # What no run writes into checkpoints, metrics, summary, environment or an old ledger, in words;
    # the folder's other files; its files for people, which nothing checks; and its mode, where it
    # is open to others on the machine.
    foreign: tuple[str, ...] = ()
    other_files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    mode_for_others: str = ""
    # What the mechanism's own module says of it today; None before ``as_recorded``.
    built_description: Description | None = None
    # Digests of the user's plug-ins by name, by where they are recorded ("environment.json"); of
    # "today", as they are now; of "config.yaml", those of today that the configuration uses; and
    # "added", the files in them that the run did not have, where no other has changed.
    plugins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Whether the statement is of what was run, not of what is planned."""
        return self.statement.get("status") == "final"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Lines of ``metrics.jsonl``; none without the file."""
        return () if self.metrics is None else self.metrics.rows

    @property
    def claims_noise(self) -> bool:
        """Whether the statement claims any noise at all."""
        return as_number(self.statement.get("noise_multiplier")) > 0.0

    def as_recorded(self, constants: Mapping[str, Any]) -> AuditInputs:
        """The same, with the mechanism as a ledger's constants describe it, where they do.

        One that cannot be read is left out: the check of the configuration says so.
        """
        own = self.configured.description
        try:
            recorded = Description.from_json_dict(constants["mechanism_description"])
        except (KeyError, TypeError, PrivacyError):
            return replace(self, built_description=own)
        described = replace(recorded, words=own.words)
        configured = replace(self.configured, description=described)
        return replace(self, configured=configured, built_description=own)

    def side(self, label: str) -> Mapping[str, Any]:
        """One of the statement's settings, "simulated" or "actual"; empty if it has none."""
        side = self.statement.get(label)
        return side if isinstance(side, Mapping) else {}


def as_number(value: Any) -> float:
    """A number of a JSON document; "inf" is infinite, all else and what no float holds NaN."""
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def differing(
    first: Any, second: Any, path: str = "", absent: Any = None, near: float = _NEAR
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted paths at which two JSON values differ, with both; ``absent`` where one has none.

    What is an object in both is looked into; numbers that are no part of a list are equal to
    ``near`` of them.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            where = f"{path}.{key}" if path else str(key)
            one, other = (value.get(key, absent) for value in (first, second))
            yield from differing(one, other, where, absent, near)
    elif not (
        math.isclose(as_number(first), as_number(second), rel_tol=near) or json_equal(first, second)
    ):
        yield path, first, second


def json_equal(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal, numbers to 1e-9 of them."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return set(first) == set(second) and all(
            json_equal(first[key], second[key]) for key in first
        )
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(json_equal, first, second))
    one, other = as_number(first), as_number(second)
    if math.isnan(one) or math.isnan(other):
        return bool(first == second)
    return math.isclose(one, other, rel_tol=_NEAR)
