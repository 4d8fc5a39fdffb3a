"""Callbacks: the same run with and without them, and nothing of a private round but its release."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pfl_bench
from pfl_bench.files import read_metrics
from pfl_bench.runs.events import RELEASED, Callbacks, Evaluation, RoundEnd
from pfl_bench.types import ConfigError
from privacy.ledger import read_ledger
from tests.helpers import central_of, make_config, parts_of

SHORT: dict[str, Any] = {"federated__num_rounds": 3, "evaluation__splits": ["train", "val"]}


def flat(model: Any) -> torch.Tensor:
    return torch.cat([value.flatten() for value in model.values()])


def test_a_private_round_shows_its_release_and_nothing_else(tmp_path: Path) -> None:
    row = make_config("private_federated", **SHORT)
    ends: list[RoundEnd] = []
    seen: list[Evaluation] = []
    trainer = pfl_bench.FederatedTrainer(
        row, tmp_path, on_round_end=ends.append, on_evaluation=seen.append
    )
    result = trainer.fit()
    ledger, lines = read_ledger(tmp_path / "ledger.jsonl"), read_metrics(tmp_path / "metrics.jsonl")
    assert [end.index for end in ends] == [1, 2, 3]
    before = flat(parts_of(row).model.module.state_dict())
    for end, entry, line in zip(ends, ledger, lines, strict=True):
        assert set(end.scalars) <= RELEASED
        # Each can be computed from releases, which the ledger has too, and from the configuration.
        assert end.scalars["privacy/clip_norm"] == entry["clip_norm"]
        assert end.scalars["privacy/update_noise_stddev"] == entry["update_noise_stddev"]
        noisy = end.scalars["privacy/noisy_fraction_unclipped"]
        assert noisy == entry["noisy_fraction_unclipped"]
        rate = end.scalars["train/central_learning_rate"]
        moved = flat(end.model) - before
        assert float(moved.norm()) / rate == pytest.approx(end.scalars["train/update_norm"], 1e-4)
        before = flat(end.model)
        withheld = {name for name in line if name not in end.scalars} - {"round"}
        assert {
            "train/cohort_size", "train/num_nonfinite", "train/num_steps", "systems/steps",
            "privacy/fraction_clipped", "systems/bytes_up", "time/round_seconds",
        } <= withheld  # fmt: skip
        assert len([name for name in withheld if name.endswith("loss")]) >= 1
    assert [one.index for one in seen] == [2, 3]
    assert all(name.startswith("val/") for one in seen for name in one.metrics)
    assert seen[-1].metrics["val/accuracy"] == lines[-1]["val/accuracy"]
    assert "train/accuracy" in lines[-1], "which is withheld"
    assert torch.equal(before, central_of(tmp_path))
    assert result.metrics["test/accuracy"] > 0


def test_a_scalar_that_nobody_knows_is_withheld_from_a_private_run_alone() -> None:
    scalars = {"plugin/mean_loss": 1.0, "train/loss": 2.0, "train/update_norm": 3.0}
    measured = {"train/accuracy": 0.5, "val/accuracy": 0.25, "test/accuracy": 1.0}
    shown: list[dict[str, float]] = []
    for setting in ("private_federated", "federated"):
        config = make_config(setting, **SHORT).config
        callbacks = Callbacks(config, on_evaluation=lambda seen: shown.append(dict(seen.metrics)))
        shown.append(dict(callbacks.tell(1, scalars, measured, {}).scalars))
    assert shown == [
        {"val/accuracy": 0.25},
        {"train/update_norm": 3.0},
        {"train/accuracy": 0.5, "val/accuracy": 0.25},
        scalars,
    ]


@pytest.mark.parametrize("setting", ["private_federated", "federated"])
def test_what_a_callback_does_changes_no_bit(setting: str, tmp_path: Path) -> None:
    row = make_config(setting, federated__num_rounds=3)

    def meddle(end: RoundEnd) -> None:
        for value in end.model.values():
            value.zero_()
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        with pytest.raises(TypeError):
            end.scalars["x"] = 1.0  # type: ignore[index]

    with pfl_bench.FederatedTrainer(row, tmp_path / "a", on_round_end=meddle) as trainer:
        for end in trainer:
            meddle(end)
    pfl_bench.run_row(row, tmp_path / "b")
    assert torch.equal(central_of(tmp_path / "a"), central_of(tmp_path / "b"))
    names = ["metrics"] if setting == "federated" else ["metrics", "ledger"]
    for name in names:
        ours, theirs = (
            read_metrics(tmp_path / run / "metrics.jsonl")
            if name == "metrics"
            else read_ledger(tmp_path / run / "ledger.jsonl")
            for run in "ab"
        )
        drop = "time/round_seconds"
        assert [{k: v for k, v in line.items() if k != drop} for line in ours] == [
            {k: v for k, v in line.items() if k != drop} for line in theirs
        ]


def test_a_run_that_is_left_goes_on_where_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    row = make_config("private_federated", federated__num_rounds=3, checkpoint__every=1)
    with pfl_bench.FederatedTrainer(row, tmp_path / "run") as trainer:
        for end in trainer:
            if end.index == 2:
                break
    assert not (tmp_path / "run" / "summary.json").exists()
    again = pfl_bench.FederatedTrainer(row, tmp_path / "run", resume=True)
    assert next(again).index == 3
    result = again.fit()
    assert [line["round"] for line in result.history] == [1, 2, 3]
    pfl_bench.run_row(row, tmp_path / "whole")
    assert torch.equal(central_of(tmp_path / "run"), central_of(tmp_path / "whole"))
    finished = pfl_bench.FederatedTrainer(row, tmp_path / "run")
    assert list(finished) == []
    assert finished.fit().summary == result.summary
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_an_error_of_a_callback_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    row = make_config("federated", federated__num_rounds=3)

    def fail(seen: Evaluation) -> None:
        raise ZeroDivisionError(f"in round {seen.index}")

    with pytest.raises(ZeroDivisionError, match="in round 2"):
        pfl_bench.FederatedTrainer(row, tmp_path, on_evaluation=fail).fit()
    result = pfl_bench.FederatedTrainer(row, tmp_path, resume=True).fit()
    assert len(result.history) == 3


def test_what_is_not_federated_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of the setting 'central'; run it by run_row"):
        pfl_bench.FederatedTrainer(make_config("central"), tmp_path / "run")
    not_callable: Any = "print"
    with pytest.raises(ConfigError, match="on_round_end: 'print' cannot be called"):
        pfl_bench.FederatedTrainer(
            make_config("federated"), tmp_path / "run", on_round_end=not_callable
        )
    assert not (tmp_path / "run").exists()


def test_metrics_of_the_protected_users_are_refused(tmp_path: Path) -> None:
    """Where splits divide each user's examples, validation users are training users."""
    task = {"name": "synthetic", "num_tasks": 20, "split_by": "example"}
    private = make_config(
        "private_federated", task=task, privacy__population_size=20, federated__cohort_size=5,
        privacy__noise_cohort_size=20,
    )  # fmt: skip
    trainer = pfl_bench.FederatedTrainer(private, tmp_path / "run", on_evaluation=print)
    assert parts_of(private).task.facts.split_by == "example"
    with pytest.raises(ConfigError, match="on_evaluation: the splits of these data divide"):
        trainer.fit()
    assert not (tmp_path / "run").exists()
    # Without it, the released model is given all the same.
    end = next(pfl_bench.FederatedTrainer(private, tmp_path / "run"))
    assert end.index == 1
