"""A lower bound on epsilon from one run in which coins included some canaries: by a Gaussian law.

Guarantee: a bound at the confidence asked for, up to the central limit, if what it rests on holds.

What it rests on: m canaries along coordinates of their own, each included by a fair coin; in the
rounds that it can be in, an included one takes part by the sampler's probability q. Given coins and
participations, the noise along the canaries is normal, independent from canary to canary, of one
law for all, and goes from round to round as the mechanism's strategy matrix C says, at some noise
multiplier. The run composes as its accountant says. What is tested is noise and participation
together: less noise, and members that take part more often, both raise the bound. Unlike
``one_run`` and ``f_dp``, nothing is shown of mechanisms without this structure, and canaries in
random directions, which lie along each other, are outside of it. Unit: a canary, as a user;
adjacency add-or-remove-one, under selected zero-out.

The score (``matched_sum``). Let x be a canary's releases over T rounds, in parts of what it moves
one by, and a the participation that is expected of it: q in the rounds that it can be in, 0 else.
The noise of C x is white, and the sum s = <C a, C x> has mean 0 and standard deviation z |C a|
without the canary, and mean at most |C a|^2 with it. So the shift of the mean in standard
deviations of the null law is |C a| / z, and an upper bound of z follows from a lower bound of the
shift.

The lower bound of the shift d, from the k scores in and the l out, is d - t (v / k + 1 / l +
d^2 / (2 l))^(1/2), with the variance ratio v of the two laws, and t of Student's law: the delta
method for a difference of means in estimated standard deviations. Scores of included canaries need
not be normal, nor as wide. Of few canaries the interval is too short at a small confidence: of ten
in and ten out, and a large shift, it is above the truth in 30 % of trials in place of 25 %, and in
11 % in place of 10 %; at 2.5 % (the default of ``confidence``) it is not.

The bound of epsilon is that of rounds at this multiplier, by the accountant: as the multiplier is
larger than the true one at the confidence, epsilon is smaller.

``independent_bound`` does without the normal law of scores: of independent canaries, the guesses at
thresholds fixed before are independent, so Clopper-Pearson intervals of both error rates hold, and
each member of the mechanism's family is refuted as a claim where they are above its curve.

Sources: Agrawal, Wei, Singh, Magdon-Ismail, Zikas 2026, "Let's ask Gauss: improved one-run privacy
auditing" (arXiv 2606.12733: canary-aligned signals of all rounds, summed, as a pair of Gaussians,
instead of binary guesses); Keinan, Shenfeld, Ligett 2025, "How well can differential privacy be
audited in one run?" (arXiv 2503.07199: without interference between canaries one run can be as
good as many; abstentions). The whitening, the matched weights, the step from the shift to the
multiplier and to the accountant, and the interval are ours.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.empirical.f_dp import ComposedFamily
from privacy.empirical.membership import clopper_pearson
from privacy.empirical.trade_off import TradeOff
from privacy.errors import PrivacyError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Accountants are slow below it, where nothing is protected anyway.
_LEAST_NOISE = 0.02
# False positive rates of the thresholds, at the claimed noise: above one a canary is guessed "in",
# and abstained from below.
_RATES = (0.002, 0.01, 0.05, 0.2, 0.5)
_NOISE_STEP = 1.01


def shift_bound(scores: Array, included: Bools, confidence: float) -> float:
    """Lower bound of the shift of the mean, in standard deviations of the null law; at least 0.

    Scores, finite, and coins have shape (m,); with fewer than three of either kind it is 0. The
    confidence is in [0.5, 1).
    """
    from scipy.stats import t

    if scores.shape != included.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise PrivacyError(f"scores of shape {scores.shape} must be finite, one for each coin")
    inside, outside = scores[included], scores[~included]
    if min(inside.size, outside.size) < 3:
        return 0.0
    spread = float(outside.std(ddof=1))
    difference = float(inside.mean() - outside.mean())
    if spread <= 1e-12 * abs(difference):
        return math.inf if difference > 0.0 else 0.0
    shift = difference / spread
    ratio = float(inside.var(ddof=1)) / spread**2
    error = ratio / inside.size + (1.0 + 0.5 * shift**2) / outside.size
    freedom = min(inside.size, outside.size) - 1
    return max(0.0, shift - float(t.ppf(confidence, freedom)) * math.sqrt(error))


def gaussian_bound_of(
    scores: Array,
    included: Bools,
    length: float,
    delta: float,
    confidence: float,
    family: ComposedFamily,
) -> tuple[float, float]:
    """Bound epsilon by the shift of matched sums; gives epsilon and the noise multiplier.

    Epsilon is a lower bound at the confidence, at least 0, and 0 where PLD does not know the
    composition; the multiplier an upper bound of the run's, infinite where no shift is shown.
    Scores, <C a, C x> / |C a| of each canary, and coins have shape (m,); ``length`` is |C a|,
    positive: the largest over the canaries. The confidence is in [0.5, 1).
    """
    low = shift_bound(scores, included, confidence)
    if low <= 1e-6 * length:
        return 0.0, math.inf
    # Rounded up to a grid, for compositions that can be kept over trials.
    exponent = math.ceil(math.log(length / low) / math.log(_NOISE_STEP)) if low < math.inf else 0
    noise = _NOISE_STEP**exponent if low < math.inf else _LEAST_NOISE
    noise = max(noise, _LEAST_NOISE)
    # More noise than was seen, where the accountant cannot compute that little: a lower bound yet.
    while (epsilon := family.epsilon_of(noise, delta)) == 0.0 and noise < 1.0:
        noise *= 1.5
    return epsilon, noise


def independent_bound(
    scores: Array,
    included: Bools,
    noise_multiplier: float,
    delta: float,
    confidence: float,
    family: ComposedFamily,
) -> float:
    """Bound epsilon by both error rates at thresholds fixed before, of any law of scores.

    Scores and coins, shape (m,), are as in ``gaussian_bound_of``. The noise multiplier that the run
    claims places the thresholds; no bound trusts it.
    """
    from scipy.special import ndtri

    # One-sided ends of both rates at each threshold share the error.
    level = 1.0 - 2.0 * (1.0 - confidence) / (2 * len(_RATES))
    pairs = []
    for allowed in _RATES:
        guessed = scores > noise_multiplier * float(-ndtri(allowed))
        false, true = int(guessed[~included].sum()), int(guessed[included].sum())
        most_false = clopper_pearson(false, int((~included).sum()), level)[1]
        least_true = clopper_pearson(true, int(included.sum()), level)[0]
        # The complement's errors obey the same curve, the other way round.
        pairs += [(least_true, most_false), (1.0 - most_false, 1.0 - least_true)]

    def refuted(claim: TradeOff) -> bool:
        return any(claim.least_false(true) > false for true, false in pairs)

    return family.epsilon_of(family.smallest_refuted(refuted), delta)
