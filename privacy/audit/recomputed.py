"""A round as it was computed again, held against what the ledger and the metrics recorded of it.

Guarantee: on a run that does what it claims, the only differences are of rounding, and what they
may come to is stated. Let R be ``ROUNDING`` of the run's precision times the rounds since the
parameters were last known bit for bit, or to ``KNOWN`` roundings of their norm in all numbers that
a line has of them, n the contributions, S the largest of |sum| and root n times the largest
contribution, s the noise's standard deviation and e the rounding of the noise, in s, as it follows
from the release's length. Nothing that a ledger's line states widens what is allowed.

- The noise, in standard deviations: its head, its sixteen segments, which have every element, its
  sum and sum of squares each within 64 e (times the root of P for the last two). Drift of the
  parameters does not matter to it, but where noise is made from updates (privunit): + f R, and
  + f R s in A, with f of ``privacy.reference.noise``.
- The release less sum and noise, in two projections on signs and eight coordinates: A = R S + 8 e s
  root P for a coordinate, 6 A for a projection, of which a difference is less with probability
  2e-9. A difference of length d passes both projections with probability about (6 A / d)^2.
- The norm of the sum, of which rounding moves little, for it goes any way and not along the sum:
  R S, in TF32 and bfloat16 an eighth of that.
- Lengths of the least and the most noise of a client's report: A.
- The next central parameters: four times as far as the steps so far move them when each coordinate
  of each mean update is off by A / root P, all in the directions of one drawn vector of signs, and
  what float32 holds. So momentum adds up what is off, and an adaptive optimizer's step of an
  element near zero may turn round.
- Moments of the central optimizer in a checkpoint: four times as far as the same moves them, sums
  of squares 64 times. Correlated noise there: eight roundings, times the root of the rounds.
- An algorithm's central gradient of the same sum under other noise: along this round's noise no
  further than a normal number goes, ``_KNOWS``.
- Rounding may explain more than a client or the noise, where many clients go one way. A round in
  which what differs could hide one (``could_hide``) is not computed again: release, sum and next
  central parameters have to agree as if 6 A were ``PART_OF_ONE`` of the clipping bound, and of the
  length of the noise, whatever rounding explains. Of a whole bound both projections are that near
  with probability 0.04.
- Cohort, counts, examples and steps: equal; of updates so near to the bound that rounding decides
  whether they are clipped, either will do.

How R and A grow with local training: ``privacy.audit.rounding``.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privacy.audit.inputs import as_number
from privacy.audit.recomputed_noise import (
    ULP,
    noise_problems,
    recorded_number,
    report_problems,
    rounding_of,
)
from privacy.audit.rounding import FINE, PART_OF_ONE, SIGNS, Allowed
from privacy.reference.round import Round, State

# In coarse precisions the norm of a sum may be off by this part of R: what ties clients together
# moves it more.
_ALONG = 0.125
# From here on a difference would say little.
MOST = 0.2
_COLUMNS = 256
_EXACT = 1e-9
# Standard deviations, beyond which a normal number is with probability 3e-12.
_KNOWS = 7.0

Array = NDArray[np.float64]
Json = Mapping[str, Any]


class Sketch:
    """A ledger's sketch of vectors of one length, written from its definition."""

    def __init__(self, length: int) -> None:
        rng = np.random.Generator(np.random.Philox(SIGNS))
        self._places = np.sort(rng.choice(length, size=min(8, length), replace=False))
        self._columns = rng.choice([-1.0, 1.0], (2, _COLUMNS)).T
        rows = rng.integers(0, 2, (2, -(-length // _COLUMNS)), dtype=np.int8).T
        self._rows = 2.0 * rows - 1.0

    def __call__(self, vector: Tensor) -> Array:
        """Two projections and up to eight coordinates of a vector, shape (P,)."""
        values = vector.detach().cpu().double().numpy()
        # Each element has the sign of its row times that of its column: whole rows, then the rest.
        whole = len(values) // _COLUMNS * _COLUMNS
        sums = values[:whole].reshape(-1, _COLUMNS) @ self._columns
        if whole < len(values):
            sums = np.vstack([sums, values[whole:] @ self._columns[: len(values) - whole]])
        return np.array([*(sums * self._rows).sum(axis=0), *values[self._places]])


class Records(NamedTuple):
    """Records of a round."""

    line: Json  # of the ledger
    following: Json | None  # sketch of the central parameters after it; None where there is none
    metrics: Json  # empty where there are none
    saved: Tensor | None  # central parameters of a checkpoint after it, shape (P,)


def compare(records: Records, made: Round, sketch: Sketch, allowed: Allowed) -> Iterator[str]:
    """Clauses, without the round, of what differs between a round and its records."""
    line, following, metrics, saved = records
    digest = hashlib.sha256(np.ascontiguousarray(made.users, "<i8").data).hexdigest()
    for key, what in (("users", "drawn"), ("trained", "trained")):
        found = line.get(f"{key}_sha256")
        if found is not None and found != digest:
            yield (
                f"cohort: the users who were {what} ({line.get('realised_cohort')}) are not the "
                f"{len(made.users)} that the seed draws"
            )
    yield from _clients(line, metrics, made, allowed)
    noise = list(noise_problems(line, made, allowed.relative))
    yield from noise
    if abs(made.knows) > _KNOWS:
        yield (
            "central gradient: what the algorithm makes of the same sum under other noise goes "
            f"with this round's noise, by {made.knows:.3g} standard deviations: it knows the noise"
        )
    if allowed.relative >= 1.0:
        return
    near = _near(line, made, allowed)
    yield from _sum(line, made, sketch, near, bool(noise))
    share = allowed.each * allowed.rounds * (1.0 if allowed.each < FINE else _ALONG)
    off = share * max(_scale(made), made.length) + allowed.length
    yield from recorded_number("sum before noise: its norm", line, "sum_norm", made.length, off)
    yield from report_problems(line, made, near)
    carried = copy.deepcopy(allowed)
    carried.step(made, near / _denominator(line))
    yield from _central(following, made, sketch, carried.central)
    if saved is not None:
        yield from _saved(saved, made, carried.central)


def undecided(made: Round, relative: float) -> int:
    """Updates of which rounding decides whether they are clipped."""
    near = 4.0 * relative * made.bound
    trained = (one for one in made.contributions if one.trained is not None)
    return sum(abs(one.norm - made.bound) <= near for one in trained)


def _clients(line: Json, metrics: Json, made: Round, allowed: Allowed) -> Iterator[str]:
    relative = allowed.relative
    finite = [one for one in made.contributions if math.isfinite(one.norm)]
    trained = [one.trained for one in finite if one.trained is not None]
    clipped, near = sum(one.norm > made.bound for one in finite), undecided(made, relative)
    yield from recorded_number("clipping bound", line, "clip_norm", made.bound, _EXACT * made.bound)
    most = allowed.each * allowed.rounds * max((one.norm for one in finite), default=0.0)
    if made.again > most:
        yield (
            f"the update of user {made.users[0]}, computed once more after the others', is off by "
            f"{made.again:.3g}: what a client sends hangs on those before it"
        )
    if allowed.relative >= 1.0:
        return
    yield from recorded_number("contributions", line, "num_contributions", len(finite))
    yield from recorded_number("updates clipped", line, "num_clipped", clipped, near)
    if finite:
        largest, most = max(finite, key=lambda one: one.norm), max(one.clipped for one in finite)
        whose, off = f"largest norm of an update (user {largest.user}'s)", 4.0 * relative
        yield from recorded_number(whose, line, "largest_norm", largest.norm, off * largest.norm)
        what = "largest norm of a clipped update"
        yield from recorded_number(what, line, "largest_clipped_norm", most, off * most)
    if trained:
        # Without canaries, which the ledger counts.
        own = sum(one.norm > made.bound for one in finite if one.trained is not None)
        part, key = own / len(trained), "privacy/fraction_clipped"
        off = near / len(trained) + _EXACT
        yield from recorded_number("part of clients clipped", metrics, key, part, off)
        loss = math.fsum(one.loss for one in trained) / len(trained)
        off = (4.0 * relative + 1e-5) * abs(loss)
        yield from recorded_number("mean training loss", metrics, "train/loss", loss, off)
    everyone = [one.trained for one in made.contributions if one.trained is not None]
    for what, key, name, of in (
        ("examples seen", "train/num_examples", "num_examples", trained),
        ("local steps", "train/num_steps", "num_steps", trained),
        ("steps of all clients", "systems/steps", "num_steps", everyone),
        ("examples of all steps", "systems/examples", "num_processed", everyone),
    ):
        total = sum(getattr(one, name) for one in of)
        yield from recorded_number(what, metrics, key, total)
    if made.fraction is not None:
        share = _EXACT + near / max(1, len(made.users))
        key = "noisy_fraction_unclipped"
        yield from recorded_number("count of unclipped updates", line, key, made.fraction, share)


def _denominator(line: Json) -> float:
    found = as_number(line.get("denominator"))
    return found if found > 0.0 else math.nan


def carry_on(records: Records, made: Round, sketch: Sketch, allowed: Allowed) -> None:
    """Go on with what rounding may come to, after a round that was compared."""
    allowed.step(made, _near(records.line, made, allowed) / _denominator(records.line))
    if (apart := _apart(records.following, made, sketch)) is not None:
        allowed.see(float(apart.max()), made.central)


def shares(made: Round, allowed: Allowed) -> float:
    """A in parts of what it is about, or R, whichever is more."""
    return max(allowed.relative, allowed.total / max(_scale(made), 1e-30))


def could_hide(
    records: Records, made: Round, sketch: Sketch, before: State, allowed: Allowed
) -> bool:
    """Whether what differs may be a client, or noise that is missing, though rounding explains it.

    ``before`` is the state before the round; the others are those of ``compare``.
    """
    line, following, _, saved = records
    root = math.sqrt(len(made.total))
    # The shortest vector whose norm is the bound.
    least = made.bound / (root if before.mechanism.order == 1.0 else 1.0)
    if made.stddev > 0.0:
        least = min(least, made.stddev * root / math.sqrt(max(1, len(made.mechanism.lengths))))
    near, alone = PART_OF_ONE * least / 6.0, Allowed(0.0, before.optimizer)
    alone.step(made, near / _denominator(line))
    # Rates fall, and the parameters keep what earlier steps have put them off by.
    allowed.of_one = max(allowed.of_one, alone.central)
    differing = itertools.chain(
        _sum(line, made, sketch, near, False),
        report_problems(line, made, near),
        _central(following, made, sketch, allowed.of_one),
        () if saved is None else _saved(saved, made, allowed.of_one),
    )
    return next(differing, None) is not None


def _scale(made: Round) -> float:
    clipped = [one.clipped for one in made.contributions if math.isfinite(one.norm)]
    return max(float(made.total.norm()), math.sqrt(len(clipped)) * max(clipped, default=0.0))


def _near(line: Json, made: Round, allowed: Allowed) -> float:
    """A."""
    relative = allowed.each * allowed.rounds
    near = relative * _scale(made) + allowed.total
    near += allowed.relative * made.mechanism.follows * made.stddev
    near += 8.0 * rounding_of(made) * made.stddev * math.sqrt(len(made.total))
    return near + 8.0 * ULP * float((made.total + made.noise).norm())


def _sum(line: Json, made: Round, sketch: Sketch, near: float, is_noise: bool) -> Iterator[str]:
    expected = sketch(made.total + made.noise)
    if (found := _sketch_of(line.get("release"), len(expected))) is None:
        return
    rest = _denominator(line) * found - expected
    bound = near * np.array([6.0, 6.0] + [1.0] * (len(expected) - 2))
    if (np.abs(rest) <= bound).all():
        return
    worst = int(np.argmax(np.abs(rest) / bound))
    what = f"projection {worst + 1}" if worst < 2 else "a coordinate"
    where = "release" if is_noise else "sum before noise"
    yield (
        f"{where}: {what} differs by {abs(rest[worst]):.3g}, where rounding explains "
        f"{bound[worst]:.2g} (the sum's norm is {float(made.total.norm()):.4g})"
        f"{_client(rest, made, bound)}"
    )


def _client(rest: Array, made: Round, bound: Array) -> str:
    """Client whose contribution alone would explain a difference, in words."""
    for one in made.contributions:
        for sign, words in ((1.0, "left out"), (-1.0, "taken in twice")):
            if (np.abs(rest + sign * one.traces) <= bound).all() and one.clipped > 0.0:
                return f", as if user {one.user}'s update had been {words}"
    return ""


def _central(following: Json | None, made: Round, sketch: Sketch, allowed: float) -> Iterator[str]:
    if (rest := _apart(following, made, sketch)) is None:
        return
    bound = allowed * np.array([6.0, 6.0] + [1.0] * (len(rest) - 2))
    if not (rest <= bound).all():
        worst, moved = int(np.argmax(rest / bound)), (made.central - made.before).double().norm()
        yield (
            f"next central parameters: differ by {rest[worst]:.3g} in what is recorded of them, "
            f"where rounding explains {bound[worst]:.2g} (the step's norm is {float(moved):.4g})"
        )


def _apart(following: Json | None, made: Round, sketch: Sketch) -> Array | None:
    """Distances of all numbers that are recorded of the next central parameters; None of none."""
    expected = sketch(made.central)
    found = _sketch_of(following, len(expected))
    return None if found is None else np.abs(found - expected)


def _saved(saved: Tensor, made: Round, allowed: float) -> Iterator[str]:
    apart = (saved.double() - made.central.double()).abs()
    if not float(apart.norm()) <= allowed:
        wrong = int((apart > allowed).sum())
        yield (
            f"next central parameters: those of the checkpoint differ by up to "
            f"{float(apart.max()):.3g} (in norm {float(apart.norm()):.3g}, where rounding explains "
            f"{allowed:.2g}), {wrong} of {len(apart)} by more"
        )


def _sketch_of(record: Any, length: int) -> Array | None:
    """A recorded sketch, shape (length,), NaN for one of another length; None for none."""
    if not isinstance(record, Mapping):
        return None
    values = [*(record.get("projections") or []), *(record.get("coordinates") or [])]
    is_whole = len(values) == length
    return np.array(values if is_whole else [None] * length, np.float64) if values else None
