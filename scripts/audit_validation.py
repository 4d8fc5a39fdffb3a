"""Are the empirical lower bounds on epsilon lower bounds? Tried where the truth is known.

    python scripts/audit_validation.py                # all: a Markdown table
    python scripts/audit_validation.py --trials 50    # quicker

Scores are drawn by their own law, without training, for mechanisms of known epsilon at delta 1e-5
(``validation.trials``). A bound is the lower end of an interval at 95 %, so it may be above the
truth in 2.5 % of trials; how many were is reported.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy.stats import binom
from validation.trials import (
    BANDED,
    DELTA,
    GAUSSIAN,
    OFTEN_SAMPLED,
    ONE_SIDED,
    REPEATED,
    SAMPLED,
    TREE,
    Array,
    Mechanism,
    Trial,
    matched_trial,
    one_run_trial,
    one_shot_trial,
    per_round_trial,
    run_trials,
)

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)

TRIALS: tuple[tuple[Mechanism, Trial], ...] = (
    (GAUSSIAN, partial(one_run_trial, count=100)),
    (GAUSSIAN, partial(one_run_trial, count=1000)),
    (GAUSSIAN, partial(one_run_trial, count=10_000)),
    (SAMPLED, partial(one_run_trial, count=1000)),
    (GAUSSIAN, one_shot_trial),
    (SAMPLED, one_shot_trial),
    (GAUSSIAN, partial(per_round_trial, count=1000)),
    (REPEATED, partial(per_round_trial, count=500)),
    (SAMPLED, partial(per_round_trial, count=20)),
    (SAMPLED, partial(matched_trial, count=1000)),
    (OFTEN_SAMPLED, partial(matched_trial, count=1000)),
    (OFTEN_SAMPLED, partial(matched_trial, count=300)),
    (OFTEN_SAMPLED, partial(one_run_trial, count=1000)),
    (BANDED, partial(matched_trial, count=1000)),
    (TREE, partial(matched_trial, count=1000)),
)


def rows(trials: int, seed: int, only: str = "") -> Iterator[str]:
    """The table, a line at a time.

    Args:
        trials: A cell.
        seed: Of the draws.
        only: Part of a mechanism's name, or of a trial's; empty for all.
    """
    most = int(binom.ppf(0.99, trials, 1.0 - ONE_SIDED))
    yield (
        f"{trials} trials a line, delta {DELTA:g}, lower ends of intervals at 95 %: "
        f"{(1.0 - ONE_SIDED) * trials:g} above the truth are expected at most, up to {most} within "
        "binomial error (99 %)."
    )
    yield ""
    yield "| method | mechanism | truth | above truth | median | 5 % to 95 % | within factor 2 |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    cells: dict[tuple[str, str], list[str]] = {}
    for mechanism, trial in TRIALS:
        if only not in f"{mechanism.name} {trial}":
            continue
        for epsilon in EPSILONS:
            for name, bounds in run_trials(mechanism, trial, epsilon, True, trials, seed).items():
                yield _row(name, mechanism, epsilon, bounds)
                cell = f"{np.median(bounds):.2f} ({int((bounds > epsilon).sum())})"
                cells.setdefault((name, mechanism.name), []).append(cell)
        for name, bounds in run_trials(mechanism, trial, 4.0, False, trials, seed).items():
            if "estimate" not in name:
                yield _no_effect_row(name, mechanism, bounds)
                cells[name, mechanism.name].append(str(int((bounds > 0).sum())))
    yield ""
    yield "In short, median (trials above the truth):"
    yield ""
    truths = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    yield f"| method | mechanism | {truths} | no effect, bound above 0 |"
    yield f"|---|---|{'---:|' * (len(EPSILONS) + 1)}"
    for (name, mechanism_name), row in cells.items():
        if "estimate" not in name:
            yield f"| {name} | {mechanism_name} | {' | '.join(row)} |"


def _row(name: str, mechanism: Mechanism, epsilon: float, bounds: Array) -> str:
    low, middle, high = np.quantile(bounds, (0.05, 0.5, 0.95))
    within = int(((bounds >= epsilon / 2) & (bounds <= 2 * epsilon)).sum())
    above = "-" if "estimate" in name else str(int((bounds > epsilon).sum()))
    return (
        f"| {name} | {mechanism.name} | {epsilon:g} | {above} | {middle:.2f} | "
        f"{low:.2f} to {high:.2f} | {within} |"
    )


def _no_effect_row(name: str, mechanism: Mechanism, bounds: Array) -> str:
    return (
        f"| {name} | {mechanism.name} | no effect | {int((bounds > 0).sum())} | "
        f"{np.median(bounds):.2f} | to {np.quantile(bounds, 0.95):.2f} | - |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="trials of mechanisms whose name has this")
    options = parser.parse_args()
    started = time.perf_counter()
    for line in rows(options.trials, options.seed, options.only):
        print(line, flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
