"""Do the recorded cohorts keep what the scheme promises of one user?

Guarantee: checked here is that no user was drawn twice in a round, that contributions are those of
the users drawn, and that no user was in more rounds, nor in rounds nearer together, than is
accounted. A line has the most rounds that a user of it has been in, and the fewest rounds since one
of them was last in: over all lines, the largest count and the smallest distance of any user. Who
the users are is for ``cohort_replay``, which draws them again by the definition of the scheme.
"""

from __future__ import annotations

import numpy as np

from privacy.audit.check import Finding, check
from privacy.audit.described import own_users
from privacy.audit.evidence import Evidence
from privacy.audit.inputs import AuditInputs, as_number


@check(
    "users_distinct",
    "No user is in a round twice, and every contribution is that of a user who was drawn.",
)
def check_users_distinct(evidence: Evidence, inputs: AuditInputs) -> Finding:
    cohort, distinct, _, not_finite = evidence.need(
        "realised_cohort", "distinct_users", "num_contributions", "num_nonfinite"
    )
    canaries, found = np.nan_to_num(evidence["num_canaries"]), Finding()
    found.where("a user is drawn twice", distinct != cohort)
    found.where("the updates are not those of the users drawn", evidence.sent != cohort + canaries)
    if evidence.has_digests:
        others = evidence.all_digests("users") != evidence.all_digests("trained")
        found.where("the updates are those of other users than were drawn", others)
    text = f"{int(np.nansum(cohort))} draws, all distinct in their round; "
    text += f"{int(np.nansum(not_finite))} were not finite"
    if not evidence.has_digests:
        text += "; whose updates came in is not recorded"
    if canaries.any():
        text += f"; {int(canaries.sum())} contributions are canaries'"
    return found.seen(text)


@check(
    "participation",
    "No user is in more rounds, nor in rounds nearer together, than is accounted.",
)
def check_participation(evidence: Evidence, inputs: AuditInputs) -> Finding:
    returning, gap, counts = evidence.need("returning", "smallest_gap", "largest_count")
    constants, found = evidence.constants, Finding()
    scheme, own = str(constants.get("sampling")), own_users(constants)
    separation = evidence.constant("separation", default=1)
    pattern = {"cyclic_poisson": "groups", "selected": "separated"}.get(scheme, "none")
    pattern = pattern if own is None else own.scheme.pattern
    again = ~np.isnan(gap)
    whole = (returning >= 0) & (returning == np.floor(returning)) & ((returning > 0) == again)
    found.where("who was in before, and when, contradict each other", ~whole)
    text = "any rounds of one user are accounted"
    if pattern != "none":
        near = again & ~(gap >= separation)
        found.where(f"a user was in a round less than {separation:g} before", near)
        text = f"separation {separation:g}"
    if pattern == "groups":
        odd = again & ~near & (gap % separation != 0)
        found.where("a user of another group takes part", odd)
    if pattern == "separated":
        cap = constants.get("max_participations")
        number = np.arange(1, evidence.rounds + 1)
        most = np.minimum(np.inf if cap is None else as_number(cap), -(-number // separation))
        allowed = "separation allows" if cap is None else cap
        found.where(f"a user is there more often than {allowed}", ~(counts <= most))
        text += f", {int(most[-1])} rounds at most"
    least, count = float(np.nanmin(gap)) if again.any() else None, float(np.nanmax(counts))
    apart = "nobody in two" if least is None else f"nor in two less than {least:g} apart"
    return found.seen(
        f"nobody in more than {count:g} of {evidence.rounds} rounds, {apart}; accounted: {text}",
        largest_count=count,
        smallest_gap=least,
        separation=separation,
    )
