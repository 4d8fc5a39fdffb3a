"""Options of an attack on a run's privacy: the section ``privacy.audit``.

Guarantee: none is claimed here. Canaries are clients of the auditor's own making; a run with
canaries has given part of its sum to them, so its utility is not the utility without.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["one_shot", "one_run", "worst_case"]
Direction = Literal["sphere", "coordinate"]
Access = Literal["final", "every_round"]
StepBound = Literal["clopper_pearson", "normal"]
OneRunBoundKind = Literal["f_dp", "independent", "gaussian"]


class CanaryOptions(BaseModel):
    """Settings of the canaries of a run.

    Attributes:
        kind: "one_shot": all canaries take part as clients do, and are sought in what is released
            (Andrew et al. 2024). "one_run": a fair coin includes each canary or leaves it out, and
            the auditor guesses which (Steinke et al. 2023; Mahloujifar et al. 2024). "worst_case":
            a fair coin a round and canary, and the auditor sees every round (Nasr et al. 2023).
        count: Number of canaries.
        direction: What a canary sends, at norm clip_norm: a random direction ("sphere"; count
            vectors of P are kept) or one of P coordinates, no two alike ("coordinate"). None for
            the kind's own: "sphere" for one_shot, else "coordinate". one_shot allows "sphere"
            alone, worst_case "coordinate" alone.
        access: What the auditor sees: the final model, or every round's release. None for the
            kind's own: "final" for one_shot, else "every_round". worst_case sees every round.
        confidence: Of the two-sided interval whose lower end is reported, at least 0.5 and below
            1: a bound lies above the truth in at most half of what is left, 2.5 % of runs at 0.95.
            Below 0.9 the bound "gaussian" of few canaries does so more often.
        step_bound: worst_case alone: how the effect of one step is bounded, "normal" (exact for
            the Gaussian noise that the composition supposes anyway) or "clopper_pearson" (for any
            noise in the step itself, but loose where a step shows little).
        bound: one_run alone: what ``lower_bound`` is: "f_dp" (guesses; any mechanism of the claimed
            family), "independent" (guesses, too; canaries' noise is independent), or "gaussian" (a
            law of sums of all rounds; it is normal as well). Each is sharper than the one before,
            and rests on more. The last two are of a Gaussian mechanism whose canaries have
            coordinates and see every round.
        guesses: one_run alone: how many canaries with the largest scores are guessed "in", and how
            many with the smallest "out", chosen before the run. None to try a stated grid of such
            pairs and pay for the choice (Bonferroni).
        memory_limit_mib: Most memory for directions, in MiB.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Kind
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    direction: Direction | None = None
    access: Access | None = None
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    step_bound: StepBound = "normal"
    bound: OneRunBoundKind = "f_dp"
    guesses: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    memory_limit_mib: Annotated[int, Field(ge=1)] = 1024

    @model_validator(mode="before")
    @classmethod
    def _guesses_from_yaml(cls, values: object) -> object:
        """YAML has lists alone, and a strict model takes tuples alone."""
        if isinstance(values, dict) and isinstance(values.get("guesses"), list):
            return {**values, "guesses": tuple(values["guesses"])}
        return values

    @model_validator(mode="after")
    def _check(self) -> CanaryOptions:
        if self.kind == "one_shot" and (self.direction == "coordinate" or self.count < 2):
            raise ValueError(
                "kind one_shot rests on the law of a random direction's cosine and on the spread "
                "over canaries: leave direction out or set it to sphere, and count to 2 or more"
            )
        if self.kind == "worst_case" and (self.direction == "sphere" or self.access == "final"):
            raise ValueError(
                "kind worst_case gives each canary a coordinate of its own and sees every round: "
                "leave direction and access out, or set them to coordinate and every_round"
            )
        if self.bound != "f_dp" and not (
            self.kind == "one_run"
            and self.seen_direction == "coordinate"
            and self.seen_access == "every_round"
        ):
            raise ValueError(
                f"bound {self.bound} is of kind one_run with direction coordinate and access "
                "every_round; leave bound out, or set them so"
            )
        if self.guesses is not None:
            if self.kind != "one_run":
                raise ValueError("guesses is a setting of kind one_run; leave it out")
            if not 1 <= sum(self.guesses) <= self.count:
                raise ValueError(
                    f"guesses {list(self.guesses)} must be 1 to count = {self.count} together"
                )
        return self

    @property
    def seen_direction(self) -> Direction:
        """The direction, the kind's own where none is set."""
        return self.direction or ("sphere" if self.kind == "one_shot" else "coordinate")

    @property
    def seen_access(self) -> Access:
        """The access, the kind's own where none is set."""
        return self.access or ("final" if self.kind == "one_shot" else "every_round")

    @property
    def one_sided(self) -> float:
        """Confidence of the lower end of the interval."""
        return (1.0 + self.confidence) / 2.0
