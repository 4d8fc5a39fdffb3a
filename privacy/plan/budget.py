"""From what a user sets, epsilon or noise or both, to the noise and the rounds of a plan.

Guarantee: at the noise multiplier, and after the rounds, that are settled on, the accountant's
epsilon is at most the budget's, if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy.amplification import MechanismComposition, Participation
from privacy.calibration import calibrate_noise_multiplier, default_delta, max_rounds
from privacy.errors import PlanError


@dataclass(frozen=True, slots=True)
class Budget:
    """Numbers that the noise of a run follows from.

    Attributes:
        epsilon: Bound of epsilon; None for none.
        noise_multiplier: z, standard deviation of the noise in multiples of clip_norm; None to
            calibrate it to ``epsilon``.
        delta: In (0, 1); None for N ** -1.1 of each population.
        accountant: "rdp", "pld" or "prv".
    """

    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    accountant: str

    def delta_of(self, number: int) -> float:
        """Delta of a population of so many users (or examples)."""
        return default_delta(number) if self.delta is None else self.delta

    def settle(
        self,
        participation: Participation,
        delta: float,
        rounds: int,
        composition: MechanismComposition,
        step: str = "round",
    ) -> tuple[float, int | None]:
        """Settle the noise multiplier, and how many of the planned rounds the budget allows.

        The second is None without a budget. Messages call a round a ``step``: "round" or "step". A
        PlanError says that neither epsilon nor noise is set, or not even one round fits.
        """
        noise = self.noise_multiplier
        if self.epsilon is None:
            if noise is None:
                stops = "training stops" if step == "step" else "rounds stop"
                raise PlanError(
                    "neither epsilon nor noise_multiplier is set, so nobody says how much noise a "
                    f"{step} gets; set epsilon (the noise is calibrated to it), noise_multiplier "
                    f"(no budget), or both ({stops} before epsilon is exceeded)"
                )
            return noise, None
        if noise is None:
            calibrated = calibrate_noise_multiplier(
                self.epsilon, delta, participation, rounds, self.accountant, composition
            )
            return calibrated, rounds
        most = max_rounds(
            self.epsilon, delta, participation, noise, self.accountant, rounds, composition
        )
        if most == 0:
            raise PlanError(
                f"not even one {step} with noise_multiplier {noise:g} is within the budget epsilon "
                f"= {self.epsilon:g}; raise either, or leave noise_multiplier out to have it "
                "calibrated"
            )
        return noise, most
