"""The mathematics of Mocha: dual losses, local dual ascent, relationship matrices.

The primal problem over the models w_t of m clients, with W = [w_1 ... w_m] and a fixed relationship
matrix Omega (symmetric, positive definite, trace 1), is

    P(W) = sum_t sum_i loss(y_ti <w_t, x_ti>) + lambda / 2 * tr(W Omega^-1 W^T).

With dual variables y_ti a_ti, b_t = sum_i a_ti y_ti x_ti and B = [b_1 ... b_m], its dual is

    D(a) = - sum_ti conjugate(-a_ti) - 1 / (2 lambda) * tr(B Omega B^T),    W = B Omega / lambda,

and D(a) <= P(W), equal at the solution. K classes are K such problems, one against the rest, that
share Omega.

Source: Smith et al. 2017, section 3 and its appendix; Zhang and Yeung 2010 (the relationship). The
paper sums losses over a client's examples, as here; its published code takes each client's mean.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

# Large matrices go through torch, whose threads the configuration sets.
Array = NDArray[np.float64]
NEWTON_STEPS = 50
NEWTON_TOLERANCE = 1e-10
TINY = 1e-300


class Hinge:
    """The convex loss max(0, 1 - margin) of support vector machines."""

    def value(self, margins: Array) -> Array:
        """The loss of each margin."""
        return np.maximum(0.0, 1.0 - margins)

    def conjugate(self, duals: Array) -> Array:
        """The convex conjugate at the negative of each dual variable, which lies in 0 to 1."""
        return -duals

    def maximise(self, dual: Array, margin: Array, curvature: float) -> Array:
        """Solve for one example's dual variables, all else fixed.

        Here by a step to the parabola's lowest point, cut to 0 to 1.

        Args:
            dual: Shape (K,): the variables as they are.
            margin: Shape (K,): the example's margins under the models that they belong to.
            curvature: How much a margin moves with its dual variable, positive.

        Returns:
            Shape (K,): the minimisers a of
            ``conjugate(-a) + (a - dual) * margin + curvature / 2 * (a - dual)^2``.
        """
        moved: Array = dual + (1.0 - margin) / curvature
        return moved.clip(0.0, 1.0)


class Logistic:
    """The loss log(1 + exp(-margin)) of logistic regression."""

    def value(self, margins: Array) -> Array:
        """The loss of each margin."""
        return np.logaddexp(0.0, -margins)

    def conjugate(self, duals: Array) -> Array:
        """Minus the entropy of a coin that shows heads with probability ``duals``."""
        return _x_log_x(duals) + _x_log_x(1.0 - duals)

    def maximise(self, dual: Array, margin: Array, curvature: float) -> Array:
        """See ``Hinge.maximise``: Newton's method on the log odds, within a shrinking bracket."""
        # The root z of z + margin + curvature * (sigmoid(z) - dual), which rises in z.
        low = -margin - curvature * (1.0 - dual)
        high = -margin + curvature * dual
        # From where the variable was: after some rounds that is nearly the root.
        odds = np.log(np.maximum(dual, TINY)) - np.log(np.maximum(1.0 - dual, TINY))
        z = np.clip(odds, low, high)
        for _ in range(NEWTON_STEPS):
            share = 0.5 * (1.0 + np.tanh(0.5 * z))
            slope = z + margin + curvature * (share - dual)
            low, high = np.where(slope > 0, low, z), np.where(slope > 0, z, high)
            step = slope / (1.0 + curvature * share * (1.0 - share))
            if np.abs(step).max() < NEWTON_TOLERANCE:
                break
            newton = z - step
            z = np.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        found: Array = 0.5 * (1.0 + np.tanh(0.5 * z))
        return found


def _x_log_x(x: Array) -> Array:
    return x * np.log(np.where(x > 0, x, 1.0))


DualLoss = Hinge | Logistic
LOSSES: dict[str, DualLoss] = {"hinge": Hinge(), "logistic": Logistic()}


def local_ascent(
    features: Array,
    signs: Array,
    duals: Array,
    model: Array,
    scale: float,
    order: NDArray[np.int64],
    loss: DualLoss,
) -> Array:
    """Improve a client's dual variables by coordinate ascent on its data-local subproblem.

    Minimises over the change of ``duals``, one example after another, the client's conjugates plus
    ``<w_t, db> + scale / 2 * |db|^2``, where db is the change of b_t that they make.

    Args:
        features: Shape (n, d).
        signs: Shape (n, K): 1 for an example's class, -1 for the others.
        duals: Shape (n, K), within 0 to 1; changed in place.
        model: Shape (d, K): the client's w_t of each class.
        scale: sigma' * Omega_tt / lambda.
        order: Examples to visit, in order; may repeat.
        loss: The loss.

    Returns:
        Shape (d, K): db, how b_t has changed.

    Source: Smith et al. 2017, equation 4; Shalev-Shwartz and Zhang 2013 (the coordinate steps).
    """
    moving = model.copy()
    # An example of zeros moves no model, but has a best dual variable too.
    curvatures = np.maximum(scale * np.einsum("nd,nd->n", features, features), TINY)
    for i in order.tolist():
        x, sign = features[i], signs[i]
        before = duals[i]
        after = loss.maximise(before, sign * (x @ moving), curvatures[i])
        moving += np.multiply.outer(scale * x, sign * (after - before))
        duals[i] = after
    change: Array = (moving - model) / scale
    return change


def sigma_prime(relationship: Array) -> float:
    """The paper's sigma' with gamma = 1: how much clients' steps could add up.

    The smallest number with tr(B Omega B^T) <= sigma' * sum_t Omega_tt |b_t|^2 for all B: the
    largest eigenvalue of Omega scaled to a diagonal of ones. It keeps the sum of all clients'
    local steps, and of any part of them, an ascent of the dual. The paper bounds it from above by
    row sums.

    Source: Smith et al. 2017, equation 5.
    """
    roots = np.sqrt(np.diag(relationship))
    scaled = relationship / np.multiply.outer(roots, roots)
    return float(torch.linalg.eigvalsh(torch.from_numpy(scaled))[-1])


def independent_relationship(num_clients: int) -> Array:
    """Clients that have nothing to do with one another: I / m."""
    return np.eye(num_clients) / num_clients


def mean_relationship(num_clients: int, mean_ridge: float) -> Array:
    """Clients near their mean.

    The inverse of ``(I - J / m) + mean_ridge * I``, J of ones, scaled to trace 1: the term is then,
    up to that scale, the squared distances of the models from their mean plus ``mean_ridge`` times
    their squared norms.

    Source: Evgeniou and Pontil 2004; Smith et al. 2017, appendix (mean-regularised).
    """
    centre = np.full((num_clients, num_clients), 1.0 / num_clients)
    inverse = (np.eye(num_clients) - centre) / (1.0 + mean_ridge) + centre / mean_ridge
    scaled: Array = inverse / np.trace(inverse)
    return scaled


def learned_relationship(models: Array, smoothing: float) -> Array:
    """The relationship that fits the models best.

    Args:
        models: Shape (m, D): a row a client, W^T.
        smoothing: epsilon as a fraction of the mean eigenvalue of W^T W; 0 for none.

    Returns:
        Shape (m, m): (W^T W + epsilon I)^(1/2), scaled to trace 1, which minimises
        ``tr(W Omega^-1 W^T) + epsilon tr(Omega^-1)`` among positive definite matrices of trace 1.
        I / m if all models are zero.

    Source: Zhang and Yeung 2010, equation 9 (without epsilon); Argyriou et al. 2008 (epsilon).
    """
    count = len(models)
    left, singular, _ = torch.linalg.svd(torch.from_numpy(models), full_matrices=False)
    squares = singular**2
    total = float(squares.sum())
    if not total > 0:
        return independent_relationship(count)
    epsilon = smoothing * total / count
    # Directions that no model has are left with the root of epsilon alone.
    beyond = epsilon**0.5
    root = (left * (torch.sqrt(squares + epsilon) - beyond)) @ left.T
    root += beyond * torch.eye(count, dtype=root.dtype)
    root = 0.5 * (root + root.T)
    scaled: Array = (root / root.trace()).numpy()
    return scaled
