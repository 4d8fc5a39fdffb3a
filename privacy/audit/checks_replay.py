"""Are cohorts and noise the draws of the seed that the run has recorded?

Guarantee: checked here is that the recorded private seed is one of its own, that each round's
cohort is what the configured sampler draws from its stream, user by user, and that the first
elements of each round's noise are those of its stream. A ledger with a round left out, a round put
in, another round's noise or users drawn otherwise does not come out of the seed. Nothing here says
that the seed was secret, or that nobody chose it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.audit.check import Check, in_rounds, judge, lack, skip
from privacy.audit.checks_noise import observed
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number
from privacy.audit.replay import Noise, Replay, chosen_rounds
from privacy.central_record import users_digest
from privacy.observation import ParticipationHistory

_NO_LINE = "the ledger has no line yet"
# A digest of 256 bits is shorter than this with probability 2**-56.
_LEAST_BITS = 200
# Of the noise's standard deviation: rounding stays below where the noise can be seen; two draws
# that have nothing to do with each other are nearer with probability 0.012.
_ALIKE = 0.02
_HALF_ULP = 2.0**-24
# Relative: coefficients that another machine optimizes differ by less.
_OF_STDDEV = 1e-3
_NOISE = "noise_replay"
_NOISE_CLAIM = "The first elements of each round's noise are those that the recorded seed draws."


def _unable(name: str, claim: str, evidence: Evidence, inputs: AuditInputs) -> Check | Replay:
    if inputs.configured.unit == "example":
        reason = "batches and noise of example-level DP are drawn by streams that go on from step"
        return skip(name, claim, f"{reason} to step, and its ledger has a line an epoch")
    if not evidence.rounds:
        return skip(name, claim, _NO_LINE)
    if isinstance(inputs.replay, str):
        return lack(name, claim, inputs.replay)
    return inputs.replay


def check_private_seed(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The seed of cohorts and noise is the run's own."""
    name = "private_seed"
    claim = "Cohorts and noise are drawn from a seed of 256 bits, which is not the configuration's."
    replay = _unable(name, claim, evidence, inputs)
    if isinstance(replay, Check):
        return replay
    problems = []
    if len(set(replay.seeds.values())) > 1:
        problems.append(f"{' and '.join(replay.seeds)} have different seeds")
    for where, seed in replay.seeds.items():
        if seed == replay.configured_seed or seed.bit_length() < _LEAST_BITS:
            problems.append(
                f"the seed in {where} has {seed.bit_length()} bits: other runs can share its noise"
            )
    whose = "the run's own"
    if replay.nonce is not None:
        whose = (
            f"pinned by the nonce {replay.nonce!r}: all runs of this nonce and of one seed share "
            "their noise, and no two of them have a joint guarantee"
        )
    return judge(name, claim, problems, f"{whose}; named by {' and '.join(replay.seeds)}")


def check_cohort_replay(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Each round's users are those that the sampler draws from the seed."""
    name = "cohort_replay"
    claim = "Each round's users are those that the configured sampler draws from the recorded seed."
    replay = _unable(name, claim, evidence, inputs)
    if isinstance(replay, Check):
        return replay
    if isinstance(replay.cohort, str):
        return skip(name, claim, replay.cohort)
    if evidence.central.missing == evidence.rounds:
        reason = "the ledger has no digest of who took part: it was written by another version"
        return lack(name, claim, reason)
    units = inputs.data.num_units
    history = None if units is None else ParticipationHistory(units)
    rounds = chosen_rounds(evidence.rounds, replay.cohort_rounds)
    if len(rounds) < evidence.rounds:
        history = None
    wrong, returning = [], []
    for number in rounds.tolist():
        users = replay.cohort(number)
        is_drawn = evidence.central.digest("users", number) == users_digest(users)
        if not (is_drawn and evidence["realised_cohort"][number - 1] == len(users)):
            wrong.append(number)
        if history is not None and not _returns(evidence, history.add(users, number), number):
            returning.append(number)
    problems = in_rounds("the users are not those that the seed draws", wrong)
    problems += in_rounds("who came again is not what the seed's cohorts make", returning)
    text = f"users of {len(rounds)} of {evidence.rounds} rounds drawn anew, by their digest"
    return judge(name, claim, problems, text, {"rounds": len(rounds)})


def _returns(evidence: Evidence, drawn: dict[str, int | None], number: int) -> bool:
    """Whether a line has these numbers of who came again, as far as it has any."""
    for key, value in drawn.items():
        if evidence.lacks(key):
            continue
        found = evidence[key][number - 1]
        if not (np.isnan(found) if value is None else found == value):
            return False
    return True


def check_noise_replay(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The first elements of each round's noise are those of its stream."""
    name, claim = _NOISE, _NOISE_CLAIM
    replay = _unable(name, claim, evidence, inputs)
    if isinstance(replay, Check):
        return replay
    seen = observed(evidence, inputs)
    if isinstance(seen, str):
        return skip(name, claim, seen)
    if isinstance(replay.noise, str):
        return skip(name, claim, replay.noise)
    visible = set(seen.rounds.tolist())
    if replay.needs_every_round and evidence.rounds > inputs.configured.num_rounds:
        return skip(name, claim, "there are more rounds than were configured: see rounds")
    if replay.needs_every_round and evidence.rounds > replay.noise_rounds:
        reason = "drawing the noise of all rounds anew would take too long, and each needs the last"
        return skip(name, claim, reason)
    if replay.needs_every_round:
        rounds = np.arange(1, evidence.rounds + 1)
    else:
        rounds = seen.rounds[chosen_rounds(len(seen.rounds), replay.noise_rounds) - 1]
    return _compare(evidence, inputs, replay.noise, rounds, visible)


def _compare(
    evidence: Evidence,
    inputs: AuditInputs,
    noise: Noise,
    rounds: NDArray[np.int64],
    visible: set[int],
) -> Check:
    """Draw the noise of these rounds anew, and compare it where it can be seen."""
    canaries = np.nan_to_num(evidence["num_canaries"]).astype(np.int64)
    rounding = 4.0 * _HALF_ULP * (evidence["sum_norm"] / evidence["update_noise_stddev"] + 8.0)
    if inputs.configured.randomizes_clients:
        rounding = rounding * np.sqrt(np.maximum(1.0, evidence["num_contributions"]))
    fresh = as_number((evidence.constants.get("actual") or {}).get("noise_multiplier"))
    wrong, counts, scales, compared = [], [], [], 0
    for number in rounds.tolist():
        drawn, line = noise(number, int(canaries[number - 1])), number - 1
        if drawn.stddev is not None:
            claimed = evidence["update_noise_stddev"][line] / evidence["clip_norm"][line]
            if not abs(claimed - drawn.stddev * fresh) <= _OF_STDDEV * claimed:
                scales.append(number)
        has_count = drawn.count is not None and evidence["count_noise_stddev"][line] > 0.0
        if has_count and not abs(evidence["noise.count_draw"][line] - drawn.count) <= _ALIKE:
            counts.append(number)
        allowed = _ALIKE + rounding[line]
        # Where rounding could hide the difference, nothing is compared.
        if number not in visible or not allowed < 0.5:
            continue
        compared += 1
        head = evidence.heads[line, : len(drawn.head)]
        if not (np.abs(head - drawn.head) <= allowed).all():
            wrong.append(number)
    problems = in_rounds("the noise is not that of the seed's stream", wrong)
    problems += in_rounds("the noise on the count is not that of the seed's stream", counts)
    problems += in_rounds("the noise's scale is not that of the configured correlation", scales)
    text = f"the first elements of {compared} of {evidence.rounds} rounds drawn anew"
    if not compared and not problems:
        reason = "in no round can the noise be seen beside the rounding of the sum"
        return skip(_NOISE, _NOISE_CLAIM, reason)
    return judge(_NOISE, _NOISE_CLAIM, problems, text, {"rounds": compared})
