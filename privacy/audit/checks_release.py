"""Does anything reach the server beside the noised sum of equally weighted updates?

Guarantee: checked here is that every user weighs 1, that clients send their update and nothing
else, that no layer gathers statistics of users' data outside of it, that no release was made twice,
and that no attack on the run showed more than its epsilon allows.

A run whose shadow runs do what they claim fails ``attacks`` with probability 1 less the attack's
confidence at most (``privacy.empirical.membership``), which is far more than other checks': the
attack was asked for. What was attacked are shadow runs of the run's own settings, not the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from privacy.audit.check import Finding, check
from privacy.audit.errors import IncompleteError, SkippedError
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number

# Of the squares: norms are added up in float32.
_OF_LENGTH = 1e-3
# In standard deviations, or squares of them.
_NOTHING = 1e-3


@check("weights", "Every user weighs 1, however many examples the user has.")
def check_weights(evidence: Evidence, inputs: AuditInputs) -> Finding:
    weight, updates = evidence.need("total_weight", "num_contributions")
    weighting, found = evidence.constants.get("weighting"), Finding()
    found.add(weighting != "uniform", f"weighting is {weighting!r}")
    wrong = ~(np.abs(weight - updates) <= 1e-9 * np.maximum(1.0, updates))
    found.where("the weights do not add up to the number of updates", wrong)
    total = f"{np.nansum(weight):g} of {np.nansum(updates):g} updates"
    return found.seen(f"weighting {weighting}; total weight {total}")


@check("uploads", "Clients send their update, which is clipped and noised, and nothing else.")
def check_uploads(evidence: Evidence, inputs: AuditInputs) -> Finding:
    evidence.need_lines()
    if "uploads" not in evidence.constants:
        raise SkippedError("the ledger does not record what clients send")
    uploads, found = [str(upload) for upload in evidence.constants["uploads"]], Finding()
    others = [upload for upload in uploads if upload != "update"] if uploads else ["nothing"]
    found.add(uploads != ["update"], f"clients send {', '.join(others)} too")
    return found.seen(f"clients send: {', '.join(uploads or ['-'])}")


@check(
    "batchnorm", "No layer gathers statistics of users' data that would leave them without noise."
)
def check_batchnorm(evidence: Evidence, inputs: AuditInputs) -> Finding:
    recorded, built = evidence.constants.get("batchnorm_layers"), inputs.data.batchnorm_layers
    if recorded is None and built is None:
        raise SkippedError(f"the ledger does not record it, and {inputs.data.why_absent}")
    known = {"the ledger": recorded, "the model as built today": built}
    known = {where: layers for where, layers in known.items() if layers is not None}
    found = Finding(
        [f"{where} has {', '.join(map(str, layers))}" for where, layers in known.items() if layers]
    )
    text = ("" if found.problems else "none in ") + " and ".join(known)
    if built is None:
        text += f"; the model was not built: {inputs.data.why_absent}"
    return found.seen(text)


@check("releases", "Each round releases a vector of its own, with noise of its own.")
def check_releases(evidence: Evidence, inputs: AuditInputs) -> Finding:
    if not inputs.claims_noise:
        raise SkippedError("without noise, rounds may well release the same")
    if evidence.rounds < 2:
        raise SkippedError("fewer than two rounds are recorded")
    _, first = np.unique(evidence.central.digests("release"), axis=0, return_index=True)
    again, found = np.setdiff1d(np.arange(evidence.rounds), first), Finding()
    if inputs.configured.description.randomizes_clients:
        # The noise is in the reports: where nobody sent one, zeros are released.
        again = again[evidence.sent[again] > 0]
    found.in_rounds("the release is that of an earlier round", again + 1)
    text = f"{evidence.rounds} releases, compared by their digests"
    if evidence.has("noise.head") and not inputs.configured.description.randomizes_clients:
        heads, count = evidence["noise.head"], evidence["noise.count"]
        # A few elements may all be small, or near to others', by chance.
        is_seen = (evidence["noise.rounding"] < _NOTHING / 8.0) & (count >= 2 * heads.shape[1])
        bare = is_seen & (evidence["noise.sum_squares"] < _NOTHING * count)
        found.where("noise is claimed, but the release has none", bare)
        at = np.flatnonzero(is_seen & ~bare)
        at = at[np.lexsort(heads[at].T[::-1])]
        is_again = (np.abs(np.diff(heads[at], axis=0)) < _NOTHING).all(axis=1)
        found.in_rounds("the noise begins as that of another round", np.sort(at[1:][is_again]) + 1)
        text += " and by the first elements of their noise"
    return found.seen(text)


@check(
    "release_length",
    "Each release is as long as the recorded sum and the noise of the claimed size make it.",
)
def check_release_length(evidence: Evidence, inputs: AuditInputs) -> Finding:
    length, stddev, noise, dot = evidence.need(
        "sum_norm", "update_noise_stddev", "noise.sum_squares", "noise.dot_sum"
    )
    if not inputs.claims_noise:
        raise SkippedError("no noise is claimed")
    norm_of_bound = inputs.configured.description.norm
    if norm_of_bound != "l2":
        raise SkippedError(
            f"the sum's recorded norm is that of the bound, {norm_of_bound}, which says little of "
            "the length"
        )
    if evidence.central.missing == evidence.rounds:
        raise IncompleteError(
            "the ledger does not record the releases: it was written by another version"
        )
    # By the squares of the sum and of the noise, and twice their product.
    squares = length**2 + stddev**2 * noise
    expected = squares + 2.0 * stddev * dot * length
    norm, divisor = evidence.central.sketches("release").norm, evidence.constant("denominator")
    release, found = (norm * divisor) ** 2, Finding()
    seen = np.isfinite(release) & np.isfinite(expected)
    wrong = seen & ~(np.abs(release - expected) <= _OF_LENGTH * squares)
    found.where("the release is not as long as sum and noise make it", wrong)
    return found.seen(f"squared lengths of {int(seen.sum())} releases")


@check(
    "canaries",
    "The lower bound of epsilon that an attack on canaries shows is not above the stated one.",
)
def check_canaries(evidence: Evidence, inputs: AuditInputs) -> Finding:
    canaries, found = inputs.canaries, Finding()
    if canaries is None:
        raise SkippedError("the run has no canaries; privacy.audit adds them")
    lower = as_number(canaries.get("lower_bound"))
    upper = as_number(inputs.side("actual").get("epsilon"))
    if math.isnan(lower):
        return Finding(["canaries.json has no lower_bound"]).seen("canaries.json")
    found.add(not lower <= upper, f"{lower:.4g} was shown, {upper:.4g} (actual) is stated")
    confidence = as_number(canaries.get("confidence", 0.95))
    return found.seen(
        f"{canaries.get('kind', 'canaries')}: epsilon is at least {lower:.4g}, the lower end of a "
        f"two-sided interval at {confidence:.0%}; at most {upper:.4g} (actual) is stated",
        lower=lower,
        upper=upper,
    )


@check(
    "attacks",
    "Attacks on the membership of real users show no more than the claim allows.",
)
def check_attacks(evidence: Evidence, inputs: AuditInputs) -> Finding:
    found, seen = Finding(), []
    upper = as_number(inputs.side("actual").get("epsilon"))
    for kind, one in (inputs.attacks or {}).items():
        verdict = one.get("verdict") if isinstance(one, Mapping) else None
        if not isinstance(verdict, Mapping) or "refuted" not in verdict:
            found.add(True, f"attack.json has no verdict of {kind}")
            continue
        seen.append(_described(kind, one, verdict))
        found.add(
            verdict["refuted"] is True,
            f"{kind}: {verdict.get('num_correct')} of {_guesses(verdict)} guesses about users are "
            f"right, wealth of bets {as_number(verdict.get('wealth')):.4g}; more than epsilon "
            f"{upper:.4g} (actual) allows",
        )
        lower = as_number(verdict.get("epsilon"))
        found.add(not lower <= upper, f"{kind}: {lower:.4g} was shown, {upper:.4g} is stated")
    return found.seen("; ".join(seen) or "attack.json")


def _guesses(verdict: Mapping[str, Any]) -> int:
    guesses = verdict.get("guesses")
    return sum(guesses.values()) if isinstance(guesses, Mapping) else 0


def _described(kind: str, one: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    judged = "the claim was not tested" if verdict["refuted"] is None else "within the claim"
    if verdict["refuted"]:
        judged = "above the claim"
    return (
        f"{kind} on {one.get('users')} users of {one.get('shadows')} shadow runs: area under the "
        f"ROC curve {as_number(one.get('auc')):.3f}, {judged}"
    )
