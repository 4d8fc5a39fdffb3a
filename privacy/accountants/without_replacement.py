"""Privacy loss of a Gaussian on a cohort of fixed size, drawn without replacement.

Guarantee: unit user (or example), adjacency replace-one, population size public. A round draws a
uniformly random set of C of N users; the sum gets Gaussian noise of standard deviation z times the
clipping bound; one user replaced moves the sum by at most two bounds. ``replaced_pld`` is a privacy
loss distribution that dominates the round, and whose composition dominates the adaptive
composition of rounds.

Why. Draw C of the other N - 1 users, and one of the C at random; the user in question takes that
one's place with probability q = C / N. That is the law of the cohort. Given the draw, the round is
(1 - q) A + q B for one data set and (1 - q) A + q B' for its neighbour, where A, B, B' are Gaussian
laws of one variance, each two of them at most two bounds apart: so much do two users differ. For
a >= 1 and a' = 1 + q (a - 1) the divergence of order a' of such a pair is at most q times the
largest divergence of order a of B from A or B', and that is attained by (1 - q) A + q B and A, two
bounds apart (Balle, Barthe, Gaboardi 2018, theorem 2; Zhu, Dong, Wang 2022, theorem 11). For orders
below 1 the two laws are exchanged. So the divergence of every order is at most the larger one of
the two directions of a Poisson-sampled Gaussian of multiplier z / 2: of the user removed (orders
of at least 1, losses of at least 0) and of the user added (orders below 1). The maximum of both is
again the divergence of a pair of laws, and such a pair dominates compositions.

Exact for one round: the pair above is one of data sets, of a user who sends x where all others send
-x, replaced by one of the others. Of several rounds it is an upper bound, since in one pair of data
sets not every round need be the worst in both directions. The data sets above, the same in every
round, give a lower bound, which ``privacy.audit.referee`` computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privacy.accountants.poisson import deltas_of, gaussian_loss, grid_of


def replaced_pld(noise_multiplier: float, rate: float, interval: float) -> Any:
    """A ``dp_accounting`` ``PrivacyLossDistribution`` of a round, with pessimistic rounding.

    It is the same in both directions, on a grid of losses ``interval`` apart. The noise multiplier
    is the standard deviation of the noise in multiples of what a replaced user moves the sum by (z
    / 2), positive; ``rate`` is q = C / N, in (0, 1].
    """
    from dp_accounting.pld import privacy_loss_distribution as distributions
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    removed, added = (gaussian_loss(noise_multiplier, rate, removes) for removes in (True, False))
    first, last = grid_of(added, interval)[0], grid_of(removed, interval)[1]
    below = deltas_of(added, False, np.arange(first, 0) * interval)
    above = deltas_of(removed, True, np.arange(0, last + 1) * interval)
    deltas = np.concatenate([below, above])
    return distributions.PrivacyLossDistribution(
        create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
    )
