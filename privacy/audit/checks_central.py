"""Does the model move along the releases, and along nothing else?

Guarantee: checked here is that each round's central step is the configured optimizer's along the
recorded release: on projections that see every coordinate where the optimizer is linear, and on
eight coordinates for every optimizer. The result is compared with the parameters that the next line
recorded before its own step, and the last one with the newest checkpoint's. And that checkpoints,
the evaluated model and the initial model are those of the recorded rounds, by their digests.

A step along a sum without noise shows, because the release is recorded before the step, by code
that takes no part in it. Not seen is a step that differs from the release's by less than rounding,
or, under an optimizer that is not linear, on other coordinates than the eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.audit import values
from privacy.audit.check import Finding, check
from privacy.audit.evidence import Evidence, IncompleteError, SkippedError
from privacy.audit.inputs import AuditInputs, CentralOptimizer
from privacy.audit.rounding import is_same_sketch
from privacy.recording.central_record import COORDINATES, PROJECTIONS
from privacy.reference.central import Optimizer

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Of a step's scale: float32 arithmetic of moments and roots stays far below.
_OF_STEP = 1e-4
# Of the parameters: a step rounds each once or twice, by 2**-24 of it; projections add the errors
# up with signs that do not know them, and exceed so many of their norm with probability 1e-12.
_OF_PARAMETERS = 32.0 * 2.0**-24
# Of a whole vector's norm, in a projection, float32 arithmetic of the step likewise.
_OF_RELEASES = 1e-5
_LARGEST_FLOAT32 = 3.4e38
# Nearer than this times the root of the rounds, relative, rounding decides the sign by which Yogi's
# second moment moves: the rounding of each round adds up like a random walk.
_UNDECIDED = 1e-6


class Sketches(NamedTuple):
    """Sketches of one vector a round; NaN where there is none."""

    norm: Array  # shape (T,), L2 norms
    projections: Array  # shape (T, 2): products with two fixed vectors of signs
    coordinates: Array  # shape (T, 8): at fixed places; NaN beyond a shorter vector's

    @classmethod
    def recorded(cls, evidence: Evidence, key: str) -> Sketches:
        """Those of "central" (before the round's step) or "release"."""
        return cls(*(evidence[f"{key}.{name}"] for name in cls._fields))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Sketches:
        """One sketch as a ledger has it; NaN for what it lacks."""
        lists = (("projections", PROJECTIONS), ("coordinates", COORDINATES))
        rows = (values.numbers(record.get(key, []), width, key) for key, width in lists)
        return cls(np.array([record.get("norm")], np.float64), *(np.array([row]) for row in rows))

    def whole(self, length: float) -> Bools:
        """Rounds whose sketch, of a vector of so many elements, lacks no number; shape (T,)."""
        known = np.isfinite(self.coordinates).sum(axis=1) >= min(COORDINATES, length)
        whole: Bools = np.isfinite(self.norm) & np.isfinite(self.projections).all(axis=1) & known
        return whole


@check(
    "central_step",
    "Each round moves the model by the configured central step along its release alone.",
)
def check_central_step(evidence: Evidence, inputs: AuditInputs) -> Finding:
    evidence.need_lines()
    optimizer, found = inputs.central_optimizer, Finding()
    if isinstance(optimizer, str):
        raise SkippedError(optimizer)
    evidence.need_digests()
    if evidence.rounds > inputs.configured.num_rounds:
        raise SkippedError("there are more rounds than were configured: see rounds")
    before, release = (Sketches.recorded(evidence, key) for key in ("central", "release"))
    after = _after(before, evidence.rounds, inputs)
    compared, length = np.zeros(evidence.rounds, np.bool_), evidence.constant("num_parameters")
    for what, wrong, seen in _compare(optimizer, before, release, after):
        found.where(
            f"the {what} of the model are not where the step along the release leads", wrong
        )
        compared |= seen
    number = int(compared.sum())
    kinds = "two projections of the whole model and " if optimizer.is_linear else ""
    text = (
        f"{optimizer.options.name} taken anew in {number} of {evidence.rounds} rounds, on {kinds}"
        "eight coordinates"
    )
    ends = after.whole(length)
    # What is no number is equal to nothing, and would be left out of what is compared.
    left = np.flatnonzero(~(before.whole(length) & release.whole(length) & ends)) + 1
    if len(left) and not found.problems:
        if left[0] != evidence.rounds or ends[-1]:
            lacks = f"rounds without what is needed: {len(left)}, the first is {left[0]}"
            raise IncompleteError(f"{text}; {lacks}")
        if inputs.is_final:
            raise IncompleteError(f"{text}; no checkpoint holds the model after the last round")
        text += "; the last one's end is in no checkpoint yet"
    return found.seen(text, rounds=number)


def _after(before: Sketches, rounds: int, inputs: AuditInputs) -> Sketches:
    """Sketches after each round's step: the next line's, and the newest checkpoint's."""
    saved, last = inputs.saved, Sketches.of({})
    if saved is not None and saved.central is not None and saved.rounds == rounds:
        last = Sketches.of(saved.central)
    pairs = zip(before, last, strict=True)
    return Sketches(*(np.concatenate([rows[1:], end]) for rows, end in pairs))


def _compare(
    optimizer: CentralOptimizer, before: Sketches, release: Sketches, after: Sketches
) -> Iterator[tuple[str, Bools, Bools]]:
    """By what was compared: in which rounds it is wrong, and in which it was compared."""
    step, scale = steps_of(optimizer, before.coordinates, release.coordinates)
    allowed = _OF_STEP * scale + _OF_PARAMETERS * np.abs(before.coordinates + step)
    yield "coordinates", *_differs(before.coordinates + step, after.coordinates, allowed)
    if optimizer.is_linear:
        # Of norms, the largest that releases and penalties come to.
        along = np.column_stack([-release.norm, release.projections])
        norm = before.norm[:, None]
        step, scale = steps_of(optimizer, np.hstack([norm, before.projections]), along)
        allowed = _OF_RELEASES * scale[:, :1] + _OF_PARAMETERS * (norm + scale[:, :1])
        expected = before.projections + step[:, 1:]
        yield "projections", *_differs(expected, after.projections, allowed)


def steps_of(optimizer: CentralOptimizer, before: Array, release: Array) -> tuple[Array, Array]:
    """Steps: what each adds, and its scale, which is its size if no terms cancelled.

    ``before`` and ``release`` are coordinates (or, for sgd, projections) of the parameters before
    each step and of the releases. All have shape (T, k); NaN where a step cannot be told.
    """
    own = -release if optimizer.gradient is None else optimizer.gradient(release)
    options, width = optimizer.options, before.shape[1]
    steps, sizes = Optimizer(options, width), Optimizer(options, width)
    decay, zero = 0.0 if options.name == "adamw" else options.weight_decay, torch.zeros(width)
    step, scale = np.empty_like(before), np.empty_like(before)
    for t, (x, g, rate) in enumerate(
        zip(torch.from_numpy(before), torch.from_numpy(own), optimizer.rates(len(own)), strict=True)
    ):
        whole = g + decay * x
        if options.name == "yogi":
            near = (steps.second - whole**2).abs() < _UNDECIDED * (t + 1.0) ** 0.5 * whole**2
            steps.second[near] = torch.nan
        step[t] = steps.step(x, g, rate) - x
        scale[t] = -sizes.step(zero, whole.abs(), rate)
    return step, scale


def _differs(expected: Array, found: Array, allowed: Array) -> tuple[Bools, Bools]:
    known = np.isfinite(expected) & (np.abs(expected) < _LARGEST_FLOAT32)
    seen = known & np.isfinite(found)
    wrong = seen & ~(np.abs(expected - found) <= allowed)
    return np.asarray(wrong.any(axis=1)), np.asarray(seen.any(axis=1))


@check(
    "central_chain",
    "The run begins with the configured model, each checkpoint holds (and keeps as the best) "
    "models of recorded rounds, and the model that was evaluated is that of the round that the "
    "summary names.",
)
def check_central_chain(evidence: Evidence, inputs: AuditInputs) -> Finding:
    if inputs.saved is None:
        evidence.need_lines()
    found, agreeing, digests = Finding(), [], _digests(evidence, inputs)

    def hold(number: Any, model: Mapping[str, Any] | None, what: str, other: str) -> None:
        """Hold a model against that of a round, where both are known."""
        if isinstance(number, int) and number in digests and model is not None:
            agreeing.append(what)
            is_other = digests[number] != model["sha256"]
            found.add(is_other or not _is_sketched(evidence, number, model), other)

    other = "the first round did not begin with the model that is configured"
    hold(0, inputs.data.initial, "the initial model", other)
    saved, summary = inputs.saved, inputs.summary
    every = (*inputs.older, *([] if saved is None else [saved]))
    for one in every:
        where = f"the checkpoint of round {one.rounds}"
        if one.central is not None:
            other = f"{where} holds another model than the ledger has after that round"
            hold(one.rounds, one.central, where, other)
            digests.setdefault(one.rounds, one.central["sha256"])
        if one.best is not None:
            what = f"the model that it keeps as the best, of round {one.best[0]}"
            other = f"the model that {where} keeps as the best is not that of round {one.best[0]}"
            hold(*one.best, what, other)
            found.add(one.best[0] not in digests, f"{other}: the ledger has no such round")
    has_model = summary is not None and isinstance(summary.get("model_sha256"), str)
    if summary is not None and has_model:
        chosen = summary.get("selected")
        number = chosen if isinstance(chosen, int) else summary.get("rounds")
        other = f"the model that was evaluated is not that of round {number}"
        kept = {one.rounds for one in every if one.central is not None}
        is_there = number in kept.union(one.best[0] for one in every if one.best is not None)
        named = {"sha256": summary["model_sha256"]}
        hold(number, named, f"the evaluated model, of round {number}", other)
    text = f"by digest: {', '.join(agreeing) or 'nothing'}"
    if not found.problems and saved is not None and has_model and not is_there:
        raise IncompleteError(f"{text}; no checkpoint holds the model that was evaluated")
    if not found.problems and summary is not None and not has_model:
        why = "the summary does not name the model that was evaluated (written by another version)"
        raise IncompleteError(f"{text}; {why}")
    if not found.problems and saved is None:
        raise IncompleteError(f"{text}; the folder has no checkpoint that could be compared")
    return found.seen(text, compared=agreeing)


def _is_sketched(evidence: Evidence, number: int, model: Mapping[str, Any]) -> bool:
    """Whether a model after so many rounds has the sketch that the next line records, if one does.

    What the rounds are followed by are sketches, and a digest says nothing of these.
    """
    if number >= evidence.rounds or "norm" not in model or not evidence.has("central"):
        return True
    recorded, own = Sketches.recorded(evidence, "central"), Sketches.of(model)
    pairs = ((rows[number], one[0]) for rows, one in zip(recorded, own, strict=True))
    return all(is_same_sketch(*pair, float(own.norm[0])) for pair in pairs)


def _digests(evidence: Evidence, inputs: AuditInputs) -> dict[int, str]:
    """Digests of the model after so many rounds; none at all is an ``IncompleteError``."""
    digest, numbers = evidence.digest, range(1, evidence.rounds + 1)
    if not evidence.rounds:
        # What was saved before the first round is the initial model.
        if inputs.data.initial is None:
            raise IncompleteError("the model that a run without rounds holds is not known here")
        return {0: str(inputs.data.initial["sha256"])}
    if inputs.configured.unit == "example":
        # A line of DP-SGD has the digest of the model after its epoch.
        return {number: digest("release", number) for number in numbers}
    evidence.need_digests()
    return {number - 1: digest("central", number) for number in numbers}
