"""Is each release one of its own, and does it show no more than is claimed?

Guarantee: checked here is that no release was made twice, that each is as long as the recorded sum
and noise make it, and that no attack on the run showed more than its epsilon allows.

A run whose shadow runs do what they claim fails ``attacks`` with probability 1 less the attack's
confidence at most (``privacy.empirical.membership``), which is far more than other checks': the
attack was asked for. What was attacked are shadow runs of the run's own settings, not the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from privacy.audit.check import Finding, check
from privacy.audit.described import users_of
from privacy.audit.evidence import STRIPPED, Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import AuditInputs, as_number, json_equal
from privacy.empirical.canary_options import CanaryOptions
from privacy.empirical.canary_scores import Compose, one_shot_rests_on, step_bounds
from privacy.empirical.f_dp import ComposedFamily
from privacy.empirical.gaussian_dp import Normal
from privacy.empirical.membership import NUM_KINDS, folds_of
from privacy.empirical.one_run import Guesses, epsilon_lower_bound, guess_grid
from privacy.empirical.one_run_scores import guess_bounds, sums_rest_on
from privacy.empirical.one_shot import audit_final, audit_held_out
from privacy.empirical.per_round import StepTrials
from privacy.statement.statement import round_down, round_up

# Of the squares: norms are added up in float32.
_OF_LENGTH = 1e-3
# In standard deviations, or squares of them.
_NOTHING = 1e-3
# Of a number: other versions of libraries round otherwise, far less than this.
_TOLERANCE = 1e-3


@check(
    "releases",
    "Each round releases a vector of its own, with noise of its own, as long as the recorded sum "
    "and the noise of the claimed size make it.",
)
def check_releases(evidence: Evidence, inputs: AuditInputs) -> Finding:
    if not inputs.claims_noise:
        raise SkippedError("without noise, rounds may well release the same")
    evidence.need_lines()
    _, first = np.unique(evidence.all_digests("release"), return_index=True)
    again, found = np.setdiff1d(np.arange(evidence.rounds), first), Finding()
    if inputs.configured.description.randomizes_clients:
        # The noise is in the reports: where nobody sent one, zeros are released.
        again = again[evidence.sent[again] > 0]
    found.in_rounds("the release is that of an earlier round", again + 1)
    text = f"{evidence.rounds} releases, compared by their digests"
    if evidence.has("noise") and not inputs.configured.description.randomizes_clients:
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
    # Another norm of the sum says little of a length.
    if evidence.has("noise", "sum_norm") and inputs.configured.description.norm == "l2":
        if not found.problems:
            evidence.need_digests()
        text += f"; squared lengths of {_compare_lengths(evidence, found)} of them"
    numbers = evidence["noise.rounding"] + evidence["noise.dot_sum"]
    unknown = evidence.has_noise & np.isfinite(evidence["release.norm"]) & np.isnan(numbers)
    if unknown.any() and not found.problems:
        what = f"noise.rounding or noise.dot_sum of {int(unknown.sum())} rounds"
        raise IncompleteError(f"the ledger does not record {what}{STRIPPED}")
    return found.seen(text)


def _compare_lengths(evidence: Evidence, found: Finding) -> int:
    """Hold each release's length against those of sum and noise; gives how many there were."""
    length, stddev = evidence["sum_norm"], evidence["update_noise_stddev"]
    # By the squares of the sum and of the noise, and twice their product.
    squares = length**2 + stddev**2 * evidence["noise.sum_squares"]
    expected = squares + 2.0 * stddev * evidence["noise.dot_sum"] * length
    norm, divisor = evidence["release.norm"], evidence.constant("denominator")
    release = (norm * divisor) ** 2
    seen = np.isfinite(release) & np.isfinite(expected)
    wrong = seen & ~(np.abs(release - expected) <= _OF_LENGTH * squares)
    found.where("the release is not as long as sum and noise make it", wrong)
    # Of the unit vector along the sum: no product is beyond the length of the noise itself.
    most = np.sqrt(evidence["noise.sum_squares"]) * (1.0 + _OF_LENGTH)
    beyond = seen & (np.abs(evidence["noise.dot_sum"]) > most)
    found.where("the noise is longer along the sum than it is", beyond)
    return int(seen.sum())


@check(
    "canaries",
    "The lower bound of epsilon that an attack on canaries shows is what its scores and guesses "
    "come to, and not above the stated one.",
)
def check_canaries(evidence: Evidence, inputs: AuditInputs) -> Finding:
    canaries, found = inputs.canaries, Finding()
    if canaries is None and inputs.configured.canaries is not None and inputs.is_final:
        raise IncompleteError("canaries.json is missing: it would show what the canaries found")
    if canaries is None:
        raise SkippedError("the run has no canaries; privacy.audit adds them")
    lower = as_number(canaries.get("lower_bound"))
    upper = as_number(inputs.side("actual").get("epsilon"))
    if math.isnan(lower):
        return Finding(["canaries.json has no lower_bound"]).seen("canaries.json")
    least, most = round_down(lower, 4), f"{round_up(upper, 4)} (actual)"
    found.add(not lower <= upper, f"{least} was shown, {most} is stated")
    made_anew = _compare_bounds(canaries, evidence, inputs, found)
    confidence = as_number(canaries.get("confidence", 0.95))
    return found.seen(
        f"{canaries.get('kind', 'canaries')}: epsilon is at least {least}, the lower end of a "
        f"two-sided interval at {confidence:.0%}; at most {most} is stated; {made_anew}",
        lower=lower,
        upper=upper,
    )


def _compare_bounds(
    canaries: Mapping[str, Any], evidence: Evidence, inputs: AuditInputs, found: Finding
) -> str:
    """Hold the numbers of ``canaries.json`` against what they come to; says what was computed."""
    options, constants = inputs.configured.canaries, evidence.constants
    if options is None:
        found.problems.append("canaries.json is there, but the configuration asks for no canaries")
    if options is None or not evidence.rounds:
        return "its bounds were not computed anew"
    sides: dict[str, Any] = {
        "rounds": evidence.rounds,
        "delta": as_number(inputs.side("actual").get("delta")),
        "upper_bound": inputs.side("actual").get("epsilon"),
        "sampling": constants.get("sampling"),
    }
    configured = inputs.configured
    try:
        rule = (configured.mechanism, configured.mechanism_options)
        compose = partial(inputs.composition, *rule, users_of(constants, "actual"))
        own = canary_bounds(canaries, options, int(evidence.constant("num_parameters")), compose)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        found.problems.append(f"canaries.json is damaged: {error} ({type(error).__name__})")
        return "its bounds were not computed anew"
    found.problems += differing(canaries, sides | own, "canaries.json")
    if "lower_bound" not in own:
        return "its guesses were counted anew (the sums of its bound are in no file)"
    return "computed anew from its scores or trials"


@check(
    "attacks",
    "Attacks on the membership of real users show no more than the claim allows, by guesses that "
    "come to the bounds that are recorded.",
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
        try:
            own = attack_bounds(kind, one)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            what = f"{error} ({type(error).__name__})"
            found.problems.append(f"attack.json is damaged: the verdict of {kind}: {what}")
            continue
        found.problems += differing(verdict, own, f"attack.json, {kind}")
        guesses = verdict.get("guesses")
        total = sum(guesses.values()) if isinstance(guesses, Mapping) else 0
        found.add(
            verdict["refuted"] is True,
            f"{kind}: {verdict.get('num_correct')} of {total} guesses about users are "
            f"right, wealth of bets {as_number(verdict.get('wealth')):.4g}; more than epsilon "
            f"{round_up(upper, 4)} (actual) allows",
        )
        lower = as_number(verdict.get("epsilon"))
        least, most = round_down(lower, 4), round_up(upper, 4)
        found.add(not lower <= upper, f"{kind}: {least} was shown, {most} is stated")
    return found.seen("; ".join(seen) or "attack.json")


def _described(kind: str, one: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    judged = "the claim was not tested" if verdict["refuted"] is None else "within the claim"
    if verdict["refuted"]:
        judged = "above the claim"
    return (
        f"{kind} on {one.get('users')} users of {one.get('shadows')} shadow runs: area under the "
        f"ROC curve {as_number(one.get('auc')):.3f}, {judged}"
    )


def canary_bounds(
    recorded: Mapping[str, Any], options: CanaryOptions, num_parameters: int, compose: Compose
) -> dict[str, Any]:
    """Settings and numbers of ``canaries.json``, by name, as the options and the rest of it say.

    KeyError, TypeError or ValueError if the file is damaged; IncompleteError if rounds were
    released, but it says that no canary has a score.
    """
    settings: dict[str, Any] = {
        "kind": options.kind,
        "count": options.count,
        "direction": options.seen_direction,
        "access": options.seen_access,
        "confidence": options.confidence,
    }
    rounds, delta = int(recorded["rounds"]), as_number(recorded["delta"])
    knows = options.seen_access == "every_round" and options.kind != "one_shot"
    settings["knows_others"] = knows and rounds > 0
    if recorded["method"] == "none":
        if rounds:
            raise IncompleteError("canaries.json has no scores: what they show is not known")
        return settings | {"lower_bound": 0.0, "estimate": None, "scores": None}
    if options.kind == "worst_case":
        trials = StepTrials(**recorded["trials"])
        if trials.num_in + trials.num_out != rounds * options.count:
            raise ValueError(
                f"its trials are not those of {options.count} canaries in {rounds} rounds"
            )
        found = step_bounds(trials, options, rounds, delta, compose)
        return settings | found
    scores = np.array(recorded["scores"], dtype=np.float64)
    if scores.shape != (options.count,):
        raise ValueError(f"it has {scores.size} scores of {options.count} canaries")
    if options.kind == "one_shot":
        settings["rests_on"] = one_shot_rests_on(options)
        if options.seen_access == "final":
            bound = audit_final(scores, num_parameters, delta, options.one_sided)
        else:
            # Of held-out scores only number, mean and spread count: any that have these will do.
            null = Normal(**recorded["null_law"])
            ramp = np.arange(options.count, dtype=np.float64)
            held_out = null.mean + null.stddev * (ramp - ramp.mean()) / ramp.std(ddof=1)
            bound = audit_held_out(scores, held_out, delta, options.one_sided)
        return settings | bound.to_json_dict()
    included = np.array(recorded["included"], dtype=np.bool_)
    found = guess_bounds(scores, included, options, delta, ComposedFamily(compose, rounds))
    order, guesses = sorted(range(len(scores)), key=scores.__getitem__), found["guesses"]
    right = sum(bool(included[place]) for place in order[len(order) - guesses["most_in"] :])
    right += sum(not included[place] for place in order[: guesses["least_out"]])
    found["num_correct"] = right
    if options.bound != "f_dp":
        # The other two bounds rest on sums.
        del found["lower_bound"]
        found |= {"method": f"one_run_{options.bound}", "rests_on": sums_rest_on(options.bound)}
    return settings | found


def differing(stated: Mapping[str, Any], own: Mapping[str, Any], place: str) -> Iterator[str]:
    """Clauses that name each number of a file that is not what it comes to."""
    for name, value in own.items():
        if not _is_near(stated.get(name), value):
            yield f"{place}: {name} is {stated.get(name)!r:.60}, but comes to {value!r:.60}"


def _is_near(stated: Any, own: Any) -> bool:
    if isinstance(stated, Mapping) and isinstance(own, Mapping):
        return set(stated) == set(own) and all(_is_near(stated[key], own[key]) for key in own)
    if not isinstance(own, float):
        return json_equal(stated, own)
    return math.isclose(as_number(stated), own, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2)


def attack_bounds(kind: str, attack: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of an attack's verdict in ``attack.json``, by name, as its guesses come to.

    Empty of an attack that refutes the claim, whose guesses are of another test. KeyError,
    TypeError or ValueError if the file is damaged.
    """
    verdict = attack["verdict"]
    limit = 2.0 * NUM_KINDS / (1.0 - as_number(verdict["confidence"]))
    refuted = verdict["wealth"] is not None and as_number(verdict["wealth"]) >= limit
    if verdict["refuted"] and not refuted:
        return {}
    folds = 1 if kind == "loss" else len(folds_of(int(attack["shadows"])))
    users, guesses = int(verdict["num_users"]), Guesses(**verdict["guesses"])
    level = 1.0 / (limit * folds * len(guess_grid(users)))
    delta = as_number(attack["claim"]["delta"])
    epsilon = epsilon_lower_bound(
        users, guesses.total, int(verdict["num_correct"]), delta, 1.0 - level
    )
    found: dict[str, Any] = {"wealth_limit": limit}
    if refuted:
        return found | {"refuted": True}
    return found | {"epsilon": epsilon}
