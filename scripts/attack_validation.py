"""Do attacks on real users see what is there, and nothing more? On the digits, which need no files.

    python scripts/attack_validation.py                  # a Markdown table
    python scripts/attack_validation.py --shadows 8      # quicker

Sixteen users with few classes each share the digits, so that one user matters. Three rows: without
privacy; with epsilon 1 at delta 0.001; and the same claim with a planted bug, noise that is never
added. Each is attacked from as many shadow runs by each kind of attack. Beside the area under the
ROC curve and the rates stands what the claim allows, and the verdict.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from pfl_bench.config.row_files import bundled_configs
from pfl_bench.runs.membership import KINDS, attack
from pfl_bench.runs.runner import run
from pfl_bench.runs.shadows import shadow_plans
from privacy.mechanisms import gaussian

USERS = (
    "task.num_users=16",
    "task.label_concentration=0.02",
    "federated.cohort_size=8",
    "federated.num_rounds=8",
    "federated.local_epochs=1",
    "federated.local_batch_size=32",
)
PRIVATE = (
    *USERS,
    "privacy.mechanism={name: gaussian, clip_norm: 0.5}",
    "privacy.population_size=16",
    "privacy.noise_cohort_size=null",
    "privacy.epsilon=1.0",
    "privacy.delta=0.001",
)
# Name, bundled row, overrides, whether the noise is lost.
ROWS = (
    ("without privacy", "demo/federated.yaml", USERS, False),
    ("epsilon 1", "demo/private_federated.yaml", PRIVATE, False),
    ("epsilon 1, noise never added", "demo/private_federated.yaml", PRIVATE, True),
)


def _no_noise(total: Tensor, stddev: float, cohort: float, rng: Any) -> Tensor:
    return total / cohort


def rows(shadows: int, folder: Path) -> Iterator[str]:
    """The table, a line at a time.

    Args:
        shadows: Shadow runs a row, at least 4.
        folder: Of the runs.
    """
    yield f"{shadows} shadow runs of 16 users a row; TPR at 1 % false positives."
    yield ""
    yield "| row | attack | AUC | TPR | allowed | epsilon is at least | wealth | verdict |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    real = gaussian.noised_mean
    for place, (name, row, overrides, is_lost) in enumerate(ROWS):
        out = folder / str(place)
        resolved, plans = shadow_plans(bundled_configs() / row, overrides, shadows, out)
        gaussian.noised_mean = _no_noise if is_lost else real  # type: ignore[assignment]
        for run_folder, plan in plans:
            run(plan, run_folder)
        gaussian.noised_mean = real
        for kind in KINDS:
            yield f"| {name} | {kind} | {_cells(attack(kind, resolved, plans, out, 0.99))} |"


def _cells(found: dict[str, Any]) -> str:
    rate, verdict = found["rates"][1], found["verdict"]
    allowed = f"{rate['allowed']:.3f}" if "allowed" in rate else "-"
    wealth = "-" if verdict["wealth"] is None else f"{verdict['wealth']:.3g}"
    outcome = {None: "no claim", False: "within the claim", True: "**above the claim**"}
    return (
        f"{found['auc']:.3f} | {rate['true_positive_rate']:.3f} | {allowed} | "
        f"{verdict['epsilon']:.2f} | {wealth} | {outcome[verdict['refuted']]}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shadows", type=int, default=64)
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for line in rows(options.shadows, Path(folder)):
            print(line, flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
