"""Did each user move the sum by no more than the bound, and is the bound the one accounted?

Guarantee: checked here is that one user's contribution, as it was seen from outside the clipping
code, is within the round's bound and is the update itself where that is within it already; that
nothing else moves the sum; that the bound of each round follows from the released number of the
round before; and that the counts agree with one another. Norms are in L1 where the mechanism clips
in L1. Every client of a round was seen, and the ledger keeps the one that is furthest from what the
bound allows. In models of more than ``privacy.sum_watch.WATCH_ALL`` parameters, and in the ledgers
of older versions, it was one client, chosen at random; the others are covered by chance alone and
by the norms that the clipping code reports, and what moves the sum between clients is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from privacy.audit.check import Check, in_rounds, judge, skip
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number

# Relative rounding of a clipped norm, and of a float32 sum of so many updates.
_NORM_ROUNDING = 1e-6
_SUM_ROUNDING = 2.0**-21
# Bounds that the mechanism keeps: both in powers of two, far from what training comes to.
_SMALLEST, _LARGEST = 2.0**-64, 2.0**64
# What `clip` says of a bound that is fixed, or follows a quantile.
_KNOWN_BOUNDS = ("fixed", "adaptive", "per_example")
_NO_LINE = "the ledger has no line yet"


def _beyond(wrong: Any) -> Any:
    return np.flatnonzero(wrong) + 1


def check_clip_bound(evidence: Evidence) -> Check:
    """No clipped norm exceeds the bound, nor the sum what so many updates can come to."""
    name, claim = "clip_bound", "Every update is clipped to the round's bound before it is summed."
    keys = ("clip_norm", "largest_clipped_norm", "largest_norm", "num_clipped", "num_contributions")
    reason = evidence.lacks(*keys, "sum_norm") or (None if evidence.rounds else _NO_LINE)
    if reason is not None:
        return skip(name, claim, reason)
    clip, clipped, largest, number, updates = (evidence[key] for key in keys)
    norm = evidence["sum_norm"]
    bound = clip * (1.0 + _NORM_ROUNDING)
    problems = in_rounds("there is no bound", _beyond(~(clip > 0) | np.isinf(clip)))
    problems += in_rounds("a clipped norm exceeds the bound", _beyond(~(clipped <= bound)))
    problems += in_rounds(
        "the sum is longer than its updates can make it",
        _beyond(~((norm >= 0.0) & (norm <= updates * clip * (1.0 + _SUM_ROUNDING) + 1e-30))),
    )
    problems += in_rounds(
        "the largest clipped norm is not the largest norm, clipped",
        _beyond(~(np.abs(clipped - np.minimum(largest, clip)) <= _NORM_ROUNDING * clip)),
    )
    # Whether an update was beyond the bound is told by its norm and by the count alike.
    problems += in_rounds(
        "the largest norm and the number of clipped updates contradict each other",
        _beyond((largest > clip) != (number > 0)),
    )
    problems += in_rounds("more updates are clipped than summed", _beyond(~(number <= updates)))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nanmax(np.where(clip > 0, clipped / clip, np.nan), initial=0.0)
    total = float(np.nansum(updates))
    return judge(
        name,
        claim,
        problems,
        f"largest clipped norm {share:.9g} of the bound in {evidence.rounds} rounds; "
        f"{np.nansum(number) / max(1.0, total):.3g} of {total:.0f} updates were clipped",
        {"largest_share": float(share), "updates": total},
    )


def check_clip_probe(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The client that was watched moved the sum by its update, cut to the bound, and no more."""
    name = "clip_probe"
    claim = (
        "Clients, watched from outside the clipping code, move the sum by their clipped update: of "
        "all of a round (in huge models, of one chosen at random) the one furthest from it did."
    )
    reason = evidence.lacks("probe", "clip_norm", "num_contributions")
    norm, moved, bit = (evidence[f"probe.{key}"] for key in ("norm", "moved", "bit"))
    seen = ~np.isnan(bit)
    missed = ~seen & (evidence["realised_cohort"] > 0)
    if reason is None and not (seen | missed).any():
        reason = "no client has taken part yet"
    if reason is not None:
        return skip(name, claim, reason)
    clip, updates = evidence["clip_norm"], evidence["num_contributions"]
    # The sum is rounded to float32 in each element before and after: relative to its length, in L1
    # as in L2.
    slack = _NORM_ROUNDING * clip + _SUM_ROUNDING * updates * clip
    finite = seen & ~np.isnan(norm)
    limit = np.minimum(norm, clip) + slack
    problems = in_rounds("no client was watched", _beyond(missed))
    problems += _unwatched(evidence)
    problems += in_rounds(
        "the watched client moved the sum beyond the bound",
        _beyond(seen & ~(np.nan_to_num(moved, nan=math.inf) <= clip + slack)),
    )
    problems += in_rounds(
        "the watched client moved the sum by more than its update",
        _beyond(finite & ~(np.nan_to_num(moved, nan=math.inf) <= limit)),
    )
    problems += in_rounds(
        "the watched client moved the sum by less than its clipped update",
        _beyond(finite & (moved < np.minimum(norm, clip) - slack)),
    )
    problems += in_rounds(
        "an update that was not finite moved the sum",
        _beyond(seen & np.isnan(norm) & ~((moved == 0.0) & (bit == 0.0))),
    )
    if inputs.statement.get("count_noise_stddev") is not None:
        wanted = np.where(norm <= clip, 0.5, -0.5)
        problems += in_rounds(
            "the watched client moved the count by other than a half",
            _beyond(finite & (np.abs(bit - wanted) > 1e-9 * np.maximum(1.0, updates))),
        )
    share = float(np.nanmax(np.where(finite, moved / clip, np.nan), initial=0.0))
    return judge(
        name,
        claim,
        problems,
        f"the client furthest from its clipped update in each of {int(seen.sum())} rounds, "
        f"{int((finite & (norm > clip)).sum())} of them beyond the bound; the most that one moved "
        f"the sum is {share:.7g} of it",
        {"watched": int(seen.sum()), "largest_share": share},
        _each(evidence, seen),
    )


def _unwatched(evidence: Evidence) -> list[str]:
    """Rounds in which some clients were watched, and others not."""
    watched = evidence["watched"]
    # Of huge models one client is watched, and nothing between the clients.
    wanted = np.where(np.isnan(evidence["unseen"]), np.minimum(1.0, watched), _sent(evidence))
    few = ~np.isnan(watched) & (watched != wanted)
    return in_rounds("not every client was watched", _beyond(few))


def _sent(evidence: Evidence) -> Any:
    """Updates of a round, those too that were not finite."""
    return evidence["num_contributions"] + evidence["num_nonfinite"]


def _each(evidence: Evidence, seen: Any) -> str:
    """How many clients were watched, and how likely one alone among them is found."""
    watched, sent = evidence["watched"], _sent(evidence)
    watched = np.where(
        np.isnan(watched), np.where(np.isnan(evidence["unseen"]), 1.0, sent), watched
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.nanprod(np.where(seen, 1.0 - np.minimum(1.0, watched / sent), 1.0))
    return f"one client in each round beyond the bound with probability {1.0 - missed:.3g}"


def check_sum_path(evidence: Evidence) -> Check:
    """The sum does not move while no client is taken in."""
    name, claim = "sum_path", "Nothing moves the sum but the clients that are taken in."
    moved = evidence["unseen"]
    reason = evidence.lacks("unseen", "clip_norm", "num_contributions") or (
        None if evidence.rounds else _NO_LINE
    )
    if reason is None and np.isnan(moved).all():
        reason = "not every client was watched, as in huge models: see clip_probe"
    if reason is not None:
        return skip(name, claim, reason)
    slack = _SUM_ROUNDING * evidence["num_contributions"] * evidence["clip_norm"]
    # One that is not recorded, where others are, was not finite.
    problems = in_rounds("the sum moved while no client was taken in", _beyond(~(moved <= slack)))
    share = float(np.nanmax(moved / evidence["clip_norm"], initial=0.0))
    text = f"moved by {share:.3g} of the bound at most, in {evidence.rounds} rounds"
    return judge(name, claim, problems, text, {"largest_share": share})


def check_clip_path(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Each round's bound is the configured one, or follows from what the round before released.

    Source: Andrew et al. 2021, algorithm 1, the geometric update.
    """
    name = "clip_path"
    claim = "Each round's bound follows from the options and from released numbers alone."
    options = inputs.configured.mechanism_options
    moves = "quantile" in options
    reason = evidence.lacks("clip_norm", *(["noisy_fraction_unclipped"] if moves else []))
    if reason is None and not evidence.rounds:
        reason = _NO_LINE
    kind = (inputs.statement.get("clip") or {}).get("kind")
    if reason is None and kind not in _KNOWN_BOUNDS:
        reason = f"how a bound of the kind {kind!r} moves is not known to the audit"
    if reason is None and "clip_norm" not in options:
        reason = f"the mechanism {inputs.configured.mechanism} has no option clip_norm"
    if reason is not None:
        return skip(name, claim, reason)
    clip, fraction = evidence["clip_norm"], evidence["noisy_fraction_unclipped"]
    first = as_number(options["clip_norm"])
    problems = []
    if not math.isclose(clip[0], first, rel_tol=1e-9):
        problems.append(f"round 1 has the bound {clip[0]:.9g}, the options have {first:.9g}")
    following = _worker_loop(clip, fraction, options)
    wrong = ~np.isclose(clip[1:], following[:-1], rtol=1e-9, atol=0.0)
    problems += in_rounds("the bound does not follow from the round before", _beyond(wrong) + 1)
    saved = inputs.saved
    state = None if saved is None else saved.mechanism
    held = "no checkpoint holds the coming bound"
    if saved is not None and state and "clip_norm" in state and 0 <= saved.rounds <= len(clip):
        expected = first if saved.rounds == 0 else float(following[saved.rounds - 1])
        found = as_number(state["clip_norm"])
        held = f"the checkpoint of round {saved.rounds} holds the next"
        if not math.isclose(found, expected, rel_tol=1e-9):
            problems.append(
                f"the checkpoint of round {saved.rounds} holds the bound {found:.9g}, but "
                f"{expected:.9g} follows from the ledger"
            )
    elif moves and state is not None:
        problems.append("the checkpoint has forgotten the coming bound")
    return judge(
        name,
        claim,
        problems,
        f"from {first:.6g} to {clip[-1]:.6g} in {evidence.rounds} rounds; {held}",
        {"first": float(clip[0]), "last": float(clip[-1])},
    )


def _worker_loop(clip: Any, fraction: Any, options: Mapping[str, Any]) -> Any:
    """Bound of the round after each; shape (T,)."""
    if "quantile" not in options:
        return np.full_like(clip, as_number(options["clip_norm"]))
    rate, quantile = as_number(options["clip_learning_rate"]), as_number(options["quantile"])
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = np.log(clip) - rate * (fraction - quantile)
    return np.exp(np.clip(moved, math.log(_SMALLEST), math.log(_LARGEST)))


def check_count_query(evidence: Evidence, inputs: AuditInputs) -> Check:
    """The released fraction is that of the clipped updates, noised, over the configured cohort."""
    name = "count_query"
    claim = "The released fraction is the noised sum of bits of a half over the configured cohort."
    if inputs.statement.get("count_noise_stddev") is None:
        return skip(name, claim, "no fraction is released")
    keys = ("noisy_fraction_unclipped", "num_contributions", "num_clipped", "count_noise_stddev")
    reason = evidence.lacks(*keys, "noise") or (None if evidence.rounds else _NO_LINE)
    if reason is not None:
        return skip(name, claim, reason)
    fraction, updates, clipped, stddev = (evidence[key] for key in keys)
    problems = in_rounds("no fraction is released", _beyond(np.isnan(fraction)))
    draw = np.where(stddev > 0, evidence["noise.count_draw"], 0.0)
    problems += in_rounds("the noise of the count was not seen", _beyond(np.isnan(draw)))
    cohort = inputs.configured.cohort_size
    expected = (updates / 2.0 - clipped + stddev * draw) / cohort + 0.5
    error = np.abs(fraction - expected)
    bound = 1e-9 * (1.0 + updates / cohort + np.abs(fraction))
    problems += in_rounds(
        "the released fraction is not that of the counted updates", _beyond(error > bound)
    )
    span = f"{np.nanmin(fraction):.4g} to {np.nanmax(fraction):.4g}"
    return judge(name, claim, problems, f"{evidence.rounds} fractions, from {span}")
