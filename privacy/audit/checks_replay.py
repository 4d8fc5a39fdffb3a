"""Are cohorts and noise the draws of the seed that the run has recorded?

Guarantee: checked here is that the recorded private seed is one of its own and follows from the
configuration as ``config.yaml`` has it, from the data and from the initial model; that each round's
cohort is what the configured sampler draws from its stream, user by user; and that the noise is
that of the round's stream. Compared are its first elements, in every round, and in as many rounds
as can be drawn in a few seconds all elements, by sums of sixteen segments, sum and sum of squares.
A ledger with a round left out, a round put in, users drawn otherwise, or noise that is cut,
missing, used again or made of the data does not come out of the seed. Nothing here says that the
seed was secret, or that nobody chose it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.audit import tails
from privacy.audit.check import Finding, check
from privacy.audit.checks_noise import observed
from privacy.audit.evidence import Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import AuditInputs, Replay, SeedRecord, json_equal
from privacy.audit.recomputed_noise import ULP, sums_of
from privacy.errors import PrivacyError
from privacy.recording.central_record import users_digest
from privacy.recording.observation import ParticipationHistory

# A digest of 256 bits is shorter than this with probability 2**-56.
_LEAST_BITS = 200
# Of the noise's standard deviation: rounding stays below where the noise can be seen; two draws
# that have nothing to do with each other are nearer with probability 0.012.
_ALIKE = 0.02
# Elements whose law is tested.
_SAMPLE = 1_000_000
# Draws of some seconds.
_MOST_USERS = 20_000_000
# Roundings that a sum of all elements, or of a segment, may be off by.
_ROUNDINGS = 64.0
# Relative: coefficients that another machine optimizes differ by less.
_OF_STDDEV = 1e-3
# What a seed is derived from and an audit computes anew: in words, and whether that depends on code
# and machine, as the content of files does not.
_PARTS = {
    "configuration": ("configuration", True),
    "data": ("data", False),
    "initial_model": ("initial model", True),
    "model_files": ("folder of weights", True),
    "simulated_devices": ("fleet of devices", True),
}


def _chosen(rounds: int, most: int) -> NDArray[np.int64]:
    """Rounds to look at, from 1: all, or so many evenly spaced ones, the last among them."""
    if rounds <= most:
        return np.arange(1, rounds + 1)
    return np.unique(np.linspace(1, rounds, most).round().astype(np.int64))


def _replay(evidence: Evidence, inputs: AuditInputs) -> Replay:
    """Draws of the recorded seed; ``SkippedError`` where there is nothing to compare with."""
    if inputs.configured.unit == "example":
        raise SkippedError(
            "batches and noise of example-level DP are drawn by streams that go on from step to "
            "step, and its ledger has a line an epoch"
        )
    evidence.need_lines()
    if isinstance(inputs.replay, str):
        raise IncompleteError(inputs.replay)
    return inputs.replay


@check(
    "private_seed",
    "Cohorts and noise are drawn from a seed of 256 bits, which is not the configuration's and "
    "follows from it, from the data and from the initial model.",
)
def check_private_seed(evidence: Evidence, inputs: AuditInputs) -> Finding:
    evidence.need_lines()
    record, found = inputs.seed, Finding()
    places = " and ".join(record.values)
    found.add(len(set(record.values.values())) > 1, f"{places} have different seeds")
    for where, seed in record.values.items():
        bits = seed.bit_length()
        found.add(
            seed == record.configured or bits < _LEAST_BITS,
            f"the seed in {where} has {bits} bits: other runs can share its noise",
        )
    found.add(
        record.recorded_nonce != record.nonce,
        f"environment.json has the nonce {record.recorded_nonce!r:.80}, the configuration "
        f"{record.nonce!r:.80}",
    )
    unknown = _hold_parts(record, found)
    if unknown and not found.problems:
        raise IncompleteError("; ".join(unknown))
    whose = "the run's own"
    if record.nonce is not None:
        whose = (
            f"pinned by the nonce {record.nonce!r}: all runs of this nonce and of one seed share "
            "their noise, and no two of them have a joint guarantee"
        )
    return found.seen(f"{whose}; named by {places}; {len(_PARTS)} of its parts computed anew")


def _hold_parts(record: SeedRecord, found: Finding) -> list[str]:
    """Hold the recorded parts against those of today; gives what cannot be told."""
    if record.parts is None or "environment.json" not in record.values:
        return ["environment.json has no seed with what it was derived from"]
    parts, unknown = record.parts, []
    if isinstance(record.today, str):
        return [f"what the seed was derived from cannot be computed anew: {record.today}"]
    for name, (what, depends_on_code) in _PARTS.items():
        if parts.get(name) == record.today.get(name):
            continue
        if depends_on_code and not record.is_of_this_machine:
            unknown.append(
                f"{what} has another digest than the seed was derived from, by other code, "
                "versions or another processor than the run's: audit it by those"
            )
        else:
            found.problems.append(f"the seed was derived from another {what} than is there")
    found.add(
        not record.covers_code and parts.get("code") == record.today.get("code"),
        "the digest of the code is not that of all files: runs of other code can share its noise",
    )
    if record.engine and not str(parts.get("engine")).startswith(record.engine):
        found.problems.append(
            f"the seed was derived for the engine {parts.get('engine')!r}, but environment.json "
            f"names {record.engine!r}"
        )
    return unknown


@check(
    "cohort_replay",
    "Each round's users are those that the configured sampler draws from the recorded seed.",
)
def check_cohort_replay(evidence: Evidence, inputs: AuditInputs) -> Finding:
    replay, found = _replay(evidence, inputs), Finding()
    if isinstance(replay.cohort, str):
        raise SkippedError(replay.cohort)
    evidence.need_digests()
    population = inputs.data.num_units or evidence.constant("population_size", "actual")
    size = evidence.constant("cohort_size", "actual")
    if not (1 <= size <= population <= _MOST_USERS and population == int(population)):
        raise IncompleteError(f"no cohort of {size:g} can be drawn of {population:g} users")
    users_a_round = population if evidence.constant("separation", default=1) > 1 else size
    rounds = _chosen(evidence.rounds, max(1, int(_MOST_USERS // users_a_round)))
    has_all = len(rounds) == evidence.rounds
    history = ParticipationHistory(int(population)) if has_all else None
    wrong, returning = [], []
    for number in rounds.tolist():
        try:
            users = replay.cohort(number, int(population))
        except (ValueError, PrivacyError) as error:
            raise IncompleteError(
                f"no cohort can be drawn of {population:g} users ({error})"
            ) from None
        is_drawn = evidence.digest("users", number) == users_digest(users)
        if not (is_drawn and evidence["realised_cohort"][number - 1] == len(users)):
            wrong.append(number)
        came = {} if history is None else history.add(users, number)
        own = {key: np.array(value, np.float64) for key, value in came.items() if evidence.has(key)}
        if not all(
            np.array_equal(evidence[key][number - 1], own[key], equal_nan=True) for key in own
        ):
            returning.append(number)
    found.in_rounds("the users are not those that the seed draws", wrong)
    found.in_rounds("who came again is not what the seed's cohorts make", returning)
    text = f"users of {len(rounds)} of {evidence.rounds} rounds drawn anew, by their digest"
    return found.seen(text, rounds=len(rounds))


@check(
    "noise_replay",
    "Each round's noise is that which the recorded seed draws, and has the claimed law.",
)
def check_noise_replay(evidence: Evidence, inputs: AuditInputs) -> Finding:
    replay = _replay(evidence, inputs)
    seen = observed(evidence, inputs)
    if isinstance(replay.noise, str):
        raise SkippedError(replay.noise)
    # Without the model its length is that of the statement.
    if inputs.data.num_parameters is None and not json_equal(
        inputs.statement.get("num_parameters"), evidence.constant("num_parameters")
    ):
        reason = "statement and ledger have another number of parameters each: see configuration"
        raise IncompleteError(reason)
    rounds = seen.rounds[_chosen(len(seen.rounds), replay.noise_rounds) - 1]
    if replay.needs_every_round:
        if evidence.rounds > inputs.configured.num_rounds:
            raise SkippedError("there are more rounds than were configured: see rounds")
        if evidence.rounds > replay.noise_rounds:
            raise SkippedError(
                "drawing the noise of all rounds anew would take too long, and each needs the last"
            )
        rounds = np.arange(1, evidence.rounds + 1)
    canaries = np.nan_to_num(evidence["num_canaries"]).astype(np.int64)
    stddev, visible = evidence["update_noise_stddev"], np.isin(rounds, seen.rounds)
    described = inputs.configured.description
    reach = described.reach(evidence.constant("num_parameters"))
    rounding = 4.0 * ULP * (reach * evidence["sum_norm"] / stddev + 8.0)
    if described.randomizes_clients:
        rounding = rounding * np.sqrt(np.maximum(1.0, evidence["num_contributions"]))
    allowed = _ALIKE + rounding
    fresh = evidence.constant("noise_multiplier", "actual")
    wrong, counts, scales, elsewhere, compared, whole = [], [], [], [], 0, 0
    sample: list[NDArray[np.float64]] = []
    for number, is_visible in zip(rounds.tolist(), visible, strict=True):
        line = number - 1
        try:
            drawn = replay.noise(number, int(canaries[line]))
        except (ValueError, PrivacyError) as error:
            raise IncompleteError(f"no noise can be drawn of round {number} ({error})") from None
        if drawn.stddev is not None:
            claimed = stddev[line] / evidence["clip_norm"][line]
            if not abs(claimed - drawn.stddev * fresh) <= _OF_STDDEV * claimed:
                scales.append(number)
        has_count = drawn.count is not None and evidence["count_noise_stddev"][line] > 0.0
        if has_count and not abs(evidence["noise.count_draw"][line] - drawn.count) <= _ALIKE:
            counts.append(number)
        # Where rounding could hide the difference, nothing is compared.
        if not is_visible or not allowed[line] < 0.5:
            continue
        compared += 1
        first = drawn.values[: evidence["noise.head"].shape[1]]
        head = evidence["noise.head"][line, : len(first)]
        if not (np.abs(head - first) <= allowed[line]).all():
            wrong.append(number)
        elif len(drawn.values) == evidence["noise.count"][line]:
            whole += 1
            # Rounds whose noise hangs together are not independent draws.
            if not (described.correlates_rounds and sample) and sum(map(len, sample)) < _SAMPLE:
                sample.append(drawn.values)
            if not _has_sums(evidence, line, drawn.values, rounding[line]):
                elsewhere.append(number)
    found = Finding()
    found.in_rounds("the noise is not that of the seed's stream", wrong)
    found.in_rounds("of the noise other elements are not those of the seed's stream", elsewhere)
    found.in_rounds("the noise on the count is not that of the seed's stream", counts)
    found.in_rounds("the noise's scale is not that of the configured correlation", scales)
    if not compared and not found.problems:
        raise SkippedError("in no round can the noise be seen beside the rounding of the sum")
    text = f"the noise of {compared} of {evidence.rounds} rounds drawn anew, all of it in {whole}"
    gap = math.nan
    if sample and not found.problems:
        gap, value = tails.distance(seen.shape, np.concatenate(sample))
        found.test(f"what is drawn has not the law of {seen.shape} noise", value, 1.0, "<=")
        text += f"; Kolmogorov-Smirnov distance to the claimed law {gap:.3g}, p <= {value:.3g}"
    return found.seen(text, rounds=compared, whole=whole, distance=gap)


def _has_sums(evidence: Evidence, line: int, noise: NDArray[np.float64], rounding: float) -> bool:
    """Whether a line, from 0, has the sums of noise that was drawn anew, shape (P,).

    Noise, and the rounding of an element, are in standard deviations.
    """
    sums = sums_of(noise, _ROUNDINGS * rounding)
    # The head was compared, to what may be seen of it.
    del sums["head"]
    return all(
        (np.abs(np.atleast_1d(evidence[f"noise.{key}"][line])[: len(own)] - own) <= allowed).all()
        for key, (own, allowed) in sums.items()
    )
