"""Does anything reach the server beside the noised sum of equally weighted updates?

Guarantee: checked here is that every user weighs 1, that clients send their update and nothing
else, that no layer gathers statistics of users' data outside of it, that no release was made twice,
and that no attack on the run showed more than its epsilon allows.
"""

from __future__ import annotations

import math

import numpy as np

from privacy.audit.check import Check, in_rounds, judge, lack, skip
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number

# Of the squares: norms are added up in float32.
_OF_LENGTH = 1e-3
_NO_LINE = "the ledger has no line yet"


def check_weights(evidence: Evidence) -> Check:
    """Every user weighs the same."""
    name, claim = "weights", "Every user weighs 1, however many examples the user has."
    reason = evidence.lacks("total_weight", "num_contributions") or (
        None if evidence.rounds else _NO_LINE
    )
    if reason is not None:
        return skip(name, claim, reason)
    weighting = evidence.constants.get("weighting")
    problems = [] if weighting == "uniform" else [f"weighting is {weighting!r}"]
    weight, updates = evidence["total_weight"], evidence["num_contributions"]
    problems += in_rounds(
        "the weights do not add up to the number of updates",
        np.flatnonzero(~(np.abs(weight - updates) <= 1e-9 * np.maximum(1.0, updates))) + 1,
    )
    total = f"{np.nansum(weight):g} of {np.nansum(updates):g} updates"
    return judge(name, claim, problems, f"weighting {weighting}; total weight {total}")


def check_uploads(evidence: Evidence) -> Check:
    """Clients send the update alone."""
    name, claim = (
        "uploads",
        "Clients send their update, which is clipped and noised, and nothing else.",
    )
    reason = None if evidence.rounds else _NO_LINE
    if reason is None and "uploads" not in evidence.constants:
        reason = "the ledger does not record what clients send"
    if reason is not None:
        return skip(name, claim, reason)
    uploads = evidence.constants["uploads"]
    others = [upload for upload in uploads if upload != "update"] if uploads else ["nothing"]
    problems = [] if uploads == ["update"] else [f"clients send {', '.join(map(str, others))} too"]
    return judge(name, claim, problems, f"clients send: {', '.join(map(str, uploads or ['-']))}")


def check_batchnorm(evidence: Evidence, inputs: AuditInputs) -> Check:
    """No layer gathers running statistics of users' data."""
    name = "batchnorm"
    claim = "No layer gathers statistics of users' data that would leave them without noise."
    recorded, built = evidence.constants.get("batchnorm_layers"), inputs.data.batchnorm_layers
    if recorded is None and built is None:
        return skip(name, claim, f"the ledger does not record it, and {inputs.data.why_absent}")
    problems, seen = [], []
    for where, layers in (("the ledger", recorded), ("the model as built today", built)):
        if layers is not None:
            seen.append(where)
            if layers:
                problems.append(f"{where} has {', '.join(map(str, layers))}")
    text = f"none in {' and '.join(seen)}" if not problems else " and ".join(seen)
    if built is None:
        text += f"; the model was not built: {inputs.data.why_absent}"
    return judge(name, claim, problems, text)


def check_releases(evidence: Evidence, inputs: AuditInputs) -> Check:
    """No two rounds released the same numbers."""
    name, claim = "releases", "Each round releases a vector of its own."
    if not inputs.claims_noise:
        return skip(name, claim, "without noise, rounds may well release the same")
    if evidence.rounds < 2:
        return skip(name, claim, "fewer than two rounds are recorded")
    order = np.argsort(evidence.releases, kind="stable")
    ordered = evidence.releases[order]
    again = np.sort(order[1:][ordered[1:] == ordered[:-1]]) + 1
    problems = in_rounds("the release is that of an earlier round", again)
    return judge(name, claim, problems, f"{evidence.rounds} releases, compared by their digests")


def check_release_length(evidence: Evidence, inputs: AuditInputs) -> Check:
    """Each release is as long as the recorded sum and noise make it."""
    name = "release_length"
    claim = "Each release is as long as the recorded sum and the noise of the claimed size make it."
    reason = evidence.lacks("noise", "sum_norm", "update_noise_stddev") or (
        None if evidence.rounds else _NO_LINE
    )
    if reason is None and not inputs.claims_noise:
        reason = "no noise is claimed"
    if reason is None and inputs.configured.description.norm == "l1":
        reason = "the sum's recorded norm is that of the bound, L1, which says little of the length"
    if reason is not None:
        return skip(name, claim, reason)
    if evidence.central.missing == evidence.rounds:
        reason = "the ledger does not record the releases: it was written by another version"
        return lack(name, claim, reason)
    stddev, length = evidence["update_noise_stddev"], evidence["sum_norm"]
    # By the squares of the sum and of the noise, and twice their product.
    squares = length**2 + stddev**2 * evidence["noise.sum_squares"]
    expected = squares + 2.0 * stddev * evidence["noise.dot_sum"] * length
    divisor = as_number(evidence.constants.get("denominator"))
    found = (evidence.central.sketches("release").norm * divisor) ** 2
    seen = np.isfinite(found) & np.isfinite(expected)
    wrong = seen & ~(np.abs(found - expected) <= _OF_LENGTH * squares)
    problems = in_rounds(
        "the release is not as long as sum and noise make it", np.flatnonzero(wrong) + 1
    )
    return judge(name, claim, problems, f"squared lengths of {int(seen.sum())} releases")


def check_canaries(inputs: AuditInputs) -> Check:
    """What an attack on the run's canaries showed is not more than epsilon allows."""
    name = "canaries"
    claim = (
        "The lower bound of epsilon that an attack on canaries shows is not above the stated one."
    )
    canaries = inputs.canaries
    if canaries is None:
        return skip(name, claim, "the run has no canaries; privacy.audit adds them")
    lower = as_number(canaries.get("lower_bound"))
    upper = as_number(inputs.side("actual").get("epsilon"))
    confidence = as_number(canaries.get("confidence", 0.95))
    if math.isnan(lower):
        return judge(name, claim, ["canaries.json has no lower_bound"], "canaries.json")
    problems = [] if lower <= upper else [f"{lower:.4g} was shown, {upper:.4g} (actual) is stated"]
    text = (
        f"{canaries.get('kind', 'canaries')}: epsilon is at least {lower:.4g}, the lower end of a "
        f"two-sided interval at {confidence:.0%}; at most {upper:.4g} (actual) is stated"
    )
    return judge(name, claim, problems, text, {"lower": lower, "upper": upper})
