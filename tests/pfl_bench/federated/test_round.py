"""Scalars of a round, and what the algorithm learns of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_bench.federated.parts import FederatedParts, build_model, build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.federated.workers.messages import SharedTraining
from tests.helpers import make_config

NOISE = {
    "privacy__epsilon": None,
    "privacy__noise_multiplier": 1.0,
    "privacy__mechanism": {"name": "gaussian", "clip_norm": 0.5},
}
DECAY = {"decay": "linear", "final_fraction": 0.1}


@pytest.mark.parametrize("setting", ["federated", "private_federated"])
def test_scalars_are_of_what_the_cohort_sent(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        setting,
        federated__num_rounds=9,
        federated__central_learning_rate=0.5,
        federated__central_schedule=DECAY,
        federated__local_learning_rate=0.2,
        federated__local_schedule=DECAY,
        **(NOISE if "private" in setting else {}),
    )
    task = build_task(config, torch.device("cpu"))
    parts = FederatedParts.build(config, task, build_model(config, task, torch.device("cpu")))
    cohorts: list[np.ndarray] = []
    told: list[tuple[float, float]] = []
    train = SharedTraining.train

    def counted(training: Any, users: np.ndarray, *rest: Any) -> Any:
        """Other numbers than those of the training, no two of them equal."""
        cohorts.append(users)
        aggregate, statistics = train(training, users, *rest)
        aggregate.num_contributions, aggregate.num_clipped, aggregate.num_nonfinite = 8, 2, 3
        statistics.loss, statistics.steps = 24.0, 6
        statistics.weight, statistics.scalar = 5.0, 10.0
        return aggregate, statistics

    monkeypatch.setattr(SharedTraining, "train", counted)
    monkeypatch.setattr(type(parts.algorithm), "receive", lambda _, *given: told.append(given))
    trainer = FederatedTrainer(parts, tmp_path, lambda text: None)
    trainer.last = 3  # as a budget may have it
    monkeypatch.setattr(FederatedParts, "upload_bytes", 3.0)
    work, cohort = trainer.expected_work(), parts.options.cohort_size
    assert (work.clients, work.bytes_up) == (3 * cohort, 3 * cohort * 3.0)
    assert work.bytes_down == 3 * cohort * parts.download_bytes
    assert work.examples == pytest.approx(3 * cohort * np.diff(parts.split.offsets).mean())
    trainer.begin(0)
    for index in (1, 2):
        before, factor = trainer.central.clone(), 1 - 0.9 * index / 9
        scalars = trainer.advance(index)
        assert scalars["train/cohort_size"] == len(cohorts[-1])
        assert scalars["train/loss"] == 24 / 8
        assert scalars["train/num_nonfinite"] == 3
        assert scalars["train/local_learning_rate"] == pytest.approx(0.2 * factor)
        assert scalars["train/central_learning_rate"] == pytest.approx(0.5 * factor)
        moved = float((trainer.central - before).norm())
        assert scalars["train/update_norm"] * 0.5 * factor == pytest.approx(moved, rel=1e-4)
        if "private" in setting:
            assert scalars["privacy/fraction_clipped"] == 2 / 8
    trainer.close()
    if trainer.plan is not None:
        trainer.total = 20  # of which a budget allows nine
        assert trainer.claim(None) == trainer.plan.statement(9, "planned")
    assert cohorts[0].tolist() != cohorts[1].tolist()
    # What came in has no noise: of a private round the algorithm learns the configuration alone.
    assert told == [(cohort, 0.0) if "private" in setting else (5.0, 2.0)] * 2
