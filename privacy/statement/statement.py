"""The privacy statement: what a run guarantees, to whom, under which assumptions, and what not.

Guarantee: the statement carries two epsilons, both labelled. ``actual`` is what this very run has,
with its own users, cohort and noise, if its noise were secret. ``simulated`` is what a deployment
with ``noise_cohort_size`` users a round would have. They differ whenever a small cohort stands for
a large one; neither is ever printed as "epsilon" alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Literal

from privacy.description import DP_SGD, Description
from privacy.errors import PrivacyError
from privacy.sampling_scheme import scheme_type

Status = Literal["planned", "final"]

NOT_COVERED: tuple[str, ...] = (
    "Validation and test metrics, and those of the training split where it is evaluated: they are "
    "computed from users' data without noise.",
    "Model selection: choosing a round or a run by such metrics.",
    "Hyperparameter tuning: other runs on the same data, each of which spends its own epsilon.",
    "Names of clients in the run's log, where an update was not finite.",
    "Data preparation: vocabularies, filters, label lists, normalisation and settings taken from "
    "the data, such as a clipping bound set to the median norm of training users' updates.",
    "How many users (under DP-SGD: examples) there are, which the statement names: probabilities, "
    "delta, calibrated noise and DP-SGD's number of steps follow from it, and data sets with one "
    "more or less are compared at the same ones.",
    "Weights that the training began with, where they were learned from the same data.",
    "The run's own diagnostics, such as realised cohort sizes, norms before noise and training "
    "losses, which a deployment would not publish.",
    "The noise of this simulation: its generator is seeded, so whoever knows the seed can remove "
    "it, and it protects nobody; a deployment draws it from a secret source.",
)
# Under "selected": zero-out adjacency keeps who is in which round the same.
PATTERN_NOT_COVERED: tuple[str, ...] = (
    "Who took part when, and what that shows of how many examples a device has, by the time that "
    "it takes or by a selection that goes by it: where users are selected, that is public.",
)


@dataclass(frozen=True, slots=True)
class Accounted:
    """One labelled epsilon and everything that it rests on.

    Attributes:
        population_size: Users (or examples) to draw from.
        cohort_size: Users (or examples) of a round; expected under "poisson".
        sampling: "poisson", "cyclic_poisson", "fixed_size", "full", "selected" or "shuffled".
        sampling_probability: Of an eligible user in a round: cohort_size * separation /
            population_size.
        noise_multiplier: Standard deviation of the noise in multiples of clip_norm.
        delta: In (0, 1); None without privacy.
        epsilon: At ``delta``, after the rounds of the statement; infinite without a guarantee.
        separation: Rounds that two of one user are apart at least; 1 but under "cyclic_poisson"
            and "selected".
        max_participations: Rounds that one user is in at most, under "selected"; None for no cap.
    """

    population_size: int
    cohort_size: float
    sampling: str
    sampling_probability: float
    noise_multiplier: float
    delta: float | None
    epsilon: float
    separation: int = 1
    max_participations: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Guarantee of a run, or of a calculation: what can be explained in words.

    A mechanism of which nothing is known but its name is described as one that needs a trusted
    server, which promises the least.

    Attributes:
        unit: Whom it protects: "user", "example" or "none".
        adjacency: "add-or-remove-one", "replace-one", "zero-out" or "none".
        mechanism: Name of the mechanism.
        accountant: "rdp", "pld", "prv" or "none".
        rounds: Rounds (for examples: steps) whose releases are covered together.
        simulated: Epsilon of the deployment that the noise stands for; equal to ``actual`` if
            nothing is simulated.
        actual: Epsilon of this very run.
        clip: How updates were clipped; empty if nobody says.
        not_covered: What an observer can learn outside of the mechanism, a sentence each.
        notes: What a reader should know of this run's accounting, a sentence each.
        status: "final", or "planned" while the run is under way: then ``rounds`` is the most that
            it will release, and the epsilons are upper bounds of what it has spent.
        mechanism_description: What the mechanism says of itself; None if nobody knows, as in a
            statement of a version that did not record it.
    """

    unit: str
    adjacency: str
    mechanism: str
    accountant: str
    rounds: int
    simulated: Accounted
    actual: Accounted
    clip: Mapping[str, float | str] = field(default_factory=dict)
    not_covered: tuple[str, ...] = NOT_COVERED
    notes: tuple[str, ...] = ()
    status: Status = "final"
    mechanism_description: Description | None = None

    @property
    def step(self) -> str:
        """Word for a release."""
        return "step" if self.unit == "example" else "round"

    @property
    def described(self) -> Description:
        """Words for the mechanism, as far as it is described."""
        if self.mechanism_description is not None:
            return self.mechanism_description
        if self.unit == "example":
            return DP_SGD
        return Description(
            f"the mechanism {self.mechanism} noises what is released, with noise multiplier {{z}}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyStatement(Guarantee):
    """Guarantee of a run, as its folder has it.

    Attributes:
        num_parameters: Number of trainable parameters P: the length of what is noised.
        noise_multiplier: z, the effective multiplier that the accountant sees for the deployment.
        update_noise_multiplier: That of the noise on the updates; more than z if a count is paid.
        count_noise_stddev: Noise on the deployment's sum of centred bits; None without a count.
        budget_epsilon: Bound that the simulated epsilon was held to; None for none.
    """

    num_parameters: int
    noise_multiplier: float
    update_noise_multiplier: float
    count_noise_stddev: float | None
    budget_epsilon: float | None

    def to_json_dict(self) -> dict[str, Any]:
        """The statement as JSON takes it; an infinite epsilon is the string "inf"."""
        described = self.mechanism_description
        return {
            "unit": self.unit,
            "adjacency": self.adjacency,
            "mechanism": self.mechanism,
            "mechanism_description": described
            and {"words": described.words, **described.to_json_dict()},
            "accountant": self.accountant,
            "rounds": self.rounds,
            "num_parameters": self.num_parameters,
            "clip": dict(self.clip),
            "noise_multiplier": self.noise_multiplier,
            "update_noise_multiplier": self.update_noise_multiplier,
            "count_noise_stddev": self.count_noise_stddev,
            "simulated": _accounted_to_json(self.simulated),
            "actual": _accounted_to_json(self.actual),
            "budget_epsilon": self.budget_epsilon,
            "not_covered": list(self.not_covered),
            "notes": list(self.notes),
            "status": self.status,
        }

    @classmethod
    def from_json_dict(cls, document: Mapping[str, Any]) -> PrivacyStatement:
        """Read what ``to_json_dict`` wrote; a PrivacyError says that it is damaged."""
        # Statements of older versions do not describe their mechanism.
        document = {"mechanism_description": None, **document}
        _check_keys("a privacy statement", document, cls)
        described = document["mechanism_description"]
        values = {
            **document,
            "clip": dict(document["clip"]),
            "simulated": _accounted_from_json("simulated", document["simulated"]),
            "actual": _accounted_from_json("actual", document["actual"]),
            "not_covered": tuple(document["not_covered"]),
            "notes": tuple(document["notes"]),
            "mechanism_description": None
            if described is None
            else Description.from_json_dict(described),
        }
        return cls(**values)

    def __str__(self) -> str:
        """The statement as a command prints it."""
        return self.to_text()

    def to_text(self) -> str:
        """The statement in some fifteen lines for a human."""
        planned = " at most" if self.status == "planned" else ""
        clip = ", ".join(f"{key} {_number(value)}" for key, value in self.clip.items())
        lines = ["Privacy statement"]
        if self.unit == "none":
            lines += [
                "  no privacy: nothing is clipped or noised; both epsilons, simulated and actual, "
                "are infinite",
                f"  rounds               {self.rounds}, {self.num_parameters} parameters",
            ]
            return "\n".join(lines + [f"  note: {note}" for note in self.notes])
        lines += [
            f"  epsilon (simulated)  {_accounted_to_text(self.simulated, self.step)}",
            f"  epsilon (actual)     {_accounted_to_text(self.actual, self.step)}",
            f"  protects             one {self.unit}, adjacency {self.adjacency}",
            f"  {self.step + 's':20} {self.rounds}{planned}, accountant {self.accountant}",
            f"  mechanism            {self.mechanism} on {self.num_parameters} parameters",
            f"  clipping             {clip}",
            f"  noise multiplier     {self.noise_multiplier:.6g} in effect, "
            f"{self.update_noise_multiplier:.6g} on the updates"
            + (
                f", count noise {self.count_noise_stddev:.6g}"
                if self.count_noise_stddev is not None
                else ""
            ),
            "  budget               "
            + (
                "none set"
                if self.budget_epsilon is None
                else f"epsilon (simulated) at most {self.budget_epsilon:g}"
            ),
        ]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not covered: {sentence}" for sentence in self.not_covered]
        return "\n".join(lines)


def round_up(value: float, digits: int) -> str:
    """Write an epsilon in so many significant digits, never below its value; it may be infinite."""
    return _rounded(value, digits, ROUND_CEILING)


def round_down(value: float, digits: int) -> str:
    """Write a lower bound of epsilon in so many significant digits, never above its value."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if value <= 0.0 or not math.isfinite(value):
        return f"{value:g}"
    step = Decimal(1).scaleb(Decimal(value).adjusted() - digits + 1)
    rounded = Decimal(value).quantize(step, rounding=rounding)
    return f"{rounded.normalize():f}" if value < 1e6 else f"{float(rounded):.{digits}g}"


def small(value: float, digits: int = 3) -> str:
    """A delta in so many significant digits, never below its value as it is written in decimals."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value)))
    return f"{float(rounded):.{digits}g}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def selection_note(metric: str) -> str:
    """Note for a reader of a run whose model was chosen by a metric."""
    return (
        f"The reported model is the one with the best {metric} among those that were evaluated. "
        "The guarantee covers the models of all rounds together, and so each of them; which of "
        "them was chosen was read from data without noise, and is outside of it."
    )


def nonce_note(nonce: str | int) -> str:
    """Note for a reader of a run whose noise is pinned."""
    return (
        f"The noise and the cohorts are pinned by the nonce {nonce!r}: all runs of this nonce and "
        "of one seed draw the same. Two such runs have no joint guarantee, because their noise "
        "cancels in the difference of their releases: publish one of them at most."
    )


def json_epsilon(epsilon: float) -> float | str:
    """An epsilon as JSON takes it: JSON has no infinity, so that is the string "inf"."""
    return epsilon if math.isfinite(epsilon) else "inf"


def _accounted_to_json(accounted: Accounted) -> dict[str, Any]:
    return {**asdict(accounted), "epsilon": json_epsilon(accounted.epsilon)}


def _accounted_from_json(label: str, document: Mapping[str, Any]) -> Accounted:
    # Statements of versions that knew no cap have none.
    document = {"max_participations": None, **document}
    _check_keys(f"{label} of a privacy statement", document, Accounted)
    epsilon = document["epsilon"]
    if epsilon == "inf":
        epsilon = math.inf
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)):
        raise PrivacyError(
            f"the {label} epsilon of a privacy statement is {epsilon!r}, but must be a number or "
            '"inf"; the file is damaged'
        )
    return Accounted(**{**document, "epsilon": float(epsilon)})


def _check_keys(what: str, document: Mapping[str, Any], kind: type[Accounted | Guarantee]) -> None:
    names = {one.name for one in fields(kind)}
    missing, foreign = sorted(names - set(document)), sorted(set(document) - names)
    if missing or foreign:
        raise PrivacyError(
            f"{what} lacks {missing} and has the foreign keys {foreign}; it is damaged, or of "
            "another version"
        )


def _accounted_to_text(accounted: Accounted, step: str) -> str:
    delta = "" if accounted.delta is None else f" at delta {small(accounted.delta, 4)}"
    apart = "" if accounted.separation == 1 else f", {accounted.separation} rounds apart"
    if accounted.max_participations is not None:
        apart += f", at most {accounted.max_participations} rounds a user"
    chance = f"q = {accounted.sampling_probability:.4g}"
    if scheme_type(accounted.sampling).adjacency == "zero-out":
        chance = "no amplification"
    return (
        f"{round_up(accounted.epsilon, 4)}{delta}: {accounted.cohort_size:g} of "
        f"{accounted.population_size} per {step} ({accounted.sampling}{apart}, "
        f"{chance}), noise multiplier "
        f"{accounted.noise_multiplier:.6g}"
    )
