"""What a planted bug is, and the settings that bugs are planted into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Edit = Callable[[Path], None]

USERS, COHORT, ROUNDS = 120, 20, 12
# Of the updates of the digits, some three in five are beyond this bound.
CLIP_NORM = 0.6
# L1 norms of the same updates are from 6 to 12.
L1_CLIP_NORM = 8.0

# A real private run of 650 parameters; what a bug changes of it comes on top.
SMALL: dict[str, Any] = {
    "task__num_users": USERS,
    "federated__num_rounds": ROUNDS,
    "federated__cohort_size": COHORT,
    "federated__local_batch_size": 64,
    # To rounding, the same updates as by the sequential engine, in two thirds of the time.
    "federated__engine": "vectorized",
    "federated__engine_lanes": 25,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": CLIP_NORM},
    "privacy__population_size": USERS,
    "privacy__noise_cohort_size": None,
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 1.0,
    "evaluation__every": 1000,
    "evaluation__splits": [],
    "evaluation__final_splits": [],
    "checkpoint__every": ROUNDS // 2,
}
ADAPTIVE = {
    "privacy__mechanism": {"name": "adaptive_gaussian", "clip_norm": CLIP_NORM, "quantile": 0.5}
}
LAPLACE = {
    "privacy__mechanism": {"name": "laplace", "clip_norm": L1_CLIP_NORM},
    "privacy__accountant": "pld",
}
LOCAL = {"privacy__mechanism": {"name": "local_gaussian", "clip_norm": CLIP_NORM}}
# A report has epsilon 1 / noise_multiplier.
PRIVUNIT = {
    "privacy__mechanism": {"name": "privunit", "clip_norm": CLIP_NORM},
    "privacy__noise_multiplier": 0.25,
    "privacy__accountant": "pld",
}
SEPARATION = 4
CYCLIC = {"federated__sampling": "cyclic_poisson", "federated__separation": SEPARATION}
BANDED = {
    **CYCLIC,
    "privacy__mechanism": {
        "name": "banded_matrix_factorization",
        "clip_norm": CLIP_NORM,
        "bands": SEPARATION,
    },
}
# Amplified by nothing: at a smaller multiplier its loss is spread so far that PLD takes seconds.
TREE = {
    **CYCLIC,
    "privacy__noise_multiplier": 4.0,
    "privacy__mechanism": {
        "name": "tree_aggregation",
        "clip_norm": CLIP_NORM,
        "restart_every": ROUNDS // 3,
    },
}
# The noise of a deployment of twice the cohort, which this run gets at the multiplier of 1.
SMALLER_COHORT = {"privacy__noise_cohort_size": 2 * COHORT, "privacy__noise_multiplier": 2.0}
# Of bugs in the sequential engine, in models that need it, and in the sums of 32 shards, which are
# one where clients train beside others.
SEQUENTIAL = {"federated__engine": "sequential", "federated__engine_lanes": None}
FIXED_SIZE = {"federated__sampling": "fixed_size"}
DEVICES = {"systems": {"source": {"name": "generated"}}}
SELECTED = {
    **DEVICES,
    "federated__sampling": "selected",
    "federated__separation": 3,
    "federated__max_participations": 3,
}
SELECTED_BANDED = {
    **SELECTED,
    "privacy__noise_multiplier": 4.0,
    "privacy__mechanism": {
        "name": "banded_matrix_factorization",
        "clip_norm": CLIP_NORM,
        "bands": 4,
    },
}


def nothing(_: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Bug:
    """One privacy bug, planted into a run of real code.

    Attributes:
        name: Machine name, unique.
        description: What is wrong, for the table.
        planted: What was changed to plant it, for the table.
        expects: Names of the audit's checks that must fail; others may too.
        lacks: Names of the checks that cannot be made, of a folder that is then incomplete.
        words: Of a bug that is refused: a part of the message.
        unseen: Of a bug that neither refuses nor fails: why the record of one run cannot show it.
        plant: Changes the code that runs; undone before the audit, which is of the real code.
        changes: Of the configuration.
        around: Stays for the audit: what is no bug, such as the model, or a bug of the audit too.
        interrupt_after: Round after which the run is interrupted, and then resumed.
        between: Changes the folder while the run is interrupted.
        after: Changes the folder of the finished run.
    """

    name: str
    description: str
    planted: str
    expects: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    words: str = ""
    unseen: str = ""
    plant: Plant = nothing
    changes: Mapping[str, Any] = field(default_factory=dict)
    around: Plant = nothing
    interrupt_after: int | None = None
    between: Edit = nothing
    after: Edit = nothing

    def __post_init__(self) -> None:
        outcomes = (self.expects, self.lacks, self.words, self.unseen)
        assert sum(map(bool, outcomes)) == 1, f"{self.name}: one outcome, not {outcomes}"
