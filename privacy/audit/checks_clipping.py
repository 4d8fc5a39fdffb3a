"""Did each user move the sum by no more than the bound, and is the bound the one accounted?

Guarantee: checked here is that one user's contribution, as it was seen from outside the clipping
code, is within the round's bound and is the update itself where that is within it already; that
nothing else moves the sum; that the bound of each round follows from the released number of the
round before; and that the counts agree with one another. Norms are those that the mechanism states
that its bound is of: L1, L2, or the largest element. Of a mechanism that does not state that it
clips to the bound, no more than the bound is checked, and the evidence says so. Every client of a
round was seen, and the ledger keeps the one that is furthest from what the clip is stated to do. In
models of more than ``privacy.recording.sum_watch.WATCH_ALL`` parameters, and in the ledgers of
older versions, it was one client, chosen at random; the others are covered by chance alone and by
the norms that the clipping code reports, and what moves the sum between clients is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.audit.check import Finding, check
from privacy.audit.evidence import Evidence, SkippedError
from privacy.audit.inputs import AuditInputs, as_number

Array = NDArray[np.float64]

# Relative rounding of a clipped norm, and of a float32 sum of so many updates.
_NORM_ROUNDING = 1e-6
_SUM_ROUNDING = 2.0**-21
# Bounds that the mechanism keeps: both in powers of two, far from what training comes to.
_SMALLEST, _LARGEST = 2.0**-64, 2.0**64
# What `clip` says of a bound that is fixed, or follows a quantile.
_KNOWN_BOUNDS = ("fixed", "adaptive", "per_example")


@check("clip_bound", "Every update is clipped to the round's bound before it is summed.")
def check_clip_bound(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """No clipped norm exceeds the bound, nor the sum what so many updates can come to."""
    keys = ("clip_norm", "largest_clipped_norm", "largest_norm", "num_clipped", "num_contributions")
    clip, clipped, largest, number, updates, norm = evidence.need(*keys, "sum_norm")
    most = updates * clip * (1.0 + _SUM_ROUNDING) + 1e-30
    found = Finding()
    found.where("there is no bound", ~(clip > 0) | np.isinf(clip))
    beyond = ~(clipped <= clip * (1.0 + _NORM_ROUNDING))
    found.where("a clipped norm exceeds the bound", beyond)
    longer = ~((norm >= 0.0) & (norm <= most))
    found.where("the sum is longer than its updates can make it", longer)
    found.where("more updates are clipped than summed", ~(number <= updates))
    if evidence.has("total_weight"):
        wrong = ~(np.abs(evidence["total_weight"] - updates) <= 1e-9 * np.maximum(1.0, updates))
        found.where("the weights do not add up to the number of updates", wrong)
    if inputs.configured.description.clips_to_bound:
        other = ~(np.abs(clipped - np.minimum(largest, clip)) <= _NORM_ROUNDING * clip)
        found.where("the largest clipped norm is not the largest norm, clipped", other)
        # Whether an update was beyond the bound is told by its norm and by the count alike.
        what = "the largest norm and the number of clipped updates contradict each other"
        found.where(what, (largest > clip) != (number > 0))
    share = float(np.nanmax(np.where(clip > 0, clipped / clip, np.nan), initial=0.0))
    total = float(np.nansum(updates))
    return found.seen(
        f"largest clipped norm {share:.9g} of the bound in {evidence.rounds} rounds; "
        f"{np.nansum(number):.0f} of {total:.0f} updates were clipped"
        f"{_bound_alone(inputs)}",
        largest_share=share,
        updates=total,
    )


@check(
    "clip_probe",
    "Clients, watched from outside the clipping code, move the sum by their clipped update: of all "
    "of a round (in huge models, of one chosen at random) the one furthest from it did. Nothing "
    "else moves the sum.",
)
def check_clip_probe(evidence: Evidence, inputs: AuditInputs) -> Finding:
    norm, moved, bit, clip, updates, watched = evidence.need(
        "probe.norm", "probe.moved", "probe.bit", "clip_norm", "num_contributions", "watched"
    )
    seen, between, found = ~np.isnan(bit), evidence["unseen"], Finding()
    # Of huge models one client is watched, and nothing between the clients.
    one = np.isnan(between)
    if not one.all():
        # One that is not recorded, where others are, was not finite.
        strayed = ~(between <= _SUM_ROUNDING * updates * clip)
        found.where("the sum moved while no client was taken in", strayed)
    missed = ~seen & (evidence["realised_cohort"] > 0)
    if not (seen | missed).any() and not found.problems:
        raise SkippedError("no client has taken part yet")
    # The sum is rounded to float32 in each element before and after: relative to its length, in L1
    # as in L2.
    slack = _NORM_ROUNDING * clip + _SUM_ROUNDING * updates * clip
    finite, reached = seen & ~np.isnan(norm), np.nan_to_num(moved, nan=math.inf)
    wanted, number = np.minimum(norm, clip), evidence.sent
    few = watched != np.where(one, np.minimum(1.0, watched), number)
    found.where("no client was watched", missed)
    found.where("not every client was watched", few)
    beyond = seen & ~(reached <= clip + slack)
    found.where("the watched client moved the sum beyond the bound", beyond)
    if inputs.configured.description.clips_to_bound:
        more = finite & ~(reached <= wanted + slack)
        found.where("the watched client moved the sum by more than its update", more)
        less = finite & (moved < wanted - slack)
        found.where("the watched client moved the sum by less than its clipped update", less)
    still = (moved == 0.0) & (bit == 0.0) & (evidence["num_nonfinite"] > 0)
    strange = "an update that was not finite moved the sum, or is not among those counted"
    found.where(strange, seen & np.isnan(norm) & ~still)
    if inputs.statement.get("count_noise_stddev") is not None:
        off = np.abs(bit - np.where(norm <= clip, 0.5, -0.5)) > 1e-9 * np.maximum(1.0, updates)
        found.where("the watched client moved the count by other than a half", finite & off)
    share = float(np.nanmax(np.where(finite, moved / clip, np.nan), initial=0.0))
    # How likely one client alone among those of a round is found.
    passed_over = np.nanprod(np.where(seen, 1.0 - np.minimum(1.0, watched / number), 1.0))
    chance = f"with probability {1.0 - passed_over:.3g}"
    power = f"a client beyond the bound, if each round has one, {chance}"
    is_all = seen.any() and bool((watched >= number)[seen].all())
    return found.seen(
        f"the client furthest from its clipped update in each of {int(seen.sum())} rounds, "
        f"{int((finite & (norm > clip)).sum())} of them beyond the bound; the most that one moved "
        f"the sum is {share:.7g} of it{_bound_alone(inputs)}"
        f"{'; every client was watched' if is_all else ''}",
        None if is_all else power,
        watched=int(seen.sum()),
        largest_share=share,
    )


def _bound_alone(inputs: AuditInputs) -> str:
    """That no more than the bound was checked, where that is so."""
    if inputs.configured.description.clips_to_bound:
        return ""
    return (
        f"; the bound alone was checked: {inputs.configured.mechanism} does not state that it "
        "clips to it"
    )


@check(
    "clip_path",
    "Each round's bound follows from the options and from released numbers alone; a released "
    "fraction is the noised sum of bits of a half over the configured cohort.",
)
def check_clip_path(evidence: Evidence, inputs: AuditInputs) -> Finding:
    """Each round's bound is the configured one, or follows from what the round before released.

    Source: Andrew et al. 2021, algorithm 1, the geometric update.
    """
    options, found = inputs.configured.mechanism_options, Finding()
    moves = "quantile" in options
    clip, *_ = evidence.need("clip_norm", *["noisy_fraction_unclipped"] * moves)
    kind = (inputs.statement.get("clip") or {}).get("kind")
    if kind not in _KNOWN_BOUNDS:
        raise SkippedError(f"how a bound of the kind {kind!r} moves is not known to the audit")
    if "clip_norm" not in options:
        raise SkippedError(f"the mechanism {inputs.configured.mechanism} has no option clip_norm")
    first = as_number(options["clip_norm"])
    found.add(
        not math.isclose(clip[0], first, rel_tol=1e-9),
        f"round 1 has the bound {clip[0]:.9g}, the options have {first:.9g}",
    )
    coming = np.full_like(clip, first)
    if moves:
        coming = _moved(clip, evidence["noisy_fraction_unclipped"], options)
    wrong = np.append(False, ~np.isclose(clip[1:], coming[:-1], rtol=1e-9, atol=0.0))
    found.where("the bound does not follow from the round before", wrong)
    saved = inputs.saved
    state = None if saved is None else saved.mechanism
    held = "no checkpoint holds the coming bound"
    if saved is not None and state and "clip_norm" in state and 0 <= saved.rounds <= len(clip):
        expected = first if saved.rounds == 0 else float(coming[saved.rounds - 1])
        recorded = as_number(state["clip_norm"])
        held = f"the checkpoint of round {saved.rounds} holds the next"
        found.add(
            not math.isclose(recorded, expected, rel_tol=1e-9),
            f"the checkpoint of round {saved.rounds} holds the bound {recorded:.9g}, but "
            f"{expected:.9g} follows from the ledger",
        )
    elif moves and state is not None:
        found.add(True, "the checkpoint has forgotten the coming bound")
    if inputs.statement.get("count_noise_stddev") is not None and evidence.has("noise"):
        _check_fraction(evidence, inputs, found)
    return found.seen(
        f"from {first:.6g} to {clip[-1]:.6g} in {evidence.rounds} rounds; {held}",
        first=float(clip[0]),
        last=float(clip[-1]),
    )


def _moved(clip: Array, fraction: Array, options: Mapping[str, Any]) -> Array:
    """Bound of the round after each, where it moves; shape (T,)."""
    rate, quantile = as_number(options["clip_learning_rate"]), as_number(options["quantile"])
    moved = np.log(clip) - rate * (fraction - quantile)
    return np.asarray(np.exp(np.clip(moved, math.log(_SMALLEST), math.log(_LARGEST))))


def _check_fraction(evidence: Evidence, inputs: AuditInputs, found: Finding) -> None:
    """The released fraction is the noised sum of bits of a half over the configured cohort."""
    fraction, stddev = evidence["noisy_fraction_unclipped"], evidence["count_noise_stddev"]
    updates, clipped = evidence["num_contributions"], evidence["num_clipped"]
    draw = np.where(stddev == 0.0, 0.0, evidence["noise.count_draw"])
    found.where("no fraction is released", np.isnan(fraction))
    found.where("the noise of the count was not seen", np.isnan(draw))
    cohort = inputs.configured.cohort_size
    expected = (updates / 2.0 - clipped + stddev * draw) / cohort + 0.5
    wrong = ~(np.abs(fraction - expected) <= 1e-9 * (1.0 + updates / cohort + np.abs(fraction)))
    found.where("the released fraction is not that of the counted updates", wrong)
