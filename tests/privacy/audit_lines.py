"""A private run in numpy, written independently of the package: true ledgers, and planted lies."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.accountant import compose_epsilon
from privacy.amplification import Composition, Participation, sampled_gaussian
from privacy.audit.evidence import Evidence, gather
from privacy.audit.inputs import AuditInputs, Configured, DataAtHand, Saved
from privacy.description import FRESH, Description
from privacy.ledger import canonical_line
from privacy.sampling_scheme import scheme_type


@dataclass(frozen=True)
class Run:
    """Settings of a run, and the lies that it tells."""

    rounds: int = 40
    num_parameters: int = 400
    population: int = 300
    cohort: int = 30
    noise_cohort: int = 60
    scheme: str = "poisson"
    separation: int = 1
    max_participations: int | None = None
    shape: str = "gaussian"
    adaptive: bool = True
    noise_multiplier: float = 2.0
    clip_norm: float = 0.5
    # Lies, all of them about what really happens and not about what is written.
    drawn: str | None = None
    noise_factor: float = 1.0
    noise_shape: str | None = None
    uneven: bool = False
    clip_sign: float = 1.0
    rescales: bool = False
    clips: bool = True
    clips_l2: bool = False
    draws_twice: bool = False
    stray: float = 0.0


def actual_noise(run: Run) -> float:
    return run.noise_multiplier * run.cohort / run.noise_cohort


def options_of(run: Run) -> dict[str, Any]:
    options: dict[str, Any] = {"clip_norm": run.clip_norm}
    if run.adaptive:
        options |= {"quantile": 0.4, "clip_learning_rate": 0.2, "count_noise_stddev": None}
    return options


def mechanism_of(run: Run) -> str:
    if run.shape == "laplace":
        return "laplace"
    return "adaptive_gaussian" if run.adaptive else "gaussian"


def description_of(run: Run) -> Description:
    laplace = run.shape == "laplace"
    return Description(
        "the sum gets noise",
        law="laplace" if laplace else "gaussian",
        stddev=math.sqrt(2.0) if laplace else 1.0,
        strategy=FRESH,
        norm="l1" if laplace else "l2",
        draws_count=run.adaptive,
    )


def constants_of(run: Run) -> dict[str, Any]:
    def side(cohort: int, noise: float) -> dict[str, Any]:
        rate = cohort * run.separation / run.population
        return {
            "population_size": run.population,
            "cohort_size": cohort,
            "sampling_probability": 1.0 if run.scheme == "selected" else rate,
            "noise_multiplier": noise,
            "delta": run.population**-1.1,
        }

    return {
        "unit": "user",
        "mechanism": mechanism_of(run),
        "mechanism_options": options_of(run),
        "mechanism_description": description_of(run).to_json_dict(),
        "sampling": run.scheme,
        "separation": run.separation,
        "max_participations": run.max_participations,
        "adjacency": scheme_type(run.scheme).adjacency,
        "accountant": "pld"
        if "rdp" not in scheme_type(run.scheme).accountants or run.shape == "laplace"
        else "rdp",
        "weighting": "uniform",
        "uploads": ["update"],
        "batchnorm_layers": [],
        "seed_policy": "philox-per-round, seeded: for simulation only",
        "simulated": side(run.noise_cohort, run.noise_multiplier),
        "actual": side(run.cohort, actual_noise(run)),
        "num_parameters": run.num_parameters,
        "denominator": float(run.cohort),
        "data": "sha256:da7a",
        "plugins": {},
    }


def make_lines(run: Run, seed: int = 0) -> list[dict[str, Any]]:
    """Play the run and write its ledger's lines, "previous" left out."""
    rng = np.random.default_rng([seed, 77])
    groups = rng.integers(run.separation, size=run.population)
    counts = np.zeros(run.population, dtype=np.int64)
    latest = np.zeros(run.population, dtype=np.int64)
    shared = json.dumps(constants_of(run))
    clip = run.clip_norm
    lines = []
    for number in range(1, run.rounds + 1):
        users = _draw(run, groups, number, rng)
        if run.scheme == "selected":
            users = _select(run, counts, latest, number, rng)
        line, clip = _round(run, users, number, clip, rng)
        gaps = [number - int(latest[user]) for user in users if latest[user]]
        line |= {
            "returning": int(sum(counts[user] for user in users)),
            "smallest_gap": min(gaps, default=None),
        }
        for user in users:
            counts[user] += 1
            latest[user] = number
        line["largest_count"] = max((int(counts[user]) for user in users), default=0)
        lines.append(json.loads(shared) | line)
    return lines


def digested(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Lines with the digests that they have in a ledger."""
    previous = "0" * 64
    for line in lines:
        written = canonical_line(line, previous)
        previous = hashlib.sha256(written.rstrip(b"\n")).hexdigest()
        yield line, previous


def read(lines: Iterable[Mapping[str, Any]]) -> Evidence:
    """What an audit gathers of lines."""
    return gather(digested(lines))


def _draw(
    run: Run, groups: NDArray[np.int64], number: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    scheme = run.drawn or run.scheme
    if scheme == "fixed_size":
        users = rng.choice(run.population, run.cohort, replace=False)
    elif scheme == "large":
        users = np.flatnonzero(rng.random(run.population) < 1.5 * run.cohort / run.population)
    elif scheme == "full":
        users = np.arange(run.population)
    elif scheme == "favoured":
        # As many as independent draws give, but some users often, and others rarely.
        weights = np.exp(0.7 * np.sin(np.arange(run.population)))
        size = run.cohort
        if run.scheme == "poisson":
            size = rng.binomial(run.population, run.cohort / run.population)
        users = rng.choice(run.population, size, replace=False, p=weights / weights.sum())
    elif scheme == "favoured group":
        rates = np.where(np.arange(run.population) % 3 == 0, 2.0, 0.5)
        rates *= run.cohort * run.separation / run.population
        eligible = groups == (number - 1) % run.separation
        users = np.flatnonzero(eligible & (rng.random(run.population) < rates))
    elif scheme == "in turn":
        size = rng.binomial(run.population, run.cohort / run.population)
        users = np.sort((np.arange(size) + (number - 1) * run.cohort) % run.population)
    elif scheme == "any group":
        users = np.flatnonzero(rng.random(run.population) < run.cohort / run.population)
    else:
        eligible = groups == (number - 1) % run.separation
        rate = run.cohort * run.separation / run.population
        users = np.flatnonzero(eligible & (rng.random(run.population) < rate))
    if scheme == "truncated_poisson":
        cap = math.ceil(run.cohort + 4.0 * math.sqrt(run.cohort))
        users = np.sort(rng.permutation(users)[:cap])
    if run.draws_twice and len(users) > 1:
        users[0] = users[1]
    return users


def _select(
    run: Run,
    counts: NDArray[np.int64],
    latest: NDArray[np.int64],
    number: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Favourites among those who may come again; some of whom are late."""
    may = np.ones(run.population, dtype=np.bool_)
    if run.drawn != "too often" and run.max_participations is not None:
        may &= counts < run.max_participations
    if run.drawn != "too soon":
        may &= (latest == 0) | (number - latest >= run.separation)
    weights = np.exp(np.sin(np.arange(run.population)))[may]
    size = min(int(may.sum()), run.cohort)
    users = rng.choice(np.flatnonzero(may), size, replace=False, p=weights / weights.sum())
    return users[rng.random(size) < 0.8]


def _round(
    run: Run,
    users: NDArray[np.int64],
    number: int,
    clip: float,
    rng: np.random.Generator,
) -> tuple[dict[str, Any], float]:
    size, ratio = run.num_parameters, run.cohort / run.noise_cohort
    # Updates that agree in part, some within the bound and some beyond.
    order = 1 if run.shape == "laplace" else 2
    updates = rng.standard_normal((len(users), size)) + 1.0
    updates /= np.linalg.norm(updates, ord=order, axis=1, keepdims=True)
    updates *= clip * np.exp(rng.normal(-0.2, 0.7, (len(users), 1)))
    updates = updates.astype(np.float32).astype(np.float64)
    norms = np.linalg.norm(updates, ord=order, axis=1)
    bounded = np.linalg.norm(updates, axis=1) if run.clips_l2 else norms
    factors = np.minimum(1.0, clip / np.maximum(bounded, 1e-12) * (1.0 - 2.0**-22))
    if run.rescales:
        factors = clip / np.maximum(norms, 1e-12) * (1.0 - 2.0**-22)
    if not run.clips:
        factors = np.ones(len(users))
    total = np.zeros(size, dtype=np.float32)
    probe, furthest = None, -1.0
    for update, factor, norm in zip(updates, factors, norms, strict=True):
        before = total
        total = before + (update * factor).astype(np.float32)
        moved = float(np.linalg.norm(total.astype(np.float64) - before, ord=order))
        if abs(moved - min(norm, clip)) > furthest:
            furthest = abs(moved - min(norm, clip))
            probe = {"norm": float(norm), "moved": moved, "bit": 0.5 if norm <= clip else -0.5}
    clipped = int((norms > clip).sum())
    bits = len(users) / 2.0 - clipped
    z, count_stddev = run.noise_multiplier, None
    if run.adaptive:
        count = run.noise_cohort / 20.0
        z = (z**-2.0 - (2.0 * count) ** -2.0) ** -0.5
        count_stddev = count * ratio
    stddev = z * ratio * clip * (math.sqrt(2.0) if run.shape == "laplace" else 1.0)
    draws = _noise(run.noise_shape or run.shape, size, rng) * run.noise_factor
    if run.uneven:
        draws *= rng.choice([0.8, 1.2])
    total = total + np.float32(run.stray * clip / size)
    released = ((draws * stddev).astype(np.float32) + total) / np.float32(run.cohort)
    draw = float(rng.standard_normal())
    fraction = None
    following = clip
    if run.adaptive:
        assert count_stddev is not None
        fraction = (bits + count_stddev * draw) / run.cohort + 0.5
        following = clip * math.exp(-run.clip_sign * 0.2 * (fraction - 0.4))
    residual = (released.astype(np.float64) * run.cohort - total) / stddev
    line = {
        "round": number,
        "release_sha256": hashlib.sha256(released.tobytes()).hexdigest(),
        "clip_norm": clip,
        "update_noise_stddev": stddev,
        "count_noise_stddev": count_stddev,
        "noisy_fraction_unclipped": fraction,
        "realised_cohort": len(users),
        "distinct_users": len(set(users.tolist())),
        "num_canaries": 0,
        "num_contributions": len(users),
        "num_nonfinite": 0,
        "num_clipped": clipped,
        "total_weight": float(len(users)),
        "largest_norm": float(norms.max(initial=0.0)),
        "largest_clipped_norm": float((norms * factors).max(initial=0.0)),
        "sum_norm": float(np.linalg.norm(total.astype(np.float64), ord=order)),
        "probe": probe,
        "watched": len(users),
        "reports": None,
        "unseen": run.stray * clip,
        "noise": _observed(residual, total, draw if run.adaptive else None),
    }
    return line, following


def _noise(shape: str, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    if shape == "laplace":
        return rng.laplace(0.0, math.sqrt(0.5), size)
    if shape == "uniform":
        return rng.uniform(-math.sqrt(3.0), math.sqrt(3.0), size)
    return rng.standard_normal(size)


def _observed(
    residual: NDArray[np.float64],
    total: NDArray[np.float32],
    draw: float | None,
) -> dict[str, Any]:
    clean = total.astype(np.float64)
    norm = float(np.linalg.norm(clean))
    ends = [residual.size * k // 16 for k in range(17)]
    pieces = [residual[a:b] for a, b in pairwise(ends) if b > a]
    return {
        "count": residual.size,
        "sum": float(residual.sum()),
        "sum_squares": float(np.square(residual).sum()),
        "head": [float(value) for value in residual[:8]],
        "dot_sum": float(residual @ clean) / norm if norm else 0.0,
        "lag_correlation": 0.0,
        "rounding": 1e-7,
        "count_draw": draw,
        "segments": [float(piece.sum() / math.sqrt(len(piece))) for piece in pieces],
    }


def composition(
    mechanism: str,
    options: Mapping[str, Any],
    participation: Participation,
    noise_multiplier: float,
    rounds: int,
) -> Composition:
    """What rounds of the run's mechanism compose to."""
    if mechanism == "laplace":
        from dp_accounting import dp_event

        event = dp_event.PoissonSampledDpEvent(
            participation.sampling_probability, dp_event.LaplaceDpEvent(noise_multiplier)
        )
        return Composition(event, rounds, participation.adjacency)
    return sampled_gaussian(participation, noise_multiplier, rounds)


def read_inputs(run: Run, lines: list[dict[str, Any]], **changes: Any) -> AuditInputs:
    """Statement, configuration, data, checkpoint and summary of a run that has ended."""
    constants = constants_of(run)
    statement: dict[str, Any] = {
        "unit": "user",
        "adjacency": constants["adjacency"],
        "mechanism": constants["mechanism"],
        "accountant": constants["accountant"],
        "rounds": run.rounds,
        "num_parameters": run.num_parameters,
        "clip": {"kind": "adaptive" if run.adaptive else "fixed"},
        "noise_multiplier": run.noise_multiplier,
        "update_noise_multiplier": run.noise_multiplier,
        "count_noise_stddev": run.noise_cohort / 20.0 if run.adaptive else None,
        "budget_epsilon": None,
        "not_covered": [],
        "notes": [],
        "status": "final",
    }
    for label in ("simulated", "actual"):
        side = dict(constants[label])
        participation = Participation.named(
            run.scheme,
            side["population_size"],
            side["cohort_size"],
            run.separation,
            run.max_participations,
        )
        part = composition(
            mechanism_of(run), {}, participation, side["noise_multiplier"], run.rounds
        )
        side["epsilon"] = compose_epsilon([part], side["delta"], statement["accountant"])
        statement[label] = side | {
            "sampling": run.scheme,
            "separation": run.separation,
            "max_participations": run.max_participations,
        }
    configured = Configured(
        unit="user",
        mechanism=mechanism_of(run),
        mechanism_options=options_of(run),
        sampling=run.scheme,
        separation=run.separation,
        population_size=run.population,
        hypothetical_population=False,
        cohort_size=run.cohort,
        noise_cohort_size=run.noise_cohort,
        num_rounds=run.rounds,
        weighting="uniform",
        budget_epsilon=None,
        noise_multiplier=run.noise_multiplier,
        delta=None,
        accountant=constants["accountant"],
        description=description_of(run),
        max_participations=run.max_participations,
    )
    coming = run.clip_norm
    if run.adaptive and lines:
        last = lines[-1]
        coming = last["clip_norm"] * math.exp(-0.2 * (last["noisy_fraction_unclipped"] - 0.4))
    digest = ["0" * 64, *(digest for _, digest in digested(lines))][-1]
    summary = {
        "rounds": run.rounds,
        "privacy": copy.deepcopy(statement),
        "ledger_digest": digest,
    }
    values = {
        "statement": statement,
        "configured": configured,
        "composition": partial(composition),
        "data": DataAtHand(run.population, "sha256:da7a", run.num_parameters, ()),
        "saved": Saved(run.rounds, {"clip_norm": coming} if run.adaptive else {}, digest),
        "summary": summary,
    }
    return AuditInputs(**(values | changes))
