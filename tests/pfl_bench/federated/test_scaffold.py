"""SCAFFOLD against its algorithm by hand, and where FedAvg's clients drift apart."""

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
from pfl_bench.federated.algorithms.scaffold import Scaffold
from pfl_bench.federated.parts import (
    FederatedParts,
    build_engine,
    build_model,
    build_task,
)
from pfl_bench.federated.trainer import FederatedTrainer
from pfl_bench.files import read_metrics
from pfl_bench.rng import Purpose, stream
from pfl_bench.runs.runner import run
from pfl_bench.types import ConfigError, DataFacts, Examples, LocalResult, LocalTraining
from privacy.errors import PlanError
from tests.equivalence.test_processes import InTurn
from tests.helpers import PRIVACY, central_of, make_config, parts_of

CPU = torch.device("cpu")
P = 650
RATE = 0.01
# Of the quadratics: curvatures and minima of the clients, and the minimum of their mean.
CURVATURES = np.array([1.0, 30.0, 2.0, 20.0, 1.0])
MINIMA = np.array([5.0, -1.0, 4.0, 0.0, 6.0])
OPTIMUM = float((CURVATURES * MINIMA).sum() / CURVATURES.sum())
STEPS = 10


def scaffold(**changes: Any) -> ResolvedConfig:
    return make_config("federated", federated__algorithm={"name": "scaffold"}, **changes)


class Quadratics:
    """Users whose losses are a/2 (w - b)^2: each has an example, as often as it takes steps."""

    name = "train"
    num_users = len(CURVATURES)
    num_examples = num_users
    offsets = np.arange(num_users + 1)
    facts = DataFacts("quadratics", "quadratics", "sha256:0", 1, (1,), "user")
    metrics = ()
    split_names = ("train",)

    def split(self, name: str) -> Quadratics:
        return self

    def client_ids(self) -> list[str]:
        return [str(user) for user in range(self.num_users)]

    def read_user(self, user: int, rng: np.random.Generator) -> Examples:
        return self.read_range(user, user + 1)

    def read_range(self, start: int, stop: int) -> Examples:
        roots = torch.tensor(CURVATURES[start:stop]).sqrt().float().unsqueeze(1)
        minima = torch.tensor(MINIMA[start:stop]).float().unsqueeze(1)
        return Examples(roots, roots * minima)

    def read_examples(self, indices: np.ndarray, rng: np.random.Generator) -> Examples:
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean() / 2


def quadratic_run(
    algorithm: str | dict[str, Any], rounds: int, cohort: int, folder: Path, **changes: Any
) -> tuple[FederatedTrainer, list[float]]:
    config = make_config(
        "federated",
        federated__algorithm={"name": algorithm} if isinstance(algorithm, str) else algorithm,
        federated__local_epochs=STEPS,
        federated__local_learning_rate=RATE,
        federated__num_rounds=rounds,
        federated__sampling="fixed_size",
        federated__cohort_size=cohort,
        **changes,
    )
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    model = FlatModel(module, CPU)
    trainer = FederatedTrainer(
        FederatedParts.build(config, Quadratics(), model), folder, lambda text: None
    )
    return trainer, [
        float(trainer.central) for index in range(1, rounds + 1) if trainer.advance(index)
    ]


def by_hand(rounds: int, cohort: int, decay: float = 0.0, halved_every: int = 1000) -> list[float]:
    """Algorithm 1 with option II, in double precision; central rate 1."""
    x, c, own = 0.0, 0.0, np.zeros(len(CURVATURES))
    path = []
    for index in range(1, rounds + 1):
        rng = stream(3, Purpose.SAMPLING, index)
        users = rng.choice(len(CURVATURES), size=cohort, replace=False)
        moves, changes = [], []
        rate = RATE * 0.5 ** ((index - 1) // halved_every)
        for user in users:
            y = x
            for _ in range(STEPS):
                gradient = CURVATURES[user] * (y - MINIMA[user]) + decay * y
                y -= rate * (gradient - own[user] + c)
            new = own[user] - c + (x - y) / (STEPS * rate)
            moves.append(y - x)
            changes.append(new - own[user])
            own[user] = new
        x += float(np.mean(moves))
        c += sum(changes) / len(CURVATURES)
        path.append(x)
    return path


@pytest.mark.parametrize("cohort", [5, 2])
def test_rounds_are_those_of_the_paper_s_algorithm(cohort: int, tmp_path: Path) -> None:
    _, path = quadratic_run("scaffold", 12, cohort, tmp_path)
    np.testing.assert_allclose(path, by_hand(12, cohort), rtol=1e-4, atol=1e-4)


def test_control_variates_are_of_the_round_s_rate_and_of_weight_decay(tmp_path: Path) -> None:
    schedule = {"decay": "step", "step_every": 3, "step_factor": 0.5}
    changes = {"federated__local_schedule": schedule, "federated__local_weight_decay": 4.0}
    _, path = quadratic_run("scaffold", 12, 2, tmp_path, **changes)
    np.testing.assert_allclose(path, by_hand(12, 2, 4.0, 3), rtol=1e-4, atol=1e-4)


def niid_bench_by_torch(rounds: int, sgd: dict[str, float], weighted: bool) -> Tensor:
    """The variant with torch.optim.SGD, and nothing of ours but the streams' names."""
    config = niid_bench()
    task = build_task(config, CPU)
    split, module = task.split("train"), build_model(config, task, CPU).module
    weights = list(module.parameters())
    x = nn.utils.parameters_to_vector(weights).detach().clone()
    c, own = torch.zeros(P), torch.zeros(4, P)
    for index in range(1, rounds + 1):
        users = stream(3, Purpose.SAMPLING, index).choice(4, size=3, replace=False)
        moves, counts, changes = [], [], []
        for user in users.tolist():
            nn.utils.vector_to_parameters(x.clone(), weights)
            optimizer = torch.optim.SGD(weights, **sgd)
            examples = split.read_user(user, np.random.default_rng())
            rng = stream(3, Purpose.LOCAL_TRAINING, index, user)
            steps = 0
            for _ in range(2):
                order = rng.permutation(len(examples))
                for start in range(0, len(order), 50):
                    batch = order[start : start + 50]
                    optimizer.zero_grad()
                    task.loss(module(examples.inputs[batch]), examples.targets[batch]).backward()
                    optimizer.step()
                    y = nn.utils.parameters_to_vector(weights).detach()
                    y = y - sgd["lr"] * (c - own[user])
                    nn.utils.vector_to_parameters(y.clone(), weights)
                    steps += 1
            moves.append(y - x)
            counts.append(float(len(examples)) if weighted else 1.0)
            new = own[user] - c + (x - y) / (steps * sgd["lr"])
            changes.append(new - own[user])
            own[user] = new
        x = x + torch.tensor(counts) @ torch.stack(moves) / sum(counts)
        # Flower's niid_bench, strategy.py: the weighted mean, times the cohort's part of all users.
        c = c + 3 / 4 * (torch.tensor(counts) @ torch.stack(changes) / sum(counts))
    return x


def niid_bench(**changes: Any) -> ResolvedConfig:
    variant = {"name": "scaffold", "variant": "niid_bench"}
    few = {
        "task__num_users": 4,
        "federated__algorithm": variant,
        "federated__num_rounds": 4,
        "federated__sampling": "fixed_size",
        "federated__cohort_size": 3,
        "federated__local_epochs": 2,
        "federated__local_batch_size": 50,
        "federated__local_learning_rate": 0.05,
    }
    return make_config("federated", **(few | changes))


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_niid_bench_corrects_beside_momentum_decay_and_weights(
    weighting: str, tmp_path: Path
) -> None:
    sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    changes: dict[str, Any] = {
        "federated__local_momentum": 0.9,
        "federated__local_weight_decay": 0.01,
        "federated__weighting": weighting,
    }
    run(niid_bench(**changes), tmp_path / "run")
    by_hand = niid_bench_by_torch(4, sgd, weighting == "examples")
    torch.testing.assert_close(central_of(tmp_path / "run"), by_hand, rtol=0, atol=1e-6)
    # Without the correction beside the momentum, it is far from there.
    changes["federated__algorithm"] = {"name": "fedavg"}
    run(niid_bench(**changes), tmp_path / "fedavg")
    assert float((central_of(tmp_path / "fedavg") - by_hand).norm()) > 1e-2


def test_the_variants_are_one_without_momentum(tmp_path: Path) -> None:
    run(niid_bench(), tmp_path / "niid_bench")
    run(niid_bench(federated__algorithm={"name": "scaffold"}), tmp_path / "paper")
    assert torch.equal(central_of(tmp_path / "niid_bench"), central_of(tmp_path / "paper"))


@pytest.mark.parametrize(("cohort", "rounds"), [(5, 40), (2, 120)])
def test_it_reaches_the_optimum_where_fedavg_s_clients_drift(
    cohort: int, rounds: int, tmp_path: Path
) -> None:
    """Ten local steps on losses of unlike curvature: FedAvg's fixed point is another."""
    _, ours = quadratic_run("scaffold", rounds, cohort, tmp_path)
    _, fedavg = quadratic_run("fedavg", rounds, cohort, tmp_path)
    assert max(abs(x - OPTIMUM) for x in ours[-5:]) < 1e-3
    assert abs(float(np.mean(fedavg[-20:])) - OPTIMUM) > 0.2


def test_without_control_variates_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    """All are zero in the first round; in the second, not."""
    same = []
    for rounds in (1, 2):
        changes = {"federated__num_rounds": rounds, "federated__local_epochs": 3}
        ours, fedavg = tmp_path / f"ours{rounds}", tmp_path / f"fedavg{rounds}"
        run(scaffold(**changes), ours)
        run(make_config("federated", **changes), fedavg)
        same.append(torch.equal(central_of(ours), central_of(fedavg)))
    assert same == [True, False]


def test_a_correction_is_added_to_each_step_s_clipped_gradient() -> None:
    config = make_config("federated")
    task = build_task(config, CPU)
    model = build_model(config, task, CPU)
    start_vector = model.vector.clone()
    local = LocalTraining(2, 1000, 0.3, gradient_clip_global_norm=0.01)
    forward = Forward(model.module, task, CPU)
    added = torch.randn(P, generator=torch.Generator().manual_seed(0))

    def update(correction: Tensor | None) -> Tensor:
        engine = SequentialEngine(
            Options(),
            model,
            task.split("train"),
            forward,
            local,
            3,
            correction=lambda user: correction,
        )
        (result,) = engine.train(np.array([7]), 1, start_vector)
        return result.update.clone()

    assert torch.equal(update(None), update(torch.zeros(P)))
    examples = task.split("train").read_user(7, np.random.default_rng())
    model.vector.copy_(start_vector)
    for _ in range(2):
        loss = task.loss(model.module(examples.inputs), examples.targets)
        found = torch.autograd.grad(loss, model.parameters)
        gradient = torch.cat([part.reshape(-1) for part in found])
        gradient *= min(1.0, 0.01 / float(gradient.norm()))
        model.vector.sub_(0.3 * (gradient + added))
    by_steps = model.vector - start_vector
    torch.testing.assert_close(update(added), by_steps, rtol=1e-4, atol=1e-5)


def test_a_client_whose_update_is_not_finite_leaves_no_trace() -> None:
    parts = parts_of(scaffold())
    algorithm, engine = parts.algorithm, build_engine(parts, lambda text: None)
    (result,) = engine.train(np.array([7]), 1, torch.full((P,), torch.nan))
    algorithm.learn(result, 1.0, 1)  # type: ignore[attr-defined]
    algorithm.central_gradient(torch.zeros(P), torch.zeros(P))
    state = algorithm.state_dict()
    assert not state["control"].any()
    assert not state["clients"]


@pytest.mark.parametrize(("steps", "rate"), [(0, 0.1), (3, 0.0)])
def test_a_client_that_takes_no_step_or_has_no_rate_keeps_its_control_variate(
    steps: int, rate: float
) -> None:
    algorithm = Scaffold(LocalTraining(epochs=1, batch_size=4, learning_rate=rate))
    algorithm.begin(10, torch.zeros(2))
    own = torch.tensor([1.0, -2.0])
    algorithm.load_state_dict({"control": torch.tensor([3.0, 4.0]), "clients": {7: own}})
    result = LocalResult(7, torch.zeros(2), 5, steps, torch.tensor(0.0), 0)
    algorithm.learn(result, 1.0, 1)
    algorithm.central_gradient(torch.zeros(2), torch.zeros(2))
    state = algorithm.state_dict()
    assert state["clients"][7].tolist() == [1.0, -2.0]
    assert state["control"].tolist() == [3.0, 4.0]


def test_a_run_learns_sends_twice_as_much_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    config = scaffold(checkpoint={"every": 2, "keep": 10}, federated__num_rounds=8)
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    summary = run(config, straight)
    assert summary["metrics"]["test/accuracy"] > 0.7
    for row in read_metrics(straight / "metrics.jsonl"):
        assert row["systems/bytes_up"] == row["train/cohort_size"] * 2 * 4 * P
        assert row["systems/bytes_down"] == row["systems/bytes_up"]
    run(config, cut)
    (cut / "summary.json").unlink()
    for path in (cut / "checkpoints").iterdir():
        if path.name != "step-00000002.pt":
            path.unlink()
    run(config, cut, resume=True)
    assert torch.equal(central_of(cut), central_of(straight))


def test_its_update_can_be_compressed_but_not_its_control_variate(tmp_path: Path) -> None:
    trainer, _ = quadratic_run("scaffold", 1, 5, tmp_path)
    assert trainer._parts.upload_bytes == trainer._parts.download_bytes == 8
    compression = {"name": "top_k", "k": 65}
    run(scaffold(federated__compression=compression), tmp_path / "run")
    size = 4 * P + math.ceil((65 * 32 + 650) / 8)
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        assert row["systems/bytes_up"] == row["train/cohort_size"] * size


def test_a_private_run_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"\['control_variate'\] would reach the server in the"):
        run(scaffold(privacy=PRIVACY), tmp_path / "run")


def test_slots_processes_weights_and_momentum_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set engine: sequential, or auto"):
        run(scaffold(federated__engine="vectorized"), tmp_path / "run")
    words = r"what federated\.algorithm 'scaffold' keeps of clients; set federated\.workers: 1"
    with pytest.raises(ConfigError, match=words):
        run(scaffold(), tmp_path / "run", group=InTurn(2))
    with pytest.raises(ConfigError, match="set weighting: uniform"):
        run(scaffold(federated__weighting="examples"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"local_momentum: 0\.9 with scaffold, whose control"):
        run(scaffold(federated__local_momentum=0.9), tmp_path / "run")


def test_auto_takes_one_process_where_clients_are_remembered() -> None:
    feedback = {"name": "top_k", "fraction": 0.1, "error_feedback": True}
    without = {"name": "top_k", "fraction": 0.1}

    def one(config: ResolvedConfig) -> bool:
        return bool(parts_of(config).needs_one_process)

    assert not one(make_config("federated"))
    assert not one(make_config("federated", federated__compression=without))
    assert one(make_config("federated", federated__compression=feedback))
    assert one(scaffold())
