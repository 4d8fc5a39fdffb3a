#!/usr/bin/env python
"""Published epsilons of example-level DP, computed again from the rows that reproduce the runs.

    python scripts/published_epsilons.py      # the table of docs/privacy.md, in Markdown

Guarantee of the numbers: all are upper bounds, at delta 1e-5. "As the source computes" takes the
source's theory: batches as Poisson samples of the steps that it runs, Renyi divergences at its
orders, and the older conversion, min over a of D_a + log(1 / delta) / (a - 1) (Mironov 2017).
"Poisson, pld" is the same claim by privacy loss distributions. "Proven" is of the batches that the
rows draw: cut from shuffled orders, they have no amplification that is proven.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from opacus.accountants.analysis.rdp import compute_rdp

from pfl_bench.api import load_row
from privacy.amplification import Participation
from privacy.calibration import epsilon_of_rounds
from privacy.noise.feature_statistics import FeatureStatistics
from privacy.plan.example_level import example_level_composition

# Those of Opacus and of TensorFlow Privacy; the source's code is named in the head of each row.
_ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(12, 64)])
_EXAMPLES = {"mnist": 60_000, "fashion": 60_000, "cifar10": 50_000}
PUBLISHED = {
    "opacus/epsilon_1_16": 1.16,
    "opacus/epsilon_2_91": 2.91,
    "opacus/epsilon_6_86": 6.86,
    "tensorflow_privacy/epsilon_1_20_as_published": 1.20,
    "tensorflow_privacy/epsilon_2_92_as_published": 2.92,
    "tensorflow_privacy/epsilon_9_74_as_published": 9.74,
    "handcrafted/mnist_cnn_as_published": 3.0,
    "handcrafted/mnist_scattering_as_published": 3.0,
    "handcrafted/fashion_mnist_cnn_as_published": 3.0,
    "handcrafted/fashion_mnist_scattering_as_published": 3.0,
    "handcrafted/cifar10_cnn_as_published": 3.0,
    "handcrafted/cifar10_scattering_as_published": 3.0,
}


@dataclass(frozen=True)
class Claim:
    """A published epsilon, and what it comes to here.

    Attributes:
        row: Below ``configs/dp_sgd``.
        published: The epsilon.
        theirs: As the source computes it.
        pld: Of Poisson samples.
        proven: Of the batches that the row draws.
    """

    row: str
    published: float
    theirs: float
    pld: float
    proven: float

    @property
    def verdict(self) -> str:
        """Whether the source's number comes out, and whether it holds."""
        # The published number is rounded, or was a target that the noise was searched for.
        comes_out = abs(self.theirs - self.published) <= 0.005 * self.published
        found = "comes out" if comes_out else "differs"
        return f"{found}, {'holds' if self.proven <= self.published else 'not proven'}"


def claim(row: str, published: float) -> Claim:
    """Compute a row's epsilons."""
    config = load_row(f"dp_sgd/{row}.yaml").config
    central, privacy = config.central, config.privacy
    assert central is not None
    assert privacy is not None
    noise, delta = privacy.noise_multiplier, privacy.delta
    assert noise is not None
    assert delta is not None
    examples = next(n for name, n in _EXAMPLES.items() if config.task["name"].startswith(name))
    batch, given = central.batch_size, privacy.statistics
    is_shuffled = central.sampling == "shuffled"
    steps = central.num_epochs * (examples // batch if is_shuffled else math.ceil(examples / batch))
    divergences = np.array(
        compute_rdp(
            q=batch / examples, noise_multiplier=noise, steps=steps, orders=_ORDERS.tolist()
        )
    )
    statistics = None if given is None else FeatureStatistics(**given.model_dump())
    if statistics is not None:
        divergences += 2 * _ORDERS / (2.0 * statistics.noise_multiplier**2)
    theirs = float(np.min(divergences - math.log(delta) / (_ORDERS - 1.0)))
    composition = example_level_composition(statistics)
    pld, proven = (
        epsilon_of_rounds(
            Participation.named(scheme, examples, batch), noise, steps, delta, "pld", composition
        )
        for scheme in ("poisson", central.sampling)
    )
    return Claim(row, published, theirs, pld, proven)


def markdown() -> Iterator[str]:
    """The table, a line each."""
    heads = ("row of `dp_sgd`", "published", "as the source computes", "Poisson, pld", "proven")
    yield f"| {' | '.join(heads)} | verdict |"
    yield "|---|---:|---:|---:|---:|---|"
    for one in (claim(row, published) for row, published in PUBLISHED.items()):
        numbers = " | ".join(f"{value:.4g}" for value in (one.theirs, one.pld, one.proven))
        yield f"| {one.row} | {one.published:g} | {numbers} | {one.verdict} |"


if __name__ == "__main__":
    print("\n".join(markdown()))
