"""Request for a privacy plan, and the settings that it accounts.

Guarantee: a ``Setting`` is one claim: unit user, the adjacency that it names, users drawn by its
participation, noise of its multiplier, rounds that compose as its mechanism says.
``privacy.plan.plan`` sees to it that the run is what is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privacy.amplification import Composition, MechanismComposition, Participation
from privacy.calibration import calibrate_noise_multiplier, epsilon_of_rounds
from privacy.plan.budget import Budget
from privacy.sampling_scheme import SamplingScheme
from privacy.statement.statement import Accounted

if TYPE_CHECKING:
    from privacy.mechanism import Mechanism, NoiseScale


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Settings of a run, as far as privacy is concerned.

    Attributes:
        mechanism_build: Builds it from a noise scale; the caller has resolved the plug-in.
        scheme: How users are drawn, how far apart and how often.
        population_size: Users of the deployment whose privacy is simulated.
        num_users: Users in the data that this run draws from.
        hypothetical_population: Whether ``population_size`` may differ from ``num_users``.
        cohort_size: Users of a round of this run; expected under "poisson".
        noise_cohort_size: Users of a round of the deployment; None for ``cohort_size``.
        weighting: "uniform" or "examples".
        epsilon: Budget of the simulated epsilon; None for none.
        noise_multiplier: z; None to calibrate it to ``epsilon``.
        delta: In (0, 1); None for N ** -1.1 of the population of each setting.
        accountant: "rdp", "pld" or "prv".
        uploads: What a client of the algorithm sends; private mechanisms allow "update" alone.
        batchnorm_layers: Names of BatchNorm layers that gather running statistics in training.
        num_parameters: Number of trainable parameters, P.
        data_checksum: Digest of the data's content; the ledger holds a run to it.
        selected_by: Metric by which one of the rounds' models is chosen; None for the last one.
        nonce: What pins the noise, which all runs of it share; None for a run's own noise.
        artificial_users: Whether examples were assigned to users who never had them.
        mechanism_options: The mechanism's options as plain data, for the ledger.
        num_canaries: Canary clients that are added to audit the run; 0 for none.
        fresh_noise_for: Setting that rests on noise drawn anew in each round; None for none.
        participation_rests_on: What decides who takes part beside coins of their own, such as
            "availability" or "over-commitment"; empty where nothing does.
        selection_uses_data: Whether the selector chooses by what comes of users' data, as losses.
        client_state: Names of what remembers a client from round to round.
        plugins: Digests of the user's plug-ins, by name.
    """

    mechanism: str
    mechanism_build: Callable[[NoiseScale], Mechanism]
    scheme: SamplingScheme
    population_size: int
    num_users: int
    hypothetical_population: bool
    cohort_size: int
    noise_cohort_size: int | None
    num_rounds: int
    weighting: str
    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    accountant: str
    uploads: tuple[str, ...]
    batchnorm_layers: tuple[str, ...]
    num_parameters: int
    data_checksum: str = ""
    selected_by: str | None = None
    nonce: str | int | None = None
    artificial_users: bool = False
    mechanism_options: Mapping[str, Any] | None = None
    num_canaries: int = 0
    fresh_noise_for: str | None = None
    participation_rests_on: tuple[str, ...] = ()
    selection_uses_data: bool = False
    client_state: tuple[str, ...] = ()
    plugins: Mapping[str, str] = field(default_factory=dict)

    def participation(self, population_size: int, cohort_size: int) -> Participation:
        """Participation of users, from a population of this size and in cohorts of this size."""
        return Participation(self.scheme, population_size, cohort_size)

    @property
    def budget(self) -> Budget:
        """Numbers that the noise follows from."""
        return Budget(self.epsilon, self.noise_multiplier, self.delta, self.accountant)


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the two settings that are accounted.

    Attributes:
        participation: How users are drawn, and from how many.
        noise_multiplier: Standard deviation of the noise in multiples of clip_norm.
        delta: In (0, 1); None without privacy.
        accountant: "rdp", "pld", "prv" or "none".
        composition: What the mechanism's rounds compose to; None without privacy.
    """

    participation: Participation
    noise_multiplier: float
    delta: float | None
    accountant: str
    composition: MechanismComposition | None

    @property
    def adjacency(self) -> str:
        """Adjacency under which the setting is accounted: "none" without privacy."""
        if self.composition is None:
            return "none"
        return self.composed(self.noise_multiplier, 1).adjacency

    def composed(self, noise_multiplier: float, rounds: int) -> Composition:
        """Composition of rounds of a private setting at a noise."""
        assert self.composition is not None
        return self.composition(self.participation, noise_multiplier, rounds)

    def epsilon(self, rounds: int) -> float:
        """Epsilon after so many rounds; infinite without privacy."""
        if self.composition is None or self.delta is None:
            return math.inf
        return epsilon_of_rounds(
            self.participation,
            self.noise_multiplier,
            rounds,
            self.delta,
            self.accountant,
            self.composition,
        )

    def calibrated(self, epsilon: float, rounds: int) -> float:
        """Smallest noise multiplier within a budget, whatever that of the private setting is."""
        assert self.composition is not None
        assert self.delta is not None
        return calibrate_noise_multiplier(
            epsilon, self.delta, self.participation, rounds, self.accountant, self.composition
        )

    def accounted(self, rounds: int) -> Accounted:
        """The setting with its epsilon after so many rounds, for a statement."""
        return Accounted(
            population_size=self.participation.population_size,
            cohort_size=self.participation.cohort_size,
            sampling=self.participation.scheme.name,
            separation=self.participation.min_separation,
            max_participations=self.participation.max_participations,
            sampling_probability=self.participation.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            epsilon=self.epsilon(rounds),
        )

    def to_json_dict(self) -> dict[str, Any]:
        """The setting for the ledger, as JSON takes it."""
        return {
            "population_size": self.participation.population_size,
            "cohort_size": self.participation.cohort_size,
            "sampling_probability": self.participation.sampling_probability,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
        }
