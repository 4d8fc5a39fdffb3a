"""Membership attacks on the users of a row, from its shadow runs to ``attack.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.files import read_json, write_json
from pfl_bench.runs.base_plan import compose_of, plan_of_statement
from pfl_bench.runs.shadows import Plan, ShadowUsers, read_users
from pfl_bench.types import ConfigError, RunFolderError
from privacy.audit.inputs import as_number
from privacy.audit.search import plan_composition
from privacy.empirical.membership import (
    Score,
    allowed_curve,
    area,
    bet,
    cross_fit,
    folds_of,
    judge,
    rate,
    roc_counts,
)
from privacy.empirical.membership_scores import lira, rmia
from privacy.empirical.trade_off import TradeOff, trade_off_of

ATTACK_FILE = "attack.json"
ATTACK_VERSION = 1
KINDS = ("lira", "rmia", "loss")
# Kinds that compare a target with references of both sorts.
_FEWEST = {"lira": 4, "rmia": 4, "loss": 1}
FALSE_POSITIVE_RATES = (0.001, 0.01)
# For the intervals that are shown; the verdict has its own.
SHOWN_CONFIDENCE = 0.95
_MOST_POINTS = 200


@dataclass(frozen=True)
class ClaimedCurve:
    """Trade-off curve that a row's mechanism claims of one user.

    It is None, for the reason ``why_none``, without a claim or a known trade-off function.
    ``epsilon``, of the shadow runs themselves ("actual") at ``delta``, is NaN without a claim.
    """

    trade_off: TradeOff | None
    why_none: str
    epsilon: float
    delta: float


def check_kind(kind: str, count: int) -> None:
    """Refuse (ConfigError) fewer shadow runs than a kind of attack needs."""
    if count < _FEWEST[kind]:
        raise ConfigError(
            f"--shadows {count}: the attack {kind} compares each run with the others, in and out, "
            f"and needs {_FEWEST[kind]} or more; 16 and more show something"
        )


def settings_digest(resolved: ResolvedConfig) -> str:
    """Digest of what a row, a run or a shadow run trains, its seed and evaluation apart."""
    tree = json.loads(json.dumps(resolved.training_tree))
    del tree["seed"]
    # Where a file lies is no setting.
    for section, key in (("task", "data"), ("model", "weights"), ("federated", "shadow")):
        tree[section].pop(key, None)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def attack(
    kind: str, row: ResolvedConfig, plans: Sequence[Plan], out: Path, confidence: float
) -> dict[str, Any]:
    """Attack the released models of finished shadow runs of a row, by one of ``KINDS``.

    The result, given back, is written to ``attack.json`` in ``out``, where other kinds stay. The
    confidence of the verdict is in (0, 1). UserInputError if a shadow run is not finished, or was
    not noised as the first.
    """
    check_kind(kind, len(plans))
    users = read_users(plans)
    claim = read_claim(plans)
    numbers, score = _numbers(kind, users)
    # Only the loss has no references, whose coins must not be those of targets.
    folds = (tuple(range(len(plans))),) if kind == "loss" else folds_of(len(plans))
    scores = cross_fit(score, numbers, users.members, folds)
    wealth = None
    if claim.trade_off is not None and users.members.shape[1] > 1:
        # The loss needs no references.
        fewest = 0 if kind == "loss" else _FEWEST[kind]
        wealth = bet(score, numbers, users.members, claim.trade_off, fewest)
    verdict = judge(scores, users.members, folds, claim.trade_off, claim.delta, confidence, wealth)
    flat, coins = scores.ravel(), users.members.ravel()
    if coins.all() or not coins.any():
        raise ConfigError("--shadows: all coins fell alike; give more shadow runs")
    rates = [asdict(rate(flat, coins, fpr, SHOWN_CONFIDENCE)) for fpr in FALSE_POSITIVE_RATES]
    if claim.trade_off is not None:
        allowed = allowed_curve(claim.trade_off, np.array(FALSE_POSITIVE_RATES))
        for entry, most in zip(rates, allowed, strict=True):
            entry["allowed"] = float(most)
    found = {
        "kind": kind,
        "shadows": len(plans),
        "users": int(users.members.shape[1]),
        "auc": area(flat, coins),
        "rates": rates,
        "roc": _points(flat, coins),
        "trials": {"in": int(coins.sum()), "out": int((~coins).sum())},
        "claim": {"epsilon": _finite(claim.epsilon), "delta": claim.delta, "none": claim.why_none},
        "curve": _curve(claim.trade_off),
        "verdict": {**asdict(verdict), "guesses": verdict.guesses._asdict()},
        "settings_sha256": settings_digest(row),
    }
    _keep(out, kind, found)
    return found


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _keep(out: Path, kind: str, found: Mapping[str, Any]) -> None:
    before = read_json(out / ATTACK_FILE) or {}
    same = before.get("format_version") == ATTACK_VERSION
    kinds = before.get("attacks") if same else None
    kinds = kinds if isinstance(kinds, dict) else {}
    # What was shown of other settings says nothing of these.
    stay = {
        name: one
        for name, one in kinds.items()
        if isinstance(one, dict) and one.get("settings_sha256") == found["settings_sha256"]
    }
    content = {"format_version": ATTACK_VERSION, "attacks": {**stay, kind: dict(found)}}
    write_json(out / ATTACK_FILE, content)


def read_attacks(folder: Path, resolved: ResolvedConfig) -> dict[str, Any] | None:
    """The attacks by kind that ``pfl-bench attack`` left in a run's folder; None for none.

    RunFolderError if the file is damaged, or was made of other settings.
    """
    path = folder / "attack" / ATTACK_FILE
    document = read_json(path)
    if document is None:
        return None
    attacks = document.get("attacks")
    if document.get("format_version") != ATTACK_VERSION or not isinstance(attacks, dict):
        raise RunFolderError(f"{path}: damaged, or of another version; attack again, or delete it")
    digest = settings_digest(resolved)
    for kind, one in attacks.items():
        if not isinstance(one, dict) or one.get("settings_sha256") != digest:
            raise RunFolderError(
                f"{path}: the attack {kind} is of other settings than the run's; attack the run's "
                "folder again, or delete the file"
            )
    return attacks


def _numbers(kind: str, users: ShadowUsers) -> tuple[NDArray[np.float64], Score]:
    """Statistics of the users, larger when fitted better, and a kind's scores of them."""
    if kind == "lira":
        return users.logits, partial(lira, online=True)
    if kind == "rmia":
        return -users.losses, rmia
    return -users.losses, lambda target, references, members: target


def _points(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> dict[str, list[float]]:
    """The ROC curve at a few points that lie evenly on a logarithmic axis."""
    false, true = roc_counts(scores, members)
    wanted = np.unique(np.geomspace(1, max(false[-1], 2), _MOST_POINTS).astype(np.int64))
    places = np.searchsorted(false, wanted, side="right") - 1
    places = np.unique(np.append(places, len(false) - 1))
    return {"false_positives": false[places].tolist(), "true_positives": true[places].tolist()}


def _curve(claim: TradeOff | None) -> dict[str, list[float]] | None:
    if claim is None:
        return None
    rates = np.geomspace(1e-5, 1.0, 61)
    allowed = allowed_curve(claim, rates)
    return {"false_positive_rate": rates.tolist(), "true_positive_rate": allowed.tolist()}


def read_claim(plans: Sequence[Plan]) -> ClaimedCurve:
    """The claim of the shadow runs' own statements, whose population and noise are the row's.

    RunFolderError if a shadow run is not finished, or claims something else than the first.
    """
    claims = [_summary(folder).get("privacy") for folder, _ in plans]
    for (folder, _), claim in zip(plans, claims, strict=True):
        if _core(claim) != _core(claims[0]):
            raise RunFolderError(
                f"{folder}: claims another privacy than {plans[0][0]}; delete the older of the two"
            )
    first = claims[0]
    if first is None or first["unit"] != "user":
        return ClaimedCurve(None, "the row claims no privacy of users", float("nan"), 0.0)
    actual = first["actual"]
    epsilon, delta = as_number(actual["epsilon"]), float(actual["delta"] or 0.0)
    row = plans[0][1]
    composition = plan_composition(compose_of(row), plan_of_statement(row, first), "actual")
    trade_off = trade_off_of(composition)
    why = ""
    if trade_off is None:
        why = (
            f"no trade-off function is known under {composition.adjacency}, or the claim allows "
            "anything"
        )
    return ClaimedCurve(trade_off, why, epsilon, delta)


def _core(claim: Mapping[str, Any] | None) -> Any:
    """Parts of a claim that must be equal for two claims."""
    return claim and {key: claim[key] for key in ("unit", "rounds", "noise_multiplier", "actual")}


def _summary(folder: Path) -> dict[str, Any]:
    summary = read_json(folder / "summary.json")
    if summary is None:
        raise RunFolderError(f"{folder}: the shadow run is not finished; give the command again")
    return summary
