"""Scores of users by which an attacker guesses who was in the training population.

Guarantee: none; a score is the attacker's choice, and whatever it is,
``privacy.empirical.membership`` judges the guesses. A score may use the target's
release and runs that are independent of the target's coins (the references), whose members the
attacker knows; never the target's own coins.

The unit is a user. What is seen of a user in a model is one number: the mean over the user's
examples of the logit of exp(-loss), which for cross entropy is the logit of the confidence in the
label. Users without examples have no score; the caller leaves them out.

Sources: Carlini et al. 2022, "Membership inference attacks from first principles", sections V and
VI (LiRA, online and offline, with one variance for all where there are few references); Zarifzadeh,
Liu, Shokri 2024, "Low-cost high-power membership inference attacks", equations 1 to 3 (RMIA). The
means over a user's examples are ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

# References a side from which on each user has variances of its own.
_OWN_VARIANCE = 32
_LEAST_STDDEV = 1e-6
# Of exp(-loss): a logit is finite, so that one example cannot decide a user's mean.
_LARGEST_LOGIT = 30.0
_LIMITS = (-_LARGEST_LOGIT, _LARGEST_LOGIT)
# Less than the difference of two ranks.
_TIE = 1e-9


def logit_of_loss(losses: Array) -> Array:
    """Logit of exp(-loss): -loss - log(1 - exp(-loss)), clipped to 30 either way.

    Of shape (n,), larger where the model is more confident; of losses below 0 the negative one is
    left as it is.
    """
    positive = np.maximum(losses, 1e-300)
    with np.errstate(divide="ignore"):
        logits = -positive - np.log(-np.expm1(-positive))
    return np.asarray(np.clip(np.where(losses < 0.0, -losses, logits), *_LIMITS))


def lira(target: Array, references: Array, members: Bools, online: bool = True) -> Array:
    """Log of the likelihood ratio of a user's number, in against out.

    ``target``, shape (U,), are the users' numbers in the attacked model, ``references``, shape (R,
    U), those in the reference runs, ``members``, shape (R, U), who was in each of them. ``online``
    is against the law of those that were in; else it is by that of those out alone, one-sided. The
    ratio, shape (U,), is larger when the user seems to have been in. A user who was in no
    reference, or in all, has the missing mean from the users' mean effect.
    """
    mean_in, count_in = _means(references, members)
    mean_out, count_out = _means(references, ~members)
    both = (count_in > 0) & (count_out > 0)
    effect = float((mean_in - mean_out)[both].mean()) if both.any() else 0.0
    known_in, known_out = count_in > 0, count_out > 0
    mean_out = np.where(known_out, mean_out, mean_in - effect)
    mean_in = np.where(known_in, mean_in, mean_out + effect)
    stddev_out = _stddevs(references, ~members, mean_out, count_out)
    from_out = (target - mean_out) / stddev_out
    if not online:
        return np.asarray(from_out)
    stddev_in = _stddevs(references, members, mean_in, count_in)
    from_in = (target - mean_in) / stddev_in
    ratio = 0.5 * (from_out**2 - from_in**2) + np.log(stddev_out) - np.log(stddev_in)
    return np.asarray(ratio)


def rmia(target: Array, references: Array, members: Bools) -> Array:
    """Part of the population over which a user's likelihood ratio is at least as large (gamma 1).

    The ratio is that of the user's confidence under the target to its mean over the references, in
    and out alike; the population are all users of the target.

    ``target``, shape (U,), are mean log confidences, at most 0, in the attacked model,
    ``references``, shape (R, U), those in the reference runs; ``members``, shape (R, U), weighs
    references in and out one half each where there are both. The answer, shape (U,), is in [0, 1]
    but for 1e-9, by which the ratio itself breaks ties.
    """
    mean_in, count_in = _means(np.exp(references), members)
    mean_out, count_out = _means(np.exp(references), ~members)
    mean_in = np.where(count_in > 0, mean_in, mean_out)
    mean_out = np.where(count_out > 0, mean_out, mean_in)
    ratio = target - np.log(np.maximum(0.5 * (mean_in + mean_out), 1e-300))
    below = np.searchsorted(np.sort(ratio), ratio, side="right") / ratio.size
    # Ranks of several targets tie at the top, where the smallest rates of false positives are.
    return np.asarray(below + _TIE * np.tanh(ratio), dtype=np.float64)


def _means(values: Array, chosen: Bools) -> tuple[Array, NDArray[np.int64]]:
    """Mean over the chosen runs of each user, 0 without any; and their number."""
    count = chosen.sum(axis=0)
    total = np.where(chosen, values, 0.0).sum(axis=0)
    return total / np.maximum(count, 1), count


def _stddevs(values: Array, chosen: Bools, mean: Array, count: NDArray[np.int64]) -> Array:
    """Standard deviations: each user's own where there are many runs, else one for all users."""
    squares = np.where(chosen, (values - mean) ** 2, 0.0).sum(axis=0)
    freedom = np.maximum(count - 1, 0)
    pooled = float(squares.sum()) / max(int(freedom.sum()), 1)
    own = squares / np.maximum(freedom, 1)
    variance = np.where(count >= _OWN_VARIANCE, own, pooled)
    return np.asarray(np.maximum(np.sqrt(variance), _LEAST_STDDEV))
