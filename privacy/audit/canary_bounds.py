"""Bounds of canaries and of attacks on users, made anew from the scores and guesses on file.

Guarantee: what is recorded as a bound is what the recorded scores, coins and trials come to, by the
options that the run was configured with. Right guesses are counted here, apart from the code that
wrote them; of the bounds themselves this is the one implementation. Not made anew: the scores, and
the sums that the bounds "independent" and "gaussian" rest on, which no file has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from privacy.audit.errors import IncompleteError
from privacy.audit.inputs import as_number, json_equal
from privacy.empirical.canary_options import CanaryOptions
from privacy.empirical.canary_scores import Compose, one_shot_rests_on, step_bounds
from privacy.empirical.f_dp import ComposedFamily
from privacy.empirical.gaussian_dp import Normal
from privacy.empirical.membership import NUM_KINDS, folds_of
from privacy.empirical.one_run import Guesses, epsilon_lower_bound, guess_grid
from privacy.empirical.one_run_scores import guess_bounds, sums_rest_on
from privacy.empirical.one_shot import audit_final, audit_held_out
from privacy.empirical.per_round import StepTrials

# Of a number: other versions of libraries round otherwise, far less than this.
_TOLERANCE = 1e-3


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
