"""FedDyn against its algorithm by hand, and where FedAvg's clients drift apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_bench.config.loading import ResolvedConfig
from pfl_bench.federated.parts import build_engine, build_model, build_task
from pfl_bench.files import read_metrics
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError
from privacy.errors import PlanError
from tests.equivalence.test_processes import InTurn
from tests.helpers import PRIVACY, central_of, make_config, parts_of
from tests.pfl_bench.federated.test_scaffold import OPTIMUM, quadratic_run

CPU = torch.device("cpu")
ALPHA = 0.2
P = 650
FEW: dict[str, Any] = {
    "task__num_users": 5,
    "federated__num_rounds": 4,
    "federated__sampling": "fixed_size",
    "federated__cohort_size": 3,
    "federated__local_epochs": 2,
    "federated__local_batch_size": 50,
    "federated__local_learning_rate": 0.05,
    "federated__local_momentum": 0.9,
    "federated__local_weight_decay": 0.01,
}


def feddyn(alpha: float = ALPHA, **changes: Any) -> ResolvedConfig:
    algorithm = {"name": "feddyn", "alpha": alpha}
    return make_config("federated", federated__algorithm=algorithm, **changes)


def by_torch(rounds: int) -> Tensor:
    """Algorithm 1 as losses and torch.optim.SGD, with nothing of ours but the streams' names."""
    config = feddyn(**FEW)
    task = build_task(config, CPU)
    split, module = task.split("train"), build_model(config, task, CPU).module
    weights = list(module.parameters())
    x = nn.utils.parameters_to_vector(weights).detach().clone()
    h, own = torch.zeros(P), torch.zeros(5, P)
    for index in range(1, rounds + 1):
        users = stream(3, Purpose.SAMPLING, index).choice(5, size=3, replace=False)
        results = []
        for user in users.tolist():
            nn.utils.vector_to_parameters(x.clone(), weights)
            optimizer = torch.optim.SGD(weights, 0.05, 0.9, weight_decay=0.01)
            examples = split.read_user(user, np.random.default_rng())
            rng = stream(3, Purpose.LOCAL_TRAINING, index, user)
            for _ in range(2):
                order = rng.permutation(len(examples))
                for start in range(0, len(order), 50):
                    batch = order[start : start + 50]
                    w = nn.utils.parameters_to_vector(weights)
                    loss = task.loss(module(examples.inputs[batch]), examples.targets[batch])
                    loss = loss - own[user] @ w + ALPHA / 2 * (w - x).square().sum()
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            y = nn.utils.parameters_to_vector(weights).detach().clone()
            own[user] -= ALPHA * (y - x)
            results.append(y)
        h = h - ALPHA / 5 * (sum(results) - 3 * x)
        x = torch.stack(results).mean(0) - h / ALPHA
    return x


def test_rounds_are_those_of_the_paper_s_algorithm_and_resume(tmp_path: Path) -> None:
    run(feddyn(**FEW), tmp_path / "run")
    whole = central_of(tmp_path / "run")
    torch.testing.assert_close(whole, by_torch(4), rtol=0, atol=2e-6)
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        assert row["systems/bytes_up"] == row["systems/bytes_down"] == 3 * 4 * P
    # Killed after round 2.
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "checkpoints" / "step-00000004.pt").unlink()
    run(feddyn(**FEW), tmp_path / "run", resume=True)
    assert torch.equal(central_of(tmp_path / "run"), whole)


def test_it_reaches_the_optimum_where_fedavg_s_clients_drift(tmp_path: Path) -> None:
    """Losses of unlike curvature, three of five clients a round."""
    _, ours = quadratic_run({"name": "feddyn", "alpha": 3.0}, 100, 3, tmp_path)
    assert max(abs(x - OPTIMUM) for x in ours[-5:]) < 1e-2


def test_a_client_whose_update_is_not_finite_and_a_round_of_nobody_leave_no_trace() -> None:
    parts = parts_of(feddyn())
    algorithm, engine = parts.algorithm, build_engine(parts, lambda text: None)
    (result,) = engine.train(np.array([7]), 1, torch.full((P,), torch.nan))
    algorithm.learn(result, 1)  # type: ignore[attr-defined]
    assert not algorithm.state_dict()["clients"]
    out = torch.zeros(P)
    algorithm.receive(2.0, 0.0)
    algorithm.central_gradient(torch.ones(P), out)
    # h is -0.2 * 2 / 60.
    torch.testing.assert_close(out, torch.full((P,), -1.0 - 2 / 60))
    algorithm.receive(0.0, 0.0)
    algorithm.central_gradient(torch.zeros(P), out)
    assert not out.any()


def test_what_it_does_not_serve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"federated\.algorithm 'feddyn': remembers clients"):
        run(feddyn(privacy=PRIVACY), tmp_path / "run")
    with pytest.raises(ConfigError, match="set weighting: uniform"):
        run(feddyn(federated__weighting="examples"), tmp_path / "run")
    with pytest.raises(ConfigError, match="set engine: sequential, or auto"):
        run(feddyn(federated__engine="vectorized"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"set federated\.workers: 1"):
        run(feddyn(), tmp_path / "run", group=InTurn(2))
    attack = {"kind": "label_flip", "corrupted_fraction": 0.1, "labels": "mirror"}
    with pytest.raises(ConfigError, match="feddyn takes another"):
        run(feddyn(attack={**attack, "boost": "replace"}), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"federated\.algorithm\.alpha"):
        feddyn(0.0)
