"""q-FedAvg against its algorithm by hand, and against FedAvg where they are the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_bench.client.engines.sequential import Options, SequentialEngine
from pfl_bench.client.flat_model import FlatModel
from pfl_bench.client.forward import Forward
from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.algorithms.qfedavg import WeighsByLoss
from pfl_bench.federated.parts import FederatedParts, build_model, build_task
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import read_metrics
from pfl_bench.runs.runner import run
from pfl_bench.types import ClientUpload, ConfigError, LocalResult, LocalTraining
from privacy.aggregate import Aggregate
from privacy.errors import PlanError
from privacy.mechanisms.none import NoPrivacy
from tests.equivalence.test_processes import InTurn
from tests.helpers import PRIVACY, central_of, make_config

CPU = torch.device("cpu")
ALL_USERS: dict[str, Any] = {"federated__sampling": "full", "federated__cohort_size": 60}


def qfedavg(q: float, **changes: Any) -> ResolvedConfig:
    return make_config("federated", federated__algorithm={"name": "qfedavg", "q": q}, **changes)


def central(config: ResolvedConfig, folder: Path, **settings: Any) -> Tensor:
    run(config, folder, **settings)
    return central_of(folder)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_with_q_0_it_is_fedavg_bit_for_bit(weighting: str, tmp_path: Path) -> None:
    changes = {"federated__weighting": weighting, "federated__local_epochs": 2}
    ours = central(qfedavg(0.0, **changes), tmp_path / "ours")
    fedavg = central(make_config("federated", **changes), tmp_path / "fedavg")
    assert torch.equal(ours, fedavg)
    other = central(qfedavg(1.0, **changes), tmp_path / "other")
    assert not torch.equal(ours, other)


@torch.no_grad()
def loss_of(task: Any, model: FlatModel, user: int) -> tuple[float, int]:
    """Of all that a user has, and how many examples that are."""
    examples = task.split("train").read_user(user, np.random.default_rng())
    return float(task.loss(model.module(examples.inputs), examples.targets)), len(examples)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("q", [0.2, 1.0, 3.0])
def test_a_round_is_that_of_the_paper_s_algorithm(q: float, weighting: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"federated__weighting": weighting, "federated__local_epochs": 2}
    # Half of the rate of 0.3 in the first of six rounds.
    changes["federated__local_schedule"] = {"warmup": 2}
    config = qfedavg(q, **changes, **ALL_USERS)
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    start = model.vector.clone()
    trainer = FederatedTrainer(
        FederatedParts.build(config, task, model), tmp_path, lambda text: None
    )
    trainer.advance(1)
    split = task.split("train")
    # FedAvg's clients, and the loss of the start on all that each of them has.
    forward = Forward(model.module, task, CPU)
    engine = SequentialEngine(Options(), model, split, forward, LocalTraining(2, 4, 0.15), 3)
    moves = [result.update.clone() for result in engine.train(np.arange(60), 1, start)]
    model.vector.copy_(start)
    above, below = torch.zeros(650, dtype=torch.float64), 0.0
    lipschitz = 1 / 0.15
    for user, move in enumerate(moves):
        loss, examples = loss_of(task, model, user)
        delta = -lipschitz * move.double()
        share = examples if weighting == "examples" else 1
        above += share * loss**q * delta
        squared = float(delta.square().sum())
        below += share * (q * loss ** (q - 1) * squared + lipschitz * loss**q)
    by_hand = start - (above / below).float()
    torch.testing.assert_close(trainer.central, by_hand, rtol=1e-4, atol=1e-6)


class Twice(nn.Module):
    """Doubles while it trains, as dropout might; draws, too."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (2 + torch.rand(())) if self.training else inputs


def test_the_loss_at_the_start_is_that_of_all_examples_without_dropout() -> None:
    config = make_config("federated", task__num_users=2)
    task = build_task(config, CPU)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), Twice(), nn.Linear(64, 10))
    model = FlatModel(module, CPU)
    start = model.vector.clone()
    forward = Forward(module, task, CPU)
    split = task.split("train")
    found = []
    for measures in (False, True):
        local = LocalTraining(1, 16, 0.3, measures_start=measures)
        engine = SequentialEngine(Options(), model, split, forward, local, 3)
        (result,) = engine.train(np.array([1]), 1, start)
        found.append((result.start_loss, result.update.clone()))
    (none, plain), (loss, measured) = found
    assert none is None
    # The random streams of training are those that they were.
    assert torch.equal(plain, measured)
    module.eval()
    model.vector.copy_(start)
    expected, examples = loss_of(task, model, 1)
    # More than one batch.
    assert examples > 300
    assert loss == pytest.approx(expected, rel=1e-5)


def send(q: float, loss: float, update: Tensor, weight: float = 1.0) -> ClientUpload:
    result = LocalResult(0, update, 1, 1, torch.zeros(()), 1, loss)
    return WeighsByLoss(q, LocalTraining(1, 1, 0.1)).send(
        ClientUpload(update, weight, 12.0), result, 1
    )


def test_a_larger_loss_weighs_more_and_the_weight_takes_four_bytes() -> None:
    update = torch.tensor([0.3, 0.0, 0.4])
    small, large = send(1.0, 0.5, update), send(1.0, 2.0, update)
    # a = 1 + q L |u|^2 / F, by hand.
    assert small.weight == pytest.approx(0.5 * (1 + 10 * 0.25 / 0.5))
    assert large.weight == pytest.approx(2.0 * (1 + 10 * 0.25 / 2.0))
    torch.testing.assert_close(large.update, update / 2.25)
    # What each brings to the numerator is in proportion to F^q.
    torch.testing.assert_close(large.update * large.weight, 4 * small.update * small.weight)
    assert small.num_bytes == 16.0


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e200, 1e20])
def test_what_is_too_large_for_the_sum_is_not_finite(loss: float) -> None:
    sent = send(2.0, loss, torch.ones(3))
    assert math.isfinite(sent.weight)
    assert not bool(sent.update.isfinite().any())
    # So is a weight that fits, times an update that makes too much of it.
    assert not bool(send(1.0, 1e20, torch.full((3,), 1e12)).update.isfinite().any())
    # Just below, the sum of a round holds it.
    below = send(2.0, 1e14, torch.ones(3))
    aggregate, mechanism = Aggregate.zeros(3), NoPrivacy()
    for upload in (sent, below, below):
        mechanism.accumulate(aggregate, upload.update, upload.weight)
    assert (aggregate.num_nonfinite, aggregate.num_contributions) == (1, 2)
    mean = mechanism.release(aggregate, np.random.default_rng()).mean_update
    torch.testing.assert_close(mean, below.update)


def test_what_a_replaced_model_reckons_with_does_not_hold(tmp_path: Path) -> None:
    attack = {"kind": "label_flip", "corrupted_fraction": 0.1, "labels": "mirror"}
    with pytest.raises(ConfigError, match="qfedavg takes another"):
        run(qfedavg(1.0, attack={**attack, "boost": "replace"}), tmp_path / "run")


def test_in_a_round_of_rate_0_a_client_counts_for_its_loss_and_moves_nothing() -> None:
    still = LocalTraining(1, 1, 0.1, schedule=lambda index: 0.0)
    result = LocalResult(0, torch.zeros(3), 1, 1, torch.zeros(()), 1, 0.5)
    sent = WeighsByLoss(2.0, still).send(ClientUpload(result.update, 3.0, 12.0), result, 1)
    assert sent.weight == 3.0 * 0.5**2
    assert not sent.update.any()


def test_a_loss_of_zero_is_no_division_by_zero() -> None:
    sent = send(0.5, 0.0, torch.zeros(3))
    assert math.isfinite(sent.weight)
    assert not sent.update.any()


def test_losses_spread_less_than_with_fedavg(tmp_path: Path) -> None:
    """The claim of the paper: the losses of unlike clients come closer to one another."""
    changes: dict[str, Any] = {"federated__num_rounds": 8, "federated__local_learning_rate": 0.05}
    spreads = []
    for q in (0.0, 2.0):
        config = qfedavg(q, **changes, **ALL_USERS)
        task = build_task(config, CPU)
        model = build_model(config, task, CPU)
        model.vector.copy_(central(config, tmp_path / f"{q}"))
        losses = [loss_of(task, model, user)[0] for user in range(60)]
        spreads.append(np.std(losses) / np.mean(losses))
    assert spreads[1] < spreads[0]


def test_results_do_not_depend_on_processes_and_bytes_are_counted(tmp_path: Path) -> None:
    config = qfedavg(1.0, federated__num_rounds=3)
    one = central(config, tmp_path / "one")
    assert torch.equal(one, central(config, tmp_path / "three", group=InTurn(3)))
    for row in read_metrics(tmp_path / "one" / "metrics.jsonl"):
        assert row["systems/bytes_up"] == row["train/cohort_size"] * (4 * 650 + 4)
        assert row["systems/bytes_down"] == row["train/cohort_size"] * 4 * 650


def test_a_private_run_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"\['weight'\] would reach the server in the clear"):
        run(qfedavg(1.0, privacy=PRIVACY), tmp_path / "run")


def test_slots_and_a_negative_q_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set engine: sequential, or auto"):
        run(qfedavg(1.0, federated__engine="vectorized"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"federated\.algorithm\.q"):
        qfedavg(-1.0)


@pytest.mark.parametrize("key", ["local_momentum", "local_weight_decay"])
def test_steps_that_are_not_plain_sgd_s_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"federated\.{key}: 0\.5 with qfedavg, which"):
        run(qfedavg(1.0, **{f"federated__{key}": 0.5}), tmp_path / "run")
